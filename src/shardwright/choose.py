"""The plan that is taken of the best few: by Shardy, by a whole compiler, and by the memory that it takes."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from shardwright._progress import compile_bar
from shardwright.compiler.margins import Margin
from shardwright.devices import Device
from shardwright.errors import CompilerMissingError, MeshError, PlanError
from shardwright.ir.build import ReadModule
from shardwright.ir.program import Source
from shardwright.plan import Plan
from shardwright.plan.verdicts import CompilerVerdict
from shardwright.price import CostModel
from shardwright.price.collectives import ALL_REDUCE, REDUCE_SCATTER, Move
from shardwright.request.targets import target_of
from shardwright.space.state import State
from shardwright.verify.compile import compiler_installed, require_compiler, verify_compiled
from shardwright.verify.explicit import explicit_collectives
from shardwright.verify.shardy import ShardyCollective

FEW_EXPLICIT, FEW_COMPILED = 3, 4
"""How many plans are ranked again."""
_ABOUT_AS_GOOD = 0.005
_WITHIN = 0.03
"""Only plans this close to the best: Shardy has its own mind about collectives, but not that much."""


def close_to_best(costs: CostModel, states: Sequence[State]) -> list[State]:
    """Of states, best first, those that Shardy's collectives could put before the best."""
    least = costs.evaluate(states[0]).step_seconds
    return [state for state in states if costs.evaluate(state).step_seconds <= (1 + _WITHIN) * least]


def by_shardy(module: ReadModule, plans: Sequence[Plan], simple: Plan) -> Plan:
    """The best of plans, with the collectives that Shardy makes of their shardings in place of our own.

    ``simple``, which is one of them, if that is about as good by Shardy's collectives too. All communication counts,
    hidden or not: plans that are this close differ by less than the estimate of what is hidden errs.
    """
    if len(plans) == 1:
        return simple
    seconds = [plan.estimate_cost.compute_seconds + shardy_seconds(module, plan) for plan in plans]
    best = min(range(len(plans)), key=lambda k: seconds[k])
    return simple if seconds[plans.index(simple)] <= (1 + _ABOUT_AS_GOOD) * seconds[best] else plans[best]


def shardy_seconds(module: ReadModule, plan: Plan) -> float:
    """Seconds of communication by Shardy's explicit collectives, at our prices."""
    if plan.partitioned.padded:  # its explicit collectives gather what the compiler would pad
        return plan.estimate_cost.comm_seconds
    prices, program = plan.costs.prices, plan.analysis.program
    # Which of them the compiler will make one, or will round first, is told by the lines that they come from.
    sharers: dict[Source, int] = {}
    parts: dict[Source, float] = {}
    for op, terms in zip(program.ops, program.move_terms, strict=True):
        sharers[op.source] = max(sharers.get(op.source, 1), terms.sharers)
        if terms.rounds:
            parts[op.source] = prices.rounding(program.values[op.operands[0]].dtype)

    def move(c: ShardyCollective) -> Move:
        sums = c.kind in (ALL_REDUCE, REDUCE_SCATTER)
        part = 1.0 if sums else parts.get(c.source, 1.0)
        return Move(c.kind, c.axes, c.bytes, sharers.get(c.source, 1), part, c.in_place)

    return sum(prices.link_seconds(move(c)) * c.times for c in explicit_collectives(module, plan.partitioned))


def by_compiler(plans: Sequence[Plan], on: str, progress: bool | None) -> Plan:
    """Compile plans for a target, and return the fastest that fits, by the compiler's own figures.

    The others are its ``alternatives``, those that the compiler refuses last.
    """
    judged: list[Plan] = []
    with compile_bar(progress, len(plans), on) as tick:
        for plan in plans:
            judged.append(dataclasses.replace(plan, verdict=verify_compiled(plan, on)))
            tick(judged[-1])
    judged.sort(key=lambda plan: _rank(plan.verdict))
    best, others = judged[0], tuple(judged[1:])
    if best.verdict is None or not best.verdict.ok:
        reasons = "; ".join(dict.fromkeys(plan.verdict.message for plan in judged if plan.verdict))
        raise PlanError(f"the compiler for {on} takes none of the best {len(judged)} plans: {reasons}.")
    return dataclasses.replace(best, alternatives=others)


