"""The process of a contender that uses Shardwright: ``python -m benchmarks.contenders.attempt FOLDER``.

It reads ``task.json`` from the folder, decides, compiles, and writes ``result.json`` there.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

import shardwright as sw
from benchmarks.baselines import Baseline, automap, integer_program
from benchmarks.contenders.cases import Case
from benchmarks.contenders.match import Work
from shardwright._collector import collector_paused
from shardwright.analysis import analyse_program
from shardwright.apply import export_annotated
from shardwright.errors import PlanError
from shardwright.frontend.trace import lower
from shardwright.ir.build import ReadModule
from shardwright.models import build
from shardwright.plan import Plan
from shardwright.plan.strategy_names import common_names
from shardwright.plan.verdicts import CompilerVerdict
from shardwright.price import DevicePrices, Partitioned, Places
from shardwright.price.assign import Assigner, Assignment, OpProblem
from shardwright.price.ways import Prices, candidates
from shardwright.request import MeshShape
from shardwright.request.targets import Target
from shardwright.space.state import Sharding, State
from shardwright.verify import compile_exported

_MOST_MEMORY = 0.8
_COMPILED = ("step_seconds", "compute_seconds", "comm_seconds", "exposed_seconds", "peak_bytes", "compile_seconds")

Result = dict[str, Any]


class Clock:
    """Seconds of a clock on the wall, and of this process on all cores."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def read(self) -> Result:
        """Since it was made."""
        return {
            "search_seconds": time.perf_counter() - self.wall,
            "search_cpu_seconds": time.process_time() - self.cpu,
        }


def main(folder: str) -> None:
    """Run one contender on one case; what is wrong is an answer too."""
    task = json.loads(Path(folder, "task.json").read_text())
    try:
        found = run(task)
    except sw.InfeasibleError as error:
        found = {"status": "nothing fits", "message": str(error)}
    except Exception as error:
        found = {"status": "failed", "message": f"{type(error).__name__}: {error}"}
    Path(folder, "result.json").write_text(json.dumps(found))


def run(task: Mapping[str, Any]) -> Result:
    """The result of a task, of JSON's types alone."""
    case = Case.of(task["case"])
    timeout, options = task["timeout_seconds"], task["options"]
    warm_up()
    if task["contender"] == "shardwright":
        return ours(case, timeout)
    plain = _evaluated(case, [])
    if task["contender"] == "experts":
        return experts(case, plain, options["most"], timeout)
    search = {"integer program": integer_program, "automap": automap}[task["contender"]]
    return baseline(case, plain, search, options["seconds"], timeout)


def warm_up() -> None:
    """What Python and JAX do once in a process would count as the first plan's time."""
    fn, args, options = build("mlp", preset="tiny")
    sw.partition(fn, *args, mesh={"data": 2, "model": 2}, device="tpu-v5e", **options)


def ours(case: Case, timeout: float) -> Result:
    """The plan of ``sw.partition``: all of its seconds count, from JAX's tracing to the ranking of the best few."""
    clock = Clock()
    plan = _partitioned(case)
    took = clock.read()
    search = {"states": plan.search.evaluations if plan.search else 0}
    work = Work.of(plan.analysis.program)
    needs = {"flops": work.flops, "argument_bytes": work.argument_bytes}
    own = {"lowering_seconds": _lowering_seconds(case)}
    return {**_judged(plan, case, timeout), **took, **own, **search, **needs, "plan": _words(plan)}


def _lowering_seconds(case: Case) -> float:
    """What JAX's own tracing and lowering take of a plan's seconds: every compilation begins with them."""
    jax.clear_caches()
    fn, args, _ = case.build()
    clock = Clock()
    lower(fn, args, case.target.placed_device.platform)
    return float(clock.read()["search_seconds"])


def experts(case: Case, plain: sw.Plan, most: int, timeout: float) -> Result:
    """The best few combinations of tactics by the cost model, compiled; the best of them by the compiler."""
    rows = sw.compare(plain).rows[1:]
    names = [row.name for row in rows if row.fits][:most] or [row.name for row in rows[:1]]
    found: list[Result] = []
    for name in names:
        plan = _evaluated(case, [] if name == "replicated" else name.split(" + "))
        found.append({**_judged(plan, case, timeout), "plan": name})
    return min(found, key=_rank)


def _rank(found: Result) -> tuple[bool, float, float]:
    infinite = float("inf")
    return not found["fits"], found.get("step_seconds") or infinite, found.get("peak_bytes") or infinite


