"""Conflicts: where one colour stands twice, so that only one of the two places can take a mesh axis.

    x: f32[64,16]                        the rows of x are one colour, and s has it twice:
    s = dot(x, x)  [64,64]               conflict  s[0] against s[1]
    p = softmax(s)                       p[0] against p[1] is the same question: one compatibility set

A conflict is a value with two dimensions, or an op with two factors, of one colour. Two conflicts are compatible where
an op maps the one pair onto the other. Union-find with parity collects the sets and keeps which member's first place
lies on which side, so that each set has one free bit. A set that contradicts itself (``s + sᵀ``) has none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from shardwright.analysis.colours import Colours
from shardwright.analysis.names import Ints


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two places of one colour: dimensions ``first < second`` of a value, or factors of an op.

    ``flipped``: the first place lies on the set's second side.
    """

    of: str
    index: int
    first: int
    second: int
    colour: int
    flipped: bool = False

    def sides(self) -> tuple[int, int]:
        """The place on side 0 and the place on side 1."""
        return (self.second, self.first) if self.flipped else (self.first, self.second)


@dataclass(frozen=True, slots=True)
class CompatibilitySet:
    """Conflicts that are decided by one bit, in program order, values before ops.

    ``consistent`` is false where the set contradicts itself: then each value keeps to its first place.
    """

    colour: int
    members: tuple[Conflict, ...]
    consistent: bool


def find_conflicts(colours: Colours) -> tuple[CompatibilitySet, ...]:
    """All conflicts of the program, in their compatibility sets, ordered by first member."""
    nodes = [*_value_conflicts(colours), *_op_conflicts(colours)]
    number = {(n.of, n.index, n.first, n.second): k for k, n in enumerate(nodes)}
    union = _ParityUnion(len(nodes))
    program = colours.names.program
    for k, node in enumerate(nodes):
        if node.of != "op":
            continue
        op = program.ops[node.index]
        for value, dims in zip(op.operands + op.results, op.rule.tensors, strict=True):
            places = {factors[0]: d for d, factors in enumerate(dims) if factors}
            i, j = places.get(node.first), places.get(node.second)
            if i is None or j is None:
                continue
            other = number.get(("value", value, min(i, j), max(i, j)))
            if other is not None:
                union.join(k, other, i > j)
    pairs_of_value = defaultdict(list)
    for node in nodes:
        if node.of == "value":
            pairs_of_value[node.index].append((node.first, node.second))
    if pairs_of_value:
        for op in program.ops:
            if not op.rule.tensors:
                for a, b in program.ties(op):
                    for pair in pairs_of_value.get(a, ()):
                        if ("value", b, *pair) in number:
                            union.join(number["value", a, *pair], number["value", b, *pair], False)
    return _sets(nodes, union)


def _sets(nodes: list[Conflict], union: _ParityUnion) -> tuple[CompatibilitySet, ...]:
    members: dict[int, list[tuple[int, bool]]] = defaultdict(list)
    for k in range(len(nodes)):
        root, parity = union.find(k)
        members[root].append((k, parity))
    out = []
    for root, found in members.items():
        base = found[0][1]
        out.append(
            CompatibilitySet(
                nodes[root].colour,
                tuple(
                    Conflict(n.of, n.index, n.first, n.second, n.colour, parity != base)
                    for n, parity in ((nodes[k], parity) for k, parity in found)
                ),
                root not in union.contradictory,
            )
        )
    return tuple(out)


def _value_conflicts(colours: Colours) -> Iterator[Conflict]:
    start = colours.names.dim_start
    ranks = np.diff(start)
    found: list[int] = []
    for rank in range(2, int(ranks.max(initial=0)) + 1):
        values = np.flatnonzero(ranks == rank)
        found.extend(values[_has_twice(colours.of[start[values][:, None] + np.arange(rank)])])
    for v in sorted(found):
        yield from _pairs("value", int(v), colours.of_value(v))


def _op_conflicts(colours: Colours) -> Iterator[Conflict]:
    start = colours.names.factor_start
    found: list[int] = []
    for group in colours.names.by_rule:
        count = len(group.rule.sizes)
        if count > 1:
            found.extend(group.ops[_has_twice(colours.of[start[group.ops][:, None] + np.arange(count)])])
    for o in sorted(found):
        yield from _pairs("op", int(o), colours.of_op(o))


def _has_twice(rows: Ints) -> NDArray[np.bool_]:
    """Which rows hold some colour more than once."""
    ordered = np.sort(rows, axis=1)
    twice: NDArray[np.bool_] = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(axis=1)
    return twice


def _pairs(of: str, index: int, colours: Ints) -> Iterator[Conflict]:
    for i, j in combinations(range(len(colours)), 2):
        if colours[i] == colours[j] >= 0:
            yield Conflict(of, index, i, j, int(colours[i]))


@dataclass
class _ParityUnion:
    """Union-find where each element also knows whether it is turned against its root."""

    count: int
    parent: list[int] = field(init=False)
    parity: list[bool] = field(init=False)
    contradictory: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.parent = list(range(self.count))
        self.parity = [False] * self.count

    def find(self, k: int) -> tuple[int, bool]:
        path = []
        while self.parent[k] != k:
            path.append(k)
            k = self.parent[k]
        turned = False
        for node in reversed(path):  # from the root outwards, so that each step is relative to the root
            turned ^= self.parity[node]
            self.parent[node], self.parity[node] = k, turned
        return k, turned

    def join(self, a: int, b: int, turned: bool) -> None:
        root_a, parity_a = self.find(a)
        root_b, parity_b = self.find(b)
        if root_a == root_b:
            if parity_a ^ parity_b != turned:
                self.contradictory.add(root_a)
            return
        low, high = sorted((root_a, root_b))
        self.parent[high], self.parity[high] = low, parity_a ^ parity_b ^ turned
        if high in self.contradictory:
            self.contradictory.add(low)
