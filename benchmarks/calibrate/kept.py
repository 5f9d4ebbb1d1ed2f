"""The folder of compiled texts: which file is whose, and compiling what is not there yet."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

_BATCH = 60
_SECONDS = 900.0
_UNSAFE = re.compile(r"[^\w.-]+")


def text_file(folder: Path, key: str) -> Path:
    """The file of a program's text."""
    return folder / f"{_stem(key)}.hlo.gz"


def refusal_file(folder: Path, key: str) -> Path:
    """The file with the reason why a program has no text."""
    return folder / f"{_stem(key)}.refused.txt"


def _stem(key: str) -> str:
    return f"{_UNSAFE.sub('_', key)[:90]}.{hashlib.sha256(key.encode()).hexdigest()[:8]}"


def read_text(folder: Path, key: str) -> str | None:
    """A program's text, or None where the compiler refused it or was not asked yet."""
    file = text_file(folder, key)
    return gzip.open(file, "rt").read() if file.exists() else None


def compile_missing(
    module: str, topology: str, folder: Path, keys: Sequence[str], say: Callable[[str], None] = print
) -> None:
    """Compile what has neither a text nor a reason, some programs to a process; one that kills it is a refusal."""
    folder.mkdir(parents=True, exist_ok=True)
    while left := [k for k in keys if not text_file(folder, k).exists() and not refusal_file(folder, k).exists()]:
        say(f"{topology}: {len(left)} programs to compile")
        command = [sys.executable, "-m", module, topology, str(folder), *left[:_BATCH]]
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "TPU_SKIP_MDS_QUERY": "1",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        }
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_SECONDS)
            begun, failed, words = done.stdout.split("\n"), done.returncode != 0, done.stderr
        except subprocess.TimeoutExpired as error:
            begun, failed, words = (error.stdout or b"").decode().split("\n"), True, "it took too long"
        if not failed:
            continue
        last = next((key for key in reversed(begun) if key in left), left[0])
        if not text_file(folder, last).exists():
            refusal_file(folder, last).write_text(f"the compiler's process ended: {words[-2000:]}")
