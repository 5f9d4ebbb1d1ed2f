"""GPT: the training step of a decoder-only transformer.

Parameter counts: "default" 0.67 billion, "gemma-2b" 2.5 billion, "gemma-7b" 8.5 billion.
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
class GptSizes(Sizes):
    """Sizes of the decoder-only transformer.

    Attributes:
        layers: Transformer blocks.
        width: Features of the residual stream.
        heads: Query heads.
        kv_heads: Key and value heads: 1 is multi-query, ``heads`` multi-head, between them grouped.
        head_dim: Features of one head.
        hidden: Features inside the feed-forward layer.
        vocabulary: Token ids.
        batch: Sequences in a batch.
        sequence: Tokens in a sequence.
        gated: Gate the feed-forward layer with a second projection, as Gemma does.
        scan: Loop over stacked layers; otherwise the layers are unrolled into a list.
        remat: Recompute each block in the backward pass instead of keeping its activations.
        dtype: Type of activations; parameters and the optimiser's state are float32.
        attention: What attends: "plain" products, or JAX's "flash" or "splash" kernels for TPUs.

    """

    model: ClassVar[str] = "gpt"

    layers: int = 12
    width: int = 2048
    heads: int = 16
    kv_heads: int = 16
    head_dim: int = 128
    hidden: int = 8192
    vocabulary: int = 32768
    batch: int = 32
    sequence: int = 2048
    gated: bool = False
    scan: bool = True
    remat: bool = True
    dtype: str = "bfloat16"
    attention: str = field(default=kernels.PLAIN, metadata={"choices": (kernels.PLAIN, kernels.FLASH, kernels.SPLASH)})

    def check(self) -> None:
        """Check that the heads group evenly and that rotary positions can pair features."""
        self.require_multiple("heads", of="kv_heads")
        self.require(self.head_dim % 2 == 0, f"head_dim ({self.head_dim}) must be even")


#: Named sizes: full size, the two Gemma models, and one that runs on a CPU.
PRESETS: dict[str, GptSizes] = {
    "default": GptSizes(),
    "gemma-2b": GptSizes(
        layers=18, width=2048, heads=8, kv_heads=1, head_dim=256, hidden=16384, vocabulary=256128, gated=True
    ),
    "gemma-7b": GptSizes(
        layers=28,
        width=3072,
        heads=16,
        kv_heads=16,
        head_dim=256,
        hidden=24576,
        vocabulary=256128,
        gated=True,
    ),
    "tiny": GptSizes(
        layers=2,
        width=32,
        heads=8,
        kv_heads=8,
        head_dim=24,
        hidden=64,
        vocabulary=128,
        batch=16,
        sequence=40,
        dtype="float32",
    ),
}


def gpt(preset: str = "default", **sizes: Any) -> Program:
    """Build the training step of a decoder-only transformer: ``train_step(state, batch)``.

    The batch holds ``tokens`` and ``targets``, both [batch, sequence]. Sizes are those of ``GptSizes``.
    """
    chosen = choose(PRESETS, preset, sizes)

    def loss(params: Any, batch: Any) -> jax.Array:
        return layers.cross_entropy(logits(params, batch["tokens"], chosen), batch["targets"])

    ids = shapes.integers(chosen.batch, chosen.sequence)
    args = (adam.state(parameters(chosen)), {"tokens": ids, "targets": ids})
    return adam.training(loss), args, {"donate": (0,)}


def parameters(sizes: GptSizes) -> dict[str, Any]:
    """Return the shapes of the parameters; ``layers`` is stacked or a list, as ``sizes.scan`` says."""
    kv = shapes.heads(sizes.kv_heads)
    layer = {
        "attention_norm": shapes.floats(sizes.width),
        "wq": shapes.floats(sizes.width, sizes.heads, sizes.head_dim),
        "wk": shapes.floats(sizes.width, *kv, sizes.head_dim),
        "wv": shapes.floats(sizes.width, *kv, sizes.head_dim),
        "wo": shapes.floats(sizes.heads, sizes.head_dim, sizes.width),
        "mlp_norm": shapes.floats(sizes.width),
        "w_up": shapes.floats(sizes.width, sizes.hidden),
        "w_down": shapes.floats(sizes.hidden, sizes.width),
    }
    if sizes.gated:
        layer["w_gate"] = shapes.floats(sizes.width, sizes.hidden)
    return {
        "embed": shapes.floats(sizes.vocabulary, sizes.width),
        "layers": shapes.repeated(layer, sizes.layers, scan=sizes.scan),
        "final_norm": shapes.floats(sizes.width),
    }


def logits(params: Any, tokens: jax.Array, sizes: GptSizes) -> jax.Array:
    """Return next-token logits: tokens [b, s] -> [b, s, v]."""
    x = layers.embed(tokens, params["embed"], jnp.dtype(sizes.dtype))
    x = layers.apply_layers(
        partial(block, attention=sizes.attention), x, params["layers"], scan=sizes.scan, remat=sizes.remat
    )
    x = layers.rms_norm(x, params["final_norm"])
    return jnp.einsum("bsd,vd->bsv", x, params["embed"].astype(x.dtype))


def block(x: jax.Array, layer: Any, attention: str = kernels.PLAIN) -> jax.Array:
    """One transformer block: x [b, s, d] -> [b, s, d]."""
    x = x + layers.causal_attention(layers.rms_norm(x, layer["attention_norm"]), layer, attention)
    return x + layers.feed_forward(layers.rms_norm(x, layer["mlp_norm"]), layer)
