"""Of a program whose plan came out wrong, the few steps that do, with one decision if one is enough."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import jax
import numpy as np

import shardwright as sw
from grammar import Program, program
from grammar.batches import ROOT, environment
from grammar.cases import QUICK, Case, Decided, differences
from shardwright.apply import named
from shardwright.devices import find_device
from shardwright.problem import Problem
from shardwright.request import mesh_shape

PAIRS = 12
"""Plans of two or three random decisions that are tried where none of one decision fails."""


def parts(whole: Program) -> Iterator[Program]:
    """Each step alone, then each with those before it that it reads, and so on; what is missing is an argument."""
    makers = {step.out: step for step in whole.steps}
    seen = set()
    for depth in range(len(whole.steps)):
        for step in whole.steps:
            chosen, front = {step.out}, {step.out}
            for _ in range(depth):
                front = {i for out in front for i in makers[out].inputs if i in makers}
                chosen |= front
            if frozenset(chosen) not in seen:
                seen.add(frozenset(chosen))
                yield alone(whole, chosen, step.out)


def alone(whole: Program, chosen: set[int], result: int) -> Program:
    steps = tuple(step for step in whole.steps if step.out in chosen)
    arguments = {i for step in steps for i in step.inputs} - chosen
    return replace(whole, steps=steps, arguments=tuple(sorted(arguments)), results=(result,))


def simple_plans(case: Case, mesh: dict[str, int]) -> Iterator[Decided]:
    """Every decision by itself, on each side of its conflicts, then a few at random."""
    analysis, device = case.traced.analysis, find_device(None)
    random = np.random.default_rng(0)
    singles = [
        [sw.Decision(axis, description.name, sides)]
        for axis in mesh
        for group, description in zip(analysis.groups, analysis.descriptions, strict=True)
        for sides in list(product((0, 1), repeat=len(group.conflicts)))[:4]
    ]
    for decisions in [*singles, *(case.decisions(mesh, random) for _ in range(PAIRS))]:
        plan = Problem.of(case.traced, device, device.usable_bytes, (mesh_shape(mesh),)).plan_of(decisions)
        if any(any(sharding) for sharding in plan.partitioned.values):
            yield Decided(0, "decisions", mesh, plan)


def smaller(number: int, mesh: dict[str, int], tell: Callable[[dict[str, Any]], None]) -> None:
    """Tell of each part before it runs, and of the first plan that does not come out right."""
    for n, part in enumerate(parts(program(number))):
        case = Case(part)
        tell({"part": n, "program": str(part)})
        if not case.finite:
            continue
        for decided in simple_plans(case, mesh):
            about = {"part": n, "program": str(part), "decided": str(decided), "specs": str(decided.plan.in_specs)}
            about["module"] = module(decided)
            tell(about)
            outcome = case.run(decided)
            if outcome.verdict not in ("ok", "rounding"):
                tell(about | vars(outcome))
                tell({"part": -1, "plain": plain(case, decided)})
                return
        jax.clear_caches()


def reduce_case(case: int, mesh: str) -> str:
    """The few steps of a case that fail, in a child process, and what ended it if that is how."""
    command = [sys.executable, "-m", "grammar.smaller", str(case), mesh]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment())
    rows = [json.loads(line) for line in ended.stdout.splitlines()]
    failed = [row for row in rows if "verdict" in row]
    lines = [f"{name}: {value}" for name, value in (failed or rows)[-1].items()]
    lines.append(f"plain jax.jit with the same specs: {rows[-1].get('plain', '?')}")
    lines += [line for line in ended.stderr.splitlines() if "Check failed" in line]
    return "\n".join([*lines, f"exit {ended.returncode} {ended.stderr[-300:] if ended.returncode else ''}"])


def module(decided: Decided) -> str:
    text = decided.plan.export("cpu")[0].mlir_module()
    return "\n".join(line for line in re.sub(r" ?loc\(.*\)$", "", text, flags=re.M).splitlines() if line[:1] != "#")


def plain(case: Case, decided: Decided) -> str:
    """What ``jax.jit`` makes of the same specs of arguments and results."""
    mesh = decided.plan.make_mesh()
    jitted = jax.jit(
        case.program,
        in_shardings=named(mesh, decided.plan.in_specs),
        out_shardings=named(mesh, decided.plan.out_specs),
    )
    try:
        found = jitted.lower(*case.inputs).compile(compiler_options=QUICK)(*case.inputs)
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        return f"fails: {error}"
    errors = differences([np.asarray(x) for x in jax.tree.leaves(found)], case.expected)
    return f"{max(errors):.1e}"


if __name__ == "__main__":
    sizes = {axis: int(size) for axis, _, size in (entry.partition("=") for entry in sys.argv[2].split(","))}
    smaller(int(sys.argv[1]), sizes, lambda row: print(json.dumps(row), flush=True))
