"""States: for each mesh axis, an ordered list of groups, each with the sides it takes in its conflicts.

Order is priority. With ``data: batch, width`` an activation [batch, width] has its batch sharded, and a weight
[width, hidden], which has no batch, its width: data parallelism with sharded parameters, from one rule.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import NamedTuple

Sharding = tuple[tuple[int, ...], ...]
"""For each dimension of a tensor the axes (by number, major first) that it is split over."""


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
