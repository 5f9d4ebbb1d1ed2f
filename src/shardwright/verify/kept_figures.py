"""What compilers said before, in figures alone: small files in the user's cache folder, so that tuning goes on.

A file is named by all that its figures depend on: the module, the target, the options, the versions of JAX and of the
compiler (``compiled_before.question_of``), and how the figures are read. One that is damaged is as good as none, and
those that were not used for longest go when all take more than ``MOST_BYTES``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax import export

from shardwright._version import __version__
from shardwright.ir.program import Source
from shardwright.plan.verdicts import CompiledCollective, Involuntary, LineSeconds
from shardwright.request.targets import Target
from shardwright.verify.compiled_before import digest, question_of

MOST_BYTES = 2**26
_FORM = 1
_MOST_COLLECTIVES, _MOST_BEHIND, _MOST_LINES = 2_000, 3, 2_000
_OF_LISTS = {"collectives": CompiledCollective, "involuntary": Involuntary, "lines": LineSeconds}


def cache_folder() -> Path:
    """Where the platform wants caches of a user's programs; ``XDG_CACHE_HOME`` is respected everywhere."""
    if given := os.environ.get("XDG_CACHE_HOME"):
        base = Path(given)
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path.home() / ".cache"
    return base / "shardwright" / "compiled"


@dataclass(frozen=True)
class KeptFigures:
    """Figures of compilations in a folder, of at most so many bytes."""

    folder: Path
    most_bytes: int = MOST_BYTES

    def name(
        self,
        exported: export.Exported,
        task: Mapping[str, Any],
        target: Target,
        seconds_of_kernels: Mapping[str, float] | None = None,
    ) -> str:
        """The name of a compilation's figures."""
        read = [_FORM, __version__, target.name, repr(target.placed_device), dict(seconds_of_kernels or {})]
        return digest([question_of(exported, task), read])

    def recall(self, name: str) -> dict[str, Any] | None:
        """The figures of that name, or None where there are none that can be read."""
        path = self._path(name)
        try:
            found = _read(json.loads(path.read_text(encoding="utf-8")))
            os.utime(path)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None
        return found

    def remember(self, name: str, found: Mapping[str, Any]) -> None:
        """Keep figures, whole or not at all; no trouble of the disk is anybody's."""
        with contextlib.suppress(OSError, TypeError, ValueError):
            text = json.dumps({"form": _FORM, **_plain(found)})
            self.folder.mkdir(parents=True, exist_ok=True)
            number, part = tempfile.mkstemp(dir=self.folder, suffix=".part")
            with os.fdopen(number, "w", encoding="utf-8") as file:
                file.write(text)
            Path(part).replace(self._path(name))
            self._prune()

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _prune(self) -> None:
        """Take away what was not used for longest, but never the last."""
        files = sorted((path.stat().st_mtime, path.stat().st_size, path) for path in self.folder.glob("*.json"))
        over = sum(size for _, size, _ in files) - self.most_bytes
        for _, size, path in files[:-1]:
            if over <= 0:
                break
            path.unlink(missing_ok=True)
            over -= size


def _plain(found: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of JSON's types; of very many collectives and lines the first, which are enough to learn from."""
    out = dict(found)
    collectives = [
        dataclasses.replace(c, behind=c.behind[:_MOST_BEHIND]) for c in out.get("collectives", ())[:_MOST_COLLECTIVES]
    ]
    out |= {"collectives": collectives, "lines": out.get("lines", ())[:_MOST_LINES]}
    return {**out, **{name: [dataclasses.asdict(each) for each in out.get(name, ())] for name in _OF_LISTS}}


def _read(content: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse; raises where it is not what was written."""
    found = dict(content)
    if found.pop("form") != _FORM or not (
        isinstance(found.get("compile_seconds"), (int, float)) or isinstance(found.get("error"), str)
    ):
        raise ValueError
    for name, made in _OF_LISTS.items():
        found[name] = tuple(made(**_listed(each)) for each in found[name])
    step, peak = found.get("step_seconds"), found.get("peak_bytes")
    if not isinstance(step, (int, float, type(None))) or not isinstance(peak, (int, type(None))):
        raise ValueError
    return found


def _listed(given: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(given)
    if "axes" in out:
        out |= {"axes": tuple(out["axes"]), "behind": tuple((line, seconds) for line, seconds in out["behind"])}
    if "source" in out and isinstance(out["source"], dict):
        out["source"] = Source(**{**out["source"], "callers": tuple(map(tuple, out["source"]["callers"]))})
    return out
