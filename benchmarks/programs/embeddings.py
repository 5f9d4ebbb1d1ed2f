"""A recommender: 26 features looked up in stacked embedding tables, crossed, and scored; trained with row-wise Adagrad.

As MLPerf's DLRM-DCNv2 (https://arxiv.org/abs/2008.13535; rows as in its reference, capped at 40 million a table): five
tables of 40 million rows are stacked into one array, and 21 smaller ones into another, 128 features each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs.parts import Built
from shardwright.models import shapes


@dataclass(frozen=True)
class Sizes:
    """``rows`` of each table of a stack and ``tables`` in it; each feature looks up ``hots`` rows and adds them."""

    large_tables: int = 5
    large_rows: int = 40_000_000
    small_tables: int = 21
    small_rows: int = 200_000
    features: int = 128
    hots: int = 8
    dense: int = 13
    bottom: tuple[int, ...] = (512, 256, 128)
    cross_layers: int = 3
    cross_rank: int = 512
    top: tuple[int, ...] = (1024, 1024, 512, 256, 1)
    batch: int = 65536


MIDDLE = Sizes(large_rows=1_000_000, small_rows=50_000, batch=16384)
SMALL = Sizes(2, 64, 6, 16, 16, 2, 13, (32, 16), 2, 8, (32, 1), 16)
SCALES = {
    "real": (Sizes(), {"data": 8, "model": 8}, "tpu-v5e"),
    "middle": (MIDDLE, {"data": 4, "model": 4}, "tpu-v5e"),
    "small": (SMALL, {"data": 4, "model": 2}, "tpu-v5e"),
}
RATE = 0.01


def perceptron(widths: tuple[int, ...], start: int) -> list[dict[str, Any]]:
    into = (start, *widths[:-1])
    return [{"w": shapes.floats(i, o), "b": shapes.floats(o)} for i, o in zip(into, widths, strict=True)]


def parameters(s: Sizes) -> dict[str, Any]:
    crossed = (s.large_tables + s.small_tables + 1) * s.features
    cross = {
        "down": shapes.floats(crossed, s.cross_rank),
        "up": shapes.floats(s.cross_rank, crossed),
        "b": shapes.floats(crossed),
    }
    return {
        "large": shapes.floats(s.large_tables * s.large_rows, s.features),
        "small": shapes.floats(s.small_tables * s.small_rows, s.features),
        "bottom": perceptron(s.bottom, s.dense),
        "cross": [cross] * s.cross_layers,
        "top": perceptron(s.top, crossed),
    }


def looked_up(table: jax.Array, ids: jax.Array, rows: int) -> jax.Array:
    """Rows of a stack of tables, added up by feature: ids [b, tables, hots] -> [b, tables, features]."""
    offsets = jnp.arange(ids.shape[1], dtype=jnp.int32) * rows
    return jnp.sum(jnp.take(table, ids % rows + offsets[:, None], axis=0, mode="clip"), axis=2)


def dense(x: jax.Array, layers: Any) -> jax.Array:
    for layer in layers[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ layers[-1]["w"] + layers[-1]["b"]


def loss(s: Sizes, params: Any, batch: Any) -> jax.Array:
    large = looked_up(params["large"], batch["large"], s.large_rows)
    small = looked_up(params["small"], batch["small"], s.small_rows)
    bottom = jax.nn.relu(dense(batch["dense"], params["bottom"]))
    start = jnp.concatenate([bottom[:, None, :], large, small], axis=1).reshape(s.batch, -1)
    x = start
    for layer in params["cross"]:
        x = start * (x @ layer["down"] @ layer["up"] + layer["b"]) + x
    score = dense(x, params["top"])[:, 0]
    return jnp.mean(jax.nn.softplus(score) - score * batch["clicked"])


def build(scale: str) -> Built:
    sizes, mesh, device = SCALES[scale]

    def train_step(state: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(lambda params: loss(sizes, params, batch))(state["params"])

        def accumulated(sums: jax.Array, g: jax.Array) -> jax.Array:
            return sums + (jnp.mean(g * g, axis=-1) if g.ndim == 2 else g * g)

        def moved(p: jax.Array, sums: jax.Array, g: jax.Array) -> jax.Array:
            scale = RATE * jax.lax.rsqrt(sums + 1e-8)
            return p - (scale[:, None] if p.ndim == 2 else scale) * g

        sums = jax.tree.map(accumulated, state["sums"], grads)
        return {"params": jax.tree.map(moved, state["params"], sums, grads), "sums": sums}, value

    params = parameters(sizes)
    # One sum a row: what makes tables of this size affordable.
    sums = jax.tree.map(lambda p: shapes.floats(p.shape[0]), params)
    batch = {
        "large": shapes.integers(sizes.batch, sizes.large_tables, sizes.hots),
        "small": shapes.integers(sizes.batch, sizes.small_tables, sizes.hots),
        "dense": shapes.floats(sizes.batch, sizes.dense),
        "clicked": shapes.floats(sizes.batch),
    }
    return train_step, ({"params": params, "sums": sums}, batch), {"donate": (0,), "mesh": mesh, "device": device}
