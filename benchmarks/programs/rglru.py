"""RecurrentGemma 9B (Griffin): two blocks with a linear recurrence, by ``jax.lax.associative_scan``, one that attends.

https://arxiv.org/abs/2402.19427, section 2; sizes: https://arxiv.org/abs/2404.07839, table 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs.parts import Built
from shardwright.models import adam, shapes
from shardwright.models.layers import cross_entropy, rms_norm, rotary, rotary_angles


@dataclass(frozen=True)
class Sizes:
    """``groups`` of three blocks; gates of the recurrence are products within each of the ``heads``."""

    groups: int = 12
    width: int = 4096
    recurrent: int = 4096
    heads: int = 16
    head_dim: int = 256
    hidden: int = 12288
    filter: int = 4
    window: int = 2048
    vocabulary: int = 256000
    batch: int = 64
    sequence: int = 8192
    dtype: Any = jnp.bfloat16


SCALES = {
    "real": (Sizes(), {"data": 16, "model": 4}, "tpu-v5p"),
    "middle": (Sizes(1, 2048, 2048, 8, 256, 6144, 4, 1024, 32768, 16, 2048), {"data": 4, "model": 4}, "tpu-v5e"),
    "small": (Sizes(1, 32, 32, 4, 8, 64, 4, 8, 64, 8, 16, jnp.float32), {"data": 4, "model": 2}, "tpu-v5e"),
}


def parameters(s: Sizes) -> dict[str, Any]:
    inner = s.recurrent // s.heads
    mlp = {
        "norm": shapes.floats(s.width),
        "gate": shapes.floats(s.width, s.hidden),
        "up": shapes.floats(s.width, s.hidden),
        "down": shapes.floats(s.hidden, s.width),
    }
    recurrent = {
        "norm": shapes.floats(s.width),
        "x": shapes.floats(s.width, s.recurrent),
        "y": shapes.floats(s.width, s.recurrent),
        "filter": shapes.floats(s.filter, s.recurrent),
        "input_gate": shapes.floats(s.heads, inner, inner),
        "recurrence_gate": shapes.floats(s.heads, inner, inner),
        "decay": shapes.floats(s.recurrent),
        "out": shapes.floats(s.recurrent, s.width),
        "mlp": mlp,
    }
    attention = {
        "norm": shapes.floats(s.width),
        "query": shapes.floats(s.width, s.heads, s.head_dim),
        "key": shapes.floats(s.width, s.head_dim),
        "value": shapes.floats(s.width, s.head_dim),
        "out": shapes.floats(s.heads, s.head_dim, s.width),
        "mlp": mlp,
    }
    group = {"first": recurrent, "second": recurrent, "attention": attention}
    return {
        "embed": shapes.floats(s.vocabulary, s.width),
        "groups": shapes.stacked(group, s.groups),
        "final_norm": shapes.floats(s.width),
    }


def recurrence(s: Sizes, x: jax.Array, layer: Any) -> jax.Array:
    """The real-gated linear recurrent unit: x [b, s, r] -> [b, s, r], h(t) = a(t) h(t - 1) + b(t)."""
    by_head = x.astype(jnp.float32).reshape(*x.shape[:2], s.heads, -1)
    gate_x = jax.nn.sigmoid(jnp.einsum("bsni,nij->bsnj", by_head, layer["input_gate"])).reshape(x.shape)
    gate_a = jax.nn.sigmoid(jnp.einsum("bsni,nij->bsnj", by_head, layer["recurrence_gate"])).reshape(x.shape)
    log_a = -8.0 * gate_a * jax.nn.softplus(layer["decay"])
    a = jnp.exp(log_a)
    b = jnp.sqrt(jnp.maximum(1.0 - jnp.exp(2.0 * log_a), 1e-6)) * gate_x * x

    def combine(earlier: Any, later: Any) -> Any:
        return earlier[0] * later[0], later[0] * earlier[1] + later[1]

    return jax.lax.associative_scan(combine, (a, b), axis=1)[1].astype(x.dtype)


def recurrent_block(s: Sizes, x: jax.Array, layer: Any) -> jax.Array:
    h = rms_norm(x, layer["norm"])
    y = jax.nn.gelu(h @ layer["y"].astype(h.dtype))
    mixed = h @ layer["x"].astype(h.dtype)
    padded = jnp.pad(mixed, ((0, 0), (s.filter - 1, 0), (0, 0)))
    taps = [padded[:, k : k + x.shape[1]] * layer["filter"][k].astype(h.dtype) for k in range(s.filter)]
    mixed = recurrence(s, sum(taps[1:], start=taps[0]), layer)
    return feed_forward(x + (mixed * y) @ layer["out"].astype(h.dtype), layer["mlp"])


def attention_block(s: Sizes, x: jax.Array, layer: Any) -> jax.Array:
    h = rms_norm(x, layer["norm"])
    angles = rotary_angles(jnp.arange(x.shape[1]), s.head_dim)
    q = rotary(jnp.einsum("bsd,dnh->bsnh", h, layer["query"].astype(h.dtype)), angles[:, None, :])
    k = rotary(jnp.einsum("bsd,dh->bsh", h, layer["key"].astype(h.dtype)), angles)
    v = jnp.einsum("bsd,dh->bsh", h, layer["value"].astype(h.dtype))
    scores = jnp.einsum("bsnh,bth->bnst", q * s.head_dim**-0.5, k).astype(jnp.float32)
    back = jnp.arange(x.shape[1])[:, None] - jnp.arange(x.shape[1])[None, :]
    scores = jnp.where((back >= 0) & (back < s.window), scores, -1e30)
    mixed = jnp.einsum("bnst,bth->bsnh", jax.nn.softmax(scores, axis=-1).astype(v.dtype), v)
    return feed_forward(x + jnp.einsum("bsnh,nhd->bsd", mixed, layer["out"].astype(h.dtype)), layer["mlp"])


def feed_forward(x: jax.Array, mlp: Any) -> jax.Array:
    h = rms_norm(x, mlp["norm"])
    hidden = jax.nn.gelu(h @ mlp["gate"].astype(h.dtype)) * (h @ mlp["up"].astype(h.dtype))
    return x + hidden @ mlp["down"].astype(h.dtype)


def build(scale: str) -> Built:
    sizes, mesh, device = SCALES[scale]

    def loss(params: Any, batch: Any) -> jax.Array:
        recurrent = jax.checkpoint(partial(recurrent_block, sizes), prevent_cse=False)
        local = jax.checkpoint(partial(attention_block, sizes), prevent_cse=False)

        def group(x: jax.Array, layers: Any) -> tuple[jax.Array, None]:
            x = recurrent(recurrent(x, layers["first"]), layers["second"])
            return local(x, layers["attention"]), None

        x = jnp.take(params["embed"], batch["tokens"], axis=0, mode="clip").astype(sizes.dtype)
        x, _ = jax.lax.scan(group, x, params["groups"])
        x = rms_norm(x, params["final_norm"])
        return cross_entropy(jnp.einsum("bsd,vd->bsv", x, params["embed"].astype(x.dtype)), batch["targets"])

    ids = shapes.integers(sizes.batch, sizes.sequence)
    args = (adam.state(parameters(sizes)), {"tokens": ids, "targets": ids})
    return adam.training(loss), args, {"donate": (0,), "mesh": mesh, "device": device}
