"""Differences between plans for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardwright.analysis.present import human_bytes
from shardwright.apply import spec_text
from shardwright.explain.tables import Rows
from shardwright.explain.words import signed_seconds
from shardwright.price.estimate import human_seconds, place
from shardwright.space import Decision, Whole

if TYPE_CHECKING:
    from shardwright.explain.difference import CollectiveChange, Difference, Figure

_MOST_DECISIONS = 8
_MANY = 1000.0
"""A ratio above this says no more than that it is large."""


def difference_table(d: Difference) -> RenderableType:
    """The figures of both, then what differs."""
    return Group(*_parts(d))


def _parts(d: Difference) -> Iterator[RenderableType]:
    where = f"a and b on {d.a}" if d.a == d.b else f"a on {d.a}, b on {d.b}"
    yield Text(f"{d.program}: {where}", style="bold")
    yield Text(_verdict(d), style="bold")
    yield Text()
    figures = Rows("", "a", "b", "b / a", numbers=[1, 2, 3])
    for f in d.figures:
        ratio = "" if f.ratio is None or f.ratio > _MANY else f"{f.ratio:.2f}"
        figures.add(f.name, _figure(f, f.a), _figure(f, f.b), ratio)
    yield figures.done()
    yield Text()
    yield _decisions(d) if d.decisions else Text("The decisions are the same.")
    if d.arguments:
        yield Text()
        yield _arguments(d)
    for changes in (d.kinds, d.collectives):
        if changes:
            yield Text()
            yield _collectives(changes)


def _arguments(d: Difference) -> Table:
    rows = Rows("argument", "arguments", "type", "a", "b", "bytes in a", "in b", numbers=[1, 5, 6])
    for c in d.arguments:
        first = f"{c.paths[0]} …" if len(c.paths) > 1 else c.paths[0]
        about = (f"{len(c.paths):,}", c.type, spec_text(c.a), spec_text(c.b))
        rows.add(Text(first, style="cyan"), *about, human_bytes(c.a_bytes), human_bytes(c.b_bytes))
    return rows.done()


def _collectives(changes: Sequence[CollectiveChange]) -> Table:
    lines = any(c.source is not None for c in changes)
    columns = ("collective", "axes", *["at"] * lines, "times in a", "in b", "seconds in a", "in b", "b - a")
    rows = Rows(*columns, numbers=range(2 + lines, 7 + lines))
    for c in changes:
        at = [place(c.source)] if c.source is not None else []
        figures = (f"{c.a_times:,}", f"{c.b_times:,}", _seconds(c.a_seconds), _seconds(c.b_seconds))
        rows.add(c.kind, ", ".join(c.axes), *at, *figures, signed_seconds(c.difference_seconds))
    return rows.done()


def _verdict(d: Difference) -> str:
    if d.a_fits != d.b_fits:
        return f"Only {'a' if d.a_fits else 'b'} fits."
    step = d.figures[0]
    fits = "Both fit" if d.a_fits else "Neither fits"
    slow, fast = max(step.a, step.b), min(step.a, step.b)
    if not fast or slow / fast < 1.0005:
        return f"{fits}, and they take equally long."
    return f"{fits}; {'a' if step.a < step.b else 'b'} is {slow / fast:.3g} times as fast."


def _decisions(d: Difference) -> Table:
    moved = ["in another order"] * any(change.moved for change in d.decisions)
    rows = Rows("axis", "only in a", "only in b", *moved, numbers=(), most=1000)
    for change in d.decisions:
        columns = [_texts(found) for found in (change.only_a, change.only_b, change.moved)][: 2 + len(moved)]
        for k in range(max(map(len, columns))):
            cells = [Text(c[k] if k < len(c) else "", style="cyan") for c in columns]
            rows.add(Text("" if k else change.axis, style="green"), *cells)
    return rows.done()


def _texts(decisions: Sequence[Decision | Whole]) -> list[str]:
    """Decisions without their axis; what stays whole together."""
    whole = [d.path for d in decisions if isinstance(d, Whole)]
    others = [str(d).partition(": ")[2] for d in decisions if isinstance(d, Decision)]
    texts = [f"{', '.join(whole)} whole", *others] if whole else others
    rest = len(texts) - _MOST_DECISIONS
    return [*texts[:_MOST_DECISIONS], f"… and {rest} more"] if rest > 0 else texts


def _figure(f: Figure, value: float) -> str:
    if f.unit == "seconds":
        return human_seconds(value)
    return human_bytes(value) if f.unit == "bytes" else f"{value:,.0f}" if f.unit == "count" else f"{value:.0%}"


def _seconds(seconds: float) -> str:
    return human_seconds(seconds) if seconds else "-"
