"""The search for a state: warm starts from tactics, local improvement, tree search from one local optimum to others."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from shardwright.analysis import Analysis
from shardwright.mcts import search as tree_search
from shardwright.price import Cost, CostModel
from shardwright.search.actions import Actions, find_actions
from shardwright.search.different import different
from shardwright.search.game import NO_KEEPERS, Keepers, Space
from shardwright.search.improve import improve
from shardwright.search.leaps import Leaps
from shardwright.search.lists import replaced
from shardwright.search.scores import BudgetOver, Enough, Found, Milestone, Scores, Watch
from shardwright.search.simpler import AS_GOOD, PAYS, SAME, Equals, complexity, keeps_parts, made_alike, simplified
from shardwright.space.pinned import Kept
from shardwright.space.state import State

_PATIENCE, _PATIENCE_WORK = 300, 25_000
"""A tree search ends after so many simulations, or so much work (see ``Scores.work``), without a better state."""
_WORK = 180_000
"""What a search may do at most (see ``Scores.work``): a few seconds. Half of it goes to the first local improvement, a
quarter to the tree search. Deciding an axis anew may take a quarter as much again."""
_SIMULATION_WORK = 5_000
"""Of a simulation of the tree search, which is a local improvement twice."""
_STARTS = 2
"""From how many of the best states local improvement sets out after a tree search; before it, from the best alone."""


@dataclass(frozen=True)
class Search:
    """How a search went.

    ``evaluations`` is the number of states that were priced, ``simulations`` that of the tree search, ``history`` the
    states that were better than all before them, and ``actions`` what it could do, with what was left out and why.
    ``ended`` is why it ended: "converged", "exhausted" (no large change of any local optimum was left to try, and what
    was drawn at random led to no new one), "simulations", "seconds", "fits" or "interrupted".
    """

    seconds: float
    evaluations: int
    simulations: int
    history: tuple[Milestone, ...]
    ended: str
    actions: Actions = field(repr=False)


@dataclass(frozen=True)
class Outcome:
    """What a search found: the best state, the best few states that fit (none if the best does not fit), and more.

    ``simple`` is about as good as the best state, and simpler. In it and in the few, weights in equal roles are sharded
    alike unless the difference pays (``search/simpler.py``). ``front`` are the states that no other state beats in both
    time and memory, fastest first, whether they fit or not. ``pinned`` is part of all of them.
    """

    best: State
    cost: Cost
    few: tuple[State, ...]
    simple: State
    search: Search
    front: tuple[State, ...] = field(repr=False)
    pinned: State = field(repr=False)


def find_state(
    analysis: Analysis,
    costs: CostModel,
    pinned: State,
    limit_bytes: int,
    *,
    keepers: Keepers = NO_KEEPERS,
    kept: Kept | None = None,
    seconds: float | None = None,
    simulations: int | None = None,
    seed: int = 0,
    few: int = 1,
    differ: bool = False,
    any_fit: bool = False,
    starts: Sequence[State] = (),
    use_tactics: bool = True,
    watch: Watch | None = None,
) -> Outcome:
    """Search for the best states. ``costs`` must know the sets of ``pinned.whole``, of which ``keepers`` are some.

    The search starts from tactics, and may add a whole tactic at once; without ``use_tactics`` it has to find
    everything by itself. ``starts`` are states that earlier searches met. With ``differ`` the few best differ in what a
    compiler would see (``search/different.py``). With ``any_fit`` it ends at the first state
    that fits. Without ``seconds`` the result depends on the seed alone. An interrupt (Ctrl-C) ends the search and not
    the program.
    """
    actions = find_actions(analysis, costs.mesh, kept=kept, places=costs.classes.places)
    space = Space(analysis, costs, actions, pinned.whole, keepers, pinned=pinned.lists, use_tactics=use_tactics)
    deadline = math.inf if seconds is None else time.perf_counter() + seconds
    scores = Scores(costs, space.order, pinned, limit_bytes, deadline=deadline, any_fit=any_fit, watch=watch)
    progress = _Progress(scores, simulations)
    try:
        for state in starts:  # before the root: of equals the first is the best
            scores.cost(scores.lists(state))
        scores.cost(space.root)
        if seconds != 0 and simulations != 0:
            ended = _search(space, scores, progress, seconds, seed)
        else:
            ended = "seconds" if seconds == 0 else "simulations"
    except BudgetOver:
        ended = "seconds"
    except Enough:
        ended = "fits"
    except KeyboardInterrupt:
        if scores.best is None:
            raise
        ended = "interrupted"
    assert scores.best is not None
    simple, best_few = scores.best, different(scores, few) if differ else _few(scores, few)
    if ended in ("converged", "exhausted"):
        try:
            simple = _alike(space, scores, _simplest(space, scores), scores.best)
            best_few = list(dict.fromkeys(_alike(space, scores, found, found) for found in best_few))
        except BudgetOver:
            ended = "seconds"
    search = Search(
        scores.seconds, scores.evaluations, progress.simulations, tuple(scores.history), ended, space.actions
    )
    states = tuple(scores.state(found.lists) for found in best_few)
    best, front = scores.state(scores.best.lists), tuple(scores.state(found.lists) for found in scores.front())
    return Outcome(best, scores.best.cost, states, scores.state(simple.lists), search, front, pinned)


class _Progress:
    """Counts simulations, and ends a tree search that has done enough, or has met nothing better for a while."""

    def __init__(self, scores: Scores, most: int | None) -> None:
        self.scores, self.most, self.simulations = scores, most, 0
        self.most_work = math.inf
        self._best: Found | None = None
        self._last_gain = self._worked = 0

    def after(self, simulation: int) -> bool:
        """Whether to end the tree search after this simulation."""
        self.simulations = simulation
        if self.scores.best is not self._best:
            self._best, self._last_gain, self._worked = self.scores.best, simulation, self.scores.work
        tired = simulation - self._last_gain >= _PATIENCE or self.scores.work - self._worked > _PATIENCE_WORK
        return (tired and self.most is None) or self.scores.work > self.most_work


def _search(space: Space, scores: Scores, progress: _Progress, seconds: float | None, seed: int) -> str:
    """Tactics, local improvement, tree search, and local improvement again. How it ended is returned."""
    for _, lists in space.combinations():
        scores.cost(lists)
    assert scores.best is not None
    improve(scores, scores.best.lists, space.actions, _WORK / 2)
    if progress.most is None and seconds is None:
        progress.most_work = 3 / 4 * _WORK
    progress.after(0)
    leaps = Leaps(space, scores, _SIMULATION_WORK, progress.most_work)
    result = tree_search(
        leaps.game([scores.best.lists, space.root]),
        simulations=sys.maxsize if progress.most is None else progress.most,
        seed=seed,
        after=progress.after,
    )
    _improve_best(space, scores, math.inf if seconds is not None else _WORK)
    if progress.most is not None:
        return "exhausted" if result.exhausted else "simulations"
    _decide_anew(space, scores)
    return "exhausted" if result.exhausted else "converged"


def _decide_anew(space: Space, scores: Scores) -> None:
    """Take back all that is decided for an axis, and improve from there.

    Where no single change makes a state better, several entries of one list together may be what holds it back.
    """
    before = scores.best
    for axis in range(len(space.root)):
        assert scores.best is not None
        improve(scores, replaced(scores.best.lists, axis, ()), space.actions, scores.work + _WORK / 4)
    if scores.best is not None and scores.best is not before:
        improve(scores, scores.best.lists, space.actions, scores.work + _WORK / 4)


def _improve_best(space: Space, scores: Scores, most_work: float) -> None:
    for found in _starts(scores):
        improve(scores, found.lists, space.actions, most_work)


def _few(scores: Scores, count: int) -> list[Found]:
    """The best states that fit, the very best first."""
    found = scores.distinct(count)
    if not found or scores.best is None:
        return []
    return [scores.best, *found[1:]]


def _simplest(space: Space, scores: Scores) -> Found:
    """The best state without what has no effect; or what experts do, where that is as good and less is to say."""
    best = scores.best
    assert best is not None
    known = [Found(lists, scores.cost(lists)) for _, lists in space.combinations()]
    experts = [f for f in known if f.cost.peak_bytes <= scores.limit_bytes]
    shorter = simplified(scores, best, (1 + SAME) * best.cost.step_seconds)
    expert = min(experts, key=lambda f: (f.cost.step_seconds, complexity(f.lists), f.lists), default=shorter)
    as_good = expert.cost.step_seconds <= (1 + AS_GOOD) * best.cost.step_seconds
    simpler = complexity(expert.lists) < complexity(shorter.lists) and keeps_parts(scores, expert, shorter)
    return expert if as_good and simpler else shorter


def _alike(space: Space, scores: Scores, found: Found, best: Found) -> Found:
    """A state in which weights in equal roles are sharded alike, unless the difference pays beside ``best``."""
    equals = Equals(scores.costs, space.equals)
    alike = made_alike(scores, space.actions, equals, found, (1 + PAYS) * best.cost.step_seconds)
    if alike is found:
        return found
    shorter = simplified(scores, alike, (1 + SAME) * alike.cost.step_seconds)
    return min(shorter, alike, key=lambda f: equals.apart(scores, f.lists))


def _starts(scores: Scores) -> list[Found]:
    """The best states that fit; then, or where nothing fits, those that are over the limit by least."""
    found = scores.distinct(_STARTS, apart=0.01)
    over = [Found(k, c) for k, c in scores.known.items() if c.peak_bytes > scores.limit_bytes]
    over.sort(key=lambda f: (-scores.value(f.lists), f.lists))
    return [*found, *over[: _STARTS if not found else 1]]
