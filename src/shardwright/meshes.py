"""The mesh's own shape: how many axes, of which sizes and in which order, where only the devices are given.

A mesh with one axis is soon searched, and others can do all that it can. So what is best there is tried on the others,
each axis with the same list; what is best on those that were tried goes on to the next, each axis with one of their
lists. The shapes that come out best are improved on for a while, and the best of these is searched. At last one of its
axes is taken apart: a third axis seldom pays, but then by much. What does not depend on the mesh (the program, its
classes, the work of an op in so many parts) is found once for all.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from shardwright._collector import collector_paused
from shardwright.errors import PinError
from shardwright.plan.facts import MeshChoice
from shardwright.price import Cost
from shardwright.problem import Problem
from shardwright.request import Budget, MeshShape
from shardwright.request.mesh import AXES
from shardwright.search import LocalSearch, Outcome, Watch
from shardwright.space.state import Entry, State

_IMPROVED, _IMPROVING_WORK = 3, 40_000
"""How many shapes are improved on, and how much (see ``Scores.work``): nearly half as much as a search would do."""
_MOST_AXES, _WORTH, _LAST_WORK = 3, 0.002, 10_000
"""Where an axis is taken apart: how many there may be then, what part of a step it must save, and the work after it."""
_LITTLE_WORK = 50_000
"""Where less has been done after the best shape's search, because states are cheap, the others are searched, too."""
_CARRIED = 4
"""How many of the best states of other shapes are tried on a shape."""


class Chosen(NamedTuple):
    """The problem on the mesh that was chosen, what was found there, and how all shapes compare."""

    problem: Problem
    outcome: Outcome
    meshes: tuple[MeshChoice, ...] = ()


def search_meshes(
    problem: Problem, budget: Budget, *, few: int = 1, differ: bool = False, watch: Watch | None = None
) -> Chosen:
    """Find the best state on the best of the shapes that the mesh may have.

    Raises ``PinError`` where the pins fit no shape: that of the first.
    """
    if len(problem.shapes) == 1:
        return Chosen(problem, problem.search(budget, few=few, differ=differ, watch=watch))
    race = _Race(problem, budget, few, watch, differ=differ)
    for shape in problem.shapes:
        race.enter(shape)
    if race.refused is not None and not race.looks:
        raise race.refused
    race.improve()
    race.search(race.best_first()[0])
    for shape in race.best_first():
        if budget.seconds != 0 and race.work < _LITTLE_WORK:
            race.search(shape)
    race.take_apart()
    best = race.best_first(among=race.outcomes)[0]
    rest = [shape for shape in race.best_first() if shape != best]
    return Chosen(race.problems[best], race.outcome(best), tuple(map(race.row, (best, *rest))))


def best_mesh(problem: Problem, seconds: float | None = None) -> Problem:
    """The problem on the shape that looks best of those that the mesh may have."""
    if len(problem.shapes) == 1:
        return problem
    return problem.on(search_meshes(problem, Budget(seconds, simulations=1)).problem.mesh)


