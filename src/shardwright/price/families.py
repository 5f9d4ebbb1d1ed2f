"""Families: classes of kernels, values and uses that see the same groups of a state, priced together.

A family remembers its price for every part of a state that it has met. Parts that differ often come to the same prices
of ops and the same bytes of values, so each unit of a family remembers its price by these, and the family their sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardwright.price.views import Seen, View
from shardwright.space.state import Subject

Rows = NDArray[np.int64]
"""Bytes, or counts of tensors, at each point of the program."""
Seconds = NDArray[np.float64]


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """What a unit adds to a cost; ``held`` are numbers of tensors at each point and the bytes of one of them.

    ``on_host`` are the same of tensors in the host's memory. ``beside`` is what runs at the same time in each place
    where values are moved between the two: see ``price/transfers.py``. It equals nothing but itself, so that sums can
    be remembered by what they are made of.
    """

    compute_seconds: float = 0.0
    comm_seconds: float = 0.0
    held: tuple[tuple[Rows, int], ...] = ()
    on_host: tuple[tuple[Rows, int], ...] = ()
    beside: Seconds | None = None


NO_PART = Part()

Unit = Callable[[View], Part]
"""A class of kernels, values, uses or borders: what it adds to the cost of a state."""


@dataclass(frozen=True, eq=False, slots=True)
class FamilyPart:
    """What a family adds to a cost; ``rows`` is None where that is no memory, and so are the others."""

    compute_seconds: float
    comm_seconds: float
    rows: Rows | None
    host_rows: Rows | None = None
    beside: Seconds | None = None


@dataclass
class Family:
    """Units that see the same groups of a state; ``number`` is that of the set of groups."""

    groups: frozenset[Subject]
    number: int
    units: list[Unit] = field(default_factory=list)
    known: dict[Seen, FamilyPart] = field(default_factory=dict)
    sums: dict[tuple[Part, ...], FamilyPart] = field(default_factory=dict)

    def add_up(self, view: View) -> FamilyPart:
        """The family's part of the cost."""
        parts = tuple([unit(view) for unit in self.units])
        found = self.sums.get(parts)
        if found is None:
            found = self.sums[parts] = _sum(parts)
        return found

    def forget(self) -> None:
        """Give back memory."""
        self.known.clear()
        self.sums.clear()


def _sum(parts: Sequence[Part]) -> FamilyPart:
    compute = comm = 0.0
    rows: Rows | None = None
    host_rows: Rows | None = None
    beside: Seconds | None = None
    for part in parts:
        compute += part.compute_seconds
        comm += part.comm_seconds
        for counts, size in part.held:
            if size:
                rows = counts * size if rows is None else rows + counts * size
        for counts, size in part.on_host:
            host_rows = counts * size if host_rows is None else host_rows + counts * size
        if part.beside is not None:
            beside = part.beside if beside is None else beside + part.beside
    return FamilyPart(compute, comm, rows, host_rows, beside)


def total_rows(parts: Sequence[FamilyPart], points: int) -> Rows:
    """Bytes at each point of all families."""
    rows = np.zeros(points, np.int64)
    for part in parts:
        if part.rows is not None:
            rows += part.rows
    return rows


def most_on_host(parts: Iterable[FamilyPart]) -> int:
    """The most bytes that all families hold in the host's memory at a point."""
    found = [part.host_rows for part in parts if part.host_rows is not None]
    return int(np.sum(found, axis=0).max()) if found else 0


def added_beside(parts: Iterable[FamilyPart]) -> Seconds | None:
    """What runs at the same time in each place where values are moved to the host or back; None if there is none."""
    found = [part.beside for part in parts if part.beside is not None]
    return np.sum(found, axis=0) if found else None


def move_rows(rows: Rows, before: FamilyPart, after: FamilyPart) -> None:
    """Bring bytes at each point from one price of a family to another, in place."""
    if after.rows is not None:
        rows += after.rows
    if before.rows is not None:
        rows -= before.rows


class Sets:
    """Sets of groups, each with a number."""

    def __init__(self) -> None:
        self._numbers: dict[frozenset[Subject], int] = {}

    def number(self, groups: frozenset[Subject]) -> int:
        """The number of a set."""
        return self._numbers.setdefault(groups, len(self._numbers))

    def __iter__(self) -> Iterator[frozenset[Subject]]:
        return iter(self._numbers)


def find_families(units: Iterable[tuple[Iterable[Subject], Unit]], sets: Sets) -> list[Family]:
    """Units by the groups that they see."""
    found: dict[frozenset[Subject], Family] = {}
    for seen, unit in units:
        groups = frozenset(seen)
        if groups not in found:
            found[groups] = Family(groups, sets.number(groups))
        found[groups].units.append(unit)
    return list(found.values())
