"""A state as classes see it: of each axis's list, the entries whose groups they have.

What a class costs depends on nothing else, so prices are remembered by it. A part of a list goes by a number, and a set
of groups sees in a state one number for each axis: that is quicker to look up than the entries are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardwright.space.state import AnyEntry, Entry, Lists, Sharding, Subject

Seen = tuple[int, ...]
"""What a set of groups sees of a state: for each axis the number of its part of the list."""

_EVERY_GROUP = -1


class Projections:
    """Numbers the parts of lists that each of some sets of groups sees; equal parts have equal numbers."""

    def __init__(self, sets: Sequence[frozenset[Subject]]) -> None:
        self._with_group: dict[Subject, list[int]] = {}
        for number, groups in enumerate(sets):
            for subject in groups:
                self._with_group.setdefault(subject, []).append(number)
        self._longer: dict[tuple[int, AnyEntry], int] = {}
        """The number of a part with one entry more; the empty part is 0."""
        self._nothing = [0] * len(sets)
        self._known: dict[tuple[AnyEntry, ...], list[int]] = {(): self._nothing}

    def seen(self, lists: Lists) -> list[Seen]:
        """What each set sees of a state."""
        return list(zip(*map(self._parts, lists), strict=True)) if lists else [()] * len(self._nothing)

    @property
    def kept(self) -> int:
        """How many numbers are remembered, and can be forgotten."""
        return len(self._known) * len(self._nothing)

    def forget(self) -> None:
        """Give back memory; the numbers that were given stay the same."""
        self._known = {(): self._nothing}

    def _parts(self, entries: tuple[AnyEntry, ...]) -> list[int]:
        """The number of what each set sees of a list."""
        known = self._known.get(entries)
        if known is None:
            last, longer = entries[-1], self._longer
            known = self._parts(entries[:-1]).copy()
            for number in self._with_group.get(last.subject, ()):
                known[number] = longer.setdefault((known[number], last), len(longer) + 1)
            self._known[entries] = known
        return known


class View:
    """A state: ``seen[number]`` is what a set of groups sees of it, ``groups`` are those of each list as bits.

    ``fixed`` are the shardings of all classes of values where no state gives them; an op may then use every group.
    """

    __slots__ = ("fixed", "groups", "lists", "seen")

    def __init__(self, lists: Lists, seen: Sequence[Seen], fixed: Sequence[Sharding] | None = None) -> None:
        self.lists, self.seen, self.fixed = lists, seen, fixed
        self.groups = [
            bits(e.group for e in entries if isinstance(e, Entry)) if fixed is None else _EVERY_GROUP
            for entries in lists
        ]


def bits(groups: Iterable[int]) -> int:
    """A set of groups as a number, which is quick to intersect."""
    out = 0
    for group in groups:
        out |= 1 << group
    return out
