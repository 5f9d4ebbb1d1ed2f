"""Rich renderables as plain text."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType


def plain_text(renderable: RenderableType, width: int = 120) -> str:
    """What a terminal of that width would show, without colours and trailing blanks."""
    text = io.StringIO()  # to capture what goes to standard output would write to it
    console = Console(
        file=text, width=width, color_system=None, force_terminal=False, legacy_windows=False, highlight=False
    )
    console.print(renderable)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())
