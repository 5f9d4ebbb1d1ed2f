"""Files that are written whole or not at all, and names that stand for no such file: devices, pipes, open streams."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from shardwright.errors import PlanError

AnyPath = str | os.PathLike[str]

_MOST_LINKS = 40
"""As many symbolic links as Linux follows."""
_CANNOT_REPLACE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EXDEV}
"""The folder is not ours to change, the owner cannot be kept, or a mount stands on the file (as containers have it)."""

_IS_FOLDER = "it is a folder; name a file in it"


def write_whole(path: AnyPath, content: str | bytes, what: str) -> None:
    """Write a text, or bytes; nothing half-written stays behind. ``what`` it is, is said where it cannot be written.

    A file takes the place of the old one at once, with its mode and owner, and a symbolic link stays and leads to it;
    of two writers one is last. Where the file may be written and its folder may not, it is written in place, and what
    it was comes back if that fails. A device, a pipe and an open stream (``/dev/stdout``) are written to.
    """
    data = content if isinstance(content, bytes) else content.encode(errors="backslashreplace")
    try:
        stream = open_stream(path)
        if stream is not None:
            _write_stream(stream, data)
        else:
            _write_file(os.fspath(Path(path)), data)
    except (OSError, ValueError) as error:  # ValueError: a name with a null character
        reason = getattr(error, "strerror", None) or error
        raise PlanError(f"cannot write {what} to {os.fspath(path)}: {reason}.") from None


def check_outputs(outputs: Mapping[str, AnyPath | None], inputs: Mapping[str, AnyPath] | None = None) -> None:
    """Raise where a file could not be written, or two are one: before the work rather than after it.

    Each output and input is named as the user named it (``--save``).
    """
    taken: dict[object, str] = {}
    for name, source in (inputs or {}).items():
        taken[_identity(source)] = name
    for name, path in outputs.items():
        if path is None or os.path.realpath(path) == os.devnull:
            continue
        identity = _identity(path)
        if identity in taken and taken[identity] in (inputs or {}):
            raise PlanError(
                f"{name} would overwrite {os.fspath(path)}, which {taken[identity]} is read from; name another file."
            )
        if identity in taken:
            raise PlanError(f"{taken[identity]} and {name} would both write to {os.fspath(path)}; name two files.")
        taken[identity] = name
        if open_stream(path) is None and (reason := _why_not(os.fspath(Path(path)))):
            raise PlanError(f"cannot write {os.fspath(path)}: {reason}.")


def open_stream(path: AnyPath) -> int | None:
    """The number of the open file that a name such as ``/dev/stdout`` stands for, itself or by symbolic links."""
    numbered = {os.path.realpath(folder) for folder in ("/dev/fd", "/proc/self/fd")}
    name = os.fspath(path)
    for _ in range(_MOST_LINKS):
        folder, last = os.path.split(name)
        folder = os.path.realpath(folder)
        if folder in numbered and last.isdecimal():
            return int(last)
        if not os.path.islink(name):
            return None
        name = os.path.join(folder, os.readlink(name))
    return None


def _write_stream(number: int, data: bytes) -> None:
    for stream in (sys.stdout, sys.__stdout__, sys.stderr):
        if stream is not None:
            stream.flush()  # what was printed before comes first
    with open(number, "wb", closefd=False) as file:
        file.write(data)


def _write_file(path: str, data: bytes) -> None:
    target = os.path.realpath(path)
    try:
        old = os.stat(path)
    except FileNotFoundError:
        if reason := _no_folder(path):
            raise OSError(0, reason) from None
        _put(target, data, None)
        return
    if stat.S_ISDIR(old.st_mode):
        raise OSError(0, _IS_FOLDER)
    number = os.open(target, os.O_WRONLY)  # asks for the right to write, which replacing a file does not
    try:
        if not stat.S_ISREG(old.st_mode):
            _write_all(number, data)
            return
        try:
            _put(target, data, old)
        except OSError as error:
            if error.errno not in _CANNOT_REPLACE:
                raise
            _overwrite(target, number, data)
    finally:
        os.close(number)


def _put(target: str, data: bytes, old: os.stat_result | None) -> None:
    """Write beside the target, under a name that nobody can foresee, and rename."""
    temporary = os.path.join(os.path.dirname(target), f".shardwright-{secrets.token_hex(8)}")
    number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if old is None else 0o600)
    try:
        try:
            if old is not None:
                new = os.fstat(number)
                if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
                    os.chown(temporary, old.st_uid, old.st_gid)
                shutil.copystat(target, temporary)
            _fill(number, data)
        finally:
            os.close(number)
        os.replace(temporary, target)
    except BaseException:  # Ctrl-C, too
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _overwrite(target: str, number: int, data: bytes) -> None:
    before = None
    with contextlib.suppress(OSError):  # it may be written and not read
        before = Path(target).read_bytes()
    try:
        _fill(number, data)
    except BaseException:
        if before is not None:
            with contextlib.suppress(OSError):
                _fill(number, before)
        raise


def _fill(number: int, data: bytes) -> None:
    """Make data all that is in a file; old blocks are kept until the new ones are there."""
    os.lseek(number, 0, os.SEEK_SET)
    _write_all(number, data)
    os.ftruncate(number, len(data))
    os.fsync(number)  # some file systems tell only here that the disk is full


def _write_all(number: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(number, rest) :]


def _identity(path: AnyPath) -> object:
    """Equal for names of one file, whether it exists or not."""
    try:
        stream = open_stream(path)
        found = os.stat(path) if stream is None else os.fstat(stream)
    except (OSError, ValueError):
        return os.path.realpath(path)
    return found.st_dev, found.st_ino


def _why_not(path: str) -> str:
    """Why a file cannot be written, as far as that can be told without trying."""
    if os.path.isdir(path):
        return _IS_FOLDER
    if os.path.exists(path):
        return "" if _may_write(path) else os.strerror(errno.EACCES)
    folder = os.path.dirname(os.path.realpath(path))
    return _no_folder(path) or ("" if _may_write(folder) else f"{os.strerror(errno.EACCES)}: {folder}")


def _no_folder(path: str) -> str:
    folder = os.path.dirname(os.path.realpath(path) if os.path.islink(path) else path) or "."
    return "" if os.path.isdir(folder) else f"there is no folder {folder}"


def _may_write(path: str) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)
