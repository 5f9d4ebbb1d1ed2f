"""One subject under every plan: estimated, and compiled unless the same was compiled before.

Runs in a process of its own, in the environment of the subject's library, and prints a line of JSON for each plan.
Everything that a compiler said is kept in a folder by what it was given: the final text, and its figures. The seconds
are read from the text by the code of today. Where the text is not there, an earlier run's figures are taken if the code
that read them has not changed.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import shardwright as sw
from benchmarks.clock import MESH, OURS, PLANS, SPECS, SUBJECTS, Subject
from benchmarks.contenders.rows import fingerprint
from shardwright.models import build
from shardwright.problem import Problem
from shardwright.request.targets import parse_target
from shardwright.space import implied_decisions
from shardwright.verify import compile_exported
from shardwright.verify.compile import kernel_seconds_of
from shardwright.verify.figures import program_figures
from shardwright.verify.hlo import parse_hlo

_READERS = ("devices", "verify")
"""What the seconds of a compiled text depend on."""
_KEPT = ("memory", "peak_bytes", "limit_bytes", "fits", "compile_seconds", "crash", "error")
_READ = ("step_seconds", "compute_seconds", "comm_seconds", "exposed_seconds", "serial_seconds", "bytes", "counts")


def examine(
    name: str, folder: Path, plans: Sequence[str], known: Path, *, compiles: bool, limit_seconds: float
) -> None:
    """Some plans of a subject in turn; ``known`` are rows of an earlier run."""
    subject, reader = SUBJECTS[name], fingerprint(_READERS)
    before = compiled_before(known, reader)
    fn, args, options = _built(subject)
    given = {key: value for key, value in options.items() if key not in ("mesh", "device")}
    problem = Problem(fn, *args, mesh=MESH, device=subject.device, **given)
    seen: dict[str, str] = {}
    planned = partial(sw.partition, fn, *args, mesh=MESH, device=subject.device, **given)
    for plan_name, plan in _plans(problem, planned, plans):
        row: dict[str, Any] = {"subject": name, "plan": plan_name}
        if isinstance(plan, str):
            print(json.dumps({**row, "unable": plan}), flush=True)
            continue
        alone = plan_name == SPECS
        key = _key_of_specs(subject, plan) if alone else _key(subject, plan)
        row |= {"key": key, "same_as": seen.get(key), "estimate": {} if alone else _estimate(plan)}
        seen.setdefault(key, plan_name)
        question = _Question(subject, plan, folder / key, alone)
        row["compiled"] = _compiled(question, before.get(key), compiles=compiles, limit_seconds=limit_seconds)
        row["reader"] = reader
        print(json.dumps(row), flush=True)


def compiled_before(rows: Path, reader: str) -> dict[str, dict[str, Any]]:
    """What the compiler said of each program by its key, where this code has read it."""
    lines = rows.read_text().splitlines() if rows.is_file() else []
    found = [row for row in map(json.loads, lines) if row.get("reader") == reader]
    return {row["key"]: row["compiled"] for row in found if row.get("compiled") and not row["compiled"].get("crash")}


def _built(subject: Subject) -> tuple[Any, Any, dict[str, Any]]:
    module, _, name = subject.where.partition(":")
    if module == "models":
        return build(name, **subject.sizes)
    if module == "programs":
        return importlib.import_module(f"benchmarks.programs.{name}").build("middle")
    return getattr(importlib.import_module(f"ecosystem.{module}"), name)(**subject.sizes)


def _plans(
    problem: Problem, planned: Callable[..., sw.Plan], plans: Sequence[str]
) -> Iterator[tuple[str, sw.Plan | str]]:
    """Each plan by its name, or why there is none."""
    ours: sw.Plan | None = None
    for name in plans:
        decisions = PLANS[name]
        try:
            if name in (OURS, SPECS):
                plan = ours = ours or planned(progress=False, ask_compiler=False)
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


def random_decisions(analysis: sw.Analysis, mesh: dict[str, int], seed: int) -> list[sw.Decision]:
    """Up to three dimensions on each axis, of those that do some work and that the axis divides."""
    choose = random.Random(seed)
    out = []
    for axis, size in mesh.items():
        able = [d for d in analysis.descriptions if d.flops and any(s % size == 0 for s in d.sizes)]
        for d in choose.sample(able, min(len(able), choose.randint(1, 3))):
            conflicts = analysis.groups[analysis.descriptions.index(d)].conflicts
            out.append(sw.Decision(axis, d.name, tuple(choose.randrange(2) for _ in conflicts)))
    return out


def _key(subject: Subject, plan: sw.Plan) -> str:
    """Whatever the compiler's answer depends on."""
    p = plan.partitioned
    ways = [a and (a.factors, a.operands, a.results) for a in p.assignments]
    content = [subject.where, dict(subject.sizes), subject.target, p.values, ways, plan.donate, jax.__version__]
    return hashlib.sha256(repr(content).encode()).hexdigest()[:16]


def _key_of_specs(subject: Subject, plan: sw.Plan) -> str:
    content = [subject.where, dict(subject.sizes), subject.target, str(plan.in_specs), str(plan.out_specs), plan.donate]
    return hashlib.sha256(repr([*content, jax.__version__]).encode()).hexdigest()[:16]


def _estimate(plan: sw.Plan) -> dict[str, Any]:
    e = plan.estimate
    names = ("step_seconds", "compute_seconds", "comm_seconds", "exposed_seconds", "peak_bytes", "fits")
    return {name: getattr(e, name, None) for name in names}


@dataclass(frozen=True)
class _Question:
    """What a compiler is asked about: a plan, or its specs alone, and where its answer is kept."""

    subject: Subject
    plan: sw.Plan
    kept: Path
    alone: bool

    def exported(self) -> jax.export.Exported:
        """The program that is compiled."""
        if not self.alone:
            return self.plan.export("tpu")[0]
        mesh = AbstractMesh(tuple(self.plan.mesh.values()), tuple(self.plan.mesh))

        def placed(specs: Any) -> Any:
            return jax.tree.map(
                lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec)
            )

        plan = self.plan
        jitted = jax.jit(plan.fn, in_shardings=placed(plan.in_specs), out_shardings=placed(plan.out_specs))
        return jax.export.export(jitted, platforms=["tpu"])(*plan.args)


def _compiled(
    question: _Question, before: dict[str, Any] | None, *, compiles: bool, limit_seconds: float
) -> dict[str, Any]:
    """What the compiler says, today or before."""
    plan, target = question.plan, question.subject.target
    figures, text = question.kept.with_suffix(".json"), question.kept.with_suffix(".hlo.gz")
    if not figures.exists():
        if before is not None:
            return before
        if not compiles:
            return {}
        started = time.perf_counter()
        found = compile_exported(question.exported(), plan.mesh, target, plan.donate, limit_seconds, keep=text)
        known = {name: found[name] for name in _KEPT if name in found}
        figures.write_text(json.dumps({**known, "seconds": time.perf_counter() - started}))
        plan.save(question.kept.with_suffix(".plan.json"))
    out = json.loads(figures.read_text())
    out["peak_bytes"] = (out.pop("memory", None) or {}).get("peak_bytes", out.get("peak_bytes"))
    if text.exists():
        program = parse_hlo(gzip.decompress(text.read_bytes()).decode())
        found = program_figures(program, plan.mesh, parse_target(target), kernel_seconds_of(plan))
        out |= {name: found.get(name) for name in _READ}
    return out
