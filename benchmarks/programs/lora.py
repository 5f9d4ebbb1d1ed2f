"""LoRA finetuning of Llama 3 70B: the weights are frozen in bfloat16, and only adapters of low rank are trained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs.parts import LLAMA_70B, MIDDLE, SMALL, Built, Decoder, attention, parameters
from shardwright.models import adam, shapes
from shardwright.models.layers import cross_entropy, rms_norm, rotary, rotary_angles

SCALES = {
    "real": (replace(LLAMA_70B, batch=128, sequence=2048), 16, {"data": 16, "model": 4}, "tpu-v5e"),
    "middle": (MIDDLE, 16, {"data": 4, "model": 4}, "tpu-v5e"),
    "small": (SMALL, 4, {"data": 4, "model": 2}, "tpu-v5e"),
}
ALPHA = 32.0


def adapters(s: Decoder, rank: int) -> dict[str, Any]:
    """A pair [i, rank], [rank, o] beside every matrix [i, o] of the layers."""

    def pair(into: int, *out: int) -> dict[str, Any]:
        return {"a": shapes.floats(into, rank), "b": shapes.floats(rank, *out)}

    layer = {
        "wq": pair(s.width, s.heads, s.head_dim),
        "wk": pair(s.width, s.kv_heads, s.head_dim),
        "wv": pair(s.width, s.kv_heads, s.head_dim),
        "wo": {"a": shapes.floats(s.heads, s.head_dim, rank), "b": shapes.floats(rank, s.width)},
        "w_gate": pair(s.width, s.hidden),
        "w_up": pair(s.width, s.hidden),
        "w_down": pair(s.hidden, s.width),
    }
    return shapes.stacked(layer, s.layers)


def adapted(x: jax.Array, w: jax.Array, adapter: Any) -> jax.Array:
    """A frozen product and what its adapter adds; the dimensions that x and w share come last and first."""
    a, b = adapter["a"].astype(x.dtype), adapter["b"].astype(x.dtype)
    shared = a.ndim - 1
    scale = ALPHA / a.shape[-1]
    return jnp.tensordot(x, w, shared) + scale * jnp.tensordot(jnp.tensordot(x, a, shared), b, 1)


def block(x: jax.Array, layer: Any, adapter: Any) -> jax.Array:
    h = rms_norm(x, layer["attention_norm"])
    q, k, v = (adapted(h, layer[name], adapter[name]) for name in ("wq", "wk", "wv"))
    angles = rotary_angles(jnp.arange(x.shape[1]), q.shape[-1])[:, None, :]
    x = x + adapted(attention(rotary(q, angles), rotary(k, angles), v), layer["wo"], adapter["wo"])
    h = rms_norm(x, layer["mlp_norm"])
    hidden = jax.nn.silu(adapted(h, layer["w_gate"], adapter["w_gate"])) * adapted(h, layer["w_up"], adapter["w_up"])
    return x + adapted(hidden, layer["w_down"], adapter["w_down"])


def build(scale: str) -> Built:
    sizes, rank, mesh, device = SCALES[scale]

    def train_step(state: Any, frozen: Any, batch: Any) -> Any:
        def loss(trained: Any, batch: Any) -> jax.Array:
            x = jnp.take(frozen["embed"], batch["tokens"], axis=0, mode="clip").astype(sizes.dtype)
            remat = jax.checkpoint(block, prevent_cse=False)
            x, _ = jax.lax.scan(lambda x, pair: (remat(x, *pair), None), x, (frozen["layers"], trained))
            x = rms_norm(x, frozen["final_norm"])
            return cross_entropy(jnp.einsum("bsd,dv->bsv", x, frozen["unembed"]), batch["targets"])

        return adam.training(loss)(state, batch)

    args = (adam.state(adapters(sizes, rank)), parameters(sizes, sizes.dtype), sizes.tokens)
    return train_step, args, {"donate": (0,), "mesh": mesh, "device": device}
