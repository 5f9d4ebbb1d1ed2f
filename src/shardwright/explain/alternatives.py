"""What else could be done about an argument, and what each would cost: one decision changed, all else as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from jax.sharding import PartitionSpec

from shardwright._collector import collector_paused
from shardwright.apply import spec
from shardwright.explain.reasons import SPLIT, Dimension, Listed, decisions_on
from shardwright.ir.program import Argument
from shardwright.price import Cost, CostModel
from shardwright.price.kept import kept_by
from shardwright.price.shardings import fixed_on, shard_value
from shardwright.search.lists import replaced
from shardwright.space import Decision, Decisions, Whole, resolve
from shardwright.space.decisions import entry_of, path_matches, paths_of
from shardwright.space.roles import Roles
from shardwright.space.state import AnyEntry, KeepWhole, Sharding, State, Subject

if TYPE_CHECKING:
    from shardwright.plan.plan import Plan

OURS = "the plan"
_SAME = 1e-3
"""Plans whose seconds differ by less than this part are called equally good."""


@dataclass(frozen=True)
class Alternative:
    """A plan that differs from this one in what it says about an argument.

    ``change`` says how; ``axis`` and ``dimension`` (None: whole) what becomes of the argument there, ``spec`` of it as
    a whole. ``sw.evaluate`` of the ``decisions`` has the same cost. ``difference_seconds`` are those of a step more
    than the plan takes. ``ours`` is the plan itself.
    """

    change: str
    axis: str
    dimension: int | None
    spec: PartitionSpec
    decisions: tuple[Decision | Whole, ...]
    step_seconds: float
    difference_seconds: float
    peak_bytes: int
    fits: bool
    ours: bool = False


class _Change(NamedTuple):
    text: str
    axis: str
    dimension: int | None
    decisions: tuple[Decision | Whole, ...]
    state: State


def find_alternatives(
    plan: Plan, argument: Argument, dimensions: Sequence[Dimension], pattern: str
) -> tuple[Alternative, ...]:
    """The plan and its alternatives, those that fit first, by seconds; ``pattern`` is what stays whole in some.

    A dimension is put on an axis in two ways: first of all, and just early enough for this argument. Conflicts that it
    brings are resolved as the plan does elsewhere, else in the usual way.
    """
    put = (
        change
        for d in dimensions
        for reason in d.reasons
        if reason.outcome != SPLIT
        for change in _put(plan, argument, d, reason.axis)
    )
    split = [(axis, d) for d in dimensions for axis in d.axes]
    dropped = (change for axis, d in split for change in _without(plan, axis, d))
    return _priced(plan, argument, [*put, *dropped, *_kept(plan, argument, pattern, [axis for axis, _ in split])])


def kept_whole(plan: Plan, argument: Argument, pattern: str, axes: Sequence[str]) -> tuple[Alternative, ...]:
    """The plan beside itself with all arguments of a pattern whole on each of some axes."""
    return _priced(plan, argument, list(_kept(plan, argument, pattern, axes)))


def _priced(plan: Plan, argument: Argument, changes: Sequence[_Change]) -> tuple[Alternative, ...]:
    """The plan beside itself with each of the changes, in order."""
    now, names, value = plan.estimate_cost, plan.partitioned.mesh.names, argument.value
    own = spec(plan.partitioned.values[value], names)
    out = [
        Alternative(
            OURS, "", None, own, plan.decisions, now.step_seconds, 0.0, now.peak_bytes, plan.estimated_to_fit, True
        )
    ]
    for change, cost in zip(changes, price(plan, [c.state for c in changes]), strict=True):
        out.append(
            Alternative(
                change.text,
                change.axis,
                change.dimension,
                spec(sharding_in(plan, change.state, value), names),
                change.decisions,
                cost.step_seconds,
                cost.step_seconds - now.step_seconds,
                cost.peak_bytes,
                cost.peak_bytes <= plan.memory_bytes,
            )
        )
    return tuple(sorted(out, key=lambda a: (not a.fits, a.step_seconds, not a.ours)))


def better_than_ours(alternatives: Sequence[Alternative]) -> Alternative | None:
    """The best alternative, if the plan is not as good."""
    if not alternatives or alternatives[0].ours:
        return None
    best, ours = alternatives[0], next(a for a in alternatives if a.ours)
    faster = best.step_seconds < ours.step_seconds * (1 - _SAME)
    return best if best.fits and (faster or not ours.fits) else None


def _put(plan: Plan, argument: Argument, dimension: Dimension, axis: str) -> Iterator[_Change]:
    """A dimension put on an axis's list: just before what takes the axis now, and before everything."""
    groups = plan.partitioned.places.of_value[argument.value]
    group = groups[dimension.number]
    listed = [(d, e) for d, e in decisions_on(plan, axis) if e.group != group]
    new = usual_decision(plan, group, dimension.name, axis, groups)
    rest = [d for d in plan.decisions if d.axis != axis]
    keepers = [d for d in plan.decisions if d.axis == axis and isinstance(d, Whole)]
    freed = [d for d in keepers if path_matches(d.path, argument.path)]
    kept = [d for d in keepers if d not in freed]
    no_longer = f"; {', '.join(d.path for d in freed)} not kept whole" if freed else ""
    for position in dict.fromkeys((_early_enough(listed, groups), 0)):
        own = [d for d, _ in listed]
        where = f", after {own[position - 1].dimension}" if position else ", first" if own else ""
        text = f"[{dimension.number}] on {axis}{where}{no_longer}"
        own.insert(position, new)
        decisions = _in_order(plan, (*rest, *kept, *own))
        state = state_of(plan, decisions)
        number = plan.partitioned.mesh.names.index(axis)
        if state is not None and number in sharding_in(plan, state, argument.value)[dimension.number]:
            yield _Change(text, axis, dimension.number, decisions, state)


