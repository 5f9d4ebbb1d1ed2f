"""Llama 3 8B, trained in explicit mode: types carry shardings, and the program says where they change.

Weights lie split over both axes; each is gathered over ``data`` where it is used, and products whose contracted
dimension is split say what becomes of their result.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, reshard
from jax.sharding import PartitionSpec as P

from benchmarks.programs.parts import (
    LLAMA_8B,
    MIDDLE,
    SMALL,
    Built,
    mesh_of,
    parameter_specs,
    parameters,
    training_specs,
)
from shardwright.models import adam
from shardwright.models.layers import rms_norm, rotary, rotary_angles

SCALES = {
    "real": (LLAMA_8B, {"data": 16, "model": 4}, "tpu-v5p"),
    "middle": (MIDDLE, {"data": 4, "model": 4}, "tpu-v5e"),
    "small": (SMALL, {"data": 4, "model": 2}, "tpu-v5e"),
}
RESIDUAL = P("data", None, None)


def specs() -> tuple[Any, Any]:
    """Where the author of the program puts its arguments."""
    return training_specs(parameter_specs(), P("data", None))


def gathered(w: jax.Array, *axes: str | None, dtype: Any) -> jax.Array:
    """The whole width of a weight, as FSDP has it while a layer runs."""
    return reshard(w.astype(dtype), P(*axes))


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal: queries [b, s, k, g, h], keys and values [b, t, k, h], the heads k split over ``model``."""
    scores = jnp.einsum("bskgh,btkh->bkgst", q * q.shape[-1] ** -0.5, k).astype(jnp.float32)
    positions = jnp.arange(q.shape[1])
    scores = jnp.where(positions[:, None] >= positions[None, :], scores, -1e30)
    return jnp.einsum("bkgst,btkh->bskgh", jax.nn.softmax(scores, axis=-1).astype(v.dtype), v)


def block(x: jax.Array, layer: Any) -> jax.Array:
    h = rms_norm(x, layer["attention_norm"])
    heads = {name: gathered(layer[name], None, "model", None, dtype=h.dtype) for name in ("wq", "wk", "wv")}
    width, kv, head_dim = heads["wk"].shape
    wq = heads["wq"].reshape(width, kv, -1, head_dim, out_sharding=P(None, "model", None, None))
    q = jnp.einsum("bsd,dkgh->bskgh", h, wq)
    k = jnp.einsum("bsd,dkh->bskh", h, heads["wk"])
    v = jnp.einsum("bsd,dkh->bskh", h, heads["wv"])
    angles = rotary_angles(jnp.arange(x.shape[1]), head_dim)
    mixed = attention(rotary(q, angles[:, None, None, :]), rotary(k, angles[:, None, :]), v)
    wo = gathered(layer["wo"], "model", None, None, dtype=h.dtype)
    wo = wo.reshape(kv, -1, head_dim, width, out_sharding=P("model", None, None, None))
    x = x + jnp.einsum("bskgh,kghd->bsd", mixed, wo, out_sharding=RESIDUAL)

    h = rms_norm(x, layer["mlp_norm"])
    gate = jnp.einsum("bsd,df->bsf", h, gathered(layer["w_gate"], None, "model", dtype=h.dtype))
    up = jnp.einsum("bsd,df->bsf", h, gathered(layer["w_up"], None, "model", dtype=h.dtype))
    w_down = gathered(layer["w_down"], "model", None, dtype=h.dtype)
    return x + jnp.einsum("bsf,fd->bsd", jax.nn.silu(gate) * up, w_down, out_sharding=RESIDUAL)


def loss(params: Any, batch: Any, dtype: Any) -> jax.Array:
    table = gathered(params["embed"], None, None, dtype=dtype)
    x = table.at[batch["tokens"]].get(mode="clip", out_sharding=RESIDUAL)
    remat = jax.checkpoint(block, prevent_cse=False)
    x, _ = jax.lax.scan(lambda x, layer: (remat(x, layer), None), x, params["layers"])
    x = rms_norm(x, params["final_norm"])
    logits = jnp.einsum("bsd,dv->bsv", x, gathered(params["unembed"], None, "model", dtype=x.dtype))
    logits = logits.astype(jnp.float32)
    picked = jnp.arange(logits.shape[-1]) == batch["targets"][..., None]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - jnp.sum(jnp.where(picked, logits, 0.0), axis=-1))


def build(scale: str) -> Built:
    sizes, axes, device = SCALES[scale]
    mesh = mesh_of(AxisType.Explicit, **axes)

    def train_step(state: Any, batch: Any) -> Any:
        # The mesh that the arguments lie on; with devices at hand this is jax.set_mesh around the call.
        with jax.sharding.use_abstract_mesh(jax.typeof(batch["tokens"]).sharding.mesh):
            return adam.training(lambda params, batch: loss(params, batch, sizes.dtype))(state, batch)

    def placed(array: Any, spec: P) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=NamedSharding(mesh, spec))

    args = jax.tree.map(placed, (adam.state(parameters(sizes)), sizes.tokens), specs())
    return train_step, args, {"donate": (0,), "mesh": mesh, "device": device}