def baseline(case: Case, plain: sw.Plan, search: Callable[..., Baseline], seconds: float, timeout: float) -> Result:
    """A search of our own after others' papers; the seconds are without tracing, analysis and cost model."""
    costs, clock = plain.costs, Clock()
    with memory_limited(), collector_paused():
        found = search(costs, case.limit_bytes, seconds=seconds)
    took = {**clock.read(), "message": found.note}
    if found.cost is None or found.shardings is None:
        return {**took, "status": "nothing fits"}
    estimate = {"step_seconds": found.cost.step_seconds, "peak_bytes": int(found.cost.peak_bytes)}
    figures = compile_given(plain, found.shardings, case.target, timeout)
    verdict = CompilerVerdict.of(case.target_name, figures)
    return {
        **_figures(verdict, case),
        **took,
        "message": f"{verdict.message}; {found.note}",
        "estimate": estimate,
    }


@contextmanager
def memory_limited() -> Iterator[None]:
    """Who takes most of the machine's memory fails, in place of the system ending some process."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    most = int(_MOST_MEMORY * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _partitioned(case: Case) -> sw.Plan:
    fn, args, options = case.build()
    return sw.partition(fn, *args, **_where(case), progress=False, **options)


def _evaluated(case: Case, decisions: list[Any]) -> sw.Plan:
    fn, args, options = case.build()
    return sw.evaluate(fn, *args, **_where(case), decisions=decisions, **options)


def _where(case: Case) -> dict[str, Any]:
    return {"mesh": dict(case.mesh), "device": case.target.placed_device, "memory": case.limit_bytes}


def _judged(plan: sw.Plan, case: Case, timeout: float) -> Result:
    # With all of the memory that a device has, as everybody is compiled: told of less, the compiler trades time for it.
    whole = dataclasses.replace(plan, memory_bytes=case.target.device.usable_bytes, given_costs=plan.costs)
    verdict = whole.verify(case.target_name, timeout_seconds=timeout)
    assert isinstance(verdict, CompilerVerdict)
    cost = plan.estimate_cost
    estimate = {"step_seconds": cost.step_seconds, "peak_bytes": int(cost.peak_bytes)}
    return {**_figures(verdict, case), "estimate": estimate}


def _figures(verdict: CompilerVerdict, case: Case) -> Result:
    """What the compiler says; a program that it takes fits if its peak is within the case's own limit, too."""
    found: Result = {name: getattr(verdict, name) for name in _COMPILED}
    found["fits"] = bool(verdict.ok and verdict.peak_bytes is not None and verdict.peak_bytes <= case.limit_bytes)
    refused = "does not fit" if verdict.fits is False else "failed"
    return {**found, "status": "compiled" if verdict.ok else refused, "message": verdict.message}


def _words(plan: sw.Plan) -> str:
    """What the plan is commonly called, or its first decisions."""
    names = {axis: ", ".join(found) for axis, found in common_names(plan).items() if found}
    return "; ".join(f"{axis}: {name}" for axis, name in names.items()) or "; ".join(map(str, plan.decisions[:4]))


def partition_given(places: Places, mesh: MeshShape, shardings: Sequence[Sharding], prices: Prices) -> Partitioned:
    """A program whose values have these shardings; each op runs as is cheapest with them, on any of its factors."""
    program = places.analysis.program
    free, assigner = program.free.tolist(), Assigner(mesh, prices)
    assignments: list[Assignment | None] = []
    for o, op in enumerate(program.ops):
        if not op.rule.tensors:
            assignments.append(None)
            continue
        groups = places.of_op[o]
        every = frozenset(groups) - {-1}
        problem = OpProblem(
            program.shape_classes[op.signature],
            program.move_terms[o],
            tuple(shardings[v] for v in op.operands),
            tuple(shardings[v] for v in op.results),
            tuple(free[v] for v in op.operands),
            tuple(candidates(op, groups, every, size, places.uniform) for size in mesh.sizes),
        )
        tensors = [(program.values[v].shape, program.values[v].dtype) for v in (*op.operands, *op.results)]
        assignments.append(assigner.assign(op, problem, tensors))
    return Partitioned(places, mesh, State(((),) * len(mesh.sizes)), tuple(shardings), tuple(assignments))


def compile_given(plan: Plan, shardings: Sequence[Sharding], target: Target, timeout_seconds: float) -> dict[str, Any]:
    """Compile a plan's program with other shardings; the figures are those of ``compile_exported``."""
    mesh, prices = plan.partitioned.mesh, DevicePrices.of(plan.device, plan.partitioned.mesh)
    shapes = [value.shape for value in plan.analysis.program.values]

    def again(module: ReadModule) -> Partitioned:
        if [value.shape for value in module.program.values] != shapes:
            raise PlanError("JAX lowers this program to other values on a mesh, so given shardings do not fit them.")
        return partition_given(Places(analyse_program(module.program)), mesh, shardings, prices)

    partitioned = partition_given(plan.partitioned.places, mesh, shardings, prices)
    sharded = dataclasses.replace(dataclasses.replace(plan, partitioned=partitioned).sharded, partition=again)
    exported, _ = export_annotated(sharded, target.platform)
    return compile_exported(exported, plan.mesh, target, plan.donate, timeout_seconds)


if __name__ == "__main__":
    main(sys.argv[1])
