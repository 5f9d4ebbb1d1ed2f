"""What goes to a terminal: tables that are filled row by row, and the same as plain text."""

from __future__ import annotations

import io
from collections.abc import Collection

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text


def plain_text(renderable: RenderableType, width: int = 120) -> str:
    """What a terminal of that width would show, without colours and trailing blanks."""
    text = io.StringIO()  # to capture what goes to standard output would write to it
    console = Console(
        file=text, width=width, color_system=None, force_terminal=False, legacy_windows=False, highlight=False
    )
    console.print(renderable)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


class Rows:
    """A table that is filled row by row; what is not shown of many rows is counted."""

    def __init__(self, *columns: str, numbers: Collection[int], most: int = 12) -> None:
        self.table = Table(box=None, pad_edge=False, header_style="bold")
        self._most, self._left_out = most, 0
        for k, column in enumerate(columns):
            right = k in numbers
            self.table.add_column(column, justify="right" if right else "left", no_wrap=right, overflow="fold")

    def add(self, *cells: str | Text, style: str = "", always: bool = False) -> None:
        """A row; text is shown as it is. ``always``: even if there are many."""
        if self.table.row_count >= self._most and not always:
            self._left_out += 1
        else:
            self.table.add_row(*(Text(c) if isinstance(c, str) else c for c in cells), style=style)

    def done(self, rest: str = "more") -> Table:
        """The table, with a last row that tells how many are left out."""
        if self._left_out:
            self.table.add_row(Text(f"… and {self._left_out:,} {rest}", style="dim"))
        return self.table
