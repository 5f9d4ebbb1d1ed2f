"""Llama 3 8B whose attention is a ``shard_map`` over batch and heads, as one wraps a kernel; the rest is automatic."""

from __future__ import annotations

from typing import Any

import jax
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
HEADS = P("data", None, "model", None)


def specs() -> tuple[Any, Any]:
    """Where the author of the program puts its arguments."""
    return training_specs(parameter_specs(), P("data", None))


def build(scale: str) -> Built:
    sizes, axes, device = SCALES[scale]
    mesh = mesh_of(**axes)
    attend = jax.shard_map(attention, mesh=mesh, in_specs=(HEADS, HEADS, HEADS), out_specs=HEADS)

    def loss(params: Any, batch: Any) -> jax.Array:
        return cross_entropy(logits(params, batch["tokens"], sizes.dtype, attend), batch["targets"])

    args = (adam.state(parameters(sizes)), sizes.tokens)
    return adam.training(loss), args, {"donate": (0,), "mesh": mesh, "device": device}
