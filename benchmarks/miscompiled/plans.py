"""The same splits asked of Shardwright: whatever is decided, the plan runs and computes the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from jax.sharding import Mesh

import shardwright as sw
from benchmarks.miscompiled.case import Case
from benchmarks.miscompiled.cases import BY_NAME
from benchmarks.miscompiled.child import Say, judged, quick_options
from benchmarks.miscompiled.kept import PLAN

ALONE, TOGETHER = {"a": 4}, {"a": 2, "b": 2}


def program(case: Case) -> Callable[..., Any]:
    """The op between two others, so that its operands and results are values inside and not at the edge."""

    def soft(x: jax.Array) -> jax.Array:
        return jnp.sin(x) if jnp.issubdtype(x.dtype, jnp.inexact) else x

    return lambda *args: jax.tree.map(soft, case.fn(*map(soft, args)))


def decisions(case: Case) -> Iterator[tuple[dict[str, int], list[tuple[str, str]]]]:
    """Every group of dimensions on one axis of four, and every two of them on an axis of two each."""
    shapes = [jax.ShapeDtypeStruct(i.shape, i.dtype) for i in case.inputs]
    names = [found.name for found in sw.analyse(program(case), *shapes, platform="cpu").descriptions]
    for name in names:
        yield ALONE, [("a", name)]
    for first, second in combinations(names, 2):
        yield TOGETHER, [("a", first), ("b", second)]


def work(cases: Sequence[str], known: set[str], say: Say, only: str = "") -> None:
    """Run what is not known of these cases, or one run of them only."""
    for name in cases:
        case = BY_NAME[name]
        fn = program(case)
        random = np.random.default_rng(0)
        inputs = [i.draw(random) for i in case.inputs]
        expected: list[np.ndarray] = []
        for mesh, chosen in decisions(case):
            words = ", ".join(f"{axis}: {dimension}" for axis, dimension in chosen)
            about = {
                "key": f"{PLAN}{name} | {words}",
                "case": name,
                "family": case.family,
                "mesh": mesh,
                "jax": jax.__version__,
                "jaxlib": jaxlib.__version__,
            }
            if about["key"] in known or only not in ("", about["key"]):
                continue
            if not expected:
                expected = [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(fn)(*inputs))]
            say({"start": about})
            begun = time.perf_counter()
            found = judged(expected, partial(execute, fn, inputs, mesh, chosen))
            say({"row": about | found | {"seconds": round(time.perf_counter() - begun, 3)}})
        say({"done": name})


def execute(
    fn: Callable[..., Any], inputs: list[np.ndarray], mesh: dict[str, int], chosen: list[tuple[str, str]]
) -> list[np.ndarray]:
    """The results of the plan that these decisions make."""
    plan = sw.evaluate(fn, *inputs, mesh=mesh, decisions=chosen)
    sizes = tuple(mesh.values())
    devices = Mesh(np.array(jax.devices()[: prod(sizes)]).reshape(sizes), tuple(mesh))
    program, _ = plan.export("cpu")
    placed = [
        x if sharding is None else jax.device_put(x, sharding)
        for x, sharding in zip(inputs, program.in_shardings_jax(devices), strict=True)
    ]
    compiled = jax.jit(program.call).lower(*placed).compile(compiler_options=quick_options())
    return [np.asarray(leaf) for leaf in jax.tree.leaves(compiled(*placed))]
