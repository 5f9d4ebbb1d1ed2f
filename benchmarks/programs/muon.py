"""Llama 3 8B, trained with Muon: the momentum of each matrix is made orthogonal by five Newton-Schulz steps.

https://kellerjordan.github.io/posts/muon/; embeddings and norms have Adam, as there.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs.parts import LLAMA_8B, MIDDLE, SMALL, Built, logits, parameters
from shardwright.models import adam
from shardwright.models.layers import cross_entropy

SCALES = {
    "real": (LLAMA_8B, {"data": 16, "model": 4}, "tpu-v5p"),
    "middle": (MIDDLE, {"data": 4, "model": 4}, "tpu-v5e"),
    "small": (SMALL, {"data": 4, "model": 2}, "tpu-v5e"),
}
STEPS, COEFFICIENTS = 5, (3.4445, -4.7750, 2.0315)
RATE, MOMENTUM = 0.02, 0.95
CONTRACTED = {"wq": 1, "wk": 1, "wv": 1, "wo": 2, "w_gate": 1, "w_up": 1, "w_down": 1}
"""How many dimensions of a layer's weight are its rows; the rest are its columns."""


def orthogonal(g: jax.Array, dtype: Any) -> jax.Array:
    """The nearest orthogonal matrices, roughly: g [layers, m, n], all layers at once."""
    a, b, c = COEFFICIENTS
    x = g.astype(dtype)
    if tall := x.shape[1] > x.shape[2]:
        x = x.mT
    x = x / (jnp.sqrt(jnp.sum(jnp.square(x.astype(jnp.float32)), axis=(1, 2), keepdims=True)) + 1e-7).astype(dtype)
    for _ in range(STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return (x.mT if tall else x).astype(jnp.float32)


def muon(p: jax.Array, momentum: jax.Array, g: jax.Array, rows: int, dtype: Any) -> tuple[jax.Array, jax.Array]:
    momentum = MOMENTUM * momentum + g
    ahead = g + MOMENTUM * momentum
    m = math.prod(p.shape[1 : 1 + rows])
    update = orthogonal(ahead.reshape(p.shape[0], m, -1), dtype)
    scale = max(1.0, update.shape[1] / update.shape[2]) ** 0.5
    return p - RATE * scale * update.reshape(p.shape), momentum


def split(params: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The matrices of the layers, and all else."""
    layers = params["layers"]
    matrices = {name: layers[name] for name in CONTRACTED}
    norms = {name: layers[name] for name in layers if name not in CONTRACTED}
    return matrices, {**{name: params[name] for name in ("embed", "final_norm", "unembed")}, "norms": norms}


def joined(matrices: Any, others: Any) -> dict[str, Any]:
    others = dict(others)
    return {"layers": {**matrices, **others.pop("norms")}, **others}


def build(scale: str) -> Built:
    sizes, mesh, device = SCALES[scale]

    def loss(params: Any, batch: Any) -> jax.Array:
        return cross_entropy(logits(params, batch["tokens"], sizes.dtype), batch["targets"])

    def train_step(state: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(joined(state["matrices"], state["others"]), batch)
        matrix_grads, other_grads = split(grads)
        moved = {
            name: muon(state["matrices"][name], state["momentum"][name], matrix_grads[name], rows, sizes.dtype)
            for name, rows in CONTRACTED.items()
        }
        others, opt = adam.update(state["others"], state["opt"], state["step"], other_grads)
        return {
            "matrices": {name: p for name, (p, _) in moved.items()},
            "momentum": {name: m for name, (_, m) in moved.items()},
            "others": others,
            "opt": opt,
            "step": state["step"] + 1,
        }, value

    matrices, others = split(parameters(sizes))
    whole = adam.state(others)
    state = {"matrices": matrices, "momentum": matrices, "others": others, "opt": whole["opt"], "step": whole["step"]}
    return train_step, (state, sizes.tokens), {"donate": (0,), "mesh": mesh, "device": device}
