"""Where a search starts: every tactic on every axis, and every combination of one tactic an axis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

from shardwright.analysis import Analysis
from shardwright.errors import PinError
from shardwright.request import MeshShape
from shardwright.search.lists import Lists
from shardwright.space import TACTICS, Decision, Decisions, Whole
from shardwright.space.decisions import entry_of
from shardwright.space.roles import Roles
from shardwright.space.state import AnyEntry, KeepWhole

_MOST_COMBINATIONS = 300


def tactics_by_axis(analysis: Analysis, mesh: MeshShape) -> list[dict[str, Decisions]]:
    """For each axis the decisions of every tactic that applies there, by its name."""
    roles = Roles(analysis)
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
