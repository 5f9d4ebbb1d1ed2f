"""The collectives that an argument or a source line causes, copies of a layer added up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwright.explain.flow import forms_of, updates_of
from shardwright.ir.program import Source
from shardwright.price import Collective

if TYPE_CHECKING:
    from shardwright.plan.plan import Plan

ITSELF, UPDATE = "itself", "its update"


@dataclass(frozen=True)
class Moved:
    """Collectives of one kind, on one kind of tensor, at one source line.

    ``of`` is "itself" (an argument, or a cast or slice of it), "its update" (its gradient, on its way into it), or ""
    where a line was asked about. ``bytes`` are those that each device sends in one of them; ``seconds`` are of all.
    """

    kind: str
    axes: tuple[str, ...]
    tensor: str
    of: str
    bytes: float
    times: int
    seconds: float
    source: Source


def moved_by_argument(plan: Plan, arguments: Sequence[int]) -> tuple[Moved, ...]:
    """Those that move arguments with these values, or what updates them."""
    program = plan.analysis.program
    own, updates = forms_of(program, arguments), updates_of(program, arguments)
    return _collected(plan, lambda c: ITSELF if c.value in own else UPDATE if c.value in updates else None)


def moved_at(plan: Plan, at: Callable[[Source], bool]) -> tuple[Moved, ...]:
    """Those at some source lines."""
    return _collected(plan, lambda c: "" if at(c.source) else None)


def _collected(plan: Plan, of: Callable[[Collective], str | None]) -> tuple[Moved, ...]:
    found: dict[tuple[str, tuple[str, ...], str, str, float, Source], list[float]] = {}
    for collective, cost in zip(plan.collectives, plan.estimate.collectives, strict=True):
        part = of(collective)
        if part is not None:
            key = (cost.kind, cost.axes, cost.tensor, part, cost.bytes, cost.source)
            total = found.setdefault(key, [0, 0.0])
            total[0] += cost.times
            total[1] += cost.seconds
    out = [
        Moved(kind, axes, tensor, part, size, int(times), seconds, source)
        for (kind, axes, tensor, part, size, source), (times, seconds) in found.items()
    ]
    return tuple(sorted(out, key=lambda m: -m.seconds))
