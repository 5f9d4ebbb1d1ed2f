"""Llama 3 8B, trained with ``with_sharding_constraint(x, NamedSharding(mesh, ...))``, the sequence split in between.

What Megatron calls sequence parallelism: between the products the residual stream is split over ``model`` by sequence,
so that norms and residuals are held once, and each product gathers it and scatters its result.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, NamedSharding
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


def specs() -> tuple[Any, Any]:
    """Where the author of the program puts its arguments."""
    return training_specs(parameter_specs(), P("data", None))


@dataclass(frozen=True)
class Layout:
    """The shardings of activations on a mesh, one method each."""

    mesh: AbstractMesh | Mesh

    def _put(self, x: jax.Array, *axes: str | None) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, P(*axes)))

    def residual(self, x: jax.Array) -> jax.Array:
        """Between products: split by sequence."""
        return self._put(x, "data", "model", None)

    def gathered(self, x: jax.Array) -> jax.Array:
        """What goes into a product: whole sequences."""
        return self._put(x, "data", None, None)

    def heads(self, x: jax.Array) -> jax.Array:
        """Queries, keys and values: split by head."""
        return self._put(x, "data", None, "model", None)

    def hidden(self, x: jax.Array) -> jax.Array:
        """What a feed-forward layer has inside, and logits: split by feature."""
        return self._put(x, "data", None, "model")


def block(layout: Layout, x: jax.Array, layer: Any) -> jax.Array:
    h = layout.gathered(rms_norm(x, layer["attention_norm"]))
    q = layout.heads(jnp.einsum("bsd,dnh->bsnh", h, layer["wq"].astype(h.dtype)))
    k = layout.heads(jnp.einsum("bsd,dkh->bskh", h, layer["wk"].astype(h.dtype)))
    v = layout.heads(jnp.einsum("bsd,dkh->bskh", h, layer["wv"].astype(h.dtype)))
    angles = rotary_angles(jnp.arange(x.shape[1]), q.shape[-1])[:, None, :]
    mixed = layout.heads(attention(rotary(q, angles), rotary(k, angles), v))
    x = x + layout.residual(jnp.einsum("bsnh,nhd->bsd", mixed, layer["wo"].astype(h.dtype)))

    h = layout.gathered(rms_norm(x, layer["mlp_norm"]))
    gate = layout.hidden(jnp.einsum("bsd,df->bsf", h, layer["w_gate"].astype(h.dtype)))
    up = layout.hidden(jnp.einsum("bsd,df->bsf", h, layer["w_up"].astype(h.dtype)))
    down = jnp.einsum("bsf,fd->bsd", jax.nn.silu(gate) * up, layer["w_down"].astype(h.dtype))
    return x + layout.residual(down)


def logits(layout: Layout, params: Any, tokens: jax.Array, dtype: Any) -> jax.Array:
    x = layout.residual(jnp.take(params["embed"], tokens, axis=0, mode="clip").astype(dtype))
    remat = jax.checkpoint(partial(block, layout), prevent_cse=False)
    x, _ = jax.lax.scan(lambda x, layer: (remat(x, layer), None), x, params["layers"])
    x = layout.gathered(rms_norm(x, params["final_norm"]))
    return layout.hidden(jnp.einsum("bsd,dv->bsv", x, params["unembed"].astype(x.dtype)))


def build(scale: str) -> Built:
    sizes, axes, device = SCALES[scale]
    mesh = mesh_of(**axes)
    layout = Layout(mesh)

    def loss(params: Any, batch: Any) -> jax.Array:
        return cross_entropy(logits(layout, params, batch["tokens"], sizes.dtype), batch["targets"])

    args = (adam.state(parameters(sizes)), sizes.tokens)
    return adam.training(loss), args, {"donate": (0,), "mesh": mesh, "device": device}
