"""Conformer (L), speech recognition: half a feed-forward layer, attention, convolution over time, the other half; CTC.

https://arxiv.org/abs/2005.08100, table 1. Frames are first halved twice by strided convolutions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs.parts import Built
from shardwright.models import adam, shapes
from shardwright.models.layers import layer_norm


@dataclass(frozen=True)
class Sizes:
    """Of the model and its batch; ``symbols`` include the blank, which is number 0."""

    layers: int = 17
    width: int = 512
    heads: int = 8
    kernel: int = 32
    bands: int = 80
    symbols: int = 1024
    batch: int = 512
    frames: int = 1600
    labels: int = 128
    dtype: Any = jnp.bfloat16


SCALES = {
    "real": (Sizes(), {"data": 4, "model": 4}, "tpu-v5e"),
    "middle": (Sizes(layers=2, batch=256, labels=64), {"data": 4, "model": 4}, "tpu-v5e"),
    "small": (Sizes(2, 32, 4, 4, 8, 16, 8, 32, 3, jnp.float32), {"data": 4, "model": 2}, "tpu-v5e"),
}


def parameters(s: Sizes) -> dict[str, Any]:
    half = {
        "norm": shapes.norm(s.width),
        "up": shapes.floats(s.width, 4 * s.width),
        "down": shapes.floats(4 * s.width, s.width),
    }
    layer = {
        "first": half,
        "attention_norm": shapes.norm(s.width),
        "qkv": shapes.floats(s.width, 3, s.heads, s.width // s.heads),
        "out": shapes.floats(s.heads, s.width // s.heads, s.width),
        "conv_norm": shapes.norm(s.width),
        "pointwise_in": shapes.floats(s.width, 2, s.width),
        "depthwise": shapes.floats(s.kernel, 1, s.width),
        "depthwise_norm": shapes.norm(s.width),
        "pointwise_out": shapes.floats(s.width, s.width),
        "second": half,
        "final_norm": shapes.norm(s.width),
    }
    return {
        "conv1": shapes.floats(3, s.bands, s.width),
        "conv2": shapes.floats(3, s.width, s.width),
        "positions": shapes.floats(s.frames // 4, s.width),
        "layers": shapes.stacked(layer, s.layers),
        "classes": shapes.floats(s.width, s.symbols),
    }


def convolution(x: jax.Array, kernel: jax.Array, stride: int = 1, groups: int = 1) -> jax.Array:
    """Over time: x [b, t, i], kernel [k, i / groups, o]."""
    numbers = ("NWC", "WIO", "NWC")
    kernel = kernel.astype(x.dtype)
    return jax.lax.conv_general_dilated(
        x, kernel, (stride,), "SAME", dimension_numbers=numbers, feature_group_count=groups
    )


def feed_forward(x: jax.Array, half: Any) -> jax.Array:
    hidden = jax.nn.silu(layer_norm(x, half["norm"]) @ half["up"].astype(x.dtype))
    return 0.5 * (hidden @ half["down"].astype(x.dtype))


def block(s: Sizes, x: jax.Array, layer: Any) -> jax.Array:
    x = x + feed_forward(x, layer["first"])
    h = layer_norm(x, layer["attention_norm"])
    q, k, v = jnp.einsum("btd,dcnh->cbtnh", h, layer["qkv"].astype(h.dtype))
    scores = jnp.einsum("bsnh,btnh->bnst", q * q.shape[-1] ** -0.5, k).astype(jnp.float32)
    mixed = jnp.einsum("bnst,btnh->bsnh", jax.nn.softmax(scores, axis=-1).astype(v.dtype), v)
    x = x + jnp.einsum("bsnh,nhd->bsd", mixed, layer["out"].astype(h.dtype))
    h = layer_norm(x, layer["conv_norm"])
    value, gate = jnp.einsum("btd,dce->cbte", h, layer["pointwise_in"].astype(h.dtype))
    h = convolution(value * jax.nn.sigmoid(gate), layer["depthwise"], groups=s.width)
    h = jax.nn.silu(layer_norm(h, layer["depthwise_norm"]))
    x = x + h @ layer["pointwise_out"].astype(h.dtype)
    return layer_norm(x + feed_forward(x, layer["second"]), layer["final_norm"])


def ctc_loss(scores: jax.Array, labels: jax.Array) -> jax.Array:
    """Minus the log-probability of labels [b, l] over all alignments with scores [b, t, symbols].

    The forward recursion over labels with a blank around each: https://www.cs.toronto.edu/~graves/icml_2006.pdf.
    """
    logs = jax.nn.log_softmax(scores.astype(jnp.float32), axis=-1)
    batch, length = labels.shape
    extended = jnp.zeros((batch, 2 * length + 1), jnp.int32).at[:, 1::2].set(labels)
    emitted = jnp.take_along_axis(logs, extended[:, None, :], axis=-1, mode="clip")  # [b, t, 2 l + 1]
    # A label may follow the one before without a blank between them, unless they are the same.
    skip = jnp.pad(extended[:, 2:] != extended[:, :-2], ((0, 0), (2, 0))) & (jnp.arange(2 * length + 1) % 2 == 1)
    never = -1e30

    def step(alpha: jax.Array, emit: jax.Array) -> tuple[jax.Array, None]:
        one = jnp.pad(alpha[:, :-1], ((0, 0), (1, 0)), constant_values=never)
        two = jnp.where(skip, jnp.pad(alpha[:, :-2], ((0, 0), (2, 0)), constant_values=never), never)
        return jax.nn.logsumexp(jnp.stack([alpha, one, two]), axis=0) + emit, None

    start = jnp.where(jnp.arange(2 * length + 1) < 2, emitted[:, 0], never)
    last, _ = jax.lax.scan(step, start, emitted[:, 1:].swapaxes(0, 1))
    return -jnp.mean(jnp.logaddexp(last[:, -1], last[:, -2]))


def build(scale: str) -> Built:
    sizes, mesh, device = SCALES[scale]

    def loss(params: Any, batch: Any) -> jax.Array:
        x = batch["frames"].astype(sizes.dtype)
        x = jax.nn.relu(convolution(x, params["conv1"], stride=2))
        x = jax.nn.relu(convolution(x, params["conv2"], stride=2)) + params["positions"].astype(sizes.dtype)
        remat = jax.checkpoint(partial(block, sizes), prevent_cse=False)
        x, _ = jax.lax.scan(lambda x, layer: (remat(x, layer), None), x, params["layers"])
        return ctc_loss(x @ params["classes"].astype(x.dtype), 1 + batch["labels"] % (sizes.symbols - 1))

    batch = {
        "frames": shapes.floats(sizes.batch, sizes.frames, sizes.bands),
        "labels": shapes.integers(sizes.batch, sizes.labels),
    }
    args = (adam.state(parameters(sizes)), batch)
    return adam.training(loss), args, {"donate": (0,), "mesh": mesh, "device": device}
