"""What compilers said before, kept in a folder by what they were given, so that nothing is compiled twice.

It is on where the environment variable ``SHARDWRIGHT_COMPILED`` names a folder. A compilation is known by its module
without locations, its task (topology, mesh, donation, options) and the versions of JAX and of the compiler. An answer
is a folder with the files that the compiler's process left; one that is damaged is as good as none, and the ones that
were not used for longest go when all take more than ``SHARDWRIGHT_COMPILED_BYTES``.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jax import export

from shardwright._jax import parse_module

FOLDER, BYTES = "SHARDWRIGHT_COMPILED", "SHARDWRIGHT_COMPILED_BYTES"
_FILES = ("hlo.txt.gz", "log.txt", "result.json")
_MOST_BYTES = 8 * 2**30
_COMPILERS = ("jax", "jaxlib", "libtpu", "jax-cuda12-pjrt", "jax-cuda13-pjrt")


def answer_folder(exported: export.Exported, task: Mapping[str, Any]) -> Path | None:
    """Where the answer to a task is, or would be; None where nothing is kept."""
    return folder_of(question_of(exported, task)) if os.environ.get(FOLDER) else None


def question_of(exported: export.Exported, task: Mapping[str, Any]) -> list[Any]:
    """All that a compiler's answer depends on, of JSON's types: the module without locations, the task, versions."""
    text = parse_module(exported.mlir_module().encode()).get_asm(enable_debug_info=False)
    kinds = [str(aval) for aval in (*exported.in_avals, *exported.out_avals)]
    given = [text, kinds, [repr(s) for s in (exported.in_shardings_hlo, exported.out_shardings_hlo)]]
    return [given, dict(task), _versions()]


def folder_of(question: Any) -> Path | None:
    """Where the answer to a question of JSON's types is, or would be; None where nothing is kept."""
    base = os.environ.get(FOLDER)
    return Path(base).expanduser() / digest(question) if base else None


def digest(question: Any) -> str:
    """A name for a question of JSON's types."""
    return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:24]


def recall(kept: Path | None, folder: Path) -> str | None:
    """Lay the files of an answer into the folder of a child; what the compiler printed, or None if there is none."""
    if kept is None or not (kept / "result.json").exists():
        return None
    try:
        json.loads((kept / "result.json").read_text())
        log = (kept / "log.txt").read_text()
        for name in _FILES:
            if (kept / name).exists():
                shutil.copyfile(kept / name, folder / name)
        os.utime(kept)
    except (OSError, ValueError):
        return None
    return log


def remember(kept: Path | None, folder: Path, log: str) -> None:
    """Keep what a child left, whole or not at all; no trouble of the disk is anybody's."""
    if kept is None or not (folder / "result.json").exists():
        return
    with contextlib.suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=kept.parent))
        (part / "log.txt").write_text(log)
        for name in _FILES:
            if (folder / name).exists():
                shutil.copyfile(folder / name, part / name)
        shutil.rmtree(kept, ignore_errors=True)
        part.rename(kept)
        _prune(kept.parent)


def _prune(base: Path) -> None:
    found = sorted((path.stat().st_mtime, path) for path in base.iterdir() if (path / "result.json").exists())
    sizes = {path: sum(file.stat().st_size for file in path.iterdir()) for _, path in found}
    over = sum(sizes.values()) - int(os.environ.get(BYTES, _MOST_BYTES))
    for _, path in found[:-1]:
        if over <= 0:
            break
        shutil.rmtree(path, ignore_errors=True)
        over -= sizes[path]


def _versions() -> list[str]:
    out = []
    for name in _COMPILERS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            out.append(f"{name} {importlib.metadata.version(name)}")
    return out
