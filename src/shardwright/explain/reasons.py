"""Why each dimension of an argument is split over an axis, or whole.

The rule is that of ``price/shardings.py``: on each axis the first decision whose dimension the tensor has takes it, if
the size can be divided. Here every decision is asked, so that those that came too late have a reason too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from shardwright.ir.program import Argument
from shardwright.plan.words import ordinal
from shardwright.price.shardings import winner
from shardwright.space import Decision, Whole
from shardwright.space.decisions import entry_of, path_matches
from shardwright.space.state import Entry

if TYPE_CHECKING:
    from shardwright.plan.plan import Plan

SPLIT, TOO_LATE, OTHER_SIDE = "split", "too late", "other side"
PASSED_BY, INDIVISIBLE, KEPT_WHOLE, UNNAMED = "passed by", "indivisible", "kept whole", "unnamed"
YOURS = "yours, by the argument's own sharding"
NO_DECISION = "no decision names it"


@dataclass(frozen=True)
class Reason:
    """What an axis makes of a dimension, and why.

    ``outcome`` is "split", or why it is whole: "too late" (an earlier decision took the axis in this tensor), "other
    side" (of a conflict within the tensor), "passed by" (the decision's exception), "indivisible", "kept whole" or
    "unnamed" (by any decision on the axis). ``decision`` is the one that says so, ``place`` its place on the axis's
    list, from 1.
    """

    axis: str
    outcome: str
    text: str
    decision: Decision | Whole | None = None
    place: int = 0


@dataclass(frozen=True)
class Dimension:
    """A dimension of an argument; ``name`` is that of the group that it is sharded with, "" if it cannot be."""

    number: int
    size: int
    name: str
    reasons: tuple[Reason, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that it is split over."""
        return tuple(r.axis for r in self.reasons if r.outcome == SPLIT)


Listed = list[tuple[Decision, Entry]]


def decisions_on(plan: Plan, axis: str) -> Listed:
    """The decisions on an axis's list in order; one that names a group again means nothing and is left out."""
    found: dict[int, tuple[Decision, Entry]] = {}
    for decision in plan.decisions:
        if isinstance(decision, Decision) and decision.axis == axis:
            entry = entry_of(plan.analysis, decision)
            found.setdefault(entry.group, (decision, entry))
    return list(found.values())


def keeper_of(plan: Plan, axis: str, path: str) -> Whole | None:
    """The decision that keeps an argument whole on an axis."""
    for decision in plan.decisions:
        if isinstance(decision, Whole) and decision.axis == axis and path_matches(decision.path, path):
            return decision
    return None


def dimension_reasons(plan: Plan, argument: Argument) -> tuple[Dimension, ...]:
    """For each dimension of an argument what each axis makes of it."""
    partitioned, names = plan.partitioned, [d.name for d in plan.analysis.descriptions]
    shape = plan.analysis.program.values[argument.value].shape
    groups = partitioned.places.of_value[argument.value]
    parts = [1] * len(shape)
    reasons: list[list[Reason]] = [[] for _ in shape]
    for axis, ways in zip(partitioned.mesh.names, partitioned.mesh.sizes, strict=True):
        found = _given(plan, argument, axis) or _on_axis(plan, argument, axis, ways, parts)
        for d, own in enumerate(reasons):
            if groups[d] >= 0 and ways > 1:
                own.append(found.get(d) or Reason(axis, UNNAMED, NO_DECISION + _nor(shape[d], ways, parts[d])))
    return tuple(
        Dimension(d, size, names[groups[d]] if groups[d] >= 0 else "", tuple(reasons[d]))
        for d, size in enumerate(shape)
    )


def _given(plan: Plan, argument: Argument, axis: str) -> dict[int, Reason]:
    """What the program itself says of an argument and an axis; nothing where it leaves that open."""
    given = plan.analysis.program.values[argument.value].given
    if given is None or not given.decides:
        return {}
    has = [axis in axes for axes in given.axes]
    if not any(has) and any(given.open):
        return {}
    return {d: Reason(axis, SPLIT if own else KEPT_WHOLE, YOURS) for d, own in enumerate(has)}


