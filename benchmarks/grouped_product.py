"""Products of rows in groups by JAX's megablox kernels, as a function that says how it may be split.

Each group of rows meets a matrix of its own. By the kernels' grids columns of the result may be split; that what is
contracted may be, too, if the parts are summed up, is said here by ``custom_partitioning``.
"""

from __future__ import annotations

from functools import cache, partial
from importlib import import_module
from typing import Any

import jax
from jax.experimental.custom_partitioning import custom_partitioning

ROWS, MOST = 512, 1024


def _tiling(k: int, n: int) -> tuple[int, int, int]:
    return ROWS, min(k, MOST), min(n, MOST)


def _gmm(transposed: bool, rows: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
    """Multiply rows [m, k] and w [g, k, n] or, transposed, [g, n, k] -> [m, n]."""
    kernels = import_module("jax.experimental.pallas.ops.tpu.megablox.gmm")
    tiling = _tiling(rows.shape[1], w.shape[1 if transposed else 2])
    return kernels.gmm(rows, w, sizes, rows.dtype, tiling, transpose_rhs=transposed)


def _tgmm(rows: jax.Array, grad: jax.Array, sizes: jax.Array) -> jax.Array:
    """Multiply rows [m, k] and grad [m, n] -> [g, k, n]."""
    kernels = import_module("jax.experimental.pallas.ops.tpu.megablox.gmm")
    tiling = _tiling(rows.shape[1], grad.shape[1])
    return kernels.tgmm(rows.swapaxes(0, 1), grad, sizes, grad.dtype, tiling)


@cache
def _described(kind: str) -> Any:
    """The function of a kind, with its rule; a sum over what is contracted is its own."""
    fn = {"gmm": partial(_gmm, False), "transposed": partial(_gmm, True), "tgmm": _tgmm}[kind]
    rule = {"gmm": "m k, g k n, g -> m n", "transposed": "m k, g n k, g -> m n", "tgmm": "m k, m n, g -> g k n"}[kind]

    def partition(mesh: Any, args: Any, result: Any) -> Any:
        axes = args[0].sharding.spec[1] if kind != "tgmm" else None

        def part(*arrays: jax.Array) -> jax.Array:
            out = fn(*arrays)
            return jax.lax.psum(out, axes) if axes else out

        return mesh, part, result.sharding, tuple(arg.sharding for arg in args)

    def named(rows: jax.Array, other: jax.Array, sizes: jax.Array) -> jax.Array:
        return fn(rows, other, sizes)

    named.__name__ = named.__qualname__ = f"grouped_{kind}"
    function: Any = custom_partitioning(named)
    reduced = {} if kind == "tgmm" else {"reduction_factors": ("k",)}
    function.def_partition(partition, sharding_rule=rule, need_replication_factors=("m", "g"), **reduced)
    return function


@jax.custom_vjp
def grouped_product(rows: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
    """Multiply rows [m, k] and w [g, k, n] -> [m, n]: the first ``sizes[0]`` rows meet ``w[0]``, and so on."""
    return _described("gmm")(rows, w, sizes)


def _forward(rows: jax.Array, w: jax.Array, sizes: jax.Array) -> Any:
    return grouped_product(rows, w, sizes), (rows, w, sizes)


def _backward(saved: Any, grad: jax.Array) -> Any:
    rows, w, sizes = saved
    return (
        _described("transposed")(grad, w, sizes),
        _described("tgmm")(rows, grad, sizes),
        None,
    )


grouped_product.defvjp(_forward, _backward)
