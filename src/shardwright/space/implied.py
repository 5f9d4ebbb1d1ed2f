"""What a program's own shardings say about dimensions that they are not on: the decisions that they amount to.

A constraint decides one value. What comes of it would follow if a compiler were left alone with it, so a search starts
from there, and what is evaluated without a search lies as the program's author had it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from shardwright.analysis import Analysis
from shardwright.ir.kinds import CONSTRAINT, MANUAL
from shardwright.request import Decision, MeshShape


def implied_decisions(analysis: Analysis, mesh: MeshShape) -> list[Decision]:
    """A decision for each dimension and axis that a value is given, on every axis in an order that keeps to them.

    Where a value has two dimensions that lie on one axis elsewhere, the one that has it there goes first.
    """
    names = [described.name for described in analysis.descriptions]
    repeats = analysis.program.repeats.tolist()
    out: list[Decision] = []
    for axis, size in zip(mesh.names, mesh.sizes, strict=True):
        if size == 1:
            continue
        wanted = list(_wanted(analysis, axis))
        bytes_of: Counter[int] = Counter()
        before: dict[int, Counter[int]] = defaultdict(Counter)
        for v, group, _ in wanted:
            made_by = analysis.program.values[v].op
            weight = analysis.program.values[v].bytes * (repeats[made_by] if made_by >= 0 else 1)
            bytes_of[group] += weight
            for other in set(_groups(analysis, v)) - {group}:
                before[group][other] += weight
        left = list(bytes_of)
        while left:
            first = max(left, key=lambda g: (sum(before[g][h] - before[h][g] for h in left), bytes_of[g], -g))
            left.remove(first)
            out.append(Decision(axis, names[first], _sides(analysis, first, wanted)))
    return out


def _groups(analysis: Analysis, value: int) -> list[int]:
    return [analysis.group_of.get(colour, -1) for colour in analysis.colours.of_value(value).tolist()]


def _wanted(analysis: Analysis, axis: str) -> Iterator[tuple[int, int, int]]:
    """The values that are given an axis, with the group and the number of the dimension that has it."""
    program = analysis.program
    for v, value in enumerate(program.values):
        # Not what is only made to be constrained: the constraint says the same.
        if value.given is not None and (value.op < 0 or program.ops[value.op].kind in (CONSTRAINT, MANUAL)):
            for d, axes in enumerate(value.given.axes):
                if axis in axes and (group := _groups(analysis, v)[d]) >= 0:
                    yield v, group, d


def _sides(analysis: Analysis, group: int, wanted: list[tuple[int, int, int]]) -> tuple[int, ...]:
    """The side of each of a group's conflicts on which the values lie that are given an axis."""
    at = {v: d for v, g, d in wanted if g == group}
    sides = []
    for conflict in analysis.groups[group].conflicts:
        votes: Counter[int] = Counter()
        for s in conflict.sets:
            for member in analysis.conflicts[s].members:
                if member.of == "value" and at.get(member.index) in member.sides():
                    votes[member.sides().index(at[member.index])] += 1
        sides.append(1 if votes[1] > votes[0] else 0)
    return tuple(sides) if any(sides) else ()
