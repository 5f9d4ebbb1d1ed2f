"""One subject under every plan: estimated, and compiled unless the same was compiled before.

Runs in a process of its own, in the environment of the subject's library, and prints a line of JSON for each plan.
Everything that a compiler said is kept in a folder by what it was given: the final text, and its figures. The seconds
are read from the text by the code of today.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

import shardwright as sw
from benchmarks.clock import DEVICE, MESH, OURS, PLANS, SUBJECTS, TARGET, Subject
from benchmarks.fidelity import random_decisions
from shardwright.models import build
from shardwright.problem import Problem
from shardwright.request.targets import parse_target
from shardwright.space import implied_decisions
from shardwright.verify import compile_exported
from shardwright.verify.compile import kernel_seconds_of
from shardwright.verify.figures import program_figures
from shardwright.verify.hlo import parse_hlo

_KEPT = ("memory", "peak_bytes", "limit_bytes", "fits", "compile_seconds", "crash", "error")
_READ = ("step_seconds", "compute_seconds", "comm_seconds", "exposed_seconds", "serial_seconds", "bytes", "counts")


def examine(name: str, folder: Path, plans: Sequence[str], *, compiles: bool, limit_seconds: float) -> None:
    """Some plans of a subject in turn."""
    subject = SUBJECTS[name]
    fn, args, options = _built(subject)
    given = {key: value for key, value in options.items() if key not in ("mesh", "device")}
    problem = Problem(fn, *args, mesh=MESH, device=DEVICE, **given)
    seen: dict[str, str] = {}
    for plan_name, plan in _plans(problem, fn, args, given, plans):
        row: dict[str, Any] = {"subject": name, "plan": plan_name}
        if isinstance(plan, str):
            print(json.dumps({**row, "unable": plan}), flush=True)
            continue
        key = _key(subject, plan)
        row |= {"key": key, "same_as": seen.get(key), "estimate": _estimate(plan)}
        seen.setdefault(key, plan_name)
        row["compiled"] = _compiled(plan, folder / key, compiles=compiles, limit_seconds=limit_seconds)
        print(json.dumps(row), flush=True)


def _built(subject: Subject) -> tuple[Any, Any, dict[str, Any]]:
    module, _, name = subject.where.partition(":")
    if module == "models":
        return build(name, **subject.sizes)
    if module == "programs":
        return importlib.import_module(f"benchmarks.programs.{name}").build("middle")
    return getattr(importlib.import_module(f"ecosystem.{module}"), name)(**subject.sizes)


def _plans(
    problem: Problem, fn: Any, args: Any, options: dict[str, Any], plans: Sequence[str]
) -> Iterator[tuple[str, sw.Plan | str]]:
    """Each plan by its name, or why there is none."""
    for name in plans:
        decisions = PLANS[name]
        try:
            if name == OURS:
                plan = sw.partition(fn, *args, mesh=MESH, device=DEVICE, progress=False, ask_compiler=False, **options)
            else:
                made = (
                    random_decisions(problem.analysis, MESH, decisions)
                    if isinstance(decisions, int)
                    else list(decisions)
                )
                plan = problem.plan_of([made, implied_decisions(problem.analysis, problem.mesh)])
        except sw.ShardwrightError as error:
            yield name, f"{type(error).__name__}: {error}"
            continue
        yield name, plan


def _key(subject: Subject, plan: sw.Plan) -> str:
    """Whatever the compiler's answer depends on."""
    p = plan.partitioned
    ways = [a and (a.factors, a.operands, a.results) for a in p.assignments]
    content = [subject.where, dict(subject.sizes), TARGET, p.values, ways, plan.donate, jax.__version__]
    return hashlib.sha256(repr(content).encode()).hexdigest()[:16]


def _estimate(plan: sw.Plan) -> dict[str, Any]:
    e = plan.estimate
    names = ("step_seconds", "compute_seconds", "comm_seconds", "exposed_seconds", "peak_bytes", "fits")
    return {name: getattr(e, name, None) for name in names}


def _compiled(plan: sw.Plan, kept: Path, *, compiles: bool, limit_seconds: float) -> dict[str, Any]:
    """What the compiler says of a plan, today or before."""
    figures, text = kept.with_suffix(".json"), kept.with_suffix(".hlo.gz")
    if not figures.exists():
        if not compiles:
            return {}
        exported, _ = plan.export("tpu")
        started = time.perf_counter()
        found = compile_exported(exported, plan.mesh, TARGET, plan.donate, limit_seconds, keep=text)
        known = {name: found[name] for name in _KEPT if name in found}
        figures.write_text(json.dumps({**known, "seconds": time.perf_counter() - started}))
        plan.save(kept.with_suffix(".plan.json"))
    out = json.loads(figures.read_text())
    out["peak_bytes"] = (out.pop("memory", None) or {}).get("peak_bytes", out.get("peak_bytes"))
    if text.exists():
        program = parse_hlo(gzip.decompress(text.read_bytes()).decode())
        found = program_figures(program, plan.mesh, parse_target(TARGET), kernel_seconds_of(plan))
        out |= {name: found.get(name) for name in _READ}
    return out
