"""``sw.partition``: a JAX function and a mesh in, a plan that fits out. Each stage in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardwright._progress import search_bar
from shardwright.choose import (
    FEW_COMPILED,
    FEW_EXPLICIT,
    by_compiler,
    by_shardy,
    candidate,
    close_to_best,
    settle,
    whom_to_ask,
)
from shardwright.devices import Device
from shardwright.errors import PlanError
from shardwright.frontend.calls import Donate, Names
from shardwright.frontend.own_shardings import KEEP
from shardwright.infeasible import infeasible
from shardwright.ir.loops import TripCounts
from shardwright.meshes import search_meshes
from shardwright.plan import Plan
from shardwright.problem import Problem
from shardwright.request import Budget, MeshLike, PinLike
from shardwright.space.state import State
from shardwright.tune import tune_plan


def partition(
    fn: Callable[..., Any],
    *args: Any,
    mesh: MeshLike = None,
    device: str | Device | None = None,
    memory: int | str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    static_argnames: Names = (),
    donate: Donate = (),
    pin: PinLike = None,
    replicate: str | Sequence[str] = (),
    seconds: float | None = None,
    simulations: int | None = None,
    seed: int = 0,
    progress: bool | None = None,
    rerank: str | None = None,
    tune: str | None = None,
    compiles: int = 8,
    ask_compiler: bool | None = None,
    platform: str | None = None,
    trip_counts: TripCounts = None,
    rules: Mapping[str, str] | None = None,
    constraints: str = KEEP,
) -> Plan:
    """Find the fastest plan for ``fn(*args, **kwargs)`` on a mesh of devices that fits their memory.

    Args:
        fn: a JAX callable.
        *args: its arguments: pytrees of arrays or ``jax.ShapeDtypeStruct``; only shapes are looked at.
        mesh: a dict such as ``{"data": 4, "model": 4}``, a jax ``Mesh`` or an ``AbstractMesh``. It may also be a number
            of devices, or devices by where they are (``"tpu:v5e:4x4"``, ``"gpu:a100-80:2x8"``): then the shape of the
            mesh is chosen with the plan, and ``plan.meshes`` lists the others. By default it is the mesh of the
            program's own shardings.
        device: a preset's name such as ``"tpu-v5e"`` (``shardwright devices`` lists them) or a ``sw.Device``; by
            default what JAX's default backend runs on.
        memory: the bytes that a device may hold, or text such as ``"12GiB"``; by default all that is usable of the
            device's memory.
        kwargs: keyword arguments of the callable. They are planned like the others, and their paths begin with the
            parameter's name.
        static_argnames: parameters whose values are part of the program, as in ``jax.jit``. If ``fn`` is a ``jax.jit``
            already, its own are found.
        donate: positions or names of arguments whose buffers may be reused, as in ``jax.jit``.
        pin: what you have decided already: specs by argument path (``{"batch.tokens": P("data")}``), tactics
            (``"megatron:model"``), decisions, or a list of these. The search keeps them and decides the rest.
        replicate: arguments (paths, prefixes or globs) that stay whole, or mesh axes that split nothing.
        seconds: the most time that planning may take from the call on, JAX's own tracing apart; 0 plans with the pins
            alone. The search takes what reading and pricing the program leave of it, a quarter in any case. By default
            the search ends by itself, and the same seed gives the same plan.
        simulations: the number of simulations of the tree search; by default it goes on until it meets nothing better.
        seed: the seed of the search's random choices.
        progress: whether to show a progress bar; by default only on a terminal.
        rerank: a target such as ``"tpu:v5e:4x4"``. A few plans that are fast by the estimate and different from each
            other are compiled for it, the one with the best figures by the compiler is returned, and the others are in
            ``plan.alternatives``.
        tune: a target such as ``"tpu:v5e:4x4"``. Its compiler corrects the prices of this program and chooses among
            plans and among its own options, as ``plan.tune`` says. The result is at least as fast by the compiler's
            figures as the plan without it; ``plan.tuning`` says what was tried and learned, and
            ``plan.compiler_options`` are the options that were kept.
        compiles: the most compilations of ``tune``.
        ask_compiler: whether the device's compiler may be asked if a plan fits. The estimate of memory has a known
            margin of error. By default a plan that is closer to the limit than that is compiled where the compiler is
            installed (seconds to minutes for each of up to four plans); elsewhere its ``plan.fits`` is None. False
            never asks; True raises where the compiler is missing.
        platform: the platform to lower for while planning; by default that of the device.
        trip_counts: as in ``sw.analyse``.
        rules: as in ``sw.analyse``.
        constraints: what becomes of shardings that the program has already (``with_sharding_constraint``,
            ``in_shardings`` of its ``jax.jit``, sharded arguments, explicit mode). ``"keep"`` takes them as pins, each
            on the value where it stands; ``"drop"`` takes them out, and everything is decided anew.

    Raises:
        InfeasibleError: no plan fits the memory; the error says what would help.
        CompilerMissingError: ``ask_compiler=True``, ``rerank`` or ``tune`` needs a compiler that is not installed.
        PlanError: ``tune`` is for other devices, or its compiler tells no seconds.
        PinError: a pin names something that does not exist, or two pins clash.

    """
    if rerank is not None and tune is not None:
        raise PlanError("tune= compiles and ranks plans, too; leave rerank= out.")
    budget, started = Budget(seconds, simulations, seed), time.perf_counter()
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
    budget = budget.less(time.perf_counter() - started - problem.traced.tracing_seconds)
    few = FEW_EXPLICIT if rerank is None else FEW_COMPILED
    with search_bar(progress, seconds, problem.limit_bytes) as watch:
        problem, outcome, meshes = search_meshes(problem, budget, few=few, differ=rerank is not None, watch=watch)

    def plan_of(state: State) -> Plan:
        return problem.plan(state, search=outcome.search, meshes=meshes)

    if outcome.few:
        states = list(outcome.few)
        if rerank is None:  # and there is time for it
            states = states[:1] if outcome.search.ended == "seconds" else close_to_best(problem.costs, states)
        plans = {state: plan_of(state) for state in dict.fromkeys((*states, outcome.simple))}
        problem.check(plans[states[0]])
        if rerank is not None:
            return by_compiler(list(plans.values()), rerank, progress)
        best = by_shardy(problem.traced.module, list(plans.values()), plans[outcome.simple])
    else:
        best = plan_of(outcome.best)
        problem.check(best)
    candidates = [candidate(best), *(candidate(best, state, plan_of) for state in outcome.front)]
    # Tuning compiles what is found first of all, and looks for smaller plans if it does not fit.
    on = whom_to_ask(problem.device, problem.mesh.devices, ask_compiler) if tune is None else None
    settled = settle(candidates, best.margin, problem.limit_bytes, on, progress)
    if settled.fits is False:
        raise infeasible(problem, settled.plan)
    if tune is not None:
        tuned = tune_plan(settled.plan, tune, compiles=compiles, seed=seed, progress=progress)
        if tuned.fits is False:
            raise infeasible(problem, tuned)
        return tuned
    return settled.plan
