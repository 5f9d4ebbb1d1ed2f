"""Where output goes: results to standard output, everything else to standard error."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import click
from rich.console import Console, RenderableType

from shardwright._console import plain_text


def show(renderable: RenderableType) -> None:
    """Print for people: on a terminal as wide as that, and in colours unless ``NO_COLOR`` is set; plain elsewhere."""
    if sys.stdout.isatty():
        Console(highlight=False).print(renderable)
    else:
        click.echo(plain_text(renderable))


def emit(found: Any) -> None:
    """Print one JSON object."""
    click.echo(json.dumps(found, indent=1))


def note(text: str) -> None:
    """Say something that is no result."""
    click.echo(text, err=True)


@contextlib.contextmanager
def only_results(wanted: bool) -> Iterator[None]:
    """Where wanted, what others print (a user's module when it is imported) goes to standard error."""
    if not wanted:
        yield
        return
    with contextlib.redirect_stdout(sys.stderr):
        yield
