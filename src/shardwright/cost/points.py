"""The points of a program at which its memory may be largest.

One point for each kernel, but copies of a layer need not all be looked at. Take a kernel that occurs in every layer: if
what lives at one occurrence is at most the mean of what lives at the one before and the one after, whatever the sizes,
then one of these two needs at least as much. Along a stack of equal layers that leaves the first and the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


def coverage(at: NDArray[np.int64], starts: Iterable[int], ends: Iterable[int]) -> Counts:
    """How many of the intervals ``[start, end]`` hold each of the positions."""
    begun = np.searchsorted(np.sort(np.fromiter(starts, np.int64)), at, side="right")
    gone = np.searchsorted(np.sort(np.fromiter(ends, np.int64)), at, side="left")
    return (begun - gone).astype(np.int64)


def extreme_points(at: NDArray[np.int64], kinds: Sequence[int], columns: Sequence[Counts]) -> NDArray[np.int64]:
    """Numbers of the points that are left; ``columns`` are counts of each kind of buffer at every point."""
    order = np.lexsort((at, np.asarray(kinds)))
    kind = np.asarray(kinds)[order]
    inner = np.zeros(len(order), dtype=bool)
    inner[1:-1] = (kind[:-2] == kind[1:-1]) & (kind[2:] == kind[1:-1])
    for column in columns:
        if not inner.any():
            break
        c = column[order]
        inner[1:-1] &= 2 * c[1:-1] <= c[:-2] + c[2:]
    return np.sort(order[~inner])
