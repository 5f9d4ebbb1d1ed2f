"""An estimate for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardwright.analysis.present import human_bytes

if TYPE_CHECKING:
    from shardwright.cost.estimate import Estimate

_SHOWN = 10


def human_seconds(seconds: float) -> str:
    """Three digits with a unit that fits: 281 ms, 1.25 s, 3.4 µs."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size or unit == "µs":
            return f"{seconds / size:.3g} {unit}"
    raise AssertionError


def headline(estimate: Estimate) -> str:
    """Whether it fits, how long a step takes and what of."""
    fits = "fits" if estimate.fits else "does not fit"
    return (
        f"{fits}: {human_bytes(estimate.peak_bytes)} of {human_bytes(estimate.limit_bytes)} on each device; "
        f"step {human_seconds(estimate.step_seconds)} = {human_seconds(estimate.compute_seconds)} compute + "
        f"{human_seconds(estimate.comm_seconds)} communication; "
        f"{100 * estimate.peak_fraction:.0f}% of the devices' peak"
    )


def estimate_table(estimate: Estimate) -> RenderableType:
    """Headline, communication by kind and axis, costliest kernels and collectives, what is alive at the peak."""
    parts: list[RenderableType] = [Text(headline(estimate), style="bold"), Text()]
    if estimate.collectives:
        by = ", ".join(f"{kind} {human_seconds(s)}" for kind, s in estimate.comm_by_kind.items())
        on = ", ".join(f"{axes} {human_seconds(s)}" for axes, s in estimate.comm_by_axis.items())
        parts += [Text(f"communication by kind: {by}"), Text(f"communication by axis: {on}"), Text()]
    kernels = _table("costliest ops", "tensor", "times", "seconds", "bound by", "at")
    for k in estimate.costliest_kernels:
        where = f"{k.source}{', backward' * k.source.backward}"
        kernels.add_row(k.kind, k.tensor, f"{k.times:,}", human_seconds(k.seconds), k.bound, where)
    parts.append(kernels)
    if estimate.collectives:
        moves = _table("costliest collectives", "axes", "tensor", "bytes", "times", "seconds", "at")
        for c in estimate.costliest_collectives:
            where = f"{c.source}{', backward' * c.source.backward}"
            moves.add_row(
                c.kind,
                ", ".join(c.axes),
                c.tensor,
                human_bytes(c.bytes),
                f"{c.times:,}",
                human_seconds(c.seconds),
                where,
            )
        parts += [Text(), moves]
    alive = _table("alive at the peak", "what", "tensors", "bytes")
    for a in estimate.alive[:_SHOWN]:
        alive.add_row(a.name, a.what, f"{a.tensors:,}", human_bytes(a.bytes))
    rest = estimate.alive[_SHOWN:]
    if rest:
        alive.add_row(
            f"… and {len(rest)} more", "", f"{sum(a.tensors for a in rest):,}", human_bytes(sum(a.bytes for a in rest))
        )
    return Group(*parts, Text(), alive)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        right = column in ("times", "seconds", "bytes", "tensors")
        table.add_column(column, justify="right" if right else "left", no_wrap=right, overflow="fold")
    return table
