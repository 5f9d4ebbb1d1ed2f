"""Results as JSON lines: each is written when it is known, and read again by the next run."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import shardwright
from benchmarks.contenders.cases import Case
from benchmarks.contenders.contender import Contender
from shardwright.errors import PlanError

Row = dict[str, Any]


def row_key(case: Case, contender: Contender) -> Row:
    """All that a result depends on: the case's settings, the contender's, versions, and the code that decides."""
    return {
        "case": case.to_dict(),
        "contender": contender.name,
        "options": dict(contender.options),
        "versions": {**contender.environment.versions, "shardwright": shardwright.__version__},
        "code": fingerprint(contender.source),
    }


def fingerprint(paths: tuple[str, ...]) -> str:
    """A short digest of files, and of all Python files in folders, of the package or of `benchmarks/`."""
    package, project = Path(shardwright.__file__).parent, Path(__file__).parents[2]
    digest = hashlib.sha256()
    for path in sorted(paths):
        root = project if path.startswith("benchmarks/") else package
        found = sorted((root / path).rglob("*.py") if (root / path).is_dir() else root.glob(path))
        if not found:
            raise FileNotFoundError(f"there is no {path}, which results depend on.")
        for file in found:
            digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


class Rows:
    """A file of rows. Of rows with the same key the last counts."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._known = {_text(row["key"]): row for row in read_rows(file)}

    def find(self, key: Mapping[str, Any]) -> Row | None:
        """The row of a key, if there is one."""
        return self._known.get(_text(key))

    def add(self, key: Mapping[str, Any], found: Mapping[str, Any]) -> Row:
        """Write a row at once, whole: what a kill leaves half-written is passed over when the file is read."""
        row = {"key": dict(key), **found}
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            start = "\n" if _cut_short(self.file) else ""
            with self.file.open("a") as file:
                file.write(start + json.dumps(row) + "\n")
                file.flush()
                if self.file.is_file():
                    os.fsync(file.fileno())
        except OSError as error:
            raise PlanError(f"cannot write a row to {self.file}: {error.strerror or error}.") from None
        self._known[_text(key)] = row
        return row


def read_rows(file: Path) -> Iterator[Row]:
    """The rows of a file, in order; lines that are no rows are passed over."""
    if not file.is_file():  # a pipe or a device has none
        return
    for line in file.read_text(errors="replace").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(row, dict) and "key" in row:
            yield row


def _text(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)


def _cut_short(file: Path) -> bool:
    return file.is_file() and file.stat().st_size > 0 and not file.read_bytes().endswith(b"\n")
