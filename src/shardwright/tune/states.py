"""The states that tuning chooses among: found with corrected prices, predicted beside those that were compiled.

The corrected price of a state is still off, and about as much as those of states like it. So with ``r_i`` what compiled
plans take as a multiple of their corrected prices, and ``d_i`` how far they are from a state
(``search/different.py``)::

    predicted = corrected · exp(Σ w_i log r_i / (w_0 + Σ w_i))        w_i = exp(−d_i / D)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from shardwright._collector import collector_paused
from shardwright.plan import Plan, make_plan
from shardwright.plan.facts import Decided
from shardwright.plan.verdicts import CompilerVerdict
from shardwright.price import CostModel
from shardwright.price.corrections import Corrections
from shardwright.search import find_keepers, find_state
from shardwright.search.different import Distances
from shardwright.space import describe
from shardwright.space.state import State
from shardwright.tune.learn import learn, memory_ratio

_NEAR, _NOTHING_KNOWN = 0.1, 0.3
"""``D`` and ``w_0``: beyond a tenth of the bytes plans have less and less to do with each other."""
_FEW = 8
_SAME = 1e-3
"""Plans that differ in so little are one program to the compiler, or nearly."""
_LEAST_RATIO, _MOST_RATIO = 0.6, 2.0

Seen = Sequence[tuple[Plan, CompilerVerdict]]


class States:
    """The states of one plan's program on its mesh, within what was pinned."""

    def __init__(self, plan: Plan, seed: int = 0) -> None:
        self.plan, self.seed = plan, seed
        partitioned, decided = plan.partitioned, plan.decided
        if decided is None:  # made by hand, or read from a file: all of it may change
            whole, keepers = find_keepers(plan.analysis, partitioned.state.whole)
            decided = Decided(State(((),) * len(partitioned.state.lists), whole), {}, keepers)
        self.decided = decided
        whole = decided.state.whole
        self.first = State(partitioned.state.lists, whole)
        like = plan.costs if plan.costs.whole == whole else None
        self.costs = like or CostModel(partitioned.places, partitioned.mesh, plan.device, whole)
        self._distances = Distances(self.costs)
        self._met: dict[State, None] = {self.first: None}
        self.interrupted = False

    def plan_of(self, state: State) -> Plan:
        """A plan of a state."""
        plan = self.plan
        if state == self.first:
            return plan
        return make_plan(
            plan.fn,
            plan.args,
            plan.result,
            plan.partitioned.places,
            plan.partitioned.mesh,
            plan.device,
            describe(plan.analysis, plan.partitioned.mesh, state),
            state,
            limit_bytes=plan.memory_bytes,
            donate=plan.donate,
            options=plan.options,
            costs=self.costs,
            search=plan.search,
            meshes=plan.meshes,
            decided=self.decided,
        )

    def candidates(self, seen: Seen, seconds: float | None = None) -> list[tuple[float, State]]:
        """States that are not like any that was compiled, with the seconds that they are predicted to take, best first.

        They are those of a search with prices that are corrected by what was seen, and under a limit of memory that is.
        """
        with collector_paused():
            model = self._corrected(learn((plan, verdict, 1.0) for plan, verdict in seen))
            outcome = find_state(
                self.plan.analysis,
                model,
                self.decided.state,
                self._limit_bytes(seen),
                keepers=self.decided.keepers,
                kept=self.decided.kept,
                seconds=seconds,
                seed=self.seed,
                few=_FEW,
                differ=True,
                starts=list(self._met),
            )
            self.interrupted = outcome.search.ended == "interrupted"
            found = dict.fromkeys((*outcome.few, outcome.simple, outcome.best))
            self._met |= dict.fromkeys(outcome.few[:2])
            return self._predicted(model, seen, found)

    def predicted_seconds(self, seen: Seen, state: State) -> float:
        """What a state is predicted to take, by what was seen."""
        model = self._corrected(learn((plan, verdict, 1.0) for plan, verdict in seen))
        return model.evaluate(state).step_seconds * self._ratio(model, seen, state)[0]

    def _predicted(self, model: CostModel, seen: Seen, states: Iterable[State]) -> list[tuple[float, State]]:
        found = []
        for state in states:
            ratio, nearest = self._ratio(model, seen, state)
            if nearest > _SAME:
                found.append((model.evaluate(state).step_seconds * ratio, state))
        return sorted(found, key=lambda pair: (pair[0], pair[1].lists))

    def _ratio(self, model: CostModel, seen: Seen, state: State) -> tuple[float, float]:
        """What a state is predicted to take as a multiple of its corrected price; how far the nearest compiled is."""
        lies = self._distances.lie(state.lists)
        total, weights, nearest = 0.0, _NOTHING_KNOWN, math.inf
        for plan, verdict in seen:
            apart = self._distances.distance(self._distances.lie(plan.partitioned.state.lists), lies)
            nearest = min(nearest, apart)
            price = model.evaluate(State(plan.partitioned.state.lists, self.decided.state.whole)).step_seconds
            if verdict.step_seconds and price > 0:
                weight = math.exp(-apart / _NEAR)
                total += weight * math.log(verdict.step_seconds / price)
                weights += weight
        return math.exp(total / weights), nearest

    def _corrected(self, corrections: Corrections) -> CostModel:
        costs, plan = self.costs, self.plan
        return CostModel(
            plan.partitioned.places,
            costs.mesh,
            costs.device,
            costs.whole,
            assigner=costs.assigner,
            like=costs,
            corrections=corrections,
        )

    def _limit_bytes(self, seen: Seen) -> int:
        """The limit for estimates: what of the memory is no argument, by how far off it was."""
        limit = self.plan.memory_bytes
        ratio = min(max(memory_ratio(seen), _LEAST_RATIO), _MOST_RATIO)
        held = min(self.costs.held_bytes(self.first), limit)
        return int(held + (limit - held) / ratio)
