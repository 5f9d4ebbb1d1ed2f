"""One program at the edge of a device's memory: sized until a plan nearly fills it, planned, compiled.

Runs in a process of its own, in whatever environment the program needs, and prints a line of JSON for each plan.
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax

import shardwright as sw
from shardwright.devices import PRESETS
from shardwright.fit.dimension import Dimension, find_dimension
from shardwright.ir.kinds import CONTRACTIONS
from shardwright.models import build
from shardwright.problem import Problem
from shardwright.request import Budget, mesh_shape
from shardwright.traced import Traced
from shardwright.verify.compile import verify_compiled

DEVICE = "tpu-v5e"
NEAR = 0.1
"""Of the limit: what is closer than this is at the edge."""
_NEAR, _TRIES, _SIMULATIONS = 0.95, 4, 2
"""A plan is near enough to what it was sized for from this part of it on; so many sizes are tried, each by a search of
so many simulations."""


@dataclass(frozen=True)
class Task:
    """``where`` is a built-in model, or a module and a function; ``parts`` are of the device's usable memory."""

    where: str
    sizes: dict[str, Any]
    mesh: dict[str, int]
    target: str
    dimension: list[str] | None
    parts: list[float]
    tighter: list[float]
    timeout_seconds: float


def main(text: str) -> None:
    """Print a row for every part."""
    task = Task(**json.loads(text))
    fn, args, options = _program(task)
    traced = Traced.of(fn, args, options.pop("donate", ()), "tpu", None, None)
    problem = Problem.of(traced, PRESETS[DEVICE], PRESETS[DEVICE].usable_bytes, (mesh_shape(task.mesh),))
    changed = find_dimension(problem, task.dimension) if task.dimension != [] else None
    near: tuple[int, float] | None = None
    for part in task.parts:
        first = rounded(int(near[0] * part / near[1]), mesh_shape(task.mesh).devices) if near else None
        row = {"part": part, "jax": jax.__version__, "target": task.target, "mesh": task.mesh}
        row |= at_edge(task, traced, changed, part, first)
        near = (row["size"], part) if row["size"] else None
        print(json.dumps(row), flush=True)


def _program(task: Task) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    if ":" not in task.where:
        fn, args, options = build(task.where, **task.sizes)
        return fn, args, dict(options)
    module, _, name = task.where.partition(":")
    made: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] = getattr(importlib.import_module(module), name)()
    return made


def at_edge(task: Task, traced: Traced, changed: Dimension | None, part: float, first: int | None) -> dict[str, Any]:
    """A plan that nearly fills this part of the memory, by the estimate; and what the compiler makes of it."""
    device, shape = PRESETS[DEVICE], mesh_shape(task.mesh)
    limit_bytes = int(part * device.usable_bytes)

    def at_size(size: int | None) -> Traced:
        if size is None or changed is None or size == changed.size:
            return traced
        sizes = changed.scaled(size)
        assert sizes is not None
        return traced.again(shapes=traced.resized(sizes))

    def plan_at(size: int | None) -> sw.Plan:
        at = Problem.of(at_size(size), device, device.usable_bytes, (shape,))
        outcome = at.within(limit_bytes).search(Budget(simulations=_SIMULATIONS))
        return at.plan(outcome.simple, search=outcome.search)

    if changed is None:  # smaller and smaller plans of the program as it is
        size, plan = None, plan_at(None)
        limit_bytes = int(task.tighter[task.parts.index(part)] * plan.estimate_cost.peak_bytes)
        plan = plan_at(None)
    else:
        size, plan = sized(plan_at, first or changed.size, shape.devices, limit_bytes)
    needed = plan.estimate_cost.peak_bytes
    if abs(needed / device.usable_bytes - 1) > NEAR:  # no size comes near the limit, so the limit comes near the plan
        plan = replace(plan, memory_bytes=int(needed / part))
    row = {"size": size, **figures(plan)}
    start = time.perf_counter()
    verdict = verify_compiled(plan, task.target, timeout_seconds=task.timeout_seconds)
    return row | {
        "compiled_bytes": verdict.peak_bytes,
        "compiled_fits": verdict.fits,
        "message": verdict.message,
        "compile_seconds": time.perf_counter() - start,
        "asked": asked(task, at_size(size), plan.memory_bytes),
    }


def asked(task: Task, traced: Traced, limit_bytes: int) -> dict[str, Any]:
    """What ``sw.partition`` says of the program under this limit, where it may ask the compiler."""
    try:
        plan = sw.partition(
            traced.fn,
            *traced.lowering.shapes,
            mesh=task.mesh,
            device=DEVICE,
            memory=limit_bytes,
            donate=traced.donate,
            simulations=_SIMULATIONS,
            progress=False,
            ask_compiler=True,
        )
    except sw.InfeasibleError as error:
        return {"fits": False, "message": str(error).splitlines()[0]}
    return {"fits": plan.fits, "compiled_bytes": plan.verdict.peak_bytes if plan.verdict else None}


def sized(plan_at: Callable[[int], sw.Plan], given: int, devices: int, limit_bytes: int) -> tuple[int, sw.Plan]:
    """The size whose plan comes nearest to the limit from below; what is no argument is taken to grow with it."""
    tried: dict[int, sw.Plan] = {}
    size = given
    low, high = 0, None
    while len(tried) < _TRIES and size not in tried:
        plan = tried[size] = plan_at(size)
        needed, held = plan.estimate_cost.peak_bytes, plan.estimate.argument_bytes
        if _NEAR * limit_bytes <= needed <= limit_bytes:
            break
        if needed <= limit_bytes:
            low = max(low, size)
        else:
            high = min(high or size, size)
        free = max(limit_bytes - held, 0.05 * limit_bytes)
        guess = int(size * min(max(0.99 * free / max(needed - held, 1), 0.1), 16))
        if high is not None and not low < guess < high:
            guess = (low + high) // 2
        size = rounded(guess, devices)
    best = max(tried, key=lambda n: (-abs(tried[n].estimate_cost.peak_bytes / limit_bytes - 0.99), n))
    return best, tried[best]


def rounded(size: int, devices: int) -> int:
    """A round multiple of the number of devices, within a 32nd."""
    step = devices
    while size >= 64 * step:
        step *= 2
    return max(size // step, 1) * step


def figures(plan: sw.Plan) -> dict[str, Any]:
    """What is known without the compiler, and what tells one kind of program from another."""
    program, estimate = plan.analysis.program, plan.estimate
    flops: dict[str, float] = {}
    looped = 0.0
    for op, times in zip(program.ops, program.repeats, strict=True):
        if op.kind in CONTRACTIONS:
            dtype = program.values[op.operands[0]].dtype
            for name in (dtype, op.kind):
                flops[name] = flops.get(name, 0.0) + float(op.flops) * float(times)
            looped += float(op.flops) * float(times) * (op.region != 0)
    total = sum(v for k, v in flops.items() if k in CONTRACTIONS) or 1.0
    moved: dict[str, float] = {}
    for c in estimate.collectives:
        moved[c.kind] = moved.get(c.kind, 0.0) + c.total_bytes
    return {
        "estimate_bytes": estimate.peak_bytes,
        "argument_bytes": estimate.argument_bytes,
        "limit_bytes": plan.memory_bytes,
        "ops": len(program.ops),
        "flops": {k: v / total for k, v in flops.items()},
        "looped": looped / total,
        "loops": sum(loop.trips > 1 for loop in program.loops),
        "backward": any(op.source.backward for op in program.ops),
        "moved": moved,
        "alive": [asdict(a) for a in estimate.alive[:12]],
        "decisions": [str(d) for d in plan.decisions],
    }
