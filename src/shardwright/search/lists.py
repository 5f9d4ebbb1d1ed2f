"""States as a search has them: for each axis the entries that it chose, in one order for all that mean the same."""

from __future__ import annotations

from shardwright.spmd import Entry, Places

Lists = tuple[tuple[Entry, ...], ...]


class Order:
    """Puts lists in order: two entries that no tensor has both of can change places, and so are sorted.

    ``meets[group]`` are the groups that stand beside it in some tensors, but not in all.
    """

    def __init__(self, places: Places) -> None:
        sets = {frozenset(found) - {-1} for found in places.of_value}
        self._meets = {(a, b) for groups in sets for a in groups for b in groups if a != b}
        alone = {(a, b) for groups in sets for a in groups for b, _ in self._meets if b not in groups}
        self.meets: dict[int, tuple[int, ...]] = {}
        for a, b in sorted(self._meets & alone):
            self.meets[a] = (*self.meets.get(a, ()), b)
        self._known: dict[tuple[Entry, ...], tuple[Entry, ...]] = {}

    def normal(self, lists: Lists) -> Lists:
        """Equal for lists that give every tensor the same sharding for this reason."""
        return tuple([entries if len(entries) < 2 else self._normal(entries) for entries in lists])

    def _normal(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        known = self._known.get(entries)
        if known is None:
            left = [e for e in entries if e.group >= 0]
            ordered = sorted(e for e in entries if e.group < 0)  # what keeps tensors whole comes first
            while left:
                ready = (e for k, e in enumerate(left) if not any((e.group, f.group) in self._meets for f in left[:k]))
                smallest = min(ready)
                left.remove(smallest)
                ordered.append(smallest)
            known = self._known[entries] = tuple(ordered)
        return known


def added(lists: Lists, axis: int, *entries: Entry) -> Lists:
    """With entries at the end of an axis's list, but for groups that are on it already."""
    have = {e.group for e in lists[axis]}
    new = [e for e in entries if e.group not in have]
    return replaced(lists, axis, (*lists[axis], *new)) if new else lists


def replaced(lists: Lists, axis: int, entries: tuple[Entry, ...]) -> Lists:
    """With another list for an axis."""
    return (*lists[:axis], entries, *lists[axis + 1 :])
