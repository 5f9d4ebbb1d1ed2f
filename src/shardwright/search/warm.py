"""Where a search starts: every tactic on every axis, and every combination of one tactic an axis."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from shardwright.analysis import Analysis
from shardwright.errors import PinError
from shardwright.search.lists import Lists
from shardwright.space import TACTICS, Decision, Decisions, Whole
from shardwright.space.decisions import find_group
from shardwright.space.roles import Roles
from shardwright.spmd import Entry, MeshShape, keep_whole

_MOST_COMBINATIONS = 1000


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


def as_entries(analysis: Analysis, decisions: Decisions, parameters_whole: int | None) -> tuple[Entry, ...]:
    """A tactic's decisions as entries of its axis; ``parameters_whole`` is the set that keeps parameters whole."""
    out: list[Entry] = []
    for decision in decisions:
        if isinstance(decision, Decision):
            group = find_group(analysis, decision.dimension)
            count = len(analysis.groups[group].conflicts)
            out.append(Entry(group, (*decision.sides, *(0,) * (count - len(decision.sides)))))
    if parameters_whole is not None and any(isinstance(d, Whole) for d in decisions):
        out.insert(0, keep_whole(parameters_whole))
    return tuple(dict.fromkeys(out))


def combinations(tactics: Sequence[Mapping[str, tuple[Entry, ...]]]) -> Iterator[tuple[tuple[str, ...], Lists]]:
    """One tactic, or none, for each axis, by their names; all axes but one empty where there would be too many."""
    choices = [{"": (), **found} for found in tactics]
    if math.prod(map(len, choices)) <= _MOST_COMBINATIONS:
        for names in product(*choices):
            yield names, tuple(choices[axis][name] for axis, name in enumerate(names))
        return
    for axis, found in enumerate(choices):
        for name, entries in found.items():
            names = tuple(name if a == axis else "" for a in range(len(choices)))
            yield names, tuple(entries if a == axis else () for a in range(len(choices)))
