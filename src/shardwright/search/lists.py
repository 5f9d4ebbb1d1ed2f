"""States as a search has them: for each axis the entries that it chose."""

from __future__ import annotations

from shardwright.space.state import AnyEntry, Lists

__all__ = ["Lists", "added", "replaced"]


def added(lists: Lists, axis: int, *entries: AnyEntry) -> Lists:
    """With entries at the end of an axis's list, but for those about what is on it already."""
    have = {e.subject for e in lists[axis]}
    new = [e for e in entries if e.subject not in have]
    return replaced(lists, axis, (*lists[axis], *new)) if new else lists


def replaced(lists: Lists, axis: int, entries: tuple[AnyEntry, ...]) -> Lists:
    """With another list for an axis."""
    return (*lists[:axis], entries, *lists[axis + 1 :])
