"""ITX: one decoding step of an inference transformer with a key-value cache.

Parameter counts: "default" 8.0 billion, "multi-query" 7.8 billion.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from shardwright.models import kernels, layers, shapes
from shardwright.models.model import Program
from shardwright.models.sizes import Sizes, choose


@dataclass(frozen=True)
class ItxSizes(Sizes):
    """Sizes of the inference transformer.

    Attributes:
        layers: Transformer blocks.
        width: Features of the residual stream.
        heads: Query heads.
        kv_heads: Key and value heads: 1 is multi-query, ``heads`` multi-head, between them grouped.
        head_dim: Features of one head.
        hidden: Features inside the gated feed-forward layer.
        vocabulary: Token ids.
        batch: Sequences decoded together.
        context: Positions the cache has room for.
        dtype: Type of weights, cache and activations.
        attention: What attends: "plain" products, or JAX's "paged" kernel for TPUs, whose cache is in pages.

    """

    model: ClassVar[str] = "itx"

    layers: int = 32
    width: int = 4096
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    hidden: int = 14336
    vocabulary: int = 128256
    batch: int = 128
    context: int = 2048
    dtype: str = "bfloat16"
    attention: str = field(default=kernels.PLAIN, metadata={"choices": (kernels.PLAIN, kernels.PAGED)})

    def check(self) -> None:
        """Check that the heads group evenly, that rotary positions can pair features, and what the kernel asks for."""
        self.require_multiple("heads", of="kv_heads")
        self.require(self.head_dim % 2 == 0, f"head_dim ({self.head_dim}) must be even")
        if self.attention == kernels.PAGED:
            for name, of in (("head_dim", 128), ("context", kernels.PAGE)):
                value = getattr(self, name)
                self.require(value % of == 0, f"{name} ({value}) must be a multiple of {of} for paged attention")


#: Named sizes: full size with grouped and with multi-query attention, and one that runs on a CPU.
PRESETS: dict[str, ItxSizes] = {
    "default": ItxSizes(),
    "multi-query": ItxSizes(kv_heads=1),
    "tiny": ItxSizes(
        layers=2,
        width=64,
        heads=32,
        kv_heads=8,
        head_dim=16,
        hidden=96,
        vocabulary=128,
        batch=24,
        context=40,
        dtype="float32",
    ),
}


def itx(preset: str = "default", **sizes: Any) -> Program:
    """Build a decoding step: ``decode_step(params, cache, tokens, position) -> (logits, cache)``.

    ``tokens`` [batch] are the newest token of each sequence, all at the scalar ``position``; the logits
    are [batch, vocabulary] in float32. Sizes are those of ``ItxSizes``.
    """
    chosen = choose(PRESETS, preset, sizes)
    cache = paged_cache_shapes(chosen) if chosen.attention == kernels.PAGED else cache_shapes(chosen)
    args = (parameters(chosen), cache, shapes.integers(chosen.batch), shapes.integers())
    return decode_step, args, {"donate": (1,)}


def parameters(sizes: ItxSizes) -> dict[str, Any]:
    """Return the shapes of the parameters, with ``layers`` stacked."""
    kv = shapes.heads(sizes.kv_heads)

    def weight(*shape: int) -> jax.ShapeDtypeStruct:
        return shapes.floats(*shape, dtype=sizes.dtype)

    layer = {
        "attention_norm": weight(sizes.width),
        "wq": weight(sizes.width, sizes.heads, sizes.head_dim),
        "wk": weight(sizes.width, *kv, sizes.head_dim),
        "wv": weight(sizes.width, *kv, sizes.head_dim),
        "wo": weight(sizes.heads, sizes.head_dim, sizes.width),
        "mlp_norm": weight(sizes.width),
        "w_gate": weight(sizes.width, sizes.hidden),
        "w_up": weight(sizes.width, sizes.hidden),
        "w_down": weight(sizes.hidden, sizes.width),
    }
    return {
        "embed": weight(sizes.vocabulary, sizes.width),
        "layers": shapes.stacked(layer, sizes.layers),
        "final_norm": weight(sizes.width),
        "unembed": weight(sizes.width, sizes.vocabulary),
    }


def cache_shapes(sizes: ItxSizes) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes of the cache: k and v, each [layers, batch, context, kv_heads, head_dim]."""
    kv = shapes.heads(sizes.kv_heads)
    entry = shapes.floats(sizes.layers, sizes.batch, sizes.context, *kv, sizes.head_dim, dtype=sizes.dtype)
    return {"k": entry, "v": entry}


