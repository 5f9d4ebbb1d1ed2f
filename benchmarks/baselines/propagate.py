"""Propagation of a sharding through a program as Automap has it, forwards and backwards, without resolving conflicts.

An axis on a dimension goes to the factor of every op that the dimension belongs to, and from there to all dimensions
of that factor. It stops where it would split two factors of one op or two dimensions of one value, and where it does
not divide. What was sharded first stays: nothing is ever moved to make room.

It works on the cost model's classes of values and ops, so all copies of a layer are sharded alike, at the price of one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from shardwright.price.program_classes import Classes
from shardwright.request import MeshShape
from shardwright.space.state import Sharding

Masks = tuple[int, ...]
"""For each *place*, a dimension of a class of values, the axes that it is split over: bit ``a`` for axis ``a``."""


class Link(NamedTuple):
    """The places of one factor of an op, or of one dimension on both sides of a loop's border.

    ``others`` are the places of the op's other factors; ``fits[mask]`` tells whether the axes of a mask divide the
    factor.
    """

    own: tuple[int, ...]
    others: tuple[int, ...]
    fits: tuple[bool, ...]


class Propagation:
    """Where each place of a program is linked to; made once, then asked for many states."""

    def __init__(self, classes: Classes, mesh: MeshShape) -> None:
        self.classes, self.mesh = classes, mesh
        masks = range(1 << len(mesh.sizes))
        self._axes = [tuple(axis for axis in range(len(mesh.sizes)) if mask >> axis & 1) for mask in masks]
        ways = [mesh.ways(axes) for axes in self._axes]
        shapes = [c.shape for c in classes.values.keys]
        self._start = [0]
        for shape in shapes:
            self._start.append(self._start[-1] + len(shape))

        @cache
        def fits(size: int) -> tuple[bool, ...]:
            return tuple(size % parts == 0 for parts in ways)

        self._fits = [fits(size) for shape in shapes for size in shape]
        self._siblings = [
            tuple(self.place(v, other) for other in range(len(shape)) if other != d)
            for v, shape in enumerate(shapes)
            for d in range(len(shape))
        ]
        found = [Link(own, others, fits(size)) for own, others, size in (*self._op_links(), *self._border_links())]
        self._links: list[list[Link]] = [[] for _ in self._fits]
        for link in dict.fromkeys(found):  # ops that link the same places in the same way are looked at once
            for p in link.own:
                self._links[p].append(link)

    def _op_links(self) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int]]:
        """Factors that more than one place has; constants are left out, for any device can make them as needed."""
        free = self.classes.program.free
        for number, c in enumerate(self.classes.ops.keys):
            op = self.classes.op(number)
            values = (*c.operands, *c.results)
            skipped = (*c.free, *(bool(free[v]) for v in op.results))
            places: dict[int, list[int]] = defaultdict(list)
            for t, d, factor in op.rule.links:
                if not skipped[t]:
                    places[factor].append(self.place(values[t], d))
            for factor, own in places.items():
                others = {p for f, found in places.items() if f != factor for p in found}
                if len(set(own)) > 1:
                    yield tuple(sorted(set(own))), tuple(sorted(others)), op.rule.sizes[factor]

    def _border_links(self) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int]]:
        for border in self.classes.border_classes.keys:
            if border.before != border.after:
                for d, size in enumerate(self.classes.values.keys[border.before].shape):
                    yield (self.place(border.before, d), self.place(border.after, d)), (), size

    def place(self, value_class: int, dimension: int) -> int:
        """The place of a dimension of a class of values."""
        return self._start[value_class] + dimension

    @property
    def whole(self) -> Masks:
        """Nothing is sharded."""
        return (0,) * len(self._fits)

    def can_take(self, masks: Masks | list[int], place: int, axis: int) -> bool:
        """The axis divides what is left of the dimension, and no dimension of the value has it yet."""
        bit = 1 << axis
        if masks[place] & bit or not self._fits[place][masks[place] | bit]:
            return False
        taken = 0
        for sibling in self._siblings[place]:
            taken |= masks[sibling]
        return not taken & bit

    def shard(self, masks: Masks, place: int, axis: int) -> Masks:
        """Put an axis on a place, if that can take it, and on everything that it propagates to."""
        if not self.can_take(masks, place, axis):
            return masks
        bit, now = 1 << axis, list(masks)
        now[place] |= bit
        reached = [place]
        for p in reached:  # grows as we go
            for own, others, fits in self._links[p]:
                taken = 0
                for q in others:
                    taken |= now[q]
                if taken & bit:
                    continue
                mask = 0
                for q in own:
                    mask |= now[q]
                if not fits[mask]:
                    continue
                for q in own:
                    if self.can_take(now, q, axis):
                        now[q] |= bit
                        reached.append(q)
        return tuple(now)

    def shardings(self, masks: Masks) -> list[Sharding]:
        """The sharding of every class of values."""
        found = [self._axes[mask] for mask in masks]
        return [tuple(found[a:b]) for a, b in pairwise(self._start)]
