"""One model: traced, planned, compiled. Runs in a process of its own and prints what it knows as lines of JSON.

Each line replaces the one before, so that a process that dies or is stopped has said how far it came.
"""

from __future__ import annotations

import importlib
import json
import math
import time
import traceback
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp

import shardwright as sw
from shardwright.plan.strategy_names import common_names


def plan_and_compile(where: str, package: str, axes: str, device: str, target: str) -> None:
    """``where`` is a module and a function, as ``ecosystem.haiku_nets:resnet_152``; ``axes`` the mesh as JSON."""
    mesh = json.loads(axes)
    row: dict[str, Any] = {"package": package, "version": version(package), "mesh": mesh, "target": target}
    row |= {"jax": jax.__version__, "shardwright": sw.__version__}

    def say(stage: str, **more: Any) -> None:
        row.update(more, stage=stage)
        print(json.dumps(row), flush=True)

    try:
        say("building")
        module, _, name = where.partition(":")
        build = getattr(importlib.import_module(module), name)
        fn, args, options = build()
        say("planning", step=(build.__doc__ or "").strip().splitlines()[0], parameters=_parameters(args[0]))
        started = time.perf_counter(), time.process_time()
        plan = sw.partition(fn, *args, mesh=mesh, device=device, progress=False, **options)
        seconds = time.perf_counter() - started[0], time.process_time() - started[1]
        say("compiling", **_planned(plan), planning_seconds=seconds[0], planning_cpu_seconds=seconds[1])
        verdict = plan.verify(target, timeout_seconds=3600)
        say(
            "done",
            fits=verdict.fits,
            ok=verdict.ok,
            message=verdict.message,
            compiled_seconds=verdict.step_seconds,
            compiled_comm_seconds=verdict.comm_seconds,
            compiled_bytes=verdict.peak_bytes,
            compile_seconds=verdict.compile_seconds,
        )
    except Exception as error:
        say(row["stage"], error=f"{type(error).__name__}: {error}", trace=traceback.format_exc()[-6000:])


def _planned(plan: sw.Plan) -> dict[str, Any]:
    return {
        "ops": len(plan.analysis.program.ops),
        "names": {axis: list(names) for axis, names in common_names(plan).items()},
        "decisions": [str(decision) for decision in plan.decisions],
        "estimated_seconds": plan.estimate.step_seconds,
        "estimated_comm_seconds": plan.estimate.comm_seconds,
        "estimated_bytes": plan.estimate.peak_bytes,
        "search_seconds": plan.search.seconds if plan.search else None,
    }


def _parameters(tree: Any) -> int:
    leaves = [leaf for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype")]
    return sum(math.prod(leaf.shape) for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.inexact))
