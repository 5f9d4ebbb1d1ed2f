"""From a StableHLO file, text or bytecode, of any framework, to a ``Program``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from shardwright import _jax
from shardwright.errors import ModuleError
from shardwright.ir.build import build_program
from shardwright.ir.loops import TripCounts
from shardwright.ir.program import Program


def read_stablehlo(
    path: str | os.PathLike[str], *, trip_counts: TripCounts = None, rules: Mapping[str, str] | None = None
) -> Program:
    """Read a module from a file; arguments are called as the module calls them, or ``arg0``, ``arg1``, …"""
    file = Path(path)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ModuleError(f"cannot read {file}: {error.strerror or error}.") from None
    try:
        module = _jax.parse_module(data)
    except ValueError as error:
        reason = next((line for line in str(error).splitlines() if "error:" in line), str(error).strip())
        raise ModuleError(f"{file} is not a valid StableHLO module: {_one_line(reason)}") from None
    return build_program(module, name=file.stem, trip_counts=trip_counts, user_rules=rules)


def _one_line(text: str) -> str:
    text = text.split("error:", 1)[-1].strip().strip('"')
    line = " ".join(text.split())
    return line[:300] if line else "the parser gave no reason."
