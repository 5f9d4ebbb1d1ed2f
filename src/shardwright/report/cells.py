"""Tables of the report: what a cell shows, and what it is sorted by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardwright._amounts import human_bytes


@dataclass(frozen=True)
class Cell:
    """``value`` is what a number is sorted by, ``share`` (0 to 1) the length of the bar behind it.

    ``axes`` are mesh axes by number, shown by their names.
    """

    text: str = ""
    value: float | None = None
    share: float | None = None
    axes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Column:
    """``style`` is "text", "words" (of which lines are made), "code", "number" or "axes"."""

    title: str
    style: str = "text"


@dataclass(frozen=True)
class Table:
    """``name`` is its id on the page; ``sorted_by`` the column by which the rows come, largest first."""

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    sorted_by: str = ""


def make_table(name: str, caption: str, columns: str, rows: Iterable[Sequence[Cell]], *, sorted_by: str = "") -> Table:
    """A table; ``columns`` are ``"path:code, bytes:number"``. With ``sorted_by``, rows come by it, largest first."""
    titles = tuple(Column(*part.strip().split(":")) for part in columns.split(","))
    found = tuple(map(tuple, rows))
    if sorted_by:
        k = [column.title for column in titles].index(sorted_by)
        found = tuple(sorted(found, key=lambda row: -(row[k].value or 0.0)))
    return Table(name, caption, titles, found, sorted_by)


def text(value: object) -> Cell:
    """Text as it is."""
    return Cell(str(value))


def count(value: float | None) -> Cell:
    """A whole number; None is an empty cell."""
    return Cell() if value is None else Cell(f"{value:,.0f}", value)


def size(count_bytes: float | None, largest: float = 0.0) -> Cell:
    """Bytes, with a bar where the largest of the column is given."""
    if count_bytes is None:
        return Cell()
    return Cell(human_bytes(count_bytes), float(count_bytes), count_bytes / largest if largest else None)


def duration(seconds: float | None, largest: float = 0.0) -> Cell:
    """Seconds, with a bar where the largest of the column is given."""
    if seconds is None:
        return Cell()
    return Cell(seconds_text(seconds), float(seconds), seconds / largest if largest else None)


def ratio(value: float | None, text_format: str = "{:.2f}") -> Cell:
    """A plain number of two decimals, or otherwise."""
    return Cell() if value is None else Cell(text_format.format(value), float(value))


def seconds_text(seconds: float) -> str:
    """Three digits, all shown, so that columns line up: 353 ms, 45.1 ms, 1.40 ms."""
    unit, scale = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if seconds >= 0.9995 * s), ("µs", 1e-6))
    number = seconds / scale
    decimals = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:,.{decimals}f} {unit}" if seconds else "0 s"
