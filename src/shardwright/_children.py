"""Other processes, in which compilers may crash: they end when this one does, and leave nothing behind."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from shardwright.errors import PlanError

# Runs a module (-m NAME) or a script (PATH). A thread waits for the end of standard input, which comes when the process
# that asked is gone, even by a signal that it cannot catch: then nobody wants an answer, or removes the folder.
_WATCHED = """
import os, runpy, shutil, signal, sys, threading
def watch(folder):
    while os.read(0, 1):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)
threading.Thread(target=watch, args=[os.getcwd()], daemon=True).start()
del sys.argv[0]
if sys.argv[0] == "-m":
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    runpy.run_path(sys.argv[0], run_name="__main__")
"""
_NOT_INHERITED = ("PYTHONINSPECT", "PYTHONSTARTUP", "XLA_FLAGS")  # a device count or a dump is not meant for a child


@dataclass(frozen=True)
class Ended:
    """How a process ended, and what it printed.

    Attributes:
        code: its exit code, or the negative of a signal; None where it took too long and was ended.
        output: its standard output.
        complaints: its standard error.

    """

    code: int | None
    output: str
    complaints: str


class _Terminated(BaseException):
    """SIGTERM, as an exception, so that everything on the way out is cleared up."""


@contextlib.contextmanager
def child_folder() -> Iterator[Path]:
    """A new folder to exchange files with a child, removed at the end whatever happens, SIGTERM included.

    A process that has no handler for SIGTERM would end at once. It gets one for this time, and ends by the same signal
    when the folder is gone. A handler that is there already is left alone.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        with _temporary_folder() as folder:
            yield folder
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        with _temporary_folder() as folder:
            yield folder
    except _Terminated:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(*_: Any) -> None:
    raise _Terminated


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    try:
        # What a process writes that is just being killed may stand in the way.
        folder = tempfile.TemporaryDirectory(prefix="shardwright-", ignore_cleanup_errors=True)
    except OSError as error:
        raise PlanError(f"cannot make a temporary folder: {error.strerror or error}; set TMPDIR to another.") from None
    with folder:
        try:
            yield Path(folder.name)
        except OSError as error:
            if error.filename is not None and not str(error.filename).startswith(folder.name):
                raise  # of a file of the user's
            raise PlanError(
                f"cannot use the temporary folder {folder.name}: {error.strerror or error}; set TMPDIR to another."
            ) from None


def run_child(
    python: str | os.PathLike[str],
    started: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    timeout_seconds: float,
) -> Ended:
    """Run ``-m module`` or a script, with its arguments, by a Python interpreter, in a folder of ``child_folder``.

    The process gets a session of its own: Ctrl-C in a terminal does not reach it, and what it has started ends with it.
    """
    command = [os.fspath(python), "-P", "-c", _WATCHED, *started]
    kept_open, writer = os.pipe()
    process = None
    try:
        with _in_memory() as output, _in_memory() as complaints:
            process = subprocess.Popen(
                command,
                env=dict(environment),
                cwd=folder,
                stdin=kept_open,
                stdout=output,
                stderr=complaints,
                start_new_session=True,
            )
            try:
                code: int | None = process.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                code = None
                _kill(process)
            ended = Ended(code, *(_text(stream) for stream in (output, complaints)))
    finally:
        if process is not None:
            _kill(process)
        os.close(kept_open)
        os.close(writer)
    if code and f"[Errno {errno.ENOSPC}]" in ended.complaints:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return ended


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _in_memory() -> IO[bytes]:
    """A file for what a process prints; not on a disk, for that the disk is full must be said somewhere."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("printed"), "w+b")
    return tempfile.TemporaryFile()


def _text(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode(errors="replace")


def child_environment() -> dict[str, str]:
    """The variables of a child by this same interpreter, which finds the same packages as this process.

    Python's own library comes first and the user's folders last: a ``json.py`` of theirs is not the one that is meant.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    return {**kept, "PYTHONPATH": os.pathsep.join(_search_path())}


def _search_path() -> list[str]:
    own = sysconfig.get_path("stdlib")
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    users = {os.path.abspath(folder) for folder in ("", os.path.dirname(main or ""))}

    def rank(folder: str) -> int:
        return 0 if folder == own or os.path.basename(folder) == "lib-dynload" else 2 if folder in users else 1

    # "" is where the user is; a relative folder would be another one where the child works.
    return sorted(dict.fromkeys(os.path.abspath(folder) for folder in sys.path), key=rank)
