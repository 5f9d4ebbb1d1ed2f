"""Plans of random programs, run on CPU devices and compared with the program as it is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

import shardwright as sw
from grammar import Program, program
from shardwright.devices import find_device
from shardwright.problem import Problem
from shardwright.request import mesh_shape
from shardwright.traced import Traced

MESHES: tuple[dict[str, int], ...] = (
    {"a": 2},
    {"a": 4},
    {"a": 8},
    {"a": 3},
    {"a": 4, "b": 2},
    {"a": 2, "b": 3},
    {"a": 2, "b": 2, "c": 2},
)
PLANS = 3
"""Of each program, at most."""
TOLERANCE = 1e-4
"""Of the largest entry of a result."""
QUICK = {"xla_backend_optimization_level": 0}


@dataclass(frozen=True, eq=False)
class Decided:
    """A plan by number, with how it was decided."""

    number: int
    how: str
    mesh: dict[str, int]
    plan: sw.Plan

    def __str__(self) -> str:
        return f"{self.how} on {self.mesh}: " + "; ".join(map(str, self.plan.decisions))


@dataclass(frozen=True)
class Outcome:
    """How a plan came out.

    ``ok``; ``wrong``; ``rounding``: wrong by no more than changes of the last bits of the inputs explain;
    ``refused``: an exception of ours; ``fails``: one of JAX or XLA.
    """

    verdict: str
    error: float = 0.0
    message: str = ""


class Case:
    """A program, traced once, with its plans and its result."""

    def __init__(self, program: Program, number: int = 0) -> None:
        self.program = program
        self.number = number
        self.inputs = program.inputs(number)

    @classmethod
    def of(cls, number: int) -> Case:
        return cls(program(number), number)

    @cached_property
    def traced(self) -> Traced:
        return Traced.of(self.program, self.program.structs, (), "cpu", None, None)

    @cached_property
    def plain(self) -> Any:
        return jax.jit(self.program).lower(*self.inputs).compile(compiler_options=QUICK)

    @cached_property
    def expected(self) -> list[np.ndarray]:
        return [np.asarray(x) for x in jax.tree.leaves(self.plain(*self.inputs))]

    @property
    def finite(self) -> bool:
        return all(np.isfinite(x).all() for x in self.expected)

    def plans(self) -> Iterator[Decided | Outcome]:
        """Different plans that split something; the refusal, where one is refused."""
        sketch = np.random.default_rng(self.number)
        known: set[Any] = set()
        for number in range(PLANS):
            mesh = MESHES[int(sketch.integers(len(MESHES)))]
            how = str(sketch.choice(["decisions", "specs", "search"], p=[0.7, 0.15, 0.15]))
            try:
                decided = Decided(number, how, mesh, self.decide(how, mesh, sketch))
            except sw.PinError:  # specs that clash: the user is told
                continue
            key = (tuple(mesh.items()), decided.plan.partitioned.values)
            if key not in known and any(any(sharding) for sharding in decided.plan.partitioned.values):
                known.add(key)
                yield decided

    def decide(self, how: str, mesh: dict[str, int], random: np.random.Generator) -> sw.Plan:
        """A plan from random decisions, from random specs of arguments, or from a short search for a TPU."""
        if how == "search":
            return sw.partition(
                self.program, *self.program.structs, mesh=mesh, device="tpu-v5e", simulations=4, progress=False
            )
        device = find_device(None)
        pins = self.decisions(mesh, random) if how == "decisions" else [self.specs(mesh, random)]
        return Problem.of(self.traced, device, device.usable_bytes, (mesh_shape(mesh),)).plan_of(pins)

    def decisions(self, mesh: dict[str, int], random: np.random.Generator) -> list[sw.Decision]:
        analysis = self.traced.analysis
        out = []
        for axis in mesh:
            for _ in range(int(random.integers(1, 4)) if analysis.groups else 0):
                group = int(random.integers(len(analysis.groups)))
                sides = tuple(int(random.integers(2)) for _ in analysis.groups[group].conflicts)
                out.append(sw.Decision(axis, analysis.descriptions[group].name, sides))
        return out

    def specs(self, mesh: dict[str, int], random: np.random.Generator) -> dict[str, PartitionSpec]:
        """For an argument or two, what their sizes allow."""
        arguments = self.traced.analysis.program.arguments
        shapes = self.traced.analysis.program.values
        out = {}
        for _ in range(int(random.integers(1, 3)) if arguments else 0):
            argument = arguments[int(random.integers(len(arguments)))]
            entries: list[Any] = [None] * len(shapes[argument.value].shape)
            for axis in random.permutation([*mesh]):
                free = [
                    d
                    for d, size in enumerate(shapes[argument.value].shape)
                    if size and size % mesh[axis] == 0 and entries[d] is None
                ]
                if free:
                    entries[int(random.choice(free))] = str(axis)
            out[argument.path] = PartitionSpec(*entries)
        return out

    def run(self, decided: Decided) -> Outcome:
        """Run a plan and compare."""
        plan = decided.plan
        mesh = plan.make_mesh()
        try:
            compiled = plan.jit(mesh).lower(*self.inputs).compile(compiler_options=QUICK)
            placed = [plan.place(x, mesh, argument=i) for i, x in enumerate(self.inputs)]
            found = [np.asarray(x) for x in jax.tree.leaves(compiled(*placed))]
        except sw.ShardwrightError as error:
            return Outcome("refused", message=f"{type(error).__name__}: {error}")
        except (jax.errors.JaxRuntimeError, ValueError, TypeError) as error:
            return Outcome("fails", message=f"{type(error).__name__}: {error}")
        errors = differences(found, self.expected)
        if max(errors, default=0.0) <= TOLERANCE:
            return Outcome("ok", max(errors, default=0.0))
        noise = self.noise()
        worst = max(range(len(errors)), key=lambda k: errors[k])
        rounding = all(e <= max(TOLERANCE, 50 * n) for e, n in zip(errors, noise, strict=True))
        words = f"result {worst} of {len(errors)}; {noise[worst]:.1e} by a change of the last bits of the inputs"
        return Outcome("rounding" if rounding else "wrong", errors[worst], words)

    def noise(self) -> list[float]:
        """By how much results change when inputs change by a millionth."""
        generator = np.random.default_rng(1)
        out = [0.0] * len(self.expected)
        for _ in range(3):
            inputs = [
                x if x.dtype == np.int32 else (x * (1 + 1e-6 * generator.normal(size=x.shape))).astype(x.dtype)
                for x in self.inputs
            ]
            found = [np.asarray(x) for x in jax.tree.leaves(self.plain(*inputs))]
            out = [max(pair) for pair in zip(out, differences(found, self.expected), strict=True)]
        return out


def differences(found: list[np.ndarray], expected: list[np.ndarray]) -> list[float]:
    """Of each result, the largest, relative to the largest entry."""
    out = []
    for x, y in zip(found, expected, strict=True):
        if x.shape != y.shape or x.dtype != y.dtype:
            out.append(float("inf"))
            continue
        scale = np.abs(y.astype(np.complex128)).max(initial=0) + 1e-6
        error = np.abs(x.astype(np.complex128) - y).max(initial=0) / scale
        out.append(float("inf") if np.isnan(error) else float(error))
    return out


def run_case(number: int, first: int = 0, before: Any = None) -> Iterator[dict[str, Any]]:
    """A row for each plan from ``first`` on; ``before`` is told of each plan before it runs."""
    case = Case.of(number)
    about = {"case": number, "gradient": case.program.gradient, "kinds": case.program.kinds}
    start = time.perf_counter()
    if before is not None:
        before(about | {"plan": -1})
    if not case.finite:
        yield about | {"plan": -1, "verdict": "not finite"}
        return
    for decided in case.plans():
        if decided.number < first:
            continue
        row = about | {"plan": decided.number, "how": decided.how, "mesh": decided.mesh}
        if before is not None:
            before(row)
        outcome = case.run(decided)
        row |= {"padded": bool(decided.plan.partitioned.padded), "verdict": outcome.verdict, "error": outcome.error}
        if outcome.verdict != "ok":
            row |= {"message": outcome.message, "program": str(case.program), "decided": str(decided)}
        yield row | {"seconds": round(time.perf_counter() - start, 3)}
        start = time.perf_counter()
