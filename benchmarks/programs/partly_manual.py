"""Llama 3 8B, manual over ``data`` and automatic over ``model``: gradients are summed in bfloat16 by hand.

The compiler splits heads and hidden width over ``model`` from the constraints; over ``data`` the program itself says
what is sent: every gradient once, at half the bytes that an automatic all-reduce in float32 would take.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from benchmarks.programs.parts import (
    LLAMA_8B,
    MIDDLE,
    SMALL,
    Built,
    attention,
    logits,
    mesh_of,
    parameter_specs,
    parameters,
    training_specs,
)
from shardwright.models import adam
from shardwright.models.layers import cross_entropy

SCALES = {
    "real": (LLAMA_8B, {"data": 16, "model": 4}, "tpu-v5p"),
    "middle": (MIDDLE, {"data": 4, "model": 4}, "tpu-v5e"),
    "small": (SMALL, {"data": 4, "model": 2}, "tpu-v5e"),
}
HEADS = P(None, None, "model", None)


def specs() -> tuple[Any, Any]:
    """Where the author of the program puts its arguments."""
    return training_specs(parameter_specs(data=None), P("data", None))


def split_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    q, k, v = (jax.lax.with_sharding_constraint(x, HEADS) for x in (q, k, v))
    return jax.lax.with_sharding_constraint(attention(q, k, v), HEADS)


def build(scale: str) -> Built:
    sizes, axes, device = SCALES[scale]
    mesh = mesh_of(**axes)

    def loss(params: Any, batch: Any) -> jax.Array:
        return cross_entropy(logits(params, batch["tokens"], sizes.dtype, split_attention), batch["targets"])

    def gradients(params: Any, batch: Any) -> Any:
        varying = jax.lax.pcast(params, "data", to="varying")
        value, grads = jax.value_and_grad(loss)(varying, batch)
        small = jax.tree.map(lambda g: g.astype(sizes.dtype) / axes["data"], grads)
        summed = jax.lax.psum(small, "data")
        return jax.lax.pmean(value, "data"), jax.tree.map(lambda g: g.astype(jnp.float32), summed)

    def train_step(state: Any, batch: Any) -> Any:
        manual = jax.shard_map(gradients, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), axis_names={"data"})
        value, grads = manual(state["params"], batch)
        params, opt = adam.update(state["params"], state["opt"], state["step"], grads)
        return {"params": params, "opt": opt, "step": state["step"] + 1}, value

    args = (adam.state(parameters(sizes)), sizes.tokens)
    return train_step, args, {"donate": (0,), "mesh": mesh, "device": device}
