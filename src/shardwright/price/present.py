"""An estimate for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardwright.analysis.present import human_bytes
from shardwright.ir.program import Source

if TYPE_CHECKING:
    from shardwright.price.estimate import Estimate

_SHOWN = 10
_NUMBERS = ("size", "tensors", "bytes", "times", "seconds", "arguments", "on each device")


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
        f"{human_seconds(estimate.comm_seconds)} communication{exposed_text(estimate)}; "
        f"{100 * estimate.peak_fraction:.0f}% of the devices' peak"
    )


def exposed_text(estimate: Estimate) -> str:
    """What is left of transfers, as the last part of a step; nothing where there is none."""
    seconds = estimate.exposed_transfer_seconds
    return f" + {human_seconds(seconds)} transfers" if seconds else ""


def host_text(estimate: Estimate) -> str:
    """What lies on the host, and what it takes to move it, as a sentence; empty where nothing does."""
    if not estimate.host_bytes and not estimate.transfers:
        return ""
    limit, over = estimate.host_limit_bytes, 0
    if limit is not None:
        over = estimate.host_bytes - limit
    of = f" of the {human_bytes(limit)} that it has there" if limit is not None else ""
    lies = f"Each device keeps {human_bytes(estimate.host_bytes)} on the host{of}"
    lies += f", {human_bytes(over)} too much" if over > 0 else ""
    ways = {to: sum(t.total_bytes for t in estimate.transfers if t.to == to) for to in ("host", "device")}
    moved = [f"{human_bytes(size)} to the {to}" for to, size in ways.items() if size]
    if not moved:
        return f"{lies}; nothing is moved."
    every, exposed = estimate.transfer_seconds, estimate.exposed_transfer_seconds
    hidden = "hidden behind compute" if not exposed else f"{human_seconds(exposed)} of it not hidden behind compute"
    return f"{lies} and moves {' and '.join(moved)} in {human_seconds(every)}, {hidden}."


def estimate_table(estimate: Estimate) -> RenderableType:
    """Headline, communication by kind and axis, costliest kernels and collectives, what is alive at the peak."""
    on_host = [Text(text)] if (text := host_text(estimate)) else []
    parts: list[RenderableType] = [Text(headline(estimate), style="bold"), *on_host, Text()]
    if estimate.collectives:
        by = ", ".join(f"{kind} {human_seconds(s)}" for kind, s in estimate.comm_by_kind.items())
        on = ", ".join(f"{axes} {human_seconds(s)}" for axes, s in estimate.comm_by_axis.items())
        parts += [Text(f"communication by kind: {by}"), Text(f"communication by axis: {on}"), Text()]
    kernels = table("costliest ops", "tensor", "times", "seconds", "bound by", "at")
    for k in estimate.costliest_kernels:
        kernels.add_row(k.kind, k.tensor, f"{k.times:,}", human_seconds(k.seconds), k.bound, place(k.source))
    parts.append(kernels)
    if estimate.collectives:
        moves = table("costliest collectives", "axes", "tensor", "bytes", "times", "seconds", "at")
        for c in estimate.costliest_collectives:
            moves.add_row(
                c.kind,
                ", ".join(c.axes),
                c.tensor,
                human_bytes(c.bytes),
                f"{c.times:,}",
                human_seconds(c.seconds),
                place(c.source),
            )
        parts += [Text(), moves]
    alive = table("alive at the peak", "what", "tensors", "bytes")
    for a in estimate.alive[:_SHOWN]:
        alive.add_row(a.name, a.what, f"{a.tensors:,}", human_bytes(a.bytes))
    rest = estimate.alive[_SHOWN:]
    if rest:
        alive.add_row(
            f"… and {len(rest)} more", "", f"{sum(a.tensors for a in rest):,}", human_bytes(sum(a.bytes for a in rest))
        )
    return Group(*parts, Text(), alive)


def place(source: Source) -> str:
    """A source line, and whether it is its backward pass."""
    return f"{source}{', backward' * source.backward}"


def table(*columns: str) -> Table:
    """An empty table, with columns of numbers to the right."""
    out = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        right = column in _NUMBERS
        out.add_column(column, justify="right" if right else "left", no_wrap=right, overflow="fold")
    return out