def usual_decision(plan: Plan, group: int, name: str, axis: str, groups: Sequence[int]) -> Decision:
    """A decision about a group on an axis, as the plan says it elsewhere, but not so that it passes this tensor by."""
    said = [(d, e) for own in plan.mesh for d, e in decisions_on(plan, own) if e.group == group]
    said.sort(key=lambda pair: pair[0].axis != axis)
    if said:
        decision, entry = said[0]
        return Decision(axis, name, decision.sides, "" if entry.unless in groups else decision.unless)
    sides = Roles.of(plan.analysis).row_side(group)
    return Decision(axis, name, sides if any(sides) else ())


def _early_enough(listed: Listed, groups: Sequence[int]) -> int:
    """The place before the first decision that is about a tensor with these groups."""
    for position, (_, entry) in enumerate(listed):
        if entry.group in groups and not (entry.unless >= 0 and entry.unless in groups):
            return position
    return len(listed)


def _without(plan: Plan, axis: str, dimension: Dimension) -> Iterator[_Change]:
    """An axis's list without what splits a dimension."""
    said = next(r.decision for r in dimension.reasons if r.axis == axis)
    rest = [d for d in plan.decisions if d.axis != axis or isinstance(d, Whole)]
    left = [d for d, _ in decisions_on(plan, axis) if d != said]
    decisions = _in_order(plan, (*rest, *left))
    state = state_of(plan, decisions)
    if state is not None:
        yield _Change(f"{axis} without {dimension.name}", axis, None, decisions, state)


