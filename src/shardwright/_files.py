"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from shardwright.errors import PlanError


def write_whole(path: str | os.PathLike[str], content: str | bytes, what: str) -> None:
    """Write a text, or bytes; nothing half-written stays behind. ``what`` it is, is said where it cannot be written."""
    target = Path(path)
    temporary = target.with_name(target.name + ".part") if target.name else target
    try:
        if target.is_dir():
            raise OSError(0, "it is a folder; name a file in it")
        if not target.parent.is_dir():
            raise OSError(0, f"there is no folder {target.parent}")
        temporary.write_bytes(content if isinstance(content, bytes) else content.encode())
        temporary.replace(target)
    except OSError as error:
        if temporary != target:
            with contextlib.suppress(OSError):
                temporary.unlink()
        raise PlanError(f"cannot write {what} to {target}: {error.strerror or error}.") from None
