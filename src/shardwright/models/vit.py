"""ViT: the training step of a vision transformer that classifies images.

Parameter counts: "default" (ViT-L/16) 0.30 billion, "huge" (ViT-H/14) 0.63 billion.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from shardwright.models import adam, kernels, layers, shapes
from shardwright.models.model import Program
from shardwright.models.sizes import Sizes, choose


@dataclass(frozen=True)
class VitSizes(Sizes):
    """Sizes of the vision transformer.

    Attributes:
        layers: Transformer blocks.
        width: Features of the residual stream.
        heads: Attention heads.
        head_dim: Features of one head.
        hidden: Features inside the feed-forward layer.
        image: Pixels along each side of an image.
        patch: Pixels along each side of a patch.
        channels: Channels of an image.
        classes: Classes to choose from.
        batch: Images in a batch.
        scan: Loop over stacked layers; otherwise the layers are unrolled into a list.
        remat: Recompute each block in the backward pass instead of keeping its activations.
        dtype: Type of activations; parameters and the optimiser's state are float32.
        attention: What attends: "plain" products, or JAX's "flash" kernels for TPUs.

    """

    model: ClassVar[str] = "vit"

    layers: int = 24
    width: int = 1024
    heads: int = 16
    head_dim: int = 64
    hidden: int = 4096
    image: int = 224
    patch: int = 16
    channels: int = 3
    classes: int = 1000
    batch: int = 1024
    scan: bool = True
    remat: bool = True
    dtype: str = "bfloat16"
    attention: str = field(default=kernels.PLAIN, metadata={"choices": (kernels.PLAIN, kernels.FLASH)})

    def check(self) -> None:
        """Check that patches tile the image."""
        self.require_multiple("image", of="patch")


#: Named sizes: ViT-L/16, ViT-H/14, and one that runs on a CPU.
PRESETS: dict[str, VitSizes] = {
    "default": VitSizes(),
    "huge": VitSizes(layers=32, width=1280, heads=16, head_dim=80, hidden=5120, patch=14),
    "tiny": VitSizes(
        layers=2,
        width=32,
        heads=8,
        head_dim=24,
        hidden=64,
        image=56,
        patch=8,
        classes=40,
        batch=16,
        dtype="float32",
    ),
}


def vit(preset: str = "default", **sizes: Any) -> Program:
    """Build the training step of a vision transformer: ``train_step(state, batch)``.

    The batch holds ``images`` [batch, image, image, channels] and ``labels`` [batch]. Sizes are those
    of ``VitSizes``.
    """
    chosen = choose(PRESETS, preset, sizes)

    def loss(params: Any, batch: Any) -> jax.Array:
        return layers.cross_entropy(logits(params, batch["images"], chosen), batch["labels"])

    batch = {
        "images": shapes.floats(chosen.batch, chosen.image, chosen.image, chosen.channels),
        "labels": shapes.integers(chosen.batch),
    }
    return adam.training(loss), (adam.state(parameters(chosen)), batch), {"donate": (0,)}


def parameters(sizes: VitSizes) -> dict[str, Any]:
    """Return the shapes of the parameters; ``layers`` is stacked or a list, as ``sizes.scan`` says."""
    patches = (sizes.image // sizes.patch) ** 2
    projection = shapes.floats(sizes.width, sizes.heads, sizes.head_dim)
    projection_bias = shapes.floats(sizes.heads, sizes.head_dim)
    layer = {
        "attention_norm": shapes.norm(sizes.width),
        "wq": projection,
        "bq": projection_bias,
        "wk": projection,
        "bk": projection_bias,
        "wv": projection,
        "bv": projection_bias,
        "wo": shapes.floats(sizes.heads, sizes.head_dim, sizes.width),
        "bo": shapes.floats(sizes.width),
        "mlp_norm": shapes.norm(sizes.width),
        "w_up": shapes.floats(sizes.width, sizes.hidden),
        "b_up": shapes.floats(sizes.hidden),
        "w_down": shapes.floats(sizes.hidden, sizes.width),
        "b_down": shapes.floats(sizes.width),
    }
    return {
        "patch": {
            "w": shapes.floats(sizes.patch, sizes.patch, sizes.channels, sizes.width),
            "b": shapes.floats(sizes.width),
        },
        "positions": shapes.floats(patches, sizes.width),
        "layers": shapes.repeated(layer, sizes.layers, scan=sizes.scan),
        "final_norm": shapes.norm(sizes.width),
        "head": {"w": shapes.floats(sizes.width, sizes.classes), "b": shapes.floats(sizes.classes)},
    }


def logits(params: Any, images: jax.Array, sizes: VitSizes) -> jax.Array:
    """Return class logits: images [b, y, x, c] -> [b, classes]."""
    side = sizes.image // sizes.patch
    images = images.astype(jnp.dtype(sizes.dtype))
    patches = images.reshape(-1, side, sizes.patch, side, sizes.patch, sizes.channels)
    # Letters: y and x a patch's place in the image, p and q a pixel's place in the patch, c channels.
    x = jnp.einsum("bypxqc,pqcd->byxd", patches, params["patch"]["w"].astype(patches.dtype))
    x = x.reshape(-1, side * side, sizes.width)
    x = x + params["patch"]["b"].astype(x.dtype) + params["positions"].astype(x.dtype)
    x = layers.apply_layers(
        partial(block, attention=sizes.attention), x, params["layers"], scan=sizes.scan, remat=sizes.remat
    )
    pooled = jnp.mean(layers.layer_norm(x, params["final_norm"]), axis=1)
    return layers.dense(pooled, params["head"]["w"], params["head"]["b"])


def block(x: jax.Array, layer: Any, attention: str = kernels.PLAIN) -> jax.Array:
    """One transformer block: x [b, s, d] -> [b, s, d]."""
    y = layers.layer_norm(x, layer["attention_norm"])
    q, k, v = (
        jnp.einsum("bsd,dnh->bsnh", y, layer[w].astype(y.dtype)) + layer[b].astype(x.dtype)
        for w, b in (("wq", "bq"), ("wk", "bk"), ("wv", "bv"))
    )
    if attention == kernels.PLAIN:
        mixed = layers.attention(q, k, v)
    else:
        mixed = kernels.attention(attention, q, k, v, causal=False)
    x = x + jnp.einsum("bsnh,nhd->bsd", mixed, layer["wo"].astype(mixed.dtype)) + layer["bo"].astype(x.dtype)
    y = layers.layer_norm(x, layer["mlp_norm"])
    y = jax.nn.gelu(layers.dense(y, layer["w_up"], layer["b_up"]))
    return x + layers.dense(y, layer["w_down"], layer["b_down"])
