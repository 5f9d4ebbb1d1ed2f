"""Mixtral 8x7B without dropped tokens: tokens are sorted by expert, and ``jax.lax.ragged_dot`` takes each run of them.

Sizes: https://arxiv.org/abs/2401.04088, table 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs import parts
from benchmarks.programs.parts import Built, Decoder, attention_layer
from shardwright.models import adam, shapes
from shardwright.models.layers import cross_entropy, rms_norm


@dataclass(frozen=True)
class Sizes:
    """A decoder's, with experts in place of its feed-forward layer."""

    decoder: Decoder
    experts: int = 8
    top: int = 2


SCALES = {
    "real": (Sizes(Decoder(32, 4096, 32, 8, 128, 14336, 32000, 64, 4096)), {"data": 16, "model": 4}, "tpu-v5p"),
    "middle": (Sizes(Decoder(2, 1024, 8, 8, 128, 3584, 32768, 16, 1024)), {"data": 4, "model": 4}, "tpu-v5e"),
    "small": (Sizes(parts.SMALL, experts=4), {"data": 4, "model": 2}, "tpu-v5e"),
}


def parameters(s: Sizes) -> dict[str, Any]:
    params = parts.parameters(s.decoder)
    layers, experts = params["layers"], (s.decoder.layers, s.experts)
    for name in ("w_gate", "w_up", "w_down"):
        layers[name] = shapes.floats(*experts, *layers[name].shape[1:])
    layers["router"] = shapes.floats(s.decoder.layers, s.decoder.width, s.experts)
    return params


def mixture(s: Sizes, x: jax.Array, layer: Any) -> jax.Array:
    """Every token through its experts: x [b, s, d] -> [b, s, d]."""
    tokens = x.reshape(-1, x.shape[-1])
    scores = tokens.astype(jnp.float32) @ layer["router"]
    gates, chosen = jax.lax.top_k(scores, s.top)  # [t, k]
    gates = jax.nn.softmax(gates, axis=-1).astype(x.dtype)
    order = jnp.argsort(chosen.reshape(-1))  # [t k]; stable, so the same on any mesh
    sizes = jnp.bincount(chosen.reshape(-1), length=s.experts)
    rows = jnp.take(tokens, order // s.top, axis=0)
    w = {name: layer[name].astype(x.dtype) for name in ("w_gate", "w_up", "w_down")}
    hidden = jax.nn.silu(jax.lax.ragged_dot(rows, w["w_gate"], sizes)) * jax.lax.ragged_dot(rows, w["w_up"], sizes)
    outputs = jax.lax.ragged_dot(hidden, w["w_down"], sizes)
    weighted = outputs * jnp.take(gates.reshape(-1), order)[:, None]
    return jnp.zeros_like(tokens).at[order // s.top].add(weighted).reshape(x.shape)


def block(s: Sizes, x: jax.Array, layer: Any) -> jax.Array:
    x = x + attention_layer(rms_norm(x, layer["attention_norm"]), layer)
    return x + mixture(s, rms_norm(x, layer["mlp_norm"]), layer)


def build(scale: str) -> Built:
    sizes, mesh, device = SCALES[scale]

    def loss(params: Any, batch: Any) -> jax.Array:
        x = jnp.take(params["embed"], batch["tokens"], axis=0, mode="clip").astype(sizes.decoder.dtype)
        remat = jax.checkpoint(partial(block, sizes), prevent_cse=False)
        x, _ = jax.lax.scan(lambda x, layer: (remat(x, layer), None), x, params["layers"])
        x = rms_norm(x, params["final_norm"])
        logits = jnp.einsum("bsd,dv->bsv", x, params["unembed"].astype(x.dtype))
        return cross_entropy(logits, batch["targets"])

    args = (adam.state(parameters(sizes)), sizes.decoder.tokens)
    return adam.training(loss), args, {"donate": (0,), "mesh": mesh, "device": device}
