"""Prices of changed decisions, by the plan's own cost model where it can tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shardwright._collector import collector_paused
from shardwright.price import Cost, CostModel
from shardwright.price.kept import kept_by
from shardwright.price.shardings import fixed_on, shard_value
from shardwright.space import Decision, Decisions, Whole, resolve
from shardwright.space.decisions import entry_of
from shardwright.space.state import AnyEntry, KeepWhole, Sharding, State, Subject

if TYPE_CHECKING:
    from shardwright.plan.plan import Plan

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