def _kept(plan: Plan, argument: Argument, pattern: str, axes: Sequence[str]) -> Iterator[_Change]:
    """What is asked about, whole on each of the axes and on all; and what the search could keep whole with it."""
    program, state, names = plan.analysis.program, plan.partitioned.state, plan.partitioned.mesh.names
    for on in dict.fromkeys((*((axis,) for axis in axes), tuple(axes))):
        decisions = _in_order(plan, (*plan.decisions, *(Whole(axis, pattern) for axis in on)))
        changed = state_of(plan, decisions) if on else None
        if changed is not None:
            yield _Change(
                f"{pattern} whole on {' and '.join(on)}", on[0] if len(on) == 1 else "", None, decisions, changed
            )
    for k, values in enumerate(state.whole):
        paths = paths_of(program, [v for v in values if v in program.argument_of]) if argument.value in values else []
        for axis in axes if paths and paths != [pattern] else ():
            entries = state.lists[names.index(axis)]
            if not any(isinstance(e, KeepWhole) for e in entries):  # two sets on one axis would be one to sw.evaluate
                lists = replaced(state.lists, names.index(axis), (KeepWhole(k), *entries))
                decisions = _in_order(plan, (*plan.decisions, *(Whole(axis, path) for path in paths)))
                text = f"{', '.join(paths)} whole on {axis}"
                yield _Change(text, axis, None, decisions, State(lists, state.whole))


def _in_order(plan: Plan, decisions: Sequence[Decision | Whole]) -> tuple[Decision | Whole, ...]:
    """By axis, as plans have them; what stays whole first."""
    axes = list(plan.mesh)
    return tuple(sorted(decisions, key=lambda d: (axes.index(d.axis), isinstance(d, Decision))))


MOST_OPS = 10_000
"""What stays whole divides a program's tensors into classes anew, which takes more than a second in larger ones."""


def state_of(plan: Plan, decisions: Decisions) -> State | None:
    """The state of changed decisions; None where the program is too large to tell in time what it costs."""
    kept = {d for d in plan.decisions if isinstance(d, Whole)}
    if {d for d in decisions if isinstance(d, Whole)} == kept:
        return _reordered(plan, decisions)
    large = len(plan.analysis.program.ops) > MOST_OPS
    return None if large else resolve(plan.analysis, plan.partitioned.mesh, decisions)


def sharding_in(plan: Plan, state: State, value: int) -> Sharding:
    """The sharding of an argument in a state."""
    places, tensor = plan.partitioned.places, plan.analysis.program.values[value]
    kept = kept_by(value, state.whole)
    mesh = plan.partitioned.mesh
    groups, fixed = places.of_value[value], fixed_on(tensor.given, mesh)
    return shard_value(tensor.shape, groups, places.pairs(value), kept, mesh, state.lists, fixed=fixed)


def price(plan: Plan, states: Sequence[State]) -> list[Cost]:
    """The cost of each state."""
    known = plan.partitioned.state.whole
    new = tuple({values: None for state in states for values in state.whole if values not in known})
    other = plan.costs
    if new:
        with collector_paused():
            other = CostModel(plan.partitioned.places, plan.partitioned.mesh, plan.device, (*known, *new))
    out = []
    for state in states:
        ours_can_tell = all(values in known for values in state.whole)
        model, whole = (plan.costs, known) if ours_can_tell else (other, (*known, *new))
        out.append(model.evaluate(_renumbered(state, whole)))
    return out


def _reordered(plan: Plan, decisions: Decisions) -> State:
    """The state of decisions that keep the same arguments whole as the plan: nothing about these is worked out anew."""
    state, names = plan.partitioned.state, plan.partitioned.mesh.names
    lists: list[dict[Subject, AnyEntry]] = [
        {e: e for e in entries if isinstance(e, KeepWhole)} for entries in state.lists
    ]
    for decision in decisions:
        if isinstance(decision, Decision):
            entry = entry_of(plan.analysis, decision)
            lists[names.index(decision.axis)].setdefault(entry.group, entry)
    return State(tuple(tuple(entries.values()) for entries in lists), state.whole)


def _renumbered(state: State, whole: tuple[frozenset[int], ...]) -> State:
    """The same state with its sets among others."""

    def entry(e: AnyEntry) -> AnyEntry:
        return KeepWhole(whole.index(state.whole[e.number])) if isinstance(e, KeepWhole) else e

    return State(tuple(tuple(map(entry, entries)) for entries in state.lists), whole)
