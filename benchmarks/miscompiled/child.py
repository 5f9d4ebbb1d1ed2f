"""What a child process does: it runs cases, one after the other, and may be ended by any of them.

It tells the name of each run before, so that the one that ends the process is known, and its row afterwards.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

import jax
import jaxlib
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.miscompiled.case import Case
from benchmarks.miscompiled.cases import BY_NAME
from benchmarks.miscompiled.kept import row_of
from benchmarks.miscompiled.splits import Run, Specs, runs

Say = Callable[[dict[str, Any]], None]

ALLOWED = 1e-3
"""Of the largest entry: sums in another order stay far below it, numbers in the wrong place far above."""

NOT_FINITE = 1e9
"""The difference where one of the two is finite and the other is not."""

# What comes after the partitioner is kept short, by options that not every jaxlib has: it takes longer than the run.
_QUICK = (
    {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False},
    {"xla_backend_optimization_level": 0},
)


def work(cases: Sequence[str], known: set[str], say: Say, only: str = "") -> None:
    """Run what is not known of these cases, or one run of them only."""
    for name in cases:
        case = BY_NAME[name]
        inputs: list[np.ndarray] = []
        expected: list[np.ndarray] = []
        for run in runs(case):
            key = f"{name} | {run.name}"
            if key in known or only not in ("", key):
                continue
            if not inputs:
                random = np.random.default_rng(0)
                inputs = [i.draw(random) for i in case.inputs]
                expected = [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(case.fn)(*inputs))]
            about = row_of(case, run) | {"jax": jax.__version__, "jaxlib": jaxlib.__version__}
            say({"start": about})
            begun = time.perf_counter()
            found = judged(expected, partial(execute, case, run, inputs))
            say({"row": about | found | {"seconds": round(time.perf_counter() - begun, 3)}})
        say({"done": name})


@cache
def quick_options() -> dict[str, Any]:
    """The options of this jaxlib under which compiling takes the shortest."""
    for options in _QUICK[:-1]:
        try:
            jax.jit(lambda x: x + 1).lower(1.0).compile(compiler_options=options)
        except Exception:
            continue
        return options
    return _QUICK[-1]


def judged(expected: list[np.ndarray], run: Callable[[], list[np.ndarray]]) -> dict[str, Any]:
    """Right or wrong, and by how much; or what the compiler says."""
    try:
        found = run()
    except Exception as error:
        return {"verdict": "does not compile", "message": str(error).strip().splitlines()[0][:300]}
    difference = max(relative_difference(x, y) for x, y in zip(expected, found, strict=True))
    return {"verdict": "right" if difference <= ALLOWED else "wrong", "difference": float(f"{difference:.3g}")}


def execute(case: Case, run: Run, inputs: Any) -> list[np.ndarray]:
    """The results with the run's constraints; what comes in and what goes out is whole."""
    devices = np.array(jax.devices()[: run.devices]).reshape(tuple(run.mesh.values()))
    mesh = Mesh(devices, tuple(run.mesh))
    replicated = NamedSharding(mesh, PartitionSpec())

    def constrained(leaves: Any, specs: Specs) -> list[Any]:
        return [
            leaf if spec is None else jax.lax.with_sharding_constraint(leaf, NamedSharding(mesh, PartitionSpec(*spec)))
            for leaf, spec in zip(leaves, specs, strict=True)
        ]

    def fn(*operands: Any) -> Any:
        results = case.fn(*constrained(operands, run.operands))
        return constrained(jax.tree.leaves(results), run.results)

    compiled = (
        jax.jit(fn, in_shardings=replicated, out_shardings=replicated)
        .lower(*inputs)
        .compile(compiler_options=quick_options())
    )
    return [np.asarray(leaf) for leaf in compiled(*(jax.device_put(x, replicated) for x in inputs))]


def relative_difference(expected: np.ndarray, found: np.ndarray) -> float:
    """The largest difference, as part of the largest entry; of integers, how many differ."""
    if not expected.size:
        return 0.0
    if not np.issubdtype(expected.dtype, np.inexact):
        return float(np.mean(expected != found))
    wide = np.complex128 if np.iscomplexobj(expected) else np.float64
    x, y = expected.astype(wide), found.astype(wide)
    finite = np.isfinite(x)
    if not np.array_equal(finite, np.isfinite(y)):
        return NOT_FINITE
    largest = np.max(np.abs(x), initial=0.0, where=finite) or 1.0
    return float(np.max(np.abs(x - y), initial=0.0, where=finite) / largest)