def paged_cache_shapes(sizes: ItxSizes) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes of the cache in pages, and of the pages of each sequence.

    k and v are each [layers, kv_heads, pages, page, head_dim], and pages [batch, pages of a sequence].
    """
    each = sizes.context // kernels.PAGE
    entry = shapes.floats(
        sizes.layers, sizes.kv_heads, sizes.batch * each, kernels.PAGE, sizes.head_dim, dtype=sizes.dtype
    )
    return {"k": entry, "v": entry, "pages": shapes.integers(sizes.batch, each)}


def decode_step(params: Any, cache: Any, tokens: jax.Array, position: jax.Array) -> tuple[jax.Array, Any]:
    """Decode one token of every sequence and store its keys and values in the cache."""
    # No scaling of the embedding here: it has its own table, unlike a model that ties it to the logits.
    x = jnp.take(params["embed"], tokens, axis=0, mode="clip")  # [b, d]

    def body(carry: Any, step: Any) -> tuple[Any, None]:
        x, cache = carry
        index, layer = step
        y = layers.rms_norm(x, layer["attention_norm"])
        mixed, cache = cached_attention(y, layer, cache, index, position)
        x = x + mixed
        x = x + layers.feed_forward(layers.rms_norm(x, layer["mlp_norm"]), layer, jax.nn.silu)
        return (x, cache), None

    # The cache is carried, not scanned over: a donated carry is updated in place, while a scanned
    # output would be a second cache.
    count = params["layers"]["wq"].shape[0]
    (x, cache), _ = jax.lax.scan(body, (x, cache), (jnp.arange(count), params["layers"]))
    x = layers.rms_norm(x, params["final_norm"])
    return jnp.einsum("bd,dv->bv", x, params["unembed"].astype(x.dtype)).astype(jnp.float32), cache


def cached_attention(
    x: jax.Array, layer: Any, cache: Any, index: jax.Array, position: jax.Array
) -> tuple[jax.Array, Any]:
    """Attend from one position to all before it: x [b, d] -> [b, d], and the cache with that position."""
    equation = "bd,dh->bh" if layer["wk"].ndim == 2 else "bd,dkh->bkh"
    angles = layers.rotary_angles(position, layer["wq"].shape[-1])
    q = layers.rotary(jnp.einsum("bd,dnh->bnh", x, layer["wq"].astype(x.dtype)), angles)
    k = layers.rotary(jnp.einsum(equation, x, layer["wk"].astype(x.dtype)), angles)
    v = jnp.einsum(equation, x, layer["wv"].astype(x.dtype))
    if "pages" in cache:
        mixed, cache = _paged(q, k, v, cache, index, position)
        return jnp.einsum("bnh,nhd->bd", mixed, layer["wo"].astype(mixed.dtype)), cache
    cache = {"k": store(cache["k"], k, index, position), "v": store(cache["v"], v, index, position)}
    keys = jax.lax.dynamic_index_in_dim(cache["k"], index, keepdims=False)
    values = jax.lax.dynamic_index_in_dim(cache["v"], index, keepdims=False)
    mixed = attention(q, keys, values, jnp.arange(keys.shape[1]) <= position)
    return jnp.einsum("bnh,nhd->bd", mixed, layer["wo"].astype(mixed.dtype)), cache


def _paged(
    q: jax.Array, k: jax.Array, v: jax.Array, cache: Any, index: jax.Array, position: jax.Array
) -> tuple[jax.Array, Any]:
    """Attend as ``cached_attention`` does, to a cache in pages."""
    pages = cache["pages"]
    at = jax.lax.dynamic_index_in_dim(pages, position // kernels.PAGE, axis=1, keepdims=False)  # [b]

    def stored(pool: jax.Array, entry: jax.Array) -> jax.Array:
        entry = entry[:, None] if entry.ndim == 2 else entry  # [b, k, h]
        return pool.at[index, :, at, position % kernels.PAGE].set(entry, mode="promise_in_bounds")

    cache = cache | {"k": stored(cache["k"], k), "v": stored(cache["v"], v)}
    keys = jax.lax.dynamic_index_in_dim(cache["k"], index, keepdims=False)
    values = jax.lax.dynamic_index_in_dim(cache["v"], index, keepdims=False)
    lengths = jnp.full(pages.shape[:1], position + 1, jnp.int32)
    return kernels.paged_attention(q, keys, values, lengths, pages), cache


def store(cache: jax.Array, entry: jax.Array, index: jax.Array, position: jax.Array) -> jax.Array:
    """Write one position of one layer: entry [b, k, h] into cache [l, b, t, k, h]."""
    start = (index, 0, position) + (0,) * (cache.ndim - 3)
    return jax.lax.dynamic_update_slice(cache, entry[None, :, None], start)


def attention(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    """Attend from one query per sequence: q [b, n, h], k and v [b, t, h] or [b, t, k, h], mask [t]."""
    q = q * q.shape[-1] ** -0.5
    if k.ndim == 3:
        weights = layers.softmax(jnp.einsum("bnh,bth->bnt", q, k), mask, v.dtype)
        return jnp.einsum("bnt,bth->bnh", weights, v)
    if k.shape[2] == q.shape[1]:
        weights = layers.softmax(jnp.einsum("bnh,btnh->bnt", q, k), mask, v.dtype)
        return jnp.einsum("bnt,btnh->bnh", weights, v)
    batch, heads, head_dim = q.shape
    grouped = q.reshape(batch, k.shape[2], heads // k.shape[2], head_dim)
    weights = layers.softmax(jnp.einsum("bkgh,btkh->bkgt", grouped, k), mask, v.dtype)
    return jnp.einsum("bkgt,btkh->bkgh", weights, v).reshape(q.shape)
