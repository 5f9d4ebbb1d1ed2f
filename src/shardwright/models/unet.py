"""UNet: the training step of a diffusion model that predicts the noise in an image.

A U-Net in the manner of Dhariwal and Nichol (2021). Parameter count: "default" 0.49 billion.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from shardwright.models import adam, layers, shapes
from shardwright.models.model import Program
from shardwright.models.sizes import Sizes, choose

#: Timesteps of the diffusion; those in a batch lie in [0, TIMESTEPS).
TIMESTEPS = 1000


@dataclass(frozen=True)
class UnetSizes(Sizes):
    """Sizes of the diffusion U-Net.

    Attributes:
        width: Channels at full resolution; the level i times halved has (i + 1) x width channels.
        levels: Resolutions, each half of the one before.
        blocks: Residual blocks of each level on the way down; on the way up there is one more.
        attention_levels: How many of the lowest resolutions have attention.
        head_dim: Features of one attention head.
        groups: Groups of channels that are normalised together.
        image: Pixels along each side of an image.
        channels: Channels of an image.
        batch: Images in a batch.
        remat: Recompute each residual block in the backward pass instead of keeping its activations.
        dtype: Type of activations; parameters and the optimiser's state are float32.

    """

    model: ClassVar[str] = "unet"

    width: int = 256
    levels: int = 4
    blocks: int = 3
    attention_levels: int = field(default=3, metadata={"minimum": 0})
    head_dim: int = 64
    groups: int = 32
    image: int = 64
    channels: int = 3
    batch: int = 256
    remat: bool = False
    dtype: str = "bfloat16"

    def check(self) -> None:
        """Check that heads and groups divide the channels and that the image can be halved."""
        self.require_multiple("width", of="groups")
        self.require_multiple("width", of="head_dim")
        self.require(self.width % 2 == 0, f"width ({self.width}) must be even")
        halvings = 2 ** (self.levels - 1)
        self.require(
            self.image % halvings == 0,
            f"image ({self.image}) must be a multiple of {halvings} for its levels",
        )
        self.require(
            self.attention_levels <= self.levels,
            f"attention_levels ({self.attention_levels}) must not exceed levels ({self.levels})",
        )


#: Named sizes: full size, and one that runs on a CPU.
PRESETS: dict[str, UnetSizes] = {
    "default": UnetSizes(),
    "tiny": UnetSizes(
        width=32,
        levels=2,
        blocks=1,
        attention_levels=1,
        head_dim=8,
        groups=4,
        image=16,
        batch=24,
        dtype="float32",
    ),
}


def unet(preset: str = "default", **sizes: Any) -> Program:
    """Build the training step of a diffusion U-Net: ``train_step(state, batch)``.

    The batch holds ``images`` and ``noise``, both [batch, image, image, channels], and ``timesteps``
    [batch]. Sizes are those of ``UnetSizes``.
    """
    chosen = choose(PRESETS, preset, sizes)

    def loss(params: Any, batch: Any) -> jax.Array:
        images, noise, timesteps = batch["images"], batch["noise"], batch["timesteps"]
        # The cosine schedule: the share of the image falls from one to zero over the timesteps.
        angle = (timesteps.astype(jnp.float32) / TIMESTEPS * jnp.pi / 2)[:, None, None, None]
        noisy = jnp.cos(angle) * images + jnp.sin(angle) * noise
        return layers.mean_squared_error(predict_noise(params, noisy, timesteps, chosen), noise)

    picture = shapes.floats(chosen.batch, chosen.image, chosen.image, chosen.channels)
    batch = {"images": picture, "noise": picture, "timesteps": shapes.integers(chosen.batch)}
    return adam.training(loss), (adam.state(parameters(chosen)), batch), {"donate": (0,)}


def parameters(sizes: UnetSizes) -> dict[str, Any]:
    """Return the shapes of the parameters.

    ``down`` and ``up`` list the levels in the order they are visited, each with its ``blocks`` and, but
    for the last, the convolution ``resample`` that leads to the next.
    """
    time = 4 * sizes.width
    widths = [sizes.width * (level + 1) for level in range(sizes.levels)]
    attends = [level >= sizes.levels - sizes.attention_levels for level in range(sizes.levels)]
    down: list[dict[str, Any]] = []
    up: list[dict[str, Any]] = []
    skips, width = [sizes.width], sizes.width
    for level in range(sizes.levels):
        blocks = []
        for _ in range(sizes.blocks):
            blocks.append(block_shapes(width, widths[level], time, sizes.head_dim, attends[level]))
            width = widths[level]
            skips.append(width)
        down.append({"blocks": blocks})
        if level + 1 < sizes.levels:
            down[-1]["resample"] = conv_shapes(width, width)
            skips.append(width)
    middle = [block_shapes(width, width, time, sizes.head_dim, attention) for attention in (True, False)]
    for level in reversed(range(sizes.levels)):
        blocks = []
        for _ in range(sizes.blocks + 1):
            joined = width + skips.pop()
            blocks.append(block_shapes(joined, widths[level], time, sizes.head_dim, attends[level]))
            width = widths[level]
        up.append({"blocks": blocks})
        if level > 0:
            up[-1]["resample"] = conv_shapes(width, width)
    return {
        "time": {
            "w1": shapes.floats(sizes.width, time),
            "b1": shapes.floats(time),
            "w2": shapes.floats(time, time),
            "b2": shapes.floats(time),
        },
        "conv_in": conv_shapes(sizes.channels, sizes.width),
        "down": down,
        "middle": middle,
        "up": up,
        "norm_out": shapes.norm(width),
        "conv_out": conv_shapes(width, sizes.channels),
    }


def conv_shapes(inputs: int, outputs: int) -> dict[str, Any]:
    """Return the parameters of a 3x3 convolution."""
    return {"w": shapes.floats(3, 3, inputs, outputs), "b": shapes.floats(outputs)}


def block_shapes(inputs: int, outputs: int, time: int, head_dim: int, attention: bool) -> dict[str, Any]:
    """Return the parameters of a residual block, with attention after it if asked for."""
    params: dict[str, Any] = {
        "norm1": shapes.norm(inputs),
        "conv1": conv_shapes(inputs, outputs),
        "w_scale": shapes.floats(time, outputs),
        "b_scale": shapes.floats(outputs),
        "w_shift": shapes.floats(time, outputs),
        "b_shift": shapes.floats(outputs),
        "norm2": shapes.norm(outputs),
        "conv2": conv_shapes(outputs, outputs),
    }
    if inputs != outputs:
        params["skip"] = {"w": shapes.floats(inputs, outputs), "b": shapes.floats(outputs)}
    if attention:
        projection = shapes.floats(outputs, outputs // head_dim, head_dim)
        params["attention"] = {
            "norm": shapes.norm(outputs),
            "wq": projection,
            "wk": projection,
            "wv": projection,
            "wo": shapes.floats(outputs // head_dim, head_dim, outputs),
        }
    return params


def predict_noise(params: Any, x: jax.Array, timesteps: jax.Array, sizes: UnetSizes) -> jax.Array:
    """Return the noise in noisy images: x [b, y, x, c], timesteps [b] -> [b, y, x, c]."""

    def block(x: jax.Array, embedding: jax.Array, params: Any) -> jax.Array:
        x = residual(x, embedding, params, sizes.groups)
        return attend(x, params["attention"], sizes.groups) if "attention" in params else x

    if sizes.remat:
        block = jax.checkpoint(block)
    x = x.astype(jnp.dtype(sizes.dtype))
    embedding = embed_time(params["time"], timesteps, x.dtype)
    x = conv(x, params["conv_in"])
    skips = [x]
    for level in params["down"]:
        for layer in level["blocks"]:
            x = block(x, embedding, layer)
            skips.append(x)
        if "resample" in level:
            x = conv(x, level["resample"], stride=2)
            skips.append(x)
    for layer in params["middle"]:
        x = block(x, embedding, layer)
    for level in params["up"]:
        for layer in level["blocks"]:
            x = block(jnp.concatenate([x, skips.pop()], axis=-1), embedding, layer)
        if "resample" in level:
            x = conv(double(x), level["resample"])
    return conv(jax.nn.silu(layers.group_norm(x, params["norm_out"], sizes.groups)), params["conv_out"])


def embed_time(params: Any, timesteps: jax.Array, dtype: Any) -> jax.Array:
    """Embed timesteps by sines and cosines and a perceptron: [b] -> [b, 4 x width], activated for use."""
    half = params["w1"].shape[0] // 2
    frequencies = 10_000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = timesteps.astype(jnp.float32)[:, None] * frequencies
    x = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1).astype(dtype)
    x = jax.nn.silu(layers.dense(x, params["w1"], params["b1"]))
    return jax.nn.silu(layers.dense(x, params["w2"], params["b2"]))


def conv(x: jax.Array, params: Any, stride: int = 1) -> jax.Array:
    """Convolve with a 3x3 kernel: x [b, y, x, i] -> [b, y / stride, x / stride, o]."""
    kernel = params["w"].astype(x.dtype)
    layout = ("NHWC", "HWIO", "NHWC")
    y = jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=layout)
    return jnp.add(y, params["b"].astype(x.dtype))


def double(x: jax.Array) -> jax.Array:
    """Double the resolution by repeating pixels: x [b, y, x, c] -> [b, 2 y, 2 x, c]."""
    batch, rows, columns, channels = x.shape
    x = jnp.broadcast_to(x[:, :, None, :, None, :], (batch, rows, 2, columns, 2, channels))
    return x.reshape(batch, 2 * rows, 2 * columns, channels)


def residual(x: jax.Array, embedding: jax.Array, params: Any, groups: int) -> jax.Array:
    """Residual block: x [b, y, x, i], embedding [b, time] -> [b, y, x, o]."""
    scale = layers.dense(embedding, params["w_scale"], params["b_scale"])[:, None, None, :]
    shift = layers.dense(embedding, params["w_shift"], params["b_shift"])[:, None, None, :]
    y = conv(jax.nn.silu(layers.group_norm(x, params["norm1"], groups)), params["conv1"])
    y = jax.nn.silu(layers.group_norm(y, params["norm2"], groups) * (1 + scale) + shift)
    y = conv(y, params["conv2"])
    return y + (layers.dense(x, params["skip"]["w"], params["skip"]["b"]) if "skip" in params else x)


def attend(x: jax.Array, params: Any, groups: int) -> jax.Array:
    """Self-attention over all pixels: x [b, y, x, c] -> [b, y, x, c]."""
    batch, rows, columns, channels = x.shape
    y = layers.group_norm(x, params["norm"], groups).reshape(batch, rows * columns, channels)
    q, k, v = (jnp.einsum("bsd,dnh->bsnh", y, params[w].astype(y.dtype)) for w in ("wq", "wk", "wv"))
    mixed = layers.attention(q, k, v)
    y = jnp.einsum("bsnh,nhd->bsd", mixed, params["wo"].astype(mixed.dtype))
    return x + y.reshape(x.shape)