def _rank(verdict: CompilerVerdict | None) -> tuple[bool, float, float]:
    if verdict is None or not verdict.ok:
        return True, 0.0, 0.0
    seconds = verdict.step_seconds if verdict.step_seconds is not None else verdict.comm_seconds
    return False, seconds or 0.0, float(verdict.peak_bytes or 0)


MOST_ASKED = 4
"""Compilations, at most: each takes seconds to minutes."""
_TIMEOUT_SECONDS = 600.0
_ABOUT_AS_FAST = 0.01
"""A plan that surely fits and is slower by no more than this is taken without asking."""
_WORTH_ASKING, _ENOUGH_SECONDS = 0.03, 120.0
"""Where a plan fits, the compiler is asked about a faster one only if it is faster by this, and not after so long."""


def whom_to_ask(device: Device, devices: int, ask_compiler: bool | None) -> str | None:
    """The target whose compiler decides where the estimate cannot; None where there is nobody to ask.

    With ``ask_compiler=True`` there must be somebody; with None, only where the compiler is installed.
    """
    if ask_compiler is False:
        return None
    target = target_of(device, devices)
    if target is None:
        if ask_compiler:
            raise PlanError(
                f"no compiler is known for {devices} × {device.name}, so ask_compiler=True is not possible."
            )
        return None
    if ask_compiler:
        require_compiler(target.platform)
    return target.name if compiler_installed(target.platform) else None


@dataclass(frozen=True)
class Candidate:
    """A plan by its figures; ``make`` makes it."""

    step_seconds: float
    needed_bytes: int
    held_bytes: int
    make: Callable[[], Plan]
    host_over_bytes: int = 0

    def at(self, rest: float) -> float:
        """Bytes that it takes if what is no argument is so many times the estimate."""
        return self.held_bytes + rest * (self.needed_bytes - self.held_bytes)


def candidate(plan: Plan, state: State | None = None, plan_of: Callable[[State], Plan] | None = None) -> Candidate:
    """A plan; or, of a state that its search met, another."""
    if state is None or plan_of is None or state == plan.partitioned.state:
        state, make = plan.partitioned.state, lambda: plan
    else:
        make = partial(plan_of, state)
    cost = plan.costs.evaluate(state)
    return Candidate(cost.step_seconds, cost.peak_bytes, plan.costs.held_bytes(state), make, cost.host_over_bytes)


@dataclass(frozen=True)
class Settled:
    """The plan that is best of those that fit, or of which nobody knows; or, with ``fits`` False, the smallest."""

    plan: Plan
    fits: bool | None


def settle(
    candidates: Sequence[Candidate], margin: Margin, limit_bytes: int, on: str | None, progress: bool | None
) -> Settled:
    """The fastest plan that fits: of those that surely do, or by the compiler's word.

    ``candidates`` are plans that no other beats in both time and memory, the one that the search prefers among them
    first. Without anybody to ask it is that one, unless another surely fits and is about as fast.
    """
    judged = [
        (c, False if c.host_over_bytes else margin.fits(c.needed_bytes, c.held_bytes, limit_bytes)) for c in candidates
    ]
    first, fits = judged[0]
    if fits:
        return Settled(first.make(), True)
    sure = min((c for c, fit in judged if fit), key=lambda c: c.step_seconds, default=None)
    if sure is not None and sure.step_seconds <= (1 + _ABOUT_AS_FAST) * first.step_seconds:
        return Settled(sure.make(), True)
    unknown = [c for c, fit in judged if fit is None]
    if not unknown:
        smallest = min(candidates, key=lambda c: (c.host_over_bytes, c.needed_bytes))
        return Settled(sure.make(), True) if sure is not None else Settled(smallest.make(), False)
    if on is not None:
        return _Asking(unknown, sure, margin, limit_bytes, on).settle(progress)
    return Settled((first if fits is None else min(unknown, key=lambda c: c.needed_bytes)).make(), None)


