"""How conflicts were resolved, and what the other way would cost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardwright.analysis.describe import Side
from shardwright.explain.alternatives import price, state_of
from shardwright.explain.reasons import decisions_on
from shardwright.ir.program import Source
from shardwright.price import Cost
from shardwright.space import Decision, Whole

if TYPE_CHECKING:
    from shardwright.plan.plan import Plan


@dataclass(frozen=True)
class Other:
    """The plan with a conflict resolved the other way; ``sw.evaluate`` of the ``decisions`` has the same cost."""

    decisions: tuple[Decision | Whole, ...]
    step_seconds: float
    difference_seconds: float
    peak_bytes: int
    fits: bool


@dataclass(frozen=True)
class Choice:
    """A conflict of a dimension: where it begins, its two sides, and which of them is split over which axes.

    ``axes`` are none where no decision is about the dimension. ``side`` is None where the two sides meet in one tensor,
    so that there was no choice. ``others`` are the plan with the other side on these axes.
    """

    dimension: str
    kind: str
    source: Source
    sides: tuple[Side, Side]
    axes: tuple[str, ...]
    side: int | None
    other: Other | None = None


def choices_of_groups(plan: Plan, groups: Collection[int]) -> tuple[Choice, ...]:
    """The conflicts of these groups."""
    return _priced(plan, [(g, k) for g in groups for k in range(len(plan.analysis.groups[g].conflicts))])


def choices_at(plan: Plan, at: Callable[[Source], bool]) -> tuple[Choice, ...]:
    """The conflicts that ops at some source lines are in."""
    analysis = plan.analysis
    here = [
        (g, k)
        for g, group in enumerate(analysis.groups)
        for k, conflict in enumerate(group.conflicts)
        if any(
            m.of == "op" and at(analysis.program.ops[m.index].source)
            for s in conflict.sets
            for m in analysis.conflicts[s].members
        )
    ]
    return _priced(plan, here)


def _priced(plan: Plan, conflicts: Sequence[tuple[int, int]]) -> tuple[Choice, ...]:
    choices, flipped = [], []
    for group, k in conflicts:
        described = plan.analysis.descriptions[group]
        conflict = described.conflicts[k]
        for axes, side in _taken(plan, group, k) or [((), 0)]:
            choices.append(
                Choice(
                    described.name,
                    conflict.kind,
                    conflict.source,
                    conflict.sides,
                    axes,
                    side if conflict.consistent else None,
                )
            )
            flipped.append(_flipped(plan, group, k, axes) if axes and conflict.consistent else ())
    states = [state_of(plan, decisions) for decisions in flipped if decisions]
    costs = iter(price(plan, [state for state in states if state is not None]))
    now = plan.estimate_cost.step_seconds
    return tuple(
        replace(choice, other=_other(plan, decisions, next(costs), now)) if decisions else choice
        for choice, decisions in zip(choices, flipped, strict=True)
    )


def _other(plan: Plan, decisions: tuple[Decision | Whole, ...], cost: Cost, now: float) -> Other:
    seconds, size = cost.step_seconds, cost.peak_bytes
    return Other(decisions, seconds, seconds - now, size, size <= plan.memory_bytes)


def _taken(plan: Plan, group: int, conflict: int) -> list[tuple[tuple[str, ...], int]]:
    """Which axes split which side of a group's conflict."""
    sides: dict[int, list[str]] = {}
    for axis in plan.mesh:
        for _, entry in decisions_on(plan, axis):
            if entry.group == group:
                sides.setdefault(entry.sides[conflict], []).append(axis)
    return [(tuple(axes), side) for side, axes in sides.items()]


def _flipped(plan: Plan, group: int, conflict: int, axes: tuple[str, ...]) -> tuple[Decision | Whole, ...]:
    """The plan's decisions with the other side on these axes."""
    out: list[Decision | Whole] = [d for d in plan.decisions if isinstance(d, Whole)]
    for axis in plan.mesh:
        for decision, entry in decisions_on(plan, axis):
            if entry.group == group and axis in axes:
                sides = tuple(1 - s if k == conflict else s for k, s in enumerate(entry.sides))
                decision = replace(decision, sides=sides)
            out.append(decision)
    return tuple(out)
