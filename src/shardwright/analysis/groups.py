"""Groups: colours that are copies of one another, decided once.

    for w in ws:  h = relu(h @ w.up) @ w.down      each layer's hidden dimension is a colour of its own,
                                                   all of them are one group

Two colours are copies when the same classes of ops use them at the same factors, and the same shapes carry them at the
same dimensions, equally often. Copies that meet in one op or value (the two sides of a square weight in a chain of
layers) cannot be decided by one bit, so they go to different groups, alternating along the chain. Compatibility sets of
a group's colours are grouped in the same way, sides matched with sides.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright.analysis.colours import Colours
from shardwright.analysis.conflicts import CompatibilitySet
from shardwright.analysis.names import Ints

Hashes = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class ConflictGroup:
    """Compatibility sets (by number) that one bit of a group's resolution decides."""

    sets: tuple[int, ...]
    consistent: bool


@dataclass(frozen=True, slots=True)
class Group:
    """Colours (by number) that are decided together, and the conflicts that come with them."""

    colours: tuple[int, ...]
    conflicts: tuple[ConflictGroup, ...]


def find_groups(colours: Colours, sets: tuple[CompatibilitySet, ...]) -> tuple[Group, ...]:
    """Group the colours, in the order of their first colour."""
    value_class = _value_classes(colours)
    number = _apart(_colour_signatures(colours, value_class), _meetings(colours))
    members: dict[int, list[int]] = defaultdict(list)
    for colour, group in enumerate(number):
        members[group].append(colour)
    conflicts: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for s, signature in enumerate(_set_signatures(colours, value_class, sets)):
        conflicts[number[sets[s].colour]][signature].append(s)
    return tuple(
        Group(
            tuple(found),
            tuple(
                ConflictGroup(tuple(same), all(sets[s].consistent for s in same)) for same in conflicts[group].values()
            ),
        )
        for group, found in members.items()
    )


def _colour_signatures(colours: Colours, value_class: Ints) -> Hashes:
    """For each colour a number that says, up to order, where it stands: two copies have the same."""
    program = colours.names.program
    ops, factors, of_factor = colours.factor_table
    values, dims, of_dim = colours.dim_table
    signatures = np.zeros(colours.count, np.uint64)
    op_class = np.array([op.signature for op in program.ops], dtype=np.int64)
    np.add.at(signatures, of_factor, _mix(op_class[ops], factors, 1))
    np.add.at(signatures, of_dim, _mix(value_class[values], dims, 2))
    return signatures


def _value_classes(colours: Colours) -> Ints:
    """Values of one shape and type have one number, arguments another."""
    number: dict[tuple[tuple[int, ...], str, bool], int] = {}
    arguments = colours.names.program.argument_of
    return np.array(
        [
            number.setdefault((value.shape, value.dtype, v in arguments), len(number))
            for v, value in enumerate(colours.names.program.values)
        ],
        dtype=np.int64,
    )


def _set_signatures(colours: Colours, value_class: Ints, sets: tuple[CompatibilitySet, ...]) -> list[int]:
    """As for colours, over a set's members, each with the side that its first place is on."""
    if not sets:
        return []
    program = colours.names.program
    rows = np.array(
        [
            (
                s,
                program.ops[m.index].signature if m.of == "op" else value_class[m.index],
                m.first * 64 + m.second,
                (3 if m.of == "op" else 5) + m.flipped,
            )
            for s, found in enumerate(sets)
            for m in found.members
        ],
        dtype=np.int64,
    )
    signatures = np.zeros(len(sets), np.uint64)
    np.add.at(signatures, rows[:, 0], _mix(rows[:, 1], rows[:, 2], rows[:, 3]))
    return signatures.tolist()


def _mix(a: Ints, b: Ints, c: Ints | int) -> Hashes:
    """A hash of three small numbers, the same in every process (the finaliser of SplitMix64, Steele et al. 2014)."""
    x: Hashes = a.astype(np.uint64) * np.uint64(1 << 24)
    x = x + b.astype(np.uint64) * np.uint64(1 << 4) + np.asarray(c).astype(np.uint64)
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def _meetings(colours: Colours) -> Ints:
    """Pairs of different colours ``[n, 2]`` that stand in one op or one value, each pair once, smaller first."""
    names = colours.names
    ranks = np.diff(names.dim_start)
    tables = [
        colours.of[names.factor_start[group.ops][:, None] + np.arange(len(group.rule.sizes))] for group in names.by_rule
    ]
    for rank in range(2, int(ranks.max(initial=0)) + 1):
        tables.append(colours.of[names.dim_start[:-1][ranks == rank][:, None] + np.arange(rank)])
    keys = []
    for table in tables:
        for i in range(table.shape[1]):
            a, b = table[:, i : i + 1], table[:, i + 1 :]
            low, high = np.minimum(a, b), np.maximum(a, b)
            keys.append((low * colours.count + high)[(low >= 0) & (low != high)])
    found = np.unique(np.concatenate(keys)) if keys else np.zeros(0, np.int64)
    return np.stack([found // max(colours.count, 1), found % max(colours.count, 1)], axis=1)


def _apart(signatures: Hashes, meetings: Ints) -> list[int]:
    """Number the groups: same signature, same group, unless the two meet; then the next one that is free."""
    meets: dict[int, list[int]] = defaultdict(list)
    for a, b in meetings[signatures[meetings[:, 0]] == signatures[meetings[:, 1]]].tolist():
        meets[b].append(a)
    groups: dict[tuple[int, int], int] = {}
    place: list[int] = []
    number: list[int] = []
    for colour, signature in enumerate(signatures.tolist()):
        taken = {place[other] for other in meets[colour]}
        place.append(next(k for k in range(len(taken) + 1) if k not in taken))
        number.append(groups.setdefault((signature, place[-1]), len(groups)))
    return number
