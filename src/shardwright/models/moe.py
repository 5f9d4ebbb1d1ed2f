"""MoE: the training step of a transformer with mixtures of experts.

Tokens are routed to their ``top_k`` best experts in groups. Within a group every expert takes at most
``capacity`` tokens, first choices before second ones; a token that finds no room passes through the
residual connection alone. Parameter count: "default" 4.6 billion.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from shardwright.models import adam, kernels, layers, shapes
from shardwright.models.model import Program
from shardwright.models.sizes import Sizes, choose

#: Weight of the load-balance loss.
BALANCE = 0.01


@dataclass(frozen=True)
class MoeSizes(Sizes):
    """Sizes of the mixture-of-experts transformer.

    Attributes:
        layers: Transformer blocks.
        alternate: Only every other block has experts, the others a dense feed-forward layer.
        experts: Experts in a block.
        top_k: Experts that a token is sent to.
        capacity_factor: Room in the experts relative to a perfectly balanced load.
        group: Tokens that are routed together; best a whole sequence.
        width: Features of the residual stream.
        heads: Query heads.
        kv_heads: Key and value heads.
        head_dim: Features of one head.
        hidden: Features inside an expert and inside a dense feed-forward layer.
        vocabulary: Token ids.
        batch: Sequences in a batch.
        sequence: Tokens in a sequence.
        remat: Recompute each block in the backward pass instead of keeping its activations.
        dtype: Type of activations; parameters, routing and the optimiser's state are float32.
        attention: What attends: "plain" products, or JAX's "flash" kernels for TPUs.

    """

    model: ClassVar[str] = "moe"

    layers: int = 8
    alternate: bool = True
    experts: int = 32
    top_k: int = 2
    capacity_factor: float = 1.25
    group: int = 1024
    width: int = 2048
    heads: int = 16
    kv_heads: int = 16
    head_dim: int = 128
    hidden: int = 8192
    vocabulary: int = 32768
    batch: int = 32
    sequence: int = 1024
    remat: bool = True
    dtype: str = "bfloat16"
    attention: str = field(default=kernels.PLAIN, metadata={"choices": (kernels.PLAIN, kernels.FLASH)})

    def check(self) -> None:
        """Check that heads, blocks and tokens divide evenly and that there are experts to choose."""
        self.require_multiple("heads", of="kv_heads")
        self.require(self.head_dim % 2 == 0, f"head_dim ({self.head_dim}) must be even")
        paired = not self.alternate or self.layers % 2 == 0
        self.require(paired, f"layers ({self.layers}) must be even to alternate")
        enough = self.top_k <= self.experts
        self.require(enough, f"top_k ({self.top_k}) must not exceed experts ({self.experts})")
        tokens = self.batch * self.sequence
        self.require(
            tokens % self.group == 0,
            f"batch x sequence ({tokens}) must be a multiple of group ({self.group})",
        )

    @property
    def capacity(self) -> int:
        """Tokens of one group that one expert has room for."""
        return math.ceil(self.top_k * self.group * self.capacity_factor / self.experts)


#: Named sizes: full size, and one that runs on a CPU.
PRESETS: dict[str, MoeSizes] = {
    "default": MoeSizes(),
    "tiny": MoeSizes(
        layers=4,
        experts=16,
        capacity_factor=1.6,
        group=40,
        width=32,
        heads=8,
        kv_heads=8,
        head_dim=24,
        hidden=64,
        vocabulary=128,
        batch=48,
        sequence=40,
        dtype="float32",
    ),
}


def moe(preset: str = "default", **sizes: Any) -> Program:
    """Build the training step of a mixture-of-experts transformer: ``train_step(state, batch)``.

    The batch holds ``tokens`` and ``targets``, both [batch, sequence]; the loss includes the weighted
    load-balance loss. Sizes are those of ``MoeSizes``.
    """
    chosen = choose(PRESETS, preset, sizes)

    def loss(params: Any, batch: Any) -> jax.Array:
        logits, balance = forward(params, batch["tokens"], chosen)
        return layers.cross_entropy(logits, batch["targets"]) + BALANCE * balance

    ids = shapes.integers(chosen.batch, chosen.sequence)
    args = (adam.state(parameters(chosen)), {"tokens": ids, "targets": ids})
    return adam.training(loss), args, {"donate": (0,)}


def parameters(sizes: MoeSizes) -> dict[str, Any]:
    """Return the shapes of the parameters; ``layers`` stacks the blocks, in pairs when they alternate."""
    kv = shapes.heads(sizes.kv_heads)
    attention = {
        "attention_norm": shapes.floats(sizes.width),
        "wq": shapes.floats(sizes.width, sizes.heads, sizes.head_dim),
        "wk": shapes.floats(sizes.width, *kv, sizes.head_dim),
        "wv": shapes.floats(sizes.width, *kv, sizes.head_dim),
        "wo": shapes.floats(sizes.heads, sizes.head_dim, sizes.width),
        "mlp_norm": shapes.floats(sizes.width),
    }
    dense = attention | {
        "w_up": shapes.floats(sizes.width, sizes.hidden),
        "w_down": shapes.floats(sizes.hidden, sizes.width),
    }
    sparse = attention | {
        "router": shapes.floats(sizes.width, sizes.experts),
        "w_up": shapes.floats(sizes.experts, sizes.width, sizes.hidden),
        "w_down": shapes.floats(sizes.experts, sizes.hidden, sizes.width),
    }
    if sizes.alternate:
        blocks = shapes.stacked({"dense": dense, "sparse": sparse}, sizes.layers // 2)
    else:
        blocks = shapes.stacked({"sparse": sparse}, sizes.layers)
    return {
        "embed": shapes.floats(sizes.vocabulary, sizes.width),
        "layers": blocks,
        "final_norm": shapes.floats(sizes.width),
    }


def forward(params: Any, tokens: jax.Array, sizes: MoeSizes) -> tuple[jax.Array, jax.Array]:
    """Return next-token logits [b, s, v] of tokens [b, s], and the mean load-balance loss."""

    def dense_block(x: jax.Array, layer: Any) -> jax.Array:
        x = x + layers.causal_attention(layers.rms_norm(x, layer["attention_norm"]), layer, sizes.attention)
        return x + layers.feed_forward(layers.rms_norm(x, layer["mlp_norm"]), layer)

    def sparse_block(x: jax.Array, layer: Any) -> tuple[jax.Array, jax.Array]:
        x = x + layers.causal_attention(layers.rms_norm(x, layer["attention_norm"]), layer, sizes.attention)
        y, balance = mixture(layers.rms_norm(x, layer["mlp_norm"]), layer, sizes)
        return x + y, balance

    if sizes.remat:
        dense_block = jax.checkpoint(dense_block, prevent_cse=False)
        sparse_block = jax.checkpoint(sparse_block, prevent_cse=False)

    def body(x: jax.Array, layer: Any) -> tuple[jax.Array, jax.Array]:
        if "dense" in layer:
            x = dense_block(x, layer["dense"])
        return sparse_block(x, layer["sparse"])

    x = layers.embed(tokens, params["embed"], jnp.dtype(sizes.dtype))
    x, balances = jax.lax.scan(body, x, params["layers"])
    x = layers.rms_norm(x, params["final_norm"])
    return jnp.einsum("bsd,vd->bsv", x, params["embed"].astype(x.dtype)), jnp.mean(balances)


def mixture(x: jax.Array, layer: Any, sizes: MoeSizes) -> tuple[jax.Array, jax.Array]:
    """Send tokens through their experts: x [b, s, d] -> [b, s, d], and the load-balance loss.

    Letters: g groups, t tokens of a group, e experts, c places in an expert, f hidden width.
    """
    grouped = x.reshape(-1, sizes.group, sizes.width)
    combine, balance = route(grouped, layer["router"], sizes)
    dispatch = (combine > 0).astype(x.dtype)
    inputs = jnp.einsum("gtec,gtd->egcd", dispatch, grouped)
    hidden = jax.nn.gelu(jnp.einsum("egcd,edf->egcf", inputs, layer["w_up"].astype(inputs.dtype)))
    outputs = jnp.einsum("egcf,efd->egcd", hidden, layer["w_down"].astype(hidden.dtype))
    y = jnp.einsum("gtec,egcd->gtd", combine.astype(x.dtype), outputs)
    return y.reshape(x.shape), balance


def route(x: jax.Array, router: jax.Array, sizes: MoeSizes) -> tuple[jax.Array, jax.Array]:
    """Choose experts: x [g, t, d] -> the weight of each token in each place [g, t, e, c], and the balance.

    The balance is 1 when tokens spread evenly over experts and grows to the number of experts when
    they all crowd into one.
    """
    # Routing in float32: rounding here would send tokens to other experts.
    scores = jnp.einsum("gtd,de->gte", x.astype(jnp.float32), router)
    probabilities = jax.nn.softmax(scores, axis=-1)  # [g, t, e]
    left = probabilities
    taken = jnp.zeros((x.shape[0], 1, sizes.experts), jnp.float32)
    masks, places, gates = [], [], []
    for _ in range(sizes.top_k):
        mask = jax.nn.one_hot(jnp.argmax(left, axis=-1), sizes.experts)  # [g, t, e]
        # A later choice queues behind every earlier choice of the whole group.
        place = jnp.sum((jnp.cumsum(mask, axis=1) - mask + taken) * mask, axis=-1)  # [g, t]
        taken = taken + jnp.sum(mask, axis=1, keepdims=True)
        left = jnp.where(mask > 0, -1.0, left)
        masks.append(mask)
        places.append(place.astype(jnp.int32))
        gates.append(jnp.sum(probabilities * mask, axis=-1))  # [g, t]
    total = sum(gates[1:], start=gates[0]) if sizes.top_k > 1 else jnp.ones_like(gates[0])
    combine = jnp.zeros((*x.shape[:2], sizes.experts, sizes.capacity), jnp.float32)
    for mask, place, gate in zip(masks, places, gates, strict=True):
        # one_hot of a place beyond the capacity is all zero, which drops the token.
        seat = jax.nn.one_hot(place, sizes.capacity)  # [g, t, c]
        combine = combine + jnp.einsum("gte,gtc->gtec", mask * (gate / total)[..., None], seat)
    fraction = jnp.mean(masks[0], axis=1)  # [g, e]
    balance = sizes.experts * jnp.mean(jnp.sum(fraction * jnp.mean(probabilities, axis=1), axis=-1))
    return combine, balance
