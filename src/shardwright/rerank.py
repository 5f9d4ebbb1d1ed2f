"""The best few plans, ranked again by those who will carry them out: Shardy's partitioner, or the whole compiler."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from shardwright._progress import compile_bar
from shardwright.errors import PlanError
from shardwright.ir.build import ReadModule
from shardwright.ir.program import Source
from shardwright.plan import Plan
from shardwright.plan.verdicts import CompilerVerdict
from shardwright.price import CostModel
from shardwright.price.collectives import ALL_REDUCE, REDUCE_SCATTER, Move
from shardwright.space.state import State
from shardwright.verify.compile import verify_compiled
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

    ``simple``, which is one of them, if that is about as good by Shardy's collectives too.
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

    return sum(prices.move_seconds(move(c)) * c.times for c in explicit_collectives(module, plan.partitioned))


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
