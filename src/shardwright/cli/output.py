"""Where output goes: results to standard output, everything else to standard error."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console, RenderableType

from shardwright._console import plain_text
from shardwright._files import check_outputs, open_stream

_STDOUT = "/dev/stdout"


def output_option(name: str, told: str) -> Callable[[Any], Any]:
    """An option that names a file to write, ``-`` for standard output."""
    return click.option(
        name,
        metavar="FILE",
        type=click.Path(),
        callback=lambda _context, _option, path: _STDOUT if path == "-" else path,
        help=told,
    )


def check_files(files: Mapping[str, str | None], source: Path | None, *, only_result: bool) -> bool:
    """Raise where files cannot be written, or would overwrite each other, the target or what goes to standard output.

    Returns whether one of them is standard output, so that what is for people goes to standard error.
    """
    streamed = any(path is not None and open_stream(path) == 1 for path in files.values())
    printed = {"what is printed": _STDOUT if only_result or not streamed else None}
    check_outputs({**printed, **files}, {} if source is None else {"TARGET": source})
    return streamed


def show(renderable: RenderableType) -> None:
    """Print for people: on a terminal as wide as that, and in colours unless ``NO_COLOR`` is set; plain elsewhere."""
    if sys.stdout.isatty():
        Console(highlight=False).print(renderable)
    else:
        put(plain_text(renderable))


def emit(found: Any) -> None:
    """Print one JSON object."""
    put(json.dumps(found, indent=1))


def put(text: str = "", *, nl: bool = True) -> None:
    """Print a result."""
    try:
        click.echo(text, nl=nl)
    except BrokenPipeError:
        raise
    except OSError as error:  # a disk that is full
        raise OSError(error.errno, error.strerror, "standard output") from None


def note(text: str) -> None:
    """Say something that is no result, if anybody listens."""
    with contextlib.suppress(OSError):
        click.echo(text, err=True)


@contextlib.contextmanager
def only_results(wanted: bool) -> Iterator[None]:
    """Where wanted, what others print (a user's module when it is imported) goes to standard error.

    That is so for what is written past Python, too.
    """
    if not wanted:
        yield
        return
    sys.stdout.flush()
    own = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(own, 1)
        os.close(own)
