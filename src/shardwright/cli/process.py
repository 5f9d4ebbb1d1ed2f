"""The command line as a process: what signals do to it, and what becomes of its streams."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from shardwright._start import end_at_once, handle_interrupts
from shardwright.cli.exits import INTERRUPTED, MISTAKE, TERMINATED

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
