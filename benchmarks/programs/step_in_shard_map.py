"""Llama 3.2 1B, trained by a step that is one ``shard_map``: each device has part of the batch and all weights."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import PartitionSpec as P

from benchmarks.programs.parts import LLAMA_1B, MIDDLE, SMALL, Built, logits, mesh_of, parameters
from shardwright.models import adam
from shardwright.models.layers import cross_entropy

SCALES = {
    "real": (LLAMA_1B, {"data": 64}, "tpu-v5p"),
    "middle": (MIDDLE, {"data": 16}, "tpu-v5e"),
    "small": (SMALL, {"data": 8}, "tpu-v5e"),
}


def specs() -> tuple[Any, Any]:
    """Where the author of the program puts its arguments: a prefix of their tree."""
    return P(), P("data")


def build(scale: str) -> Built:
    sizes, axes, device = SCALES[scale]
    mesh = mesh_of(**axes)

    def loss(params: Any, batch: Any) -> jax.Array:
        return cross_entropy(logits(params, batch["tokens"], sizes.dtype), batch["targets"])

    def local_step(state: Any, batch: Any) -> Any:
        # Varying from here on, or JAX would add gradients up by itself, one after the other and in float32.
        params = jax.lax.pcast(state["params"], "data", to="varying")
        value, grads = jax.value_and_grad(loss)(params, batch)
        grads = jax.lax.pmean(grads, "data")
        params, opt = adam.update(state["params"], state["opt"], state["step"], grads)
        return {"params": params, "opt": opt, "step": state["step"] + 1}, jax.lax.pmean(value, "data")

    train_step = jax.shard_map(local_step, mesh=mesh, in_specs=specs(), out_specs=P())
    args = (adam.state(parameters(sizes)), sizes.tokens)
    return train_step, args, {"donate": (0,), "mesh": mesh, "device": device}
