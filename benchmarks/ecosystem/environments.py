"""Virtual environments for libraries that do not install together, made once and kept in a folder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import jax

REPOSITORY = Path(__file__).parents[2]


def environment(cache: Path, name: str, packages: Sequence[str]) -> Path:
    """The Python of an environment with ``packages``, Optax, this Shardwright, and the JAX that runs here."""
    folder = cache / name
    python, ready = folder / "bin" / "python", folder / "ready"
    wanted = ["optax", *packages, f"jax=={jax.__version__}"]
    if not ready.exists() or ready.read_text().split() != wanted:
        uv = _installer(cache)
        _run(uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder)
        _run(uv, "pip", "install", "--quiet", "--python", python, "--editable", f"{REPOSITORY}[tpu]", *wanted)
        ready.write_text(" ".join(wanted))
    return python


def _installer(cache: Path) -> Path:
    """Uv, which resolves in seconds what takes pip minutes, and links files that environments share."""
    folder = cache / "installer"
    if not (folder / "bin" / "uv").exists():
        _run(sys.executable, "-m", "venv", folder)
        _run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", "uv")
    return folder / "bin" / "uv"


def _run(*command: str | Path) -> None:
    shown = [str(part) for part in command]
    done = subprocess.run(shown, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(shown)} failed: {done.stderr.strip()[-2000:]}")
