"""The sharding of every value in a state: for each axis, the first colour on its list that the value has takes it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from copy import copy
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import NamedTuple

from shardwright.analysis import Analysis
from shardwright.compiler.partitioner import COMPUTED_WHOLE
from shardwright.ir.given import Given
from shardwright.ir.program import Op, Program
from shardwright.price.kept import kept_by, stays_whole
from shardwright.price.uneven import splits
from shardwright.request import MeshShape
from shardwright.space.state import KeepWhole, Lists, Sharding, State


class Pair(NamedTuple):
    """A conflict to look up: its two places, and the number of its group's conflict, or -1 if it has no choice."""

    sides: tuple[int, int]
    conflict: int


class Places:
    """Which group each dimension of a value or factor of an op belongs to, and how its conflicts are decided.

    ``loose`` is a group that may be split unevenly in arguments and results, too; -1 for none.
    """

    loose = -1

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self._pairs: dict[int, list[Pair]] = defaultdict(list)
        for group in analysis.groups:
            for k, conflict in enumerate(group.conflicts):
                for s in conflict.sets:
                    found = analysis.conflicts[s]
                    for m in found.members:
                        if m.of == "value":
                            sides = m.sides() if found.consistent else (m.first, m.second)
                            self._pairs[m.index].append(Pair(sides, k if found.consistent else -1))
        colours, start = analysis.colours, analysis.names.dim_start
        groups = [analysis.group_of.get(c, -1) for c in colours.of.tolist()]
        self.of_value = [tuple(groups[a:b]) for a, b in pairwise(start.tolist())]
        for op in analysis.program.ops:
            # It is there whole on every device, and what is split is cut out of it where it is used.
            if op.kind in COMPUTED_WHOLE.ops and op.rule.whole >= {*range(len(op.rule.sizes))}:
                for v in op.results:
                    self.of_value[v] = (-1,) * len(self.of_value[v])
        start = analysis.names.factor_start
        self.of_op = [tuple(groups[a:b]) for a, b in pairwise(start.tolist())]

    @cached_property
    def uniform(self) -> frozenset[int]:
        """Groups whose dimensions all have one size: padded alike, they still lie alike."""
        return frozenset(g for g, d in enumerate(self.analysis.descriptions) if len(d.sizes) == 1)

    @cached_property
    def _exact(self) -> frozenset[int]:
        """Values that JAX wants divided exactly, and those that are made of them, or they of them, entry by entry.

        To pad an optimizer's inside, where its state cannot be, would mean to gather all that it makes.
        """
        program = self.analysis.program
        beside: dict[int, list[int]] = defaultdict(list)
        for op in program.ops:
            together = [(*op.operands, *op.results)] if len(set(op.rule.tensors)) == 1 else []
            for values in together if op.rule.tensors else program.ties(op):
                for v in values:
                    beside[v] += values
        region = program.regions[0]
        found = {*region.parameters, *region.results}
        reached = list(found)
        while reached:
            new = {v for v in beside[reached.pop()] if v not in found}
            found |= new
            reached += new
        return frozenset(found)

    def loosened(self, group: int) -> Places:
        """The same places, but for one group that may be split unevenly in arguments and results, too."""
        found = copy(self)
        found.loose = group
        return found

    @property
    def padded_groups(self) -> frozenset[int]:
        """Groups of which some value may be split unevenly."""
        return self._padded_inside | ({self.loose} & self.uniform)

    @cached_property
    def _padded_inside(self) -> frozenset[int]:
        inside = (groups for v, groups in enumerate(self.of_value) if v not in self._exact)
        return frozenset(g for groups in inside for g in groups) & self.uniform

    def pairs(self, value: int) -> tuple[Pair, ...]:
        """The conflicts of a value."""
        return tuple(self._pairs.get(value, ()))

    def padded(self, value: int) -> tuple[int, ...]:
        """The groups of a value that may be split unevenly."""
        exact = value in self._exact
        return tuple(g for g in self.of_value[value] if g in self.uniform and (not exact or g == self.loose))


class Fixed(NamedTuple):
    """A sharding that a program gives to a value, on a mesh (see ``Given``); ``taken`` are axes that no list gives."""

    axes: Sharding
    open: tuple[bool, ...]
    taken: frozenset[int]