class _Asking:
    """Asks about one plan after another; what the compiler says of one tells how far off the estimate of others is."""

    def __init__(
        self, unknown: Iterable[Candidate], sure: Candidate | None, margin: Margin, limit_bytes: int, on: str
    ) -> None:
        self.unknown, self.sure, self.margin, self.limit_bytes, self.on = list(unknown), sure, margin, limit_bytes, on
        self.rest = 1.0
        self.taken: tuple[Candidate, Plan] | None = None
        self.refused: list[tuple[Candidate, Plan]] = []
        self.unanswered: list[Plan] = []

    def settle(self, progress: bool | None) -> Settled:
        started = time.perf_counter()
        with compile_bar(progress, MOST_ASKED, self.on) as tick:
            for _ in range(MOST_ASKED):
                candidate = self._next()
                late = time.perf_counter() - started > _ENOUGH_SECONDS
                if candidate is None or (late and (self.taken or self.sure)):
                    break
                self.unknown.remove(candidate)
                tick(self._ask(candidate))
        if self.taken is not None:
            return Settled(self.taken[1], True)
        if self.sure is not None:
            return Settled(self.sure.make(), True)
        if self.unanswered:
            return Settled(self.unanswered[-1], None)
        return Settled(min(self.refused, key=lambda pair: pair[0].needed_bytes)[1], False)

    def _next(self) -> Candidate | None:
        """The fastest that would fit if its estimate were as far off as the last; where there is none, the smallest."""
        best = self.taken[0] if self.taken is not None else self.sure
        worth = [c for c in self.unknown if best is None or c.step_seconds < (1 - _WORTH_ASKING) * best.step_seconds]
        likely = [c for c in worth if c.at(self.rest) <= self.limit_bytes]
        if likely:
            return min(likely, key=lambda c: c.step_seconds)
        if best is not None or not worth:
            return None
        smallest = min(worth, key=lambda c: c.at(self.rest))
        least = min((c.at(self.rest) for c, _ in self.refused), default=None)
        return smallest if least is None or smallest.at(self.rest) < (1 - _ABOUT_AS_FAST) * least else None

    def _ask(self, candidate: Candidate) -> Plan:
        plan = asked(candidate.make(), self.on)
        verdict = plan.verdict
        assert verdict is not None
        rest = candidate.needed_bytes - candidate.held_bytes
        if verdict.peak_bytes is not None and rest > 0:
            self.rest = (verdict.peak_bytes - candidate.held_bytes) / rest
        if verdict.fits is None:
            self.unanswered.append(plan)
        elif verdict.fits:
            self.taken = candidate, plan
        else:
            self.refused.append((candidate, plan))
        return plan


def ask_along(plans: Sequence[Plan], on: str, progress: bool | None) -> tuple[Plan, ...]:
    """Plans from the fastest to the smallest, with the compiler's word on those that decide which is fastest of all.

    It is asked about the fastest of which nobody knows whether it fits, then about smaller ones, until one does.
    """
    out = list(plans)
    sure = next((k for k, plan in enumerate(plans) if plan.fits), len(plans))
    unknown = [k for k in range(sure) if plans[k].fits is None]
    if not unknown:
        return tuple(out)
    candidates = {k: candidate(plans[k]) for k in unknown}
    with compile_bar(progress, MOST_ASKED, on) as tick:
        rest = 1.0
        for left in range(MOST_ASKED, 0, -1):
            limit_bytes = plans[0].memory_bytes
            likely = [k for k in unknown if candidates[k].at(rest) <= limit_bytes] or unknown[-1:]
            if not likely:
                break
            k = likely[0] if left > 1 else likely[-1]
            out[k] = asked(plans[k], on)
            tick(out[k])
            verdict, needed = out[k].verdict, candidates[k].needed_bytes - candidates[k].held_bytes
            if verdict is not None and verdict.peak_bytes is not None and needed > 0:
                rest = (verdict.peak_bytes - candidates[k].held_bytes) / needed
            # Only a faster plan can be better than one that fits, and only a smaller one fit where this one does not.
            unknown = [other for other in unknown if (other < k if out[k].fits else other > k)]
    return tuple(out)


def asked(plan: Plan, on: str) -> Plan:
    """A plan with what the compiler says of it; one that crashes or does not end has given no answer."""
    try:
        verdict = verify_compiled(plan, on, timeout_seconds=_TIMEOUT_SECONDS)
    except (PlanError, MeshError, CompilerMissingError) as error:  # it does not know such devices
        verdict = CompilerVerdict(on, False, str(error).rstrip("."))
    return judged_plan(plan, verdict)


def judged_plan(plan: Plan, verdict: CompilerVerdict) -> Plan:
    """A plan with a verdict; what prices it is not made again."""
    return dataclasses.replace(plan, verdict=verdict, given_costs=plan.costs)
