"""DiT-XL/2, a diffusion transformer: blocks whose norms are scaled and shifted by time and class (adaLN-Zero).

https://arxiv.org/abs/2212.09748, table 1; images of 512 x 512, 64 x 64 x 4 as the autoencoder sees them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs.parts import Built
from shardwright.models import adam, shapes


@dataclass(frozen=True)
class Sizes:
    """Of the model and its batch."""

    layers: int = 28
    width: int = 1152
    heads: int = 16
    patch: int = 2
    side: int = 64
    channels: int = 4
    frequencies: int = 256
    classes: int = 1000
    batch: int = 256
    dtype: Any = jnp.bfloat16

    @property
    def tokens(self) -> int:
        """Patches of an image."""
        return (self.side // self.patch) ** 2


SCALES = {
    "real": (Sizes(), {"data": 4, "model": 4}, "tpu-v5e"),
    "middle": (Sizes(layers=4), {"data": 4, "model": 4}, "tpu-v5e"),
    "small": (Sizes(2, 32, 4, 2, 8, 4, 16, 8, 8, jnp.float32), {"data": 4, "model": 2}, "tpu-v5e"),
}


def parameters(s: Sizes) -> dict[str, Any]:
    pixels = s.patch * s.patch * s.channels
    layer = {
        "qkv": shapes.floats(s.width, 3, s.heads, s.width // s.heads),
        "out": shapes.floats(s.heads, s.width // s.heads, s.width),
        "up": shapes.floats(s.width, 4 * s.width),
        "up_bias": shapes.floats(4 * s.width),
        "down": shapes.floats(4 * s.width, s.width),
        "down_bias": shapes.floats(s.width),
        "modulation": shapes.floats(s.width, 6, s.width),
        "modulation_bias": shapes.floats(6, s.width),
    }
    return {
        "patches": shapes.floats(pixels, s.width),
        "positions": shapes.floats(s.tokens, s.width),
        "time_in": shapes.floats(s.frequencies, s.width),
        "time_out": shapes.floats(s.width, s.width),
        "classes": shapes.floats(s.classes, s.width),
        "layers": shapes.stacked(layer, s.layers),
        "final_modulation": shapes.floats(s.width, 2, s.width),
        "unpatch": shapes.floats(s.width, pixels),
    }


def modulated(x: jax.Array, shift: jax.Array, scale: jax.Array) -> jax.Array:
    """A layer norm without weights of its own, scaled and shifted by image: x [b, t, d], shift and scale [b, d]."""
    y = x.astype(jnp.float32)
    y = y - jnp.mean(y, axis=-1, keepdims=True)
    y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + 1e-6)
    return y.astype(x.dtype) * (1 + scale[:, None]) + shift[:, None]


def block(x: jax.Array, layer: Any, condition: jax.Array) -> jax.Array:
    w = jax.tree.map(lambda p: p.astype(x.dtype), layer)
    six = jnp.einsum("bd,dse->sbe", jax.nn.silu(condition), w["modulation"]) + w["modulation_bias"][:, None]
    shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = six
    q, k, v = jnp.einsum("btd,dcnh->cbtnh", modulated(x, shift_a, scale_a), w["qkv"])
    scores = jnp.einsum("bsnh,btnh->bnst", q * q.shape[-1] ** -0.5, k).astype(jnp.float32)
    mixed = jnp.einsum("bnst,btnh->bsnh", jax.nn.softmax(scores, axis=-1).astype(v.dtype), v)
    x = x + gate_a[:, None] * jnp.einsum("bsnh,nhd->bsd", mixed, w["out"])
    hidden = jax.nn.gelu(modulated(x, shift_m, scale_m) @ w["up"] + w["up_bias"])
    return x + gate_m[:, None] * (hidden @ w["down"] + w["down_bias"])


def predicted(s: Sizes, params: Any, noisy: jax.Array, time: jax.Array, label: jax.Array) -> jax.Array:
    """The noise in images [b, y, x, c] at times [b]."""
    batch, grid = noisy.shape[0], s.side // s.patch
    patches = noisy.reshape(batch, grid, s.patch, grid, s.patch, s.channels).transpose(0, 1, 3, 2, 4, 5)
    patches = patches.reshape(batch, s.tokens, -1).astype(s.dtype)
    x = patches @ params["patches"].astype(s.dtype) + params["positions"].astype(s.dtype)
    half = s.frequencies // 2
    angles = time[:, None] * jnp.exp(-jnp.log(10_000.0) * jnp.arange(half) / half)
    waves = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)
    condition = jax.nn.silu(waves @ params["time_in"]) @ params["time_out"]
    condition = (condition + jnp.take(params["classes"], label, axis=0, mode="clip")).astype(s.dtype)
    remat = jax.checkpoint(block, prevent_cse=False)
    x, _ = jax.lax.scan(lambda x, layer: (remat(x, layer, condition), None), x, params["layers"])
    shift, scale = jnp.einsum("bd,dse->sbe", jax.nn.silu(condition), params["final_modulation"].astype(s.dtype))
    out = modulated(x, shift, scale) @ params["unpatch"].astype(s.dtype)
    out = out.reshape(batch, grid, grid, s.patch, s.patch, s.channels).transpose(0, 1, 3, 2, 4, 5)
    return out.reshape(noisy.shape).astype(jnp.float32)


def build(scale: str) -> Built:
    sizes, mesh, device = SCALES[scale]

    def loss(params: Any, batch: Any) -> jax.Array:
        kept = jnp.cos(0.5 * jnp.pi * batch["time"])[:, None, None, None]
        noisy = kept * batch["images"] + jnp.sqrt(1 - kept**2) * batch["noise"]
        guess = predicted(sizes, params, noisy, 1000.0 * batch["time"], batch["labels"])
        return jnp.mean(jnp.square(guess - batch["noise"]))

    image = shapes.floats(sizes.batch, sizes.side, sizes.side, sizes.channels)
    batch = {
        "images": image,
        "noise": image,
        "time": shapes.floats(sizes.batch),
        "labels": shapes.integers(sizes.batch),
    }
    args = (adam.state(parameters(sizes)), batch)
    return adam.training(loss), args, {"donate": (0,), "mesh": mesh, "device": device}
