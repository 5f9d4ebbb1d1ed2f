"""States as a search has them: for each axis the entries that it chose."""

from __future__ import annotations

from shardwright.space.state import Entry

Lists = tuple[tuple[Entry, ...], ...]


def added(lists: Lists, axis: int, *entries: Entry) -> Lists:
    """With entries at the end of an axis's list, but for groups that are on it already."""
    have = {e.group for e in lists[axis]}
    new = [e for e in entries if e.group not in have]
    return replaced(lists, axis, (*lists[axis], *new)) if new else lists


def replaced(lists: Lists, axis: int, entries: tuple[Entry, ...]) -> Lists:
    """With another list for an axis."""
    return (*lists[:axis], entries, *lists[axis + 1 :])
