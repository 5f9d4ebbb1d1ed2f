"""Rich renderables as plain text."""

from __future__ import annotations

from rich.console import Console, RenderableType


def plain_text(renderable: RenderableType, width: int = 120) -> str:
    """What a terminal of that width would show, without colours and trailing blanks."""
    console = Console(width=width, color_system=None, force_terminal=False, legacy_windows=False, highlight=False)
    with console.capture() as capture:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
