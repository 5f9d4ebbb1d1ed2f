"""A program's states on a mesh as a search sees them: the entries and tactics that it may put on the axes' lists."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, product
from typing import NamedTuple

from shardwright.analysis import Analysis
from shardwright.errors import PinError
from shardwright.price import CostModel, Places
from shardwright.request import MeshShape
from shardwright.search.actions import Actions
from shardwright.search.lists import Lists, Order
from shardwright.space import TACTICS, Decision, Decisions, Whole
from shardwright.space.carried import carried_results
from shardwright.space.decisions import entry_of
from shardwright.space.roles import Roles
from shardwright.space.state import AnyEntry, KeepWhole

_SMALL, _TINY_BYTES = 0.005, 2**20
"""What the small weights may make up of the bytes of all, and the most that one of the tiny among them has."""


class Keepers(NamedTuple):
    """Numbers of the sets of ``State.whole`` that a search may keep whole on an axis, where there are such sets."""

    parameters: int | None
    small: int | None
    tiny: int | None


NO_KEEPERS = Keepers(None, None, None)


class Space:
    """A program's states on a mesh, as a search sees them."""

    def __init__(
        self,
        analysis: Analysis,
        costs: CostModel,
        actions: Actions,
        whole: tuple[frozenset[int], ...] = (),
        keepers: Keepers = NO_KEEPERS,
        *,
        pinned: Lists = (),
        use_tactics: bool = True,
    ) -> None:
        self.whole = whole
        self.equals = _equals(Roles.of(analysis))
        self.order = Order(costs.classes.places)
        entries = tuple(
            (*found, *_keeps(costs.classes.places, whole, keepers, pinned[axis] if pinned else ())) if found else ()
            for axis, found in enumerate(actions.entries)
        )
        allowed = [{e.subject for e in found} for found in entries]
        tactics: list[Mapping[str, tuple[AnyEntry, ...]]] = []
        for axis, by_name in enumerate(tactics_by_axis(analysis, costs.mesh) if use_tactics else [{}] * len(entries)):
            named = {n: as_entries(analysis, decisions, keepers.parameters) for n, decisions in by_name.items()}
            kept = {n: tuple(e for e in given if e.subject in allowed[axis]) for n, given in named.items()}
            tactics.append({n: given for n, given in kept.items() if given})
        self.actions = Actions(entries, actions.pruned, tuple(tactics), self.order.meets)
        self.root: Lists = ((),) * len(costs.mesh.sizes)

    def combinations(self) -> Iterator[tuple[tuple[str, ...], Lists]]:
        """One tactic, or none, for each axis, by their names."""
        return combinations(self.actions.tactics)


def _keeps(
    places: Places, whole: tuple[frozenset[int], ...], keepers: Keepers, pinned: tuple[AnyEntry, ...]
) -> list[AnyEntry]:
    """The entries that keep values whole on an axis, but for those that would undo what is pinned there."""
    groups = {entry.subject for entry in pinned}
    return [
        KeepWhole(k)
        for k in keepers
        if k is not None and not any(g in groups for v in whole[k] for g in places.of_value[v] if g >= 0)
    ]


def find_keepers(analysis: Analysis, whole: tuple[frozenset[int], ...]) -> tuple[tuple[frozenset[int], ...], Keepers]:
    """The sets that a search may keep whole, after those that are there: the parameters, and what is small."""
    numbers: list[int | None] = []
    roles = Roles.of(analysis)
    small, tiny = _small(roles, math.inf), _small(roles, _TINY_BYTES)
    for values in (_parameters(roles), small, tiny if tiny != small else frozenset()):
        numbers.append(len(whole) if values else None)
        whole = (*whole, values) if values else whole
    return whole, Keepers(*numbers)


def _equals(roles: Roles) -> tuple[frozenset[int], ...]:
    """Weights in equal roles, where there are weights."""
    try:
        return roles.equals
    except PinError:
        return ()


def _parameters(roles: Roles) -> frozenset[int]:
    """The parameters of a program that has optimizer state beside them."""
    try:
        state = set(roles.weights) - set(roles.parameters)
    except PinError:
        return frozenset()
    if not any(roles.analysis.program.values[v].shape for v in state):
        return frozenset()
    return _with_results(roles.analysis, roles.parameters)


def _small(roles: Roles, most_bytes: float) -> frozenset[int]:
    """The smallest arguments that are not data, as long as they make up next to nothing together: scales, biases.

    To gather them takes as long as it takes a message to arrive, and to keep them whole takes no room.
    """
    try:
        weights = roles.weights
    except PinError:
        return frozenset()
    size = {v: roles.analysis.program.values[v].bytes for v in weights}
    left = _SMALL * sum(size.values())
    found: list[int] = []
    for each, same in groupby(sorted(weights, key=lambda v: (size[v], v)), key=size.__getitem__):
        values = list(same)  # one of two that are equal is not kept without the other
        left -= each * len(values)
        if left < 0 or each > most_bytes:
            break
        found += values
    return _with_results(roles.analysis, found) if found else frozenset()


def _with_results(analysis: Analysis, arguments: Sequence[int]) -> frozenset[int]:
    carried = carried_results(analysis.program)
    return frozenset(arguments).union(*(carried.get(v, ()) for v in arguments))


_MOST_COMBINATIONS = 300


def tactics_by_axis(analysis: Analysis, mesh: MeshShape) -> list[dict[str, Decisions]]:
    """For each axis the decisions of every tactic that applies there, by its name."""
    roles = Roles.of(analysis)
    out: list[dict[str, Decisions]] = []
    for axis, size in zip(mesh.names, mesh.sizes, strict=True):
        found: dict[str, Decisions] = {}
        for name, tactic in TACTICS.items():
            try:
                found[name] = tactic(roles, axis, size)
            except PinError:
                continue
        out.append(found)
    return out


def as_entries(analysis: Analysis, decisions: Decisions, parameters_whole: int | None) -> tuple[AnyEntry, ...]:
    """A tactic's decisions as entries of its axis; ``parameters_whole`` is the set that keeps parameters whole."""
    out: list[AnyEntry] = [entry_of(analysis, decision) for decision in decisions if isinstance(decision, Decision)]
    if parameters_whole is not None and any(isinstance(d, Whole) for d in decisions):
        out.insert(0, KeepWhole(parameters_whole))
    return tuple(dict.fromkeys(out))


def combinations(tactics: Sequence[Mapping[str, tuple[AnyEntry, ...]]]) -> Iterator[tuple[tuple[str, ...], Lists]]:
    """One tactic, or none, for each axis, by their names.

    Where that would be too many, one tactic on one axis and one on all the others.
    """
    choices: list[dict[str, tuple[AnyEntry, ...]]] = [{"": (), **found} for found in tactics]
    chosen: Iterable[tuple[str, ...]] = product(*choices)
    if not all_combined(tactics):
        known = list(dict.fromkeys(name for found in choices for name in found))
        chosen = dict.fromkeys(
            tuple(one if a == axis else rest for a in range(len(choices)))
            for axis in range(len(choices))
            for one, rest in product(known, known)
        )
    for names in chosen:
        if all(name in found for name, found in zip(names, choices, strict=True)):
            yield names, tuple(found[name] for name, found in zip(names, choices, strict=True))


def all_combined(tactics: Sequence[Mapping[str, tuple[AnyEntry, ...]]]) -> bool:
    """Whether ``combinations`` of these are all that there are."""
    return math.prod(len({"", *found}) for found in tactics) <= _MOST_COMBINATIONS
