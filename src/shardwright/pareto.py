"""``sw.pareto``: the plans from the fastest to the smallest, none of them beaten in both time and memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardwright._progress import search_bar
from shardwright.choose import ask_along, whom_to_ask
from shardwright.devices import Device
from shardwright.front import Front, Point
from shardwright.frontend.calls import Donate, Names
from shardwright.frontend.own_shardings import KEEP
from shardwright.ir.loops import TripCounts
from shardwright.meshes import best_mesh
from shardwright.plan import Plan
from shardwright.problem import Problem
from shardwright.request import Budget, MeshLike, PinLike
from shardwright.search import AS_GOOD, Outcome, complexity, without_idle
from shardwright.space.state import State

_TIGHTER = 0.8
_MOST_LIMITS = 8
"""Between the fastest and the smallest plan, searches under limits that are tighter by this factor each; by a smaller
one where that would be more than so many."""
_APART, _MOST_PLANS = 0.01, 12
"""Plans closer than that in both time and memory are one on the front; of more than so many the closest are left out.
"""
_SIMULATIONS = 2
"""Of the tree search under a tighter limit: it sets out from all that the searches before it have met."""
_NO_LIMIT = 2**62


def pareto(
    fn: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    static_argnames: Names = (),
    mesh: MeshLike = None,
    device: str | Device | None = None,
    memory: int | str | None = None,
    donate: Donate = (),
    pin: PinLike = None,
    replicate: str | Sequence[str] = (),
    seconds: float | None = None,
    simulations: int | None = None,
    seed: int = 0,
    progress: bool | None = None,
    ask_compiler: bool | None = None,
    platform: str | None = None,
    trip_counts: TripCounts = None,
    rules: Mapping[str, str] | None = None,
    constraints: str = KEEP,
) -> Front:
    """Find the plans for ``fn(*args, **kwargs)`` that trade memory against time, from the fastest to the smallest.

    The first search has no limit of memory, the others have tighter and tighter ones, with the prices of the first;
    together they take a few times as long as ``sw.partition``.

    Args:
        fn: a JAX callable.
        *args: its arguments: pytrees of arrays or ``jax.ShapeDtypeStruct``.
        mesh: as in ``sw.partition``. If it is a number of devices, all plans are for the shape that looks best.
        device: as in ``sw.partition``.
        memory: the bytes that a device may hold. Plans that need more are on the front, too, marked as not fitting.
        kwargs: as in ``sw.partition``.
        static_argnames: as in ``sw.partition``.
        donate: as in ``sw.partition``.
        pin: as in ``sw.partition``; every plan keeps it.
        replicate: as in ``sw.partition``.
        seconds: the most time that all searches may take together.
        simulations: the number of simulations of each tree search.
        seed: the seed of the searches' random choices.
        progress: whether to show a progress bar; by default only on a terminal.
        ask_compiler: as in ``sw.partition``; the compiler is asked which of the plans close to the limit is the fastest
            that fits. ``plan.fits_by`` says what ``plan.fits`` rests on.
        platform: as in ``sw.partition``.
        trip_counts: as in ``sw.analyse``.
        rules: as in ``sw.analyse``.
        constraints: as in ``sw.partition``.

    """
    budget = Budget(seconds, simulations, seed)
    problem = Problem(
        fn,
        *args,
        mesh=mesh,
        device=device,
        memory=memory,
        kwargs=kwargs,
        static_argnames=static_argnames,
        donate=donate,
        pin=pin,
        replicate=replicate,
        platform=platform,
        trip_counts=trip_counts,
        rules=rules,
        constraints=constraints,
    )
    problem = best_mesh(problem, seconds and seconds / 4)
    costs, outcomes = problem.costs, _search(problem, budget, progress)
    first, pinned = outcomes[0].search, outcomes[0].pinned

    def plan_of(state: State) -> Plan:
        return problem.plan(state, search=first)

    def point(state: State) -> Point:
        cost = costs.evaluate(state)
        return Point(cost.step_seconds, int(cost.peak_bytes), complexity(state.lists), state)

    met = undominated(point(state) for outcome in outcomes for state in outcome.front)
    simple = [point(outcome.simple) for outcome in outcomes]
    simple += [point(without_idle(costs, pinned, p.state)) for p in thinned(met)]
    kept = undominated(_simplest(p, simple) for p in thinned(met))
    plans = tuple(plan_of(p.state) for p in kept)
    problem.check(plans[0])
    between = undominated([*kept, *met])
    on = whom_to_ask(problem.device, problem.mesh.devices, ask_compiler)
    plans = ask_along(plans, on, progress) if on is not None else plans
    return Front(plans, problem.limit_bytes, tuple(between), plan_of)


def _search(problem: Problem, budget: Budget, progress: bool | None) -> list[Outcome]:
    """Searches without a limit, for the least memory, under the limit that is given, and under those in between."""
    seconds, simulations = budget.seconds, budget.simulations
    fewer = _SIMULATIONS if simulations is None else min(simulations, _SIMULATIONS)
    stop = math.inf if seconds is None else time.perf_counter() + seconds
    outcomes: list[Outcome] = []

    def under(limit_bytes: int, share: float) -> Outcome:
        left = None if seconds is None else max(stop - time.perf_counter(), 0.0) * share
        met = {state: None for outcome in outcomes for state in outcome.front}
        allowed = replace(budget, seconds=left, simulations=fewer if outcomes else simulations)
        with search_bar(progress, left, limit_bytes) as watch:
            outcomes.append(problem.within(limit_bytes).search(allowed, starts=tuple(met), watch=watch))
        return outcomes[-1]

    fastest = under(_NO_LIMIT, 1 / 3)
    if seconds != 0 and simulations != 0 and _goes_on(fastest):
        largest, smallest = fastest.cost.peak_bytes, under(1, 1 / 3).cost.peak_bytes
        limits = _limits(largest, smallest)
        if smallest <= problem.limit_bytes < largest:
            limits = sorted({*limits, problem.limit_bytes}, reverse=True)
        reached = math.inf
        for k, limit_bytes in enumerate(limits):
            if limit_bytes < reached or limit_bytes == problem.limit_bytes:
                outcome = under(limit_bytes, 1 / (len(limits) - k))
                reached = outcome.cost.peak_bytes
            if not _goes_on(outcomes[-1]):
                break
    return outcomes


def _goes_on(outcome: Outcome) -> bool:
    return outcome.search.ended != "interrupted"


def _limits(largest: float, smallest: float) -> list[int]:
    """Limits of memory between two amounts, evenly spread by their ratio, largest first."""
    if smallest >= (1 - _APART) * largest:
        return []
    spans = math.log(smallest / largest) / math.log(_TIGHTER)
    count = min(math.ceil(spans), _MOST_LIMITS)
    return [int(largest * (smallest / largest) ** (k / (count + 1))) for k in range(1, count + 1)]


def undominated(points: Iterable[Point]) -> list[Point]:
    """The points that no other beats in both time and memory, fastest first; of equals the simplest."""
    out: list[Point] = []
    for found in sorted(points, key=lambda p: (p.step_seconds, p.peak_bytes, p.complexity, p.state.lists)):
        if not out or found.peak_bytes < out[-1].peak_bytes:
            out.append(found)
    return out


def thinned(points: Sequence[Point]) -> list[Point]:
    """Points of a front, fastest first, without those close to another; the fastest and the smallest stay."""
    out = list(points)
    while len(out) > 2:
        gaps = [max(_gap(out[k - 1], out[k]), 0.0) for k in range(1, len(out))]
        nearest = min(range(len(gaps)), key=lambda k: gaps[k])
        if gaps[nearest] >= _APART and len(out) <= _MOST_PLANS:
            break
        # Of two neighbours goes the one whose other neighbour is nearer; the ends stay.
        if nearest == 0:
            out.pop(1)
        elif nearest == len(gaps) - 1:
            out.pop(-2)
        else:
            out.pop(nearest if gaps[nearest - 1] <= gaps[nearest + 1] else nearest + 1)
    if len(out) == 2 and _gap(*out) < _APART:
        out.pop()  # the fastest is as small as any
    return out


def _gap(faster: Point, smaller: Point) -> float:
    """By which part two neighbours differ, in time or in memory, whichever is more."""
    slower = smaller.step_seconds / faster.step_seconds - 1 if faster.step_seconds else 0.0
    return max(slower, faster.peak_bytes / max(smaller.peak_bytes, 1) - 1)


def _simplest(found: Point, simple: Sequence[Point]) -> Point:
    """A point, or the simplest that is about as good in both."""
    as_good = [
        p
        for p in simple
        if p.step_seconds <= (1 + AS_GOOD) * found.step_seconds and p.peak_bytes <= (1 + AS_GOOD) * found.peak_bytes
    ]
    return min([found, *as_good], key=lambda p: (p.complexity, p.step_seconds, p.peak_bytes, p.state.lists))
