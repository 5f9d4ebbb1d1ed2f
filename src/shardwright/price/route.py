"""The shardings that a tensor passes through on its way from one to another, a step at a time.

XLA brings a tensor from one sharding to another well where that is one step: some axes are sliced off, or move together
from one dimension to another, or are gathered. Of several steps at once it often makes none of them: it gathers the
whole tensor on every device and slices it again. So it was, of all pairs of shardings of three dimensions by two axes
compiled for TPU v5e, where an axis moves and another of its dimension is gathered, where two of one dimension move to
two others, and where two of two dimensions meet in a third.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.request import MeshShape
from shardwright.space.state import Sharding


def stations(shape: Sequence[int], have: Sharding, want: Sharding, mesh: MeshShape) -> tuple[Sharding, ...]:
    """What to pass between two shardings, so that every step is one that compilers know; often nothing.

    Slices come first, because they make the tensor smaller, gathers last. A station that does not divide the tensor is
    left out. XLA finds the way itself where a permutation of the parts brings every axis to its place, or where an
    axis is sliced off in place of one that leaves.
    """
    held = {axis for axes in have for axis in axes}
    changes = list(zip(have, want, strict=True))
    if all(mesh.ways(before) % mesh.ways(after) == 0 for before, after in changes):
        return ()
    if any(set(before) - set(after) and set(after) - held for before, after in changes):
        return ()
    now = tuple((*before, *(axis for axis in after if axis not in held)) for before, after in changes)
    passed = [now]
    while (following := _moved(now, want)) != now:
        now = following
        passed.append(now)
    told = (_unordered(have), _unordered(want))  # the order within a dimension comes right with the last step
    return tuple(
        station
        for station in passed
        if _unordered(station) not in told
        and all(size % mesh.ways(axes) == 0 for size, axes in zip(shape, station, strict=True))
    )


def _moved(now: Sharding, want: Sharding) -> Sharding:
    """With the axes of one dimension that belong to one other there; those first that are minor, as they move alone."""
    place = {axis: d for d, axes in enumerate(want) for axis in axes}
    moves: dict[tuple[int, int], list[int]] = {}
    for d, axes in enumerate(now):
        for axis in axes:
            if place.get(axis, d) != d:
                moves.setdefault((d, place[axis]), []).append(axis)
    if not moves:
        return now

    def last(move: tuple[int, int]) -> tuple[bool, bool]:
        origin, target = move
        axes = moves[move]
        before = want[target][: min(want[target].index(axis) for axis in axes)]
        return list(now[origin][-len(axes) :]) != axes, not set(before) <= set(now[target])

    origin, target = min(moves, key=last)
    moving = moves[origin, target]
    out = list(now)
    out[origin] = tuple(axis for axis in now[origin] if axis not in moving)
    out[target] = (*now[target], *(axis for axis in want[target] if axis in moving))
    return tuple(out)


def _unordered(sharding: Sharding) -> tuple[frozenset[int], ...]:
    return tuple(frozenset(axes) for axes in sharding)
