"""Dimensions of arguments that axes do not divide: what is padded inside, and what a larger size would give.

JAX wants arguments and results divided exactly, so that such a dimension is whole there. With the next size that the
devices divide it would be split as the decisions say. What that would cost is priced on the program as it is, with the
dimension padded in arguments and results, too: a padded tensor is as large as one of the larger size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from shardwright._collector import collector_paused
from shardwright.explain.alternatives import MOST_OPS, state_of, usual_decision
from shardwright.explain.reasons import INDIVISIBLE, UNNAMED, Dimension
from shardwright.ir.program import Argument
from shardwright.price import Cost, CostModel, Places
from shardwright.price.collectives import local_bytes
from shardwright.price.kept import kept_by
from shardwright.price.shardings import shard_value
from shardwright.price.uneven import padded_size, padding, splits
from shardwright.space import Decision, Whole
from shardwright.space.state import State

if TYPE_CHECKING:
    from shardwright.plan.plan import Plan

_SAME = 1e-3
"""Plans whose seconds differ by less than this part are called equally fast."""
_ROW_BY_ROW = ("dynamic_slice", "dynamic_update_slice")


@dataclass(frozen=True)
class Uneven:
    """A dimension of an argument that is whole because these axes, of so many devices, do not divide it.

    ``change`` is what would have to be decided, "" where a decision names it. ``padded_size`` is what it has inside of
    the program, where it may be padded; 0 where it is whole there, too. With ``better_size`` a device would hold
    ``device_bytes`` of the argument, and the step would take ``step_seconds`` with ``peak_bytes``, or None where that
    cannot be told; ``sw.evaluate`` of the ``decisions`` with the larger size tells about the same.
    """

    dimension: int
    axes: tuple[str, ...]
    devices: int
    size: int
    change: str
    padded_size: int
    better_size: int
    device_bytes: int
    decisions: tuple[Decision | Whole, ...]
    step_seconds: float | None = None
    peak_bytes: int | None = None


def find_uneven(plan: Plan, argument: Argument, dimensions: Sequence[Dimension]) -> tuple[Uneven, ...]:
    """What was left on the table in an argument, as far as a size of up to half as much again would get it.

    Where a decision cannot take a dimension, that is said whatever it would give; where none names it, only if that
    would be better, or smaller where the search had no choice.
    """
    return tuple(found for d in dimensions for found in _of_dimension(plan, argument, d, dimensions))


def _of_dimension(plan: Plan, argument: Argument, d: Dimension, dimensions: Sequence[Dimension]) -> Iterator[Uneven]:
    named = tuple(r.axis for r in d.reasons if r.outcome == INDIVISIBLE)
    if named:
        yield from _larger(plan, argument, d, named, plan.decisions, "")
        return
    taken = {axis for other in dimensions for axis in other.axes}
    for reason in d.reasons:
        axis, parts = reason.axis, prod(plan.mesh[a] for a in (*d.axes, reason.axis))
        if reason.outcome != UNNAMED or d.size % parts == 0 or _large(plan):
            continue
        groups = plan.partitioned.places.of_value[argument.value]
        new = usual_decision(plan, groups[d.number], d.name, axis, groups)
        first = axis in taken
        decisions = (new, *plan.decisions) if first else (*plan.decisions, new)
        enough = not first and _left_alone(plan, groups[d.number], axis)
        for found in _larger(
            plan, argument, d, (axis,), decisions, f"{d.name} {'first' if first else 'last'} on {axis}"
        ):
            if _better(plan, found, if_smaller=enough):
                yield found


def _larger(
    plan: Plan,
    argument: Argument,
    d: Dimension,
    axes: tuple[str, ...],
    decisions: tuple[Decision | Whole, ...],
    change: str,
) -> Iterator[Uneven]:
    parts = prod(plan.mesh[axis] for axis in (*d.axes, *axes))
    state = state_of(plan, decisions)
    if state is None or not splits(d.size, parts, padded=True):
        return
    value, mesh = plan.analysis.program.values[argument.value], plan.partitioned.mesh
    group = plan.partitioned.places.of_value[argument.value][d.number]
    if _walked(plan, group):
        return
    cost: Cost | None = None
    sharding = plan.partitioned.values[argument.value]
    if group in plan.partitioned.places.uniform:
        loose = plan.partitioned.places.loosened(group)
        kept = kept_by(argument.value, state.whole)
        groups, pairs = loose.of_value[argument.value], loose.pairs(argument.value)
        sharding = shard_value(value.shape, groups, pairs, kept, mesh, state.lists, loose.padded(argument.value))
        cost = None if _large(plan) else _cost(plan, loose, state)
    else:
        numbers = tuple(mesh.names.index(axis) for axis in (*d.axes, *axes))
        sharding = tuple(
            numbers if k == d.number else tuple(axis for axis in own if axis not in numbers)
            for k, own in enumerate(sharding)
        )
    size = value.bytes * padding(value.shape, sharding, mesh)
    yield Uneven(
        d.number,
        axes,
        parts,
        d.size,
        change,
        _inside(plan, group),
        padded_size(d.size, parts),
        round(local_bytes(size, sharding, mesh)),
        decisions,
        cost.step_seconds if cost else None,
        cost.peak_bytes if cost else None,
    )


def _cost(plan: Plan, loose: Places, state: State) -> Cost:
    """What a state costs with one group padded everywhere; what tells is remembered with the plan."""
    key = ("uneven", loose.loose)
    if key not in plan.worked_out:
        with collector_paused():
            whole = plan.partitioned.state.whole
            plan.worked_out[key] = CostModel(loose, plan.partitioned.mesh, plan.device, whole)
    costs: CostModel = plan.worked_out[key]
    return costs.evaluate(state)


def _better(plan: Plan, found: Uneven, *, if_smaller: bool) -> bool:
    """Faster; or smaller, if that is enough, as it is where the plan does not fit, or else is not slower."""
    if found.step_seconds is None or found.peak_bytes is None:
        return False
    now = plan.estimate_cost
    part = found.step_seconds / now.step_seconds - 1
    if found.peak_bytes < now.peak_bytes:
        return if_smaller or not plan.estimated_to_fit or part < _SAME
    return part < -_SAME and found.peak_bytes <= plan.memory_bytes


def _left_alone(plan: Plan, group: int, axis: str) -> bool:
    """Whether a search has no choice about a group on an axis: see ``search.actions``."""
    padded = group in plan.partitioned.places.padded_groups
    return not any(splits(s, plan.mesh[axis], padded=padded) for s in plan.analysis.descriptions[group].sizes)


def _inside(plan: Plan, group: int) -> int:
    """The size that a group is padded to inside of the program; 0 where it is not."""
    partitioned = plan.partitioned
    sizes = {
        padded_size(size, parts)
        for v in partitioned.padded
        for size, g, axes in zip(
            partitioned.program.values[v].shape, partitioned.places.of_value[v], partitioned.values[v], strict=True
        )
        if g == group and size % (parts := partitioned.mesh.ways(axes))
    }
    return max(sizes, default=0)


def _walked(plan: Plan, group: int) -> bool:
    """Whether a loop takes or fills a group's dimension row by row: it would run longer if there were more."""
    program, of_value = plan.analysis.program, plan.partitioned.places.of_value
    trips = {loop.op: loop.trips for loop in program.loops}
    for op in program.ops:
        if op.kind in _ROW_BY_ROW and program.regions[op.region].op in trips:
            whole = op.operands[0]
            row = op.results[0] if op.kind == "dynamic_slice" else op.operands[1]
            sizes = zip(of_value[whole], program.values[whole].shape, program.values[row].shape, strict=True)
            if (group, trips[program.regions[op.region].op], 1) in sizes:
                return True
    return False


def _large(plan: Plan) -> bool:
    return len(plan.analysis.program.ops) > MOST_OPS


@dataclass(frozen=True)
class Padded:
    """Tensors of a type, some of whose dimensions are padded: each by its number, from one size to another."""

    type: str
    dimensions: tuple[tuple[int, int, int], ...]


def padded_tensors(plan: Plan, values: Sequence[int]) -> tuple[Padded, ...]:
    """Which of some values are padded, alike ones together."""
    partitioned = plan.partitioned
    found = []
    for v in values:
        if v in partitioned.padded:
            value = partitioned.program.values[v]
            ways = [partitioned.mesh.ways(axes) for axes in partitioned.values[v]]
            sizes = [(d, n, padded_size(n, parts)) for d, (n, parts) in enumerate(zip(value.shape, ways, strict=True))]
            found.append(Padded(str(value), tuple(s for s in sizes if s[1] != s[2])))
    return tuple(dict.fromkeys(found))
