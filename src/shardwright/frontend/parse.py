"""A StableHLO module parsed: first in a process of its own, where a crash of the parser does no harm, then here."""

from __future__ import annotations

import json
import re
import signal
import sys
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from shardwright import _jax
from shardwright._children import Ended, child_environment, child_folder, run_child
from shardwright.errors import ModuleError

_TIMEOUT_SECONDS = 600.0


def parse_file(file: Path, data: bytes) -> Any:
    """The module operation in a file's content; raises ``ModuleError`` with the reason where there is none."""
    if reason := _refused(data):
        raise ModuleError(f"{file} cannot be read: {reason}")
    try:
        return _jax.parse_module(data)
    except ValueError as error:
        raise ModuleError(f"{file} is not a valid StableHLO module: {_reason(str(error))}") from None


@lru_cache(maxsize=4)  # a module is parsed again for each use of it
def _refused(data: bytes) -> str:
    """Why a module must not be parsed in this process; empty if it may, or if the parser will say it better."""
    with child_folder() as folder:
        (folder / "module").write_bytes(data)
        script = folder / "parse_child.py"
        script.write_bytes(resources.files(__package__).joinpath("parse_child.py").read_bytes())
        ended = run_child(
            sys.executable,
            [str(script), str(folder)],
            folder=folder,
            environment=child_environment(),
            timeout_seconds=_TIMEOUT_SECONDS,
        )
    if ended.code is None:
        return f"the parser of MLIR did not end within {_TIMEOUT_SECONDS:.0f} seconds."
    try:
        return str(json.loads(ended.output.splitlines()[-1])["complaint"])
    except (IndexError, ValueError, KeyError, TypeError):
        return f"the parser of MLIR {_crash(ended)}; the file is damaged, or nested too deeply."


def _crash(ended: Ended) -> str:
    if ended.code is not None and ended.code < 0:
        return f"crashed ({signal.Signals(-ended.code).name})"
    words = ended.complaints.strip().splitlines()
    return f"gave up ({words[-1][:200] if words else 'no reason given'})"


def _reason(text: str) -> str:
    """The parser's first complaint, in one line: ``line 3: custom op 'foo' is unknown``."""
    first = next((line for line in text.splitlines() if "error:" in line), text)
    message = " ".join(first.split("error:", 1)[-1].split())
    place = re.match(r'"[^"]*":(\d+):\d+: ', message)
    if place:
        message = f"line {place.group(1)}: {message[place.end() :]}"
    return message[:300] or "the parser gave no reason."