class _Said(NamedTuple):
    """What a decision comes to in a tensor: it is about ``dimensions``, and would take ``chosen`` of them."""

    place: int
    decision: Decision
    dimensions: tuple[int, ...]
    chosen: int
    outcome: str


def _on_axis(plan: Plan, argument: Argument, axis: str, ways: int, parts: list[int]) -> dict[int, Reason]:
    """The reasons of the dimensions that decisions on an axis name; ``parts`` become those after this axis."""
    shape = plan.analysis.program.values[argument.value].shape
    keeper = keeper_of(plan, axis, argument.path)
    if keeper is not None:
        return dict.fromkeys(range(len(shape)), Reason(axis, KEPT_WHOLE, f"{keeper.path} stays whole", keeper))
    listed = decisions_on(plan, axis)
    before = tuple(parts)
    said = list(_say(plan, argument.value, listed, ways, parts))
    taken = next((s for s in said if s.outcome == SPLIT), None)
    late = next((s for s in said if s.outcome == TOO_LATE), None)

    def text(s: _Said) -> str:
        if s.outcome == SPLIT:
            second = f"; without it [{late.chosen}] by {late.decision.dimension}" if late else ""
            nth = f"{ordinal(s.place)} of {len(listed)} decisions" if len(listed) > 1 else "the only decision"
            return f"{nth}{_exceptions(s.decision)}{second}"
        if s.outcome == TOO_LATE and taken is not None:
            by = f"{taken.decision.dimension}, {ordinal(taken.place)} of {len(listed)} decisions"
            return f"[{taken.chosen}] has it by {by}; this is {ordinal(s.place)}"
        if s.outcome == PASSED_BY:
            return f"its decision passes by what has {s.decision.unless} too"
        return _indivisible(shape[s.chosen], ways, before[s.chosen])

    out: dict[int, Reason] = {}
    for s in said:
        for d in s.dimensions:
            if d == s.chosen or s.outcome == PASSED_BY:
                out[d] = Reason(axis, s.outcome, text(s), s.decision, s.place)
            else:
                same = f"one dimension with [{s.chosen}], which its decision chose"
                out[d] = Reason(axis, OTHER_SIDE, same, s.decision, s.place)
    return out


def _say(plan: Plan, value: int, listed: Listed, ways: int, parts: list[int]) -> Iterator[_Said]:
    places, shape = plan.partitioned.places, plan.analysis.program.values[value].shape
    groups, free = places.of_value[value], True
    for place, (decision, entry) in enumerate(listed, 1):
        dims = tuple(d for d, g in enumerate(groups) if g == entry.group)
        if not dims:
            continue
        chosen = winner(dims, places.pairs(value), entry.sides) if len(dims) > 1 else dims[0]
        if entry.unless >= 0 and entry.unless in groups:
            outcome = PASSED_BY
        elif not free:
            outcome = TOO_LATE
        elif shape[chosen] % (ways * parts[chosen]):
            outcome = INDIVISIBLE
        else:
            outcome, free = SPLIT, False
            parts[chosen] *= ways
        yield _Said(place, decision, dims, chosen, outcome)


def _indivisible(size: int, ways: int, parts: int) -> str:
    return f"{ways} devices do not divide {size:,}{f', which is in {parts} parts' if parts > 1 else ''}"


def _nor(size: int, ways: int, parts: int) -> str:
    """The end of a sentence: whether a decision could split it."""
    return f", and {_indivisible(size, ways, parts)}" if size % (ways * parts) else ""


def _exceptions(decision: Decision) -> str:
    sides = f", side{'s' * (len(decision.sides) > 1)} {', '.join(map(str, decision.sides))}" if decision.sides else ""
    return sides + (f", but not beside {decision.unless}" if decision.unless else "")
