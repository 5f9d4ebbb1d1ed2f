"""States: for each mesh axis an ordered list of groups, each with the sides that it takes in its conflicts.

Order is priority. With ``data: batch, width`` an activation [batch, width] has its batch sharded, and a weight
[width, hidden], which has no batch, its width: data parallelism with sharded parameters, from one rule.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import NamedTuple

Sharding = tuple[tuple[int, ...], ...]
"""For each dimension of a tensor the axes (by number, major first) that it is split over."""


def without(sharding: Sharding, axes: Container[int]) -> Sharding:
    """A sharding but for some axes."""
    return tuple(tuple(axis for axis in dim if axis not in axes) for dim in sharding)


class Entry(NamedTuple):
    """A group on an axis's list; ``sides[k]`` is the side taken in the group's k-th conflict.

    Tensors that have the group ``unless`` as well pass the entry by.
    """

    group: int
    sides: tuple[int, ...] = ()
    unless: int = -1

    @property
    def subject(self) -> Subject:
        """What the entry is about: its group. A list has no two entries about the same."""
        return self.group


@dataclass(frozen=True, slots=True)
class KeepWhole:
    """An entry from which on the values of ``State.whole[number]``, and all that stays with them, take nothing.

    It sorts before every group, and of two the one with the higher number first.
    """

    number: int

    @property
    def subject(self) -> Subject:
        """What the entry is about: itself."""
        return self

    def __lt__(self, other: object) -> bool:
        return self.number > other.number if isinstance(other, KeepWhole) else True

    def __gt__(self, other: object) -> bool:
        return self.number < other.number if isinstance(other, KeepWhole) else False

    def __hash__(self) -> int:
        return ~self.number  # lists are looked up all the time, and what a dataclass makes takes three times as long


AnyEntry = Entry | KeepWhole
Subject = int | KeepWhole
"""What an entry is about: a group by its number, or a set of values that stay whole."""
Lists = tuple[tuple[AnyEntry, ...], ...]
"""For each axis its entries, in order of priority."""


@dataclass(frozen=True)
class State:
    """The lists of all axes; ``whole`` are the sets of arguments' values that a ``KeepWhole`` can stand for."""

    lists: Lists
    whole: tuple[frozenset[int], ...] = ()