class _Race:
    """Shapes against one another; those that look good are tried harder."""

    def __init__(self, problem: Problem, budget: Budget, few: int, watch: Watch | None, *, differ: bool) -> None:
        self.problem, self.budget, self.few, self.watch, self.differ = problem, budget, few, watch, differ
        self.seconds = budget.seconds
        self.started = time.perf_counter()
        self.problems: dict[MeshShape, Problem] = {}
        self.looks: dict[MeshShape, LocalSearch] = {}
        self.improved: set[MeshShape] = set()
        self.searched: set[MeshShape] = set()
        self.outcomes: dict[MeshShape, Outcome] = {}
        self.refused: PinError | None = None

    def enter(self, shape: MeshShape) -> None:
        """A first look at a shape. The first with several axes is tried with all combinations of tactics."""
        first = next(iter(self.looks.values()), None)
        deadline = self._deadline(1 / 2)
        with collector_paused():
            try:
                look = self._look(shape, first, deadline)
            except PinError as error:
                self.refused = self.refused or error
                return
            several = any(len(other.sizes) > 1 for other in self.looks)
            self.looks[shape] = look
            if self.seconds == 0:
                return
            if len(shape.sizes) > 1:
                look.try_states(self._carried(look))
                if not several:
                    look.try_tactics()
        if len(shape.sizes) == 1:
            self.search(shape, part=1 / 4)

    def improve(self) -> None:
        """Try the best few of those that were not searched harder."""
        if self.seconds == 0:
            return
        with collector_paused():
            for shape in [s for s in self.best_first() if s not in self.outcomes][:_IMPROVED]:
                look = self.looks[shape]
                look.try_states(self._carried(look))
                look.improve(_IMPROVING_WORK)
                self.improved.add(shape)

    def search(self, shape: MeshShape, part: float = 1.0) -> None:
        """Search a shape, in this part of the time.

        As if it were the only one: what is carried over from others is good, but may lead away from what is better.
        """
        if shape in self.outcomes:
            return
        look, left = self.looks[shape], None
        if self.seconds is not None:
            left = max(self._deadline(part) - time.perf_counter(), 0.0)
        found = self._search(shape, replace(self.budget, seconds=left, least_seconds=None))
        look.try_states([found.best, *found.few])
        self.outcomes[shape] = found
        self.searched.add(shape)
        if found.cost != look.best.cost and self.seconds != 0:
            self.settle(shape)

    def settle(self, shape: MeshShape) -> None:
        """Take the best that was seen on a shape for the outcome, without a search."""
        look = self.looks[shape]
        starts = [seen.state for seen in (look.best, *look.few(_CARRIED))]
        budget = replace(self.budget, simulations=0, seconds=None)
        self.outcomes[shape] = self._search(shape, budget, starts)

    def _look(self, shape: MeshShape, like: LocalSearch | None, deadline: float) -> LocalSearch:
        problem = self.problem.on(shape, like.costs if like else None)
        look = problem.local_search(deadline)
        self.problems[shape] = problem
        return look

    def _search(self, shape: MeshShape, budget: Budget, starts: Sequence[State] = ()) -> Outcome:
        return self.problems[shape].search(budget, few=self.few, differ=self.differ, starts=starts, watch=self.watch)

    def _deadline(self, part: float) -> float:
        return math.inf if self.seconds is None else self.started + part * self.seconds

    def best_first(self, among: Iterable[MeshShape] | None = None) -> list[MeshShape]:
        """Fewer bytes over the limit, then fewer seconds, then fewer axes."""

        def rank(shape: MeshShape) -> tuple[int, float, int]:
            cost = self.cost(shape)
            over = max(cost.peak_bytes - self.problem.limit_bytes, 0)
            return over, float(f"{cost.step_seconds:.6g}"), len(shape.sizes)

        return sorted(self.looks if among is None else among, key=rank)

    def take_apart(self) -> None:
        """The best shape with one axis more, if that is worth it."""
        order = self.best_first()
        several = [shape for shape in order if 1 < len(shape.sizes) < _MOST_AXES]
        if self.seconds == 0 or not several or len(order[0].sizes) == _MOST_AXES:
            return
        finer = [s for s in _taken_apart(several[0], keep_names=bool(self.problem.pins.pins)) if s not in self.looks]
        if not finer:
            return
        shape, best = min(finer, key=lambda s: (max(s.sizes), s.sizes)), self.cost(order[0])
        look = self._look(shape, self.looks[several[0]], self._deadline(3 / 4))
        with collector_paused():
            look.try_states(self._carried(look, 2))
            saved = best.step_seconds - look.best.cost.step_seconds
            fits = look.best.cost.peak_bytes <= self.problem.limit_bytes
            if fits and (best.peak_bytes > self.problem.limit_bytes or saved > _WORTH * best.step_seconds):
                look.improve(_LAST_WORK)
                self.looks[shape] = look
                self.improved.add(shape)
                self.settle(shape)

    def cost(self, shape: MeshShape) -> Cost:
        """Of the best that was found on a shape."""
        found = self.outcomes.get(shape)
        return found.cost if found else self.looks[shape].best.cost

    @property
    def work(self) -> int:
        """What has been done so far, as ``Scores.work`` counts it."""
        return sum(look.costs.priced_units for look in self.looks.values())

    def outcome(self, shape: MeshShape) -> Outcome:
        """Of the search on a shape, with the time and the states of all."""
        found = self.outcomes[shape]
        states = sum(look.evaluations for look in self.looks.values())
        states += sum(other.search.evaluations for other in self.outcomes.values())
        seconds = time.perf_counter() - self.started
        return replace(found, search=replace(found.search, seconds=seconds, evaluations=states))

    def row(self, shape: MeshShape) -> MeshChoice:
        """A shape for the user's table."""
        cost = self.cost(shape)
        effort = "searched" if shape in self.searched else "improved" if shape in self.improved else "carried over"
        fits = not cost.over_bytes(self.problem.limit_bytes)
        return MeshChoice(shape.axes, cost.step_seconds, cost.peak_bytes, fits, effort)

    def _carried(self, to: LocalSearch, count: int = _CARRIED) -> list[State]:
        """The best few states of all shapes, each axis of this one with the list of one of theirs."""
        whole = to.pinned.whole
        found = [(seen, look.pinned.whole == whole) for look in self.looks.values() for seen in look.few(_CARRIED)]
        found.sort(key=lambda pair: pair[0].cost.step_seconds)
        # What stays whole goes by the number of its set, which is another where the pins are others.
        kept = dict.fromkeys(
            tuple(tuple(e for e in entries if same or isinstance(e, Entry)) for entries in seen.state.lists)
            for seen, same in found
        )
        axes = len(to.costs.mesh.sizes)
        chosen = dict.fromkeys(
            lists
            for known in itertools.islice(kept, count)
            for lists in itertools.product(dict.fromkeys(known), repeat=axes)
        )
        return [State(lists, whole) for lists in chosen]


def _taken_apart(shape: MeshShape, *, keep_names: bool) -> list[MeshShape]:
    """The shapes in which one axis of this one has become two; where nobody named the axes, they are named anew."""
    out = []
    for axis, size in enumerate(shape.sizes):
        name = next(name for name in AXES if name not in shape.names)
        names = (
            (*shape.names[: axis + 1], name, *shape.names[axis + 1 :]) if keep_names else AXES[: len(shape.sizes) + 1]
        )
        for first in range(2, size // 2 + 1):
            if size % first == 0:
                out.append(MeshShape(names, (*shape.sizes[:axis], first, size // first, *shape.sizes[axis + 1 :])))
    return out
