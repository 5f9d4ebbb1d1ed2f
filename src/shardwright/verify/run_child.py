"""The process that runs a plan beside the plain function: ``python -m shardwright.verify.run_child FOLDER``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.sharding import Mesh

from shardwright.verify.agreement import Reference, compare, compare_again, epsilon, is_inexact, wide

_SMALL_INTEGER = 8
_MOST_ATTEMPTS = 32
Inputs = list[Any]
Program = Callable[[Inputs], list[np.ndarray]]


def main(folder: str) -> None:
    """Run both programs on the same inputs and print what differed as one line of JSON."""
    task = json.loads(Path(folder, "task.json").read_text())
    plain, planned = (export.deserialize(bytearray(Path(folder, name).read_bytes())) for name in ("plain", "planned"))
    mesh = Mesh(np.array(jax.devices()).reshape(tuple(task["mesh"].values())), tuple(task["mesh"]))
    together = mesh if plain.nr_devices > 1 else None
    run_plain = compiled(plain, random_inputs(plain, task["seed"], range(len(plain.in_avals))), together)
    pairs = {result: argument for argument, result in task["named"]}

    def refer(inputs: Inputs) -> Reference:
        others = nudged(inputs, task["seed"], task["coarsest"])
        arrays, other_arrays = ([as_numpy(x) for x in leaves] for leaves in (inputs, others))
        return Reference(arrays, run_plain(inputs), other_arrays, run_plain(others), pairs, task["coarsest"])

    inputs = finite_inputs(plain, run_plain, task["seed"])
    reference = refer(inputs)
    run_planned = compiled(planned, inputs, mesh)
    found = compare(reference.results, run_planned(inputs), reference)
    if found["ok"] and (hidden := reference.hidden()):
        # Nothing is rounded where nothing was: what is added to a zero stands there as it is.
        inputs = half_zero(inputs, sorted({view.argument for view in hidden.values() if view.argument is not None}))
        clearer = refer(inputs)
        if all_finite(clearer.results):
            found = compare_again(found, hidden, run_planned(inputs), clearer)
    print(json.dumps(found))


def finite_inputs(program: export.Exported, run: Program, seed: int) -> Inputs:
    """Random inputs on which the results are finite if that can be: some must not be negative, as under a root.

    Which of them is found by halves, so that as many as possible have both signs.
    """
    everything = list(range(len(program.in_avals)))
    signed: list[int] = []
    parts = [everything]
    for _ in range(_MOST_ATTEMPTS):
        if not parts:
            break
        part = parts.pop(0)  # large parts first: they may be all that can be tried
        if all_finite(run(random_inputs(program, seed, [*signed, *part]))):
            signed += part
        elif len(part) > 1:
            parts += [part[: len(part) // 2], part[len(part) // 2 :]]
    return random_inputs(program, seed, signed)


def random_inputs(program: export.Exported, seed: int, signed: Sequence[int]) -> Inputs:
    """Small random numbers for every argument, of both signs for some."""
    random = np.random.default_rng(seed)

    def leaf(k: int, aval: Any) -> Any:
        if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
            return jax.random.split(jax.random.key(seed), aval.shape) if aval.shape else jax.random.key(seed)
        if jnp.issubdtype(aval.dtype, jnp.bool_):
            return random.integers(0, 2, aval.shape).astype(bool)
        if jnp.issubdtype(aval.dtype, jnp.integer):
            return random.integers(0, _SMALL_INTEGER, aval.shape).astype(aval.dtype)
        numbers = random.normal(size=aval.shape) * 0.2
        return np.asarray(numbers if k in signed else np.abs(numbers) + 0.01).astype(aval.dtype)

    return [leaf(k, aval) for k, aval in enumerate(program.in_avals)]


def nudged(inputs: Inputs, seed: int, coarsest: str) -> Inputs:
    """The inputs, each number moved by at most a rounding of a type."""
    random = np.random.default_rng((seed, 1))
    part = epsilon(coarsest)

    def leaf(x: Any) -> Any:
        if not isinstance(x, np.ndarray) or not is_inexact(x):
            return x
        return (wide(x) * (1 + part * random.uniform(-1, 1, x.shape))).astype(x.dtype)

    return [leaf(x) for x in inputs]


def half_zero(inputs: Inputs, which: Sequence[int]) -> Inputs:
    """The inputs with zeros in half of the entries of some of them."""
    random = np.random.default_rng(2)
    out = list(inputs)
    for k in which:
        out[k] = np.where(random.permutation(inputs[k].size).reshape(inputs[k].shape) % 2, inputs[k], 0).astype(
            inputs[k].dtype
        )
    return out


def compiled(program: export.Exported, inputs: Inputs, mesh: Mesh | None = None) -> Program:
    """A function of flat inputs that returns NumPy arrays. XLA's optimizations are off: they take longer than a run."""
    options: Any = {"xla_backend_optimization_level": 0}
    shardings: Sequence[Any] = program.in_shardings_jax(mesh) if mesh is not None else [None] * len(inputs)

    def placed(inputs: Inputs) -> Inputs:
        return [x if s is None else jax.device_put(x, s) for x, s in zip(inputs, shardings, strict=True)]

    ready = jax.jit(program.call).lower(*placed(inputs)).compile(compiler_options=options)
    return lambda inputs: [as_numpy(leaf) for leaf in jax.tree.leaves(ready(*placed(inputs)))]


def as_numpy(leaf: Any) -> np.ndarray:
    """An array, or the words of random keys."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def all_finite(results: Sequence[np.ndarray]) -> bool:
    """No result is infinite, or no number."""
    return all(np.isfinite(wide(leaf)).all() for leaf in results if is_inexact(leaf))


if __name__ == "__main__":
    main(sys.argv[1])
