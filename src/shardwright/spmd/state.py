"""States: for each mesh axis, an ordered list of groups, each with the sides it takes in its conflicts.

Order is priority. With ``data: batch, width`` an activation [batch, width] has its batch sharded, and a weight
[width, hidden], which has no batch, its width: data parallelism with sharded parameters, from one rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

Sharding = tuple[tuple[int, ...], ...]
"""For each dimension of a tensor the axes (by number, in the mesh's order) that it is split over."""


@dataclass(frozen=True)
class MeshShape:
    """The names and sizes of a mesh's axes, in order; the devices themselves do not matter to a plan."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, axes: Mapping[str, int]) -> MeshShape:
        """From a dict such as ``{"data": 4, "model": 2}``."""
        return cls(tuple(axes), tuple(axes.values()))

    @cached_property
    def devices(self) -> int:
        """How many devices there are."""
        count = 1
        for size in self.sizes:
            count *= size
        return count

    def ways(self, axes: tuple[int, ...]) -> int:
        """Into how many parts these axes split a dimension."""
        parts = 1
        for axis in axes:
            parts *= self.sizes[axis]
        return parts


class Entry(NamedTuple):
    """A group on an axis's list; ``sides[k]`` is the side taken in the group's k-th conflict."""

    group: int
    sides: tuple[int, ...]


@dataclass(frozen=True)
class State:
    """``lists[axis]`` in order of priority; ``whole[axis]`` are values of arguments that the axis must not split."""

    lists: tuple[tuple[Entry, ...], ...]
    whole: tuple[frozenset[int], ...] = field(default=())

    def whole_on(self, axis: int) -> frozenset[int]:
        """Values of arguments that stay whole on an axis."""
        return self.whole[axis] if self.whole else frozenset()
