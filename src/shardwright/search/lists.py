"""States as a search has them: for each axis the entries that it chose, in one order for all that mean the same."""

from __future__ import annotations

from shardwright.price import Places
from shardwright.space.state import AnyEntry, Entry, KeepWhole, Lists

__all__ = ["Lists", "added", "replaced"]


def added(lists: Lists, axis: int, *entries: AnyEntry) -> Lists:
    """With entries at the end of an axis's list, but for those about what is on it already."""
    have = {e.subject for e in lists[axis]}
    new = [e for e in entries if e.subject not in have]
    return replaced(lists, axis, (*lists[axis], *new)) if new else lists


def replaced(lists: Lists, axis: int, entries: tuple[AnyEntry, ...]) -> Lists:
    """With another list for an axis."""
    return (*lists[:axis], entries, *lists[axis + 1 :])


class Order:
    """Puts lists in order: two entries that no tensor has both of can change places, and so are sorted.

    ``meets[group]`` are the groups that stand beside it in some tensors, but not in all.
    """

    def __init__(self, places: Places) -> None:
        sets = {frozenset(found) - {-1} for found in places.of_value}
        pairs = {(a, b) for groups in sets for a in groups for b in groups if a != b}
        alone = {(a, b) for groups in sets for a in groups for b, _ in pairs if b not in groups}
        self.meets: dict[int, tuple[int, ...]] = {}
        for a, b in sorted(pairs & alone):
            self.meets[a] = (*self.meets.get(a, ()), b)
        self._beside: dict[int, int] = {}
        """The groups that some tensor has beside a group, as bits."""
        for a, b in pairs:
            self._beside[a] = self._beside.get(a, 0) | 1 << b
        self._known: dict[tuple[AnyEntry, ...], tuple[AnyEntry, ...]] = {}

    def normal(self, lists: Lists) -> Lists:
        """Equal for lists that give every tensor the same sharding for this reason."""
        return tuple([entries if len(entries) < 2 else self._normal(entries) for entries in lists])

    def _normal(self, entries: tuple[AnyEntry, ...]) -> tuple[AnyEntry, ...]:
        known = self._known.get(entries)
        if known is None:
            left = [e for e in entries if isinstance(e, Entry)]
            ordered: list[AnyEntry] = sorted([e for e in entries if isinstance(e, KeepWhole)])  # they come first
            beside = self._beside
            while left:
                before, smallest = 0, left[0]  # nothing stands in the way of the first
                for e in left:
                    if e < smallest and not beside.get(e.group, 0) & before:
                        smallest = e
                    before |= 1 << e.group
                left.remove(smallest)
                ordered.append(smallest)
            known = self._known[entries] = tuple(ordered)
        return known