@lru_cache(maxsize=4096)
def fixed_on(given: Given | None, mesh: MeshShape) -> Fixed | None:
    """What a value is given, by numbers of axes; an axis of one device splits nothing."""
    if given is None:
        return None
    number = {name: a for a, (name, size) in enumerate(zip(mesh.names, mesh.sizes, strict=True)) if size > 1}
    axes = tuple(tuple(number[name] for name in names if name in number) for names in given.axes)
    return Fixed(axes, given.open, frozenset(number[name] for name in given.named if name in number))


class Bounds(NamedTuple):
    """Which factors of an op axes may split although no list says so, and which axes it must not use, by their names.

    A value that is given a sharding can be read and made as it lies. In a manual region its axes are used up.
    """

    also: frozenset[tuple[str, int]]
    barred: frozenset[str]

    def of_axis(self, axis: str) -> frozenset[int] | None:
        """The factors that an axis may split in any state; None if it must not split any."""
        return None if axis in self.barred else frozenset(factor for name, factor in self.also if name == axis)


NO_BOUNDS = Bounds(frozenset(), frozenset())


def bounds_of(program: Program, op: Op) -> Bounds:
    """What the shardings that its operands and results are given mean for an op."""
    found = [(program.values[v].given, k) for k, v in enumerate((*op.operands, *op.results))]
    if not op.rule.tensors or all(given is None for given, _ in found):
        return NO_BOUNDS
    also: set[tuple[str, int]] = set()
    barred: frozenset[str] = frozenset()
    for given, tensor in found:
        if given is not None:
            barred |= given.local
            dims = zip(given.axes, op.rule.tensors[tensor], strict=True)
            also.update((axis, factors[0]) for axes, factors in dims if factors for axis in axes)
    return Bounds(frozenset(also), barred)


def winner(places: Iterable[int], pairs: Iterable[Pair], sides: tuple[int, ...]) -> int:
    """The one of several places of one colour that every conflict's side points to; else the first."""
    left = list(places)
    losers = {
        pair.sides[1 - (sides[pair.conflict] if 0 <= pair.conflict < len(sides) else 0)]
        for pair in pairs
        if set(pair.sides) <= set(left)
    }
    return next((p for p in left if p not in losers), left[0])


def shard_values(places: Places, mesh: MeshShape, state: State) -> list[Sharding]:
    """The sharding of every value of the program."""
    program = places.analysis.program
    whole = [stays_whole(program, values) for values in state.whole]
    known: dict[object, Sharding] = {}
    out: list[Sharding] = []
    for v, value in enumerate(program.values):
        groups = places.of_value[v]
        pairs = places.pairs(v)
        kept = kept_by(v, whole)
        padded = places.padded(v)
        key = (value.shape, groups, pairs, kept, padded, value.given)
        sharding = known.get(key)
        if sharding is None:
            fixed = fixed_on(value.given, mesh)
            sharding = known[key] = shard_value(value.shape, groups, pairs, kept, mesh, state.lists, padded, fixed)
        out.append(sharding)
    return out


def shard_value(
    shape: tuple[int, ...],
    groups: tuple[int, ...],
    pairs: tuple[Pair, ...],
    kept: tuple[KeepWhole, ...],
    mesh: MeshShape,
    lists: Lists,
    padded: tuple[int, ...] = (),
    fixed: Fixed | None = None,
) -> Sharding:
    """The sharding of a value with these groups and conflicts.

    ``kept`` are entries that keep it whole, ``padded`` groups that may be split unevenly; ``fixed`` is what the program
    itself says.
    """
    if 0 in shape:  # there is nothing to split, and jaxlib 0.10.2 hands such results out whole whatever is asked for
        return tuple(() for _ in shape)
    taken: list[list[int]] = [[] for _ in shape] if fixed is None else [list(axes) for axes in fixed.axes]
    for axis in mesh.major_first:
        if fixed is not None and axis in fixed.taken:
            continue
        for entry in lists[axis]:
            if isinstance(entry, KeepWhole):
                if entry in kept:
                    break
                continue
            dims = [d for d, g in enumerate(groups) if g == entry.group and (fixed is None or fixed.open[d])]
            if not dims or (entry.unless >= 0 and entry.unless in groups):
                continue
            d = winner(dims, pairs, entry.sides) if len(dims) > 1 else dims[0]
            parts = mesh.sizes[axis] * mesh.ways(tuple(taken[d]))
            if splits(shape[d], parts, padded=entry.group in padded):
                taken[d].append(axis)
                break
    return tuple(tuple(axes) for axes in taken)
