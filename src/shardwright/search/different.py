"""States that differ in what the compiler would see, for it to choose among.

The next best state by the estimate mostly says the best one once more, with an entry that changes next to nothing: the
compiler makes the same program of both. So states are chosen for time and distance, where the *distance* of two states
is the part of the bytes of all stored values that are sharded otherwise::

    distance(a, b) = min_π Σ_v bytes(v) [X_v(a) ≠ π X_v(b)] / Σ_v bytes(v)

over the ways ``π`` to exchange axes that are alike, of one size and on links of one kind.

First come those that are far from all that were chosen, the fastest first; where there are too few, those that are
nearer; and what is slower than the best by more than the estimate is likely to be wrong is left out. If that leaves
nothing to compare the best with, the fastest of the others that differ is compared with it all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from shardwright._memo import Memo, Numbers
from shardwright.price import CostModel
from shardwright.search.scores import Found, Scores
from shardwright.space.state import Lists, Sharding

_Layout = NDArray[np.int64]
"""For every class of values the number of its sharding."""

_APART = (0.1, 0.03, 0.01)
"""How far states are to be from each other, and what is made do with."""
_WITHIN = 0.15
"""How much slower than the best a state may be: the 80th percentile of the estimate's error (docs/benchmarks/clock.md)
is about that much."""
_MOST_LOOKED_AT = 400


def different(scores: Scores, count: int, within: float = _WITHIN) -> list[Found]:
    """The best state that fits, and others that fit, differ from it and from each other, and may be as fast."""
    found = scores.distinct(_MOST_LOOKED_AT)
    if not found or scores.best is None:
        return []
    found[0] = scores.best
    near = sum(f.cost.step_seconds <= (1 + within) * scores.best.cost.step_seconds for f in found)
    ways = Distances(scores.costs)
    layouts: Memo[int, list[_Layout]] = Memo(lambda k: ways.layouts(scores, found[k]))
    chosen = [0]
    for first, end, most in ((1, near, count), (near, len(found), min(count, 2))):
        for apart in _APART:
            for k in range(first, end):
                if len(chosen) >= most:
                    break
                if k not in chosen and all(ways.distance(layouts[k], layouts[c]) >= apart for c in chosen):
                    chosen.append(k)
    return [found[k] for k in sorted(chosen)]


class Distances:
    """How far states of one program are from each other."""

    def __init__(self, costs: CostModel) -> None:
        self.costs = costs
        self._numbers: Numbers[Sharding] = Numbers()
        classes = costs.classes
        program, stored = classes.program, classes.kernels.stored
        held = {a.value for a in program.arguments}
        self.bytes = np.array(
            [
                float(sum(program.values[v].bytes for v in members if stored[v] or v in held))
                for members in classes.values.members
            ]
        )
        self._turns = list(_exchanges(costs))

    def layouts(self, scores: Scores, found: Found) -> list[_Layout]:
        """How values lie in a state, and with the axes exchanged; as they are comes first."""
        return self.lie(scores.state(found.lists).lists)

    def lie(self, lists: Lists) -> list[_Layout]:
        """The same of a state by all of its lists."""
        costs, tensors = self.costs, self.costs.tensors
        view = costs.view(lists)
        lie = [tensors.sharding(c, view) for c in range(len(costs.classes.values.keys))]
        return [np.array([self._number(sharding, turn) for sharding in lie], np.int64) for turn in self._turns]

    def distance(self, a: list[_Layout], b: list[_Layout]) -> float:
        """The part of the bytes that lies differently, however the axes of one of them are exchanged."""
        total = float(self.bytes.sum())
        return min([float(self.bytes[a[0] != other].sum()) for other in b]) / total if total else 0.0

    def _number(self, sharding: Sharding, turn: tuple[int, ...]) -> int:
        return self._numbers[tuple([tuple(sorted([turn[a] for a in axes])) for axes in sharding])]


def _exchanges(costs: CostModel) -> Iterator[tuple[int, ...]]:
    """The ways to exchange axes that are alike, none at all first."""
    alike = [[(part.link, part.size) for part in parts] for parts in costs.prices.parts]
    for turn in permutations(range(len(alike))):
        if all(alike[a] == alike[b] for a, b in enumerate(turn)):
            yield turn
