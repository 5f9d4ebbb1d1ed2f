"""What the command of a shell needs before anything else, for JAX alone takes a second to import.

The first line of this package imports it. Where the package is only a library, it changes nothing: signals and streams
are the user's.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as of typing, which takes a while to import
if TYPE_CHECKING:
    from collections.abc import Callable

INTERRUPTED = 130
"""The exit code for Ctrl-C, as shells count it."""


def is_command() -> bool:
    """Whether this process is ``shardwright`` or ``python -m shardwright``."""
    name = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    if name == "-m":  # as long as Python looks for the module
        return any(word in ("shardwright", "-mshardwright") for word in sys.orig_argv)
    return name in ("shardwright", "shardwright.exe")


try:
    import signal
except KeyboardInterrupt:
    if not is_command():
        raise
    os._exit(INTERRUPTED)


def end_at_once(*_: object) -> None:
    """Ctrl-C while nothing is at stake. An exception may be lost, or become another, inside of an import."""
    os.write(2, b"\nshardwright: interrupted.\n")
    os._exit(INTERRUPTED)


def handle_interrupts(handler: Callable[..., object]) -> None:
    """Have Ctrl-C handled so, unless it is ignored here, as of processes in the background."""
    if signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None):
        signal.signal(signal.SIGINT, handler)


def occupy_standard_streams() -> None:
    """Open the null device for each stream that is closed, or the next file that is opened would take its place."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


if is_command():
    handle_interrupts(end_at_once)
    occupy_standard_streams()
