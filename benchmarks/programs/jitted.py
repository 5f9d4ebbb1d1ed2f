"""Llama 3 8B, trained by a step that was jitted with in_shardings and out_shardings, and says nothing inside: FSDP."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.programs.parts import (
    LLAMA_8B,
    MIDDLE,
    SMALL,
    Built,
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


def specs() -> tuple[Any, Any]:
    """Where the author of the program puts its arguments."""
    return training_specs(parameter_specs(), P("data", None))


def build(scale: str) -> Built:
    sizes, axes, device = SCALES[scale]
    mesh = mesh_of(**axes)

    def loss(params: Any, batch: Any) -> jax.Array:
        return cross_entropy(logits(params, batch["tokens"], sizes.dtype), batch["targets"])

    state, batch = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs())
    train_step = jax.jit(
        adam.training(loss),
        in_shardings=(state, batch),
        out_shardings=(state, NamedSharding(mesh, P())),
        donate_argnums=0,
    )
    args = (adam.state(parameters(sizes)), sizes.tokens)
    return train_step, args, {"donate": (0,), "mesh": mesh, "device": device}
