"""Tries: whether anything fits with some size of a dimension on some mesh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from shardwright._amounts import human_bytes
from shardwright.choose import FEW_EXPLICIT, asked, by_shardy, close_to_best
from shardwright.compiler.margins import Margin
from shardwright.errors import DeviceError, PinError, TraceError
from shardwright.fit.dimension import Dimension
from shardwright.fit.found import DEVICES, SIZE, Tried
from shardwright.plan import Plan
from shardwright.price import CostModel
from shardwright.price.estimate import margin_of
from shardwright.problem import Problem
from shardwright.request import Budget, MeshShape
from shardwright.search import Outcome
from shardwright.space.state import State
from shardwright.traced import Traced

_SHORT = Budget(simulations=2)
"""Of a try: tactics and local changes find what is small."""
_SMALLEST = 1


@dataclass(frozen=True)
class Attempt:
    """A program at some size on some mesh, and what a short search met there."""

    problem: Problem
    outcome: Outcome

    @property
    def costs(self) -> CostModel:
        """What prices its states."""
        return self.problem.costs

    @property
    def mesh(self) -> MeshShape:
        """The mesh that it is on."""
        return self.problem.mesh


@dataclass(eq=False)
class Attempts:
    """Tries, each made once; ``tried`` are all of them in order."""

    problem: Problem
    dimension: Dimension
    budget: Budget
    watch: Callable[[str], None]
    tried: list[Tried] = field(default_factory=list)
    made: dict[tuple[int, MeshShape], Attempt | str] = field(default_factory=dict)
    sizes: dict[int, Traced] = field(default_factory=dict)
    sure: dict[tuple[int, MeshShape], tuple[State, ...]] = field(default_factory=dict)

    def fits(self, size: int, mesh: MeshShape, question: str = SIZE) -> bool | None:
        """Whether anything was found that fits by the estimate; None where the function does not take the size."""
        attempt = self.attempt(size, mesh, question)
        return None if attempt is None else attempt.outcome.cost.peak_bytes <= self.problem.limit_bytes

    def surely(self, size: int, mesh: MeshShape, question: str = SIZE) -> bool | None:
        """Whether a plan was found that fits for all that estimates are known to be off; None as in ``fits``."""
        attempt = self.attempt(size, mesh, question)
        if attempt is None:
            return None
        key = (size, mesh)
        if key not in self.sure:
            found = self._sure_states(attempt)
            if not found and self.may_fit(attempt):
                tight = int(self.problem.limit_bytes / self.margin.high)
                searched = self._search(attempt.problem.within(tight), _SHORT, attempt.outcome.front, any_fit=True)
                found = self._sure_states(searched)
            self.sure[key] = found
        self._note(question, size, mesh, attempt)
        return bool(self.sure[key])

    def may_fit(self, attempt: Attempt) -> bool:
        """Whether a plan was found of which nobody can say that it does not fit."""
        return any(self._fits(attempt, state) is not False for state in attempt.outcome.front)

    def sure_plan(self, size: int, mesh: MeshShape) -> Plan:
        """The plan of a whole search that surely fits, where ``surely`` has said that there is one."""
        attempt = self.made[size, mesh]
        assert not isinstance(attempt, str)
        states = self.sure[size, mesh]
        tight = max(attempt.costs.evaluate(state).peak_bytes for state in states)
        found = self._search(attempt.problem.within(tight), self.budget, states)
        sure = [*self._sure_states(found), *states]
        return self._plan_of(found, min(sure, key=lambda state: found.costs.evaluate(state).step_seconds))

    def ask(self, attempt: Attempt, on: str, question: str) -> Plan:
        """The smallest plan there is, with what the compiler says of it."""
        size = self.dimension.size
        self.watch(f"{attempt.mesh.devices:,} devices, compiled for {on}")
        plan = asked(self.smallest_plan(attempt), on)
        verdict = plan.verdict
        assert verdict is not None
        row = Tried(question, size, plan.mesh, verdict.peak_bytes, verdict.fits, f"{on}: {verdict.message}")
        self.tried = [t for t in self.tried if (t.question, t.size, t.mesh) != (question, size, plan.mesh)] + [row]
        return plan

    def _sure_states(self, attempt: Attempt) -> tuple[State, ...]:
        return tuple(state for state in attempt.outcome.front if self._fits(attempt, state))

    def _fits(self, attempt: Attempt, state: State) -> bool | None:
        cost = attempt.costs.evaluate(state)
        if cost.host_over_bytes:
            return False
        return self.margin.fits(cost.peak_bytes, attempt.costs.held_bytes(state), self.problem.limit_bytes)

    @cached_property
    def margin(self) -> Margin:
        """How far estimates of such a program are off."""
        return margin_of(self.problem.program, self.problem.device.platform)

    def attempt(self, size: int, mesh: MeshShape, question: str = SIZE) -> Attempt | None:
        """A short search that ends as soon as something fits; None where the function does not take the size."""
        key = (size, mesh)
        if key not in self.made:
            devices = f"{mesh.devices:,} device{'s' * (mesh.devices != 1)}"
            self.watch(devices if question == DEVICES else f"{self.dimension.name} of {size:,}")
            try:
                found = self._search(self.at(size).on(mesh), _SHORT, any_fit=True)
                if found.outcome.search.ended == "interrupted":
                    raise KeyboardInterrupt
                self.made[key] = found
            except (TraceError, PinError, DeviceError) as error:
                self.made[key] = f"skipped: {_sentence(error)}"
        made = self.made[key]
        self._note(question, size, mesh, made)
        return None if isinstance(made, str) else made

    def at(self, size: int) -> Problem:
        """The problem with the dimension at another size."""
        if size == self.dimension.size:
            return self.problem
        traced = self.problem.traced
        if size not in self.sizes:
            sizes = self.dimension.scaled(size)
            if sizes is None:
                raise TraceError(f"not all dimensions that grow with {self.dimension.name} would have a whole size.")
            self.sizes[size] = traced.again(shapes=traced.resized(sizes))
        return self.problem.with_traced(self.sizes[size])

    def plan(self, attempt: Attempt) -> Plan:
        """The plan of a whole search: the fastest that fits, as ``sw.partition`` has it, or else the smallest."""
        limit = self.problem.limit_bytes  # that of the problem as given, whatever the attempt's was
        found = self._search(attempt.problem.within(limit), self.budget, (attempt.outcome.best,), few=FEW_EXPLICIT)
        outcome = found.outcome
        if not outcome.few:
            return self._plan_of(found, outcome.best)
        states = [*close_to_best(found.costs, outcome.few), outcome.simple]
        plans = {state: self._plan_of(found, state) for state in states}
        return by_shardy(attempt.problem.traced.module, list(plans.values()), plans[outcome.simple])

    def smallest_plan(self, attempt: Attempt) -> Plan:
        """The plan that needs least memory."""
        found = self._search(attempt.problem.within(_SMALLEST), self.budget, (attempt.outcome.best,))
        return self._plan_of(found, found.outcome.best)

    def _search(self, problem: Problem, budget: Budget, starts: Sequence[State] = (), **options: Any) -> Attempt:
        return Attempt(problem, problem.search(budget, starts=starts, **options))

    def _plan_of(self, found: Attempt, state: State) -> Plan:
        return found.problem.within(self.problem.limit_bytes).plan(state, search=found.outcome.search)

    def _note(self, question: str, size: int, mesh: MeshShape, found: Attempt | str) -> None:
        """Enter a try, once for each question; what is known better later takes its place."""
        shape = dict(zip(mesh.names, mesh.sizes, strict=True))
        row = self._row(question, size, mesh, shape, found)
        known = next(
            (k for k, t in enumerate(self.tried) if (t.question, t.size, t.mesh) == (question, size, shape)), None
        )
        if known is None:
            self.tried.append(row)
        else:
            self.tried[known] = row

    def _row(self, question: str, size: int, mesh: MeshShape, shape: dict[str, int], found: Attempt | str) -> Tried:
        if isinstance(found, str):
            return Tried(question, size, shape, None, None, found)
        sure = self.sure.get((size, mesh)) or self._sure_states(found)
        if sure:
            needed = min(int(found.costs.evaluate(state).peak_bytes) for state in sure)
            return Tried(question, size, shape, needed, True, "fits")
        needed = int(found.outcome.cost.peak_bytes)
        if self.may_fit(found):
            return Tried(question, size, shape, needed, None, "may fit: too close to the limit to tell")
        over = human_bytes(needed - self.problem.limit_bytes)
        return Tried(question, size, shape, needed, False, f"does not fit: the smallest plan found is over by {over}")


def _sentence(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".")
