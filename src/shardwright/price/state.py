"""States: for each mesh axis, an ordered list of groups, each with the sides it takes in its conflicts.

Order is priority. With ``data: batch, width`` an activation [batch, width] has its batch sharded, and a weight
[width, hidden], which has no batch, its width: data parallelism with sharded parameters, from one rule.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

Sharding = tuple[tuple[int, ...], ...]
"""For each dimension of a tensor the axes (by number, major first) that it is split over."""


@dataclass(frozen=True)
class MeshShape:
    """The names and sizes of a mesh's axes, in order; the devices themselves do not matter to a plan.

    ``order`` is that in which several axes split one dimension, major first; by default the mesh's own. It is how a
    plan writes shardings, and no part of the mesh.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    order: tuple[int, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, axes: Mapping[str, int], order: Sequence[str] = ()) -> MeshShape:
        """From a dict such as ``{"data": 4, "model": 2}``; ``order`` has all of its axes or none."""
        names = tuple(axes)
        return cls(names, tuple(axes.values()), tuple(names.index(name) for name in order))

    @cached_property
    def major_first(self) -> tuple[int, ...]:
        """The axes by number, in the order in which they split one dimension."""
        return self.order or tuple(range(len(self.names)))

    @property
    def axes(self) -> dict[str, int]:
        """The size of each axis by its name."""
        return dict(zip(self.names, self.sizes, strict=True))

    @cached_property
    def devices(self) -> int:
        """How many devices there are."""
        count = 1
        for size in self.sizes:
            count *= size
        return count

    def numbers(self, names: Container[str]) -> frozenset[int]:
        """The axes of these names, by number."""
        return frozenset(axis for axis, name in enumerate(self.names) if name in names)

    def ways(self, axes: tuple[int, ...]) -> int:
        """Into how many parts these axes split a dimension."""
        parts = 1
        for axis in axes:
            parts *= self.sizes[axis]
        return parts


def without(sharding: Sharding, axes: Container[int]) -> Sharding:
    """A sharding but for some axes."""
    return tuple(tuple(axis for axis in dim if axis not in axes) for dim in sharding)


class Entry(NamedTuple):
    """A group on an axis's list; ``sides[k]`` is the side taken in the group's k-th conflict.

    Tensors that have the group ``unless`` as well pass the entry by. A negative group stands for a set of values that
    stay whole: see ``keep_whole``.
    """

    group: int
    sides: tuple[int, ...] = ()
    unless: int = -1


def keep_whole(number: int) -> Entry:
    """The entry from which on the values of ``State.whole[number]`` take nothing of the axis."""
    return Entry(-2 - number)


@dataclass(frozen=True)
class State:
    """``lists[axis]`` in order of priority; ``whole`` are the sets of arguments' values that entries can keep whole."""

    lists: tuple[tuple[Entry, ...], ...]
    whole: tuple[frozenset[int], ...] = field(default=())
