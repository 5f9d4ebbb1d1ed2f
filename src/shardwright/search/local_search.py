"""Local search: a few given states, and as much improvement by single changes as there is work for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.analysis import Analysis
from shardwright.price import Cost, CostModel
from shardwright.search.actions import find_actions
from shardwright.search.improve import improve
from shardwright.search.scores import BudgetOver, Found, Scores
from shardwright.search.space import Keepers, Space
from shardwright.space.pinned import Kept
from shardwright.space.state import State


@dataclass(frozen=True)
class Seen:
    """A state and its cost."""

    state: State
    cost: Cost


class LocalSearch:
    """The states of a program on a mesh that have been tried so far, by one price list."""

    def __init__(
        self,
        analysis: Analysis,
        costs: CostModel,
        pinned: State,
        limit_bytes: int,
        keepers: Keepers,
        kept: Kept,
        *,
        deadline: float,
    ) -> None:
        actions = find_actions(analysis, costs.mesh, kept=kept, places=costs.classes.places)
        self.costs, self.pinned = costs, pinned
        self._space = Space(analysis, costs, actions, pinned.whole, keepers, pinned=pinned.lists)
        self._scores = Scores(costs, self._space.order, pinned, limit_bytes, deadline=deadline)
        self._scores.cost(self._space.root)

    @property
    def best(self) -> Seen:
        """The best state that was seen."""
        assert self._scores.best is not None
        return self._seen(self._scores.best)

    @property
    def evaluations(self) -> int:
        """States tried."""
        return self._scores.evaluations

    def few(self, count: int) -> list[Seen]:
        """The best states that fit, or the best one of those that do not."""
        return [self._seen(found) for found in self._scores.distinct(count, apart=0.01)] or [self.best]

    def try_states(self, states: Sequence[State]) -> None:
        """Price some states, as far as the time lasts."""
        try:
            for state in states:
                self._scores.cost(self._scores.lists(state))
        except BudgetOver:
            return

    def try_tactics(self) -> None:
        """Price every combination of tactics, as far as the time lasts."""
        try:
            for _, lists in self._space.combinations():
                self._scores.cost(lists)
        except BudgetOver:
            return

    def improve(self, most_work: float) -> None:
        """Improve the best by single changes until so much work is done."""
        best = self._scores.best
        assert best is not None
        try:
            improve(self._scores, best.lists, self._space.actions, self._scores.work + most_work)
        except BudgetOver:
            return

    def _seen(self, found: Found) -> Seen:
        return Seen(self._scores.state(found.lists), found.cost)
