"""Llama 3 8B, trained with ``with_sharding_constraint(x, P(...))`` under a mesh: FSDP on data, Megatron on model."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import with_sharding_constraint as constrain
from jax.sharding import PartitionSpec as P

from benchmarks.programs.parts import (
    LLAMA_8B,
    MIDDLE,
    SMALL,
    Built,
    attention,
    mesh_of,
    parameter_specs,
    parameters,
    training_specs,
)
from shardwright.models import adam
from shardwright.models.layers import cross_entropy, rms_norm, rotary, rotary_angles

SCALES = {
    "real": (LLAMA_8B, {"data": 16, "model": 4}, "tpu-v5p"),
    "middle": (MIDDLE, {"data": 4, "model": 4}, "tpu-v5e"),
    "small": (SMALL, {"data": 4, "model": 2}, "tpu-v5e"),
}
RESIDUAL = P("data", None, None)
HEADS = P("data", None, "model", None)
HIDDEN = P("data", None, "model")


def specs() -> tuple[Any, Any]:
    """Where the author of the program puts its arguments."""
    return training_specs(parameter_specs(), P("data", None))


def block(x: jax.Array, layer: Any) -> jax.Array:
    h = constrain(rms_norm(x, layer["attention_norm"]), RESIDUAL)
    q = constrain(jnp.einsum("bsd,dnh->bsnh", h, layer["wq"].astype(h.dtype)), HEADS)
    k = constrain(jnp.einsum("bsd,dkh->bskh", h, layer["wk"].astype(h.dtype)), HEADS)
    v = constrain(jnp.einsum("bsd,dkh->bskh", h, layer["wv"].astype(h.dtype)), HEADS)
    angles = rotary_angles(jnp.arange(x.shape[1]), q.shape[-1])[:, None, :]
    mixed = constrain(attention(rotary(q, angles), rotary(k, angles), v), HEADS)
    x = constrain(x + jnp.einsum("bsnh,nhd->bsd", mixed, layer["wo"].astype(h.dtype)), RESIDUAL)

    h = constrain(rms_norm(x, layer["mlp_norm"]), RESIDUAL)
    gate = constrain(jnp.einsum("bsd,df->bsf", h, layer["w_gate"].astype(h.dtype)), HIDDEN)
    up = constrain(jnp.einsum("bsd,df->bsf", h, layer["w_up"].astype(h.dtype)), HIDDEN)
    down = jnp.einsum("bsf,fd->bsd", jax.nn.silu(gate) * up, layer["w_down"].astype(h.dtype))
    return constrain(x + down, RESIDUAL)


def logits(params: Any, tokens: jax.Array, dtype: Any) -> jax.Array:
    x = constrain(jnp.take(params["embed"], tokens, axis=0, mode="clip").astype(dtype), RESIDUAL)
    remat = jax.checkpoint(block, prevent_cse=False)
    x, _ = jax.lax.scan(lambda x, layer: (remat(x, layer), None), x, params["layers"])
    x = constrain(rms_norm(x, params["final_norm"]), RESIDUAL)
    return constrain(jnp.einsum("bsd,dv->bsv", x, params["unembed"].astype(x.dtype)), HIDDEN)


def build(scale: str) -> Built:
    sizes, axes, device = SCALES[scale]
    mesh = mesh_of(**axes)

    def loss(params: Any, batch: Any) -> jax.Array:
        return cross_entropy(logits(params, batch["tokens"], sizes.dtype), batch["targets"])

    def train_step(state: Any, batch: Any) -> Any:
        # With devices at hand this is jax.set_mesh around the call.
        with jax.sharding.use_abstract_mesh(mesh):
            return adam.training(loss)(state, batch)

    args = (adam.state(parameters(sizes)), sizes.tokens)
    return train_step, args, {"donate": (0,), "mesh": mesh, "device": device}
