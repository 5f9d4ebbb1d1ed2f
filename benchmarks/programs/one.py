"""One program: planned at its real size, compiled at a middle one, run at a small one. In a process of its own.

Prints what it knows as lines of JSON, each replacing the one before, so that one that dies has said how far it got.
A module that is to the letter what was compiled for the row of before, which it reads from standard input, is not
compiled again.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
from jax.sharding import AxisType, NamedSharding

import shardwright as sw
from benchmarks.programs import PROGRAMS, Program
from shardwright._jax import parse_module
from shardwright.apply import export_plain
from shardwright.plan.strategy_names import common_names
from shardwright.verify import compile_exported

COMPILE_SECONDS = 1800.0


def examine(program: Program, before: dict[str, Any]) -> None:
    """Every stage in turn; one that fails says why, and the next goes on. ``before`` is what was known."""
    row: dict[str, Any] = {"program": program.name, "jax": jax.__version__, "shardwright": sw.__version__}
    stages: dict[str, Callable[[Program, dict[str, Any]], dict[str, Any]]] = {
        "small": run,
        "real": plan_real,
        "middle": compile_plan,
    }
    if program.sharded:
        stages["plain"] = compile_plain
    for stage, examined in stages.items():
        row[stage] = {"error": "not done"}
        print(json.dumps(row), flush=True)
        try:
            row[stage] = examined(program, before.get(stage, {}))
        except Exception as error:
            row[stage] = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(row), flush=True)


def planned(program: Program, scale: str) -> tuple[sw.Plan, dict[str, Any]]:
    """The plan, and what is known of it."""
    fn, args, options = program.module.build(scale)
    started = time.process_time()
    plan = sw.partition(fn, *args, progress=False, ask_compiler=False, **options)
    return plan, {
        "planning_cpu_seconds": time.process_time() - started,
        "mesh": plan.mesh,
        "device": plan.device.name,
        "names": {axis: list(names) for axis, names in common_names(plan).items()},
        "decisions": [str(decision) for decision in plan.decisions],
        "step_seconds": plan.estimate.step_seconds,
        "comm_seconds": plan.estimate.comm_seconds,
        "peak_bytes": plan.estimate.peak_bytes,
        "fits": plan.fits,
        "collectives": _by_kind((c.kind, c.times, c.total_bytes) for c in plan.estimate.collectives),
    }


def run(program: Program, _: dict[str, Any]) -> dict[str, Any]:
    """On 8 CPU devices, against the plain function, gradients as such."""
    plan, _ = planned(program, "small")
    verdict = plan.verify("run")
    return {"ok": verdict.ok, "message": verdict.message, "names": {a: list(n) for a, n in common_names(plan).items()}}


def plan_real(program: Program, _: dict[str, Any]) -> dict[str, Any]:
    """At the size that was published."""
    return planned(program, "real")[1]


def compile_plan(program: Program, before: dict[str, Any]) -> dict[str, Any]:
    """The plan as the TPU compiler sees it, beside its estimate."""
    plan, known = planned(program, "middle")
    exported, _ = plan.export("tpu")
    return {**known, **compiled(program, exported, plan.mesh, plan.donate, before)}


def compile_plain(program: Program, before: dict[str, Any]) -> dict[str, Any]:
    """The program as its author runs it: ``jax.jit`` with its own shardings, and nothing of ours."""
    fn, args, options = program.module.build("middle")
    mesh = options["mesh"]
    if AxisType.Explicit in mesh.axis_types:  # the arguments carry their shardings, and JAX exports none that do
        exported = export_plain(sw.evaluate(fn, *args, **options).sharded, "tpu", ())
    else:
        shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), program.module.specs())
        exported = jax.export.export(jax.jit(fn, in_shardings=shardings), platforms=["tpu"])(*args)
    return compiled(program, exported, dict(mesh.shape), options["donate"], before)


def compiled(
    program: Program, exported: Any, mesh: dict[str, int], donate: Any, before: dict[str, Any]
) -> dict[str, Any]:
    """What the compiler makes of a module, or has made of the same one before."""
    # Without locations, which tell where the process was when it traced.
    text = parse_module(exported.mlir_module().encode()).get_asm(enable_debug_info=False)
    module = hashlib.sha256(text.encode()).hexdigest()[:16]
    if before.get("module") == module and "step_seconds" in before.get("compiled", {}):
        return {"compiled": before["compiled"], "module": module}
    found = compile_exported(exported, mesh, program.target, donate, COMPILE_SECONDS)
    return {"compiled": _compiled(found), "module": module}


def _compiled(found: dict[str, Any]) -> dict[str, Any]:
    kept = ("step_seconds", "comm_seconds", "peak_bytes", "fits", "compile_seconds", "crash")
    kinds = [(kind, found["counts"][kind], sent) for kind, sent in found.get("bytes", {}).items()]
    return {**{name: found[name] for name in kept if name in found}, "collectives": _by_kind(kinds)}


def _by_kind(found: Any) -> dict[str, tuple[int, float]]:
    """How often collectives of a kind run, and the bytes that a device sends in them."""
    totals: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for kind, times, sent in found:
        totals[kind][0] += times
        totals[kind][1] += sent
    return {kind: (int(times), sent) for kind, (times, sent) in totals.items()}


if __name__ == "__main__":
    examine(PROGRAMS[sys.argv[1]], json.loads(sys.stdin.read() or "{}"))
