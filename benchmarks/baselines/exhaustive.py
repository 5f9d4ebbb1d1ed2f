"""Every state there is, where that is possible: what no search can beat."""

from __future__ import annotations

import math
import time
from itertools import product

from benchmarks.baselines.base import Baseline
from shardwright.price import CostModel
from shardwright.search.game import Space
from shardwright.search.lists import Lists, added
from shardwright.space.state import AnyEntry, State


def exhaustive(space: Space, costs: CostModel, limit_bytes: int, *, most: int = 200_000) -> Baseline:
    """The fastest state that fits, or the smallest where none does; no cost where there are more than ``most``.

    Lists that differ only in the order of entries that no tensor has both of are one state, and are met once.
    """
    start = time.perf_counter()
    by_axis = [_lists(space, axis, most) for axis in range(len(costs.mesh.sizes))]
    count = math.prod(map(len, by_axis))
    if count > most or any(not found for found in by_axis):
        return Baseline("exhaustive", None, time.perf_counter() - start, f"more than {most:,} states")
    best = min(
        (costs.evaluate(State(lists, space.whole)) for lists in product(*by_axis)),
        key=lambda c: (c.peak_bytes > limit_bytes, c.step_seconds if c.peak_bytes <= limit_bytes else c.peak_bytes),
    )
    return Baseline("exhaustive", best, time.perf_counter() - start, f"{count:,} states")


def _lists(space: Space, axis: int, most: int) -> list[tuple[AnyEntry, ...]]:
    """Every list that an axis can have, shortest first; none if there are too many."""
    empty: Lists = space.root
    seen: dict[tuple[AnyEntry, ...], None] = {(): None}
    front = [empty]
    while front:
        after: list[Lists] = []
        for lists in front:
            for entry in space.actions.entries[axis]:
                longer = space.order.normal(added(lists, axis, entry))
                if longer[axis] not in seen:
                    seen[longer[axis]] = None
                    after.append(longer)
            if len(seen) > most:
                return []
        front = after
    return list(seen)
