"""Llama 3 8B, trained with Flax's logical constraints: dimensions have names, and a table puts names on mesh axes."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from benchmarks.programs.parts import LLAMA_8B, MIDDLE, SMALL, Built, attention, mesh_of, parameters, training_specs
from shardwright.models import adam
from shardwright.models.layers import cross_entropy, rms_norm, rotary, rotary_angles

SCALES = {
    "real": (LLAMA_8B, {"data": 16, "model": 4}, "tpu-v5p"),
    "middle": (MIDDLE, {"data": 4, "model": 4}, "tpu-v5e"),
    "small": (SMALL, {"data": 4, "model": 2}, "tpu-v5e"),
}
RULES = (
    ("batch", "data"),
    ("length", None),
    ("embed", None),
    ("fsdp_embed", "data"),
    ("heads", "model"),
    ("kv_heads", "model"),
    ("head_dim", None),
    ("mlp", "model"),
    ("vocabulary", "model"),
    ("layers", None),
)
LOGICAL = {
    "embed": P("vocabulary", "fsdp_embed"),
    "layers": {
        "attention_norm": P("layers", "embed"),
        "wq": P("layers", "fsdp_embed", "heads", "head_dim"),
        "wk": P("layers", "fsdp_embed", "kv_heads", "head_dim"),
        "wv": P("layers", "fsdp_embed", "kv_heads", "head_dim"),
        "wo": P("layers", "heads", "head_dim", "fsdp_embed"),
        "mlp_norm": P("layers", "embed"),
        "w_gate": P("layers", "fsdp_embed", "mlp"),
        "w_up": P("layers", "fsdp_embed", "mlp"),
        "w_down": P("layers", "mlp", "fsdp_embed"),
    },
    "final_norm": P("embed"),
    "unembed": P("fsdp_embed", "vocabulary"),
}
"""The names of every weight's dimensions."""


def specs() -> tuple[Any, Any]:
    """Where the author of the program puts its arguments."""
    return training_specs(nn.logical_to_mesh(LOGICAL, RULES), P("data", None))


def named(x: jax.Array, *names: str) -> jax.Array:
    return nn.with_logical_constraint(x, names)


def block(x: jax.Array, layer: Any) -> jax.Array:
    h = named(rms_norm(x, layer["attention_norm"]), "batch", "length", "embed")
    q = named(jnp.einsum("bsd,dnh->bsnh", h, layer["wq"].astype(h.dtype)), "batch", "length", "heads", "head_dim")
    k = named(jnp.einsum("bsd,dkh->bskh", h, layer["wk"].astype(h.dtype)), "batch", "length", "kv_heads", "head_dim")
    v = named(jnp.einsum("bsd,dkh->bskh", h, layer["wv"].astype(h.dtype)), "batch", "length", "kv_heads", "head_dim")
    angles = rotary_angles(jnp.arange(x.shape[1]), q.shape[-1])[:, None, :]
    mixed = named(attention(rotary(q, angles), rotary(k, angles), v), "batch", "length", "heads", "head_dim")
    out = named(jnp.einsum("bsnh,nhd->bsd", mixed, layer["wo"].astype(h.dtype)), "batch", "length", "embed")
    x = named(x + out, "batch", "length", "embed")

    h = named(rms_norm(x, layer["mlp_norm"]), "batch", "length", "embed")
    gate = jnp.einsum("bsd,df->bsf", h, layer["w_gate"].astype(h.dtype))
    up = jnp.einsum("bsd,df->bsf", h, layer["w_up"].astype(h.dtype))
    hidden = named(jax.nn.silu(gate) * up, "batch", "length", "mlp")
    down = jnp.einsum("bsf,fd->bsd", hidden, layer["w_down"].astype(h.dtype))
    return named(x + down, "batch", "length", "embed")


def logits(params: Any, tokens: jax.Array, dtype: Any) -> jax.Array:
    x = named(jnp.take(params["embed"], tokens, axis=0, mode="clip").astype(dtype), "batch", "length", "embed")
    remat = jax.checkpoint(block, prevent_cse=False)
    x, _ = jax.lax.scan(lambda x, layer: (remat(x, layer), None), x, params["layers"])
    x = rms_norm(x, params["final_norm"])
    return named(jnp.einsum("bsd,dv->bsv", x, params["unembed"].astype(x.dtype)), "batch", "length", "vocabulary")


def build(scale: str) -> Built:
    sizes, axes, device = SCALES[scale]
    mesh = mesh_of(**axes)

    def loss(params: Any, batch: Any) -> jax.Array:
        return cross_entropy(logits(params, batch["tokens"], sizes.dtype), batch["targets"])

    def train_step(state: Any, batch: Any) -> Any:
        # With devices at hand the mesh is set by jax.set_mesh around the call.
        with jax.sharding.use_abstract_mesh(mesh), nn.logical_axis_rules(RULES):
            return adam.training(loss)(state, batch)

    args = (adam.state(parameters(sizes)), sizes.tokens)
    return train_step, args, {"donate": (0,), "mesh": mesh, "device": device}
