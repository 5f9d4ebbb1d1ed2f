"""The process that runs a plan beside the plain function: ``python -m shardwright.verify.run_child FOLDER``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.sharding import Mesh

# Sums in another order differ by a few roundings of the type; a training step takes a few hundred ops.
TOLERANCE = {"float64": 1e-9, "float32": 3e-4, "bfloat16": 6e-2, "float16": 1e-2, "complex64": 3e-4}
_SMALL_INTEGER = 8


def main(folder: str) -> None:
    """Run both programs on the same inputs and print what differed as one line of JSON."""
    task = json.loads(Path(folder, "task.json").read_text())
    plain, planned = (export.deserialize(bytearray(Path(folder, name).read_bytes())) for name in ("plain", "planned"))
    mesh = Mesh(np.array(jax.devices()).reshape(tuple(task["mesh"].values())), tuple(task["mesh"]))
    inputs = random_inputs(plain, task["seed"], signed=True)
    reference = run(plain, inputs)
    if not all(np.isfinite(leaf).all() for leaf in reference if np.issubdtype(leaf.dtype, np.inexact)):
        inputs = random_inputs(plain, task["seed"], signed=False)  # a square root of what must not be negative
        reference = run(plain, inputs)
    print(json.dumps(compare(reference, run(planned, inputs, mesh))))


def random_inputs(program: export.Exported, seed: int, *, signed: bool) -> Any:
    """Small random numbers for every argument, as the tree that the program takes."""
    random = np.random.default_rng(seed)

    def leaf(aval: Any) -> Any:
        if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
            return jax.random.split(jax.random.key(seed), aval.shape) if aval.shape else jax.random.key(seed)
        if jnp.issubdtype(aval.dtype, jnp.bool_):
            return random.integers(0, 2, aval.shape).astype(bool)
        if jnp.issubdtype(aval.dtype, jnp.integer):
            return random.integers(0, _SMALL_INTEGER, aval.shape).astype(aval.dtype)
        numbers = random.normal(size=aval.shape) * 0.2
        return (numbers if signed else np.abs(numbers) + 0.01).astype(aval.dtype)

    return jax.tree.unflatten(program.in_tree, [leaf(aval) for aval in program.in_avals])


def run(program: export.Exported, inputs: Any, mesh: Mesh | None = None) -> list[np.ndarray]:
    """The flat results as NumPy arrays. XLA's optimizations are off: they take longer than the run."""
    args, kwargs = inputs
    options: Any = {"xla_backend_optimization_level": 0}
    if mesh is not None:
        shardings = program.in_shardings_jax(mesh)
        leaves = [
            x if s is None else jax.device_put(x, s) for x, s in zip(jax.tree.leaves(args), shardings, strict=True)
        ]
        args = jax.tree.unflatten(jax.tree.structure(args), leaves)
    lowered = jax.jit(program.call).lower(*args, **kwargs)
    compiled = lowered.compile(compiler_options=options)
    return [_numpy(leaf) for leaf in jax.tree.leaves(compiled(*args, **kwargs))]


def _numpy(leaf: Any) -> np.ndarray:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def compare(reference: list[np.ndarray], found: list[np.ndarray]) -> dict[str, Any]:
    """The leaf that is furthest from its tolerance."""
    worst = {"leaf": 0, "error": 0.0, "tolerance": 1.0}
    ok = len(reference) == len(found)
    for k, (a, b) in enumerate(zip(reference, found, strict=True)):
        tolerance = TOLERANCE.get(str(a.dtype), 0.0)
        if tolerance:
            wide = np.complex128 if np.iscomplexobj(a) else np.float64
            x, y = a.astype(wide), b.astype(wide)
            same = np.array_equal(np.isfinite(x), np.isfinite(y))
            scale = np.max(np.abs(x), initial=0.0, where=np.isfinite(x)) or 1.0
            difference = np.max(np.abs(x - y), initial=0.0, where=np.isfinite(x) & np.isfinite(y))
            error = float(difference / scale) if same else float("inf")
        else:
            tolerance, error = 0.0, float(np.mean(a != b)) if a.size else 0.0
        ok = ok and error <= tolerance
        if error / (tolerance or 1e-12) > worst["error"] / (worst["tolerance"] or 1e-12):
            worst = {"leaf": k, "error": error, "tolerance": tolerance}
    return {"ok": bool(ok), "worst": worst, "leaves": len(reference)}


if __name__ == "__main__":
    main(sys.argv[1])
