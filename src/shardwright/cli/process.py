"""The command line as a process: its devices and exit codes, what signals do to it, what becomes of its streams."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import jax

from shardwright._start import INTERRUPTED, end_at_once, handle_interrupts


def need_no_accelerator() -> None:
    """Have JAX look for none, whatever ``JAX_PLATFORMS`` says.

    To plan for a device takes none. Where its libraries are installed and it is not there, looking for one fails, or
    takes seconds and prints warnings; where it is there, it would be taken from who uses it.
    """
    jax.config.update("jax_platforms", "cpu")


__all__ = ["DOES_NOT_FIT", "INTERRUPTED", "MISTAKE", "NOBODY_READS", "TERMINATED"]

MISTAKE = 2
"""A mistake in the call, or something outside that is missing, full or not permitted."""
DOES_NOT_FIT = 3
"""No plan that fits, or a check that says so."""
NOBODY_READS = 141
"""Who read standard output has gone, as head does; as shells count SIGPIPE."""
TERMINATED = 143
"""SIGTERM, as shells count it."""


interrupted = threading.Event()
terminated = threading.Event()
"""Whether Ctrl-C was pressed, or SIGTERM came. What they stop may end by another exception, or go on and end."""


class Terminated(SystemExit):
    """SIGTERM as an exception, so that compilers are ended and files removed on the way out."""


def run_process(command: Callable[[], Any]) -> NoReturn:
    """Run a command that raises ``SystemExit`` at its end, with this process at its disposal."""
    if sys.stdout is None:
        say("standard output is closed; send it to /dev/null if nobody wants it.")
        sys.exit(MISTAKE)
    handle_interrupts(_interrupt)
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = _raise_again
    code: Any = 0
    try:
        command()
    except SystemExit as ended:
        code = ended.code
    except (Exception, KeyboardInterrupt):
        if terminated.is_set():
            code = TERMINATED
        elif interrupted.is_set():
            say("interrupted.")
            code = INTERRUPTED
        else:
            raise
    handle_interrupts(end_at_once)  # all that is left is to clear up
    _close_output()
    sys.exit(code)


def say(sentence: str) -> None:
    """Say how it ended, if anybody listens."""
    with contextlib.suppress(OSError, ValueError):
        print(f"shardwright: {sentence}", file=sys.stderr, flush=True)


def _interrupt(*_: Any) -> None:
    interrupted.set()
    raise KeyboardInterrupt


def _terminate(*_: Any) -> None:
    terminated.set()
    raise Terminated(TERMINATED)


def _raise_again(lost: Any) -> None:
    """Python only prints what is raised where it cannot be passed on, as in a destructor."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        _thread.interrupt_main()
    elif issubclass(lost.exc_type, Terminated):
        signal.raise_signal(signal.SIGTERM)
    else:
        sys.__unraisablehook__(lost)


def _close_output() -> None:
    """What is printed after the results, by whoever clears up, is none of them."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os.dup2(2, 1)
