"""The mesh's own shape: how many axes, of which sizes and in which order, where only the devices are given.

A mesh with one axis is soon searched, and others can do all that it can. So what is best there is tried on the others,
each axis with the same list; what is best on those that were tried goes on to the next, each axis with one of their
lists. The shapes that come out best are improved on for a while, and the best of these are searched. What does not
depend on the mesh (the program, its classes, the work of an op in so many parts) is found once for all.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shardwright._collector import collector_paused
from shardwright.cost import Cost, CostModel
from shardwright.errors import PinError
from shardwright.plan.choices import MeshChoice
from shardwright.search import Glance, Outcome
from shardwright.spmd import MeshShape, State
from shardwright.traced import Traced
from shardwright.wish import Wish

_IMPROVED, _IMPROVING_WORK = 3, 40_000
"""How many shapes are improved on, and how much (see ``Scores.work``): nearly half as much as a search would do."""
_CLOSE = 0.005
"""The best shape is searched; so is the second, if it is this close."""
_CARRIED = 4
"""How many of the best states of other shapes are tried on a shape."""


def search_meshes(
    wish: Wish, traced: Traced, candidates: Sequence[MeshShape], seconds: float | None, budget: Mapping[str, Any]
) -> tuple[MeshShape, CostModel, Outcome, tuple[MeshChoice, ...]]:
    """The best state on the best of several shapes; and how all of them compare, if there are several.

    Raises ``PinError`` where the pins fit no shape: that of the first.
    """
    if len(candidates) == 1:
        return candidates[0], *wish.search(traced, candidates[0], seconds=seconds, **budget), ()
    race = _Race(wish, traced, seconds, budget)
    for shape in candidates:
        race.enter(shape)
    if race.refused is not None and not race.looks:
        raise race.refused
    race.improve()
    first, *others = race.best_first()
    race.search(first)
    if others and race.close(others[0], first):
        race.search(others[0])
    best = race.best_first(among=race.outcomes)[0]
    rest = [shape for shape in race.best_first() if shape != best]
    return best, race.looks[best].costs, race.outcomes[best], tuple(map(race.row, (best, *rest)))


class _Race:
    """Shapes against one another; those that look good are tried harder."""

    def __init__(self, wish: Wish, traced: Traced, seconds: float | None, budget: Mapping[str, Any]) -> None:
        self.wish, self.traced, self.seconds, self.budget = wish, traced, seconds, budget
        self.started = time.perf_counter()
        self.looks: dict[MeshShape, Glance] = {}
        self.improved: set[MeshShape] = set()
        self.outcomes: dict[MeshShape, Outcome] = {}
        self.refused: PinError | None = None

    def enter(self, shape: MeshShape) -> None:
        """A first look at a shape. The first with several axes is tried with all combinations of tactics."""
        first = next(iter(self.looks.values()), None)
        deadline = math.inf if self.seconds is None else self.started + self.seconds / 2
        with collector_paused():
            try:
                look = self.wish.glance(self.traced, shape, first.costs if first else None, deadline)
            except PinError as error:
                self.refused = self.refused or error
                return
            several = any(len(other.sizes) > 1 for other in self.looks)
            self.looks[shape] = look
            if self.seconds == 0:
                return
            if len(shape.sizes) > 1:
                look.look_at(self._carried(look))
                if not several:
                    look.look_at_tactics()
        if len(shape.sizes) == 1:
            self.search(shape, part=1 / 4)

    def improve(self) -> None:
        """Try the best few of those that were not searched harder."""
        if self.seconds == 0:
            return
        with collector_paused():
            for shape in [s for s in self.best_first() if s not in self.outcomes][:_IMPROVED]:
                look = self.looks[shape]
                look.look_at(self._carried(look))
                look.improve(_IMPROVING_WORK)
                self.improved.add(shape)

    def search(self, shape: MeshShape, part: float = 1.0) -> None:
        """Search a shape, from the best that is known of any, in this part of the time."""
        if shape in self.outcomes:
            return
        look, left = self.looks[shape], None
        if self.seconds is not None:
            left = max(self.started + part * self.seconds - time.perf_counter(), 0.0)
        starts = [look.best.state, *self._carried(look)]
        found = self.wish.search(self.traced, shape, costs=look.costs, starts=starts, seconds=left, **self.budget)
        self.outcomes[shape] = found[1]
        look.look_at([found[1].best, *found[1].few])

    def best_first(self, among: Iterable[MeshShape] | None = None) -> list[MeshShape]:
        """Fewer bytes over the limit, then fewer seconds, then fewer axes."""

        def rank(shape: MeshShape) -> tuple[int, float, int]:
            cost = self.cost(shape)
            over = max(cost.peak_bytes - self.wish.limit_bytes, 0)
            return over, float(f"{cost.step_seconds:.6g}"), len(shape.sizes)

        return sorted(self.looks if among is None else among, key=rank)

    def close(self, shape: MeshShape, to: MeshShape) -> bool:
        """About as fast."""
        return self.cost(shape).step_seconds <= (1 + _CLOSE) * self.cost(to).step_seconds

    def cost(self, shape: MeshShape) -> Cost:
        """Of the best that was found on a shape."""
        found = self.outcomes.get(shape)
        return found.cost if found else self.looks[shape].best.cost

    def row(self, shape: MeshShape) -> MeshChoice:
        """A shape for the user's table."""
        cost = self.cost(shape)
        effort = "searched" if shape in self.outcomes else "improved" if shape in self.improved else "carried over"
        mesh = dict(zip(shape.names, shape.sizes, strict=True))
        return MeshChoice(mesh, cost.step_seconds, cost.peak_bytes, cost.peak_bytes <= self.wish.limit_bytes, effort)

    def _carried(self, to: Glance) -> list[State]:
        """The best states of all shapes, each axis of this one with the list of one of theirs."""
        whole = to.pinned.whole
        found = [(seen, look.pinned.whole == whole) for look in self.looks.values() for seen in look.few(_CARRIED)]
        found.sort(key=lambda pair: pair[0].cost.step_seconds)
        # What stays whole goes by the number of its set, which is another where the pins are others.
        kept = dict.fromkeys(
            tuple(tuple(e for e in entries if same or e.group >= 0) for entries in seen.state.lists)
            for seen, same in found
        )
        axes = len(to.costs.mesh.sizes)
        chosen = dict.fromkeys(
            lists
            for known in itertools.islice(kept, _CARRIED)
            for lists in itertools.product(dict.fromkeys(known), repeat=axes)
        )
        return [State(lists, whole) for lists in chosen]
