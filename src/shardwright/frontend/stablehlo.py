"""From a StableHLO file, text or bytecode, of any framework, to a ``Program``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from shardwright import _jax
from shardwright.errors import ModuleError
from shardwright.ir.build import read_module
from shardwright.ir.loops import TripCounts
from shardwright.ir.program import Program, Source


def read_stablehlo(
    path: str | os.PathLike[str], *, trip_counts: TripCounts = None, rules: Mapping[str, str] | None = None
) -> Program:
    """Read a module from a file; arguments are called as the module calls them, else ``arg0``, ``arg1`` and so on."""
    file = Path(path)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ModuleError(f"cannot read {file}: {error.strerror or error}.") from None
    try:
        module = _jax.parse_module(data)
    except ValueError as error:
        raise ModuleError(f"{file} is not a valid StableHLO module: {_reason(str(error))}") from None
    try:
        return read_module(
            module, name=file.stem, origin=Source(str(file)), trip_counts=trip_counts, user_rules=rules
        ).program
    except ModuleError as error:
        raise ModuleError(f"{file}: {error}") from None


def _reason(text: str) -> str:
    """The parser's first complaint, in one line: ``line 3: custom op 'foo' is unknown``."""
    first = next((line for line in text.splitlines() if "error:" in line), text)
    message = " ".join(first.split("error:", 1)[-1].split())
    place = re.match(r'"[^"]*":(\d+):\d+: ', message)
    if place:
        message = f"line {place.group(1)}: {message[place.end() :]}"
    return message[:300] or "the parser gave no reason."
