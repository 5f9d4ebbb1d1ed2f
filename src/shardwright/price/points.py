"""The points of a program at which its memory may be largest.

One point for each kernel, but copies of a layer need not all be looked at. Take a kernel that occurs in every layer: if
what lives at one occurrence is at most the mean of what lives at the one before and the one after, whatever the sizes,
then one of these two needs at least as much. Along a stack of equal layers that leaves the first and the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwright.price.buffers import Form
from shardwright.price.classes import Classes

Counts = NDArray[np.int64]


class Points(NamedTuple):
    """Where memory is looked at: the positions, which class of kernel runs there, and how many buffers are alive.

    Buffers are counted by the class of their value and their form.
    """

    at: NDArray[np.int64]
    kinds: NDArray[np.int64]
    columns: dict[tuple[int, Form], Counts]


def find_points(classes: Classes) -> Points:
    """Where the memory of a program is looked at."""
    kinds, roots = [], []
    for k, members in enumerate(classes.kernel_classes.members):
        kinds += [k] * len(members)
        roots += members
    if not roots:  # nothing runs, but arguments are held all the same
        kinds, roots = [-1], [-1]
    at = np.array([classes.kernels.at[root] if root >= 0 else 0 for root in roots], np.int64)
    columns: dict[tuple[int, Form], list[tuple[int, int]]] = {}
    for buffer in (*classes.buffers.temporary, *classes.buffers.on_host):
        columns.setdefault((classes.of_value[buffer.value], buffer.form), []).append((buffer.start, buffer.end))
    counts = [coverage(at, *zip(*spans, strict=True)) for spans in columns.values()]
    left = extreme_points(at, kinds, counts)
    alive = {key: column[left] for key, column in zip(columns, counts, strict=True)}
    return Points(at[left], np.array(kinds)[left], alive)


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
