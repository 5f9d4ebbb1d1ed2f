"""One decoding step of Llama 3 70B with a paged cache: keys and values lie in pages, which a table gives to sequences.

https://arxiv.org/abs/2309.06180. Every sequence has a slot for each of its pages; a page holds ``page`` tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs.parts import LLAMA_70B, MIDDLE, SMALL, Built, Decoder, feed_forward, parameters
from shardwright.models import shapes
from shardwright.models.layers import rms_norm, rotary, rotary_angles


@dataclass(frozen=True)
class Sizes:
    """``batch`` sequences of up to ``slots`` pages; there are ``pages`` in all."""

    decoder: Decoder
    batch: int = 128
    page: int = 64
    slots: int = 32
    pages: int = 4096


SCALES = {
    "real": (Sizes(LLAMA_70B), {"data": 2, "model": 8}, "tpu-v6e"),
    "middle": (Sizes(MIDDLE, 64, 64, 16, 1024), {"data": 2, "model": 8}, "tpu-v6e"),
    "small": (Sizes(SMALL, 8, 4, 4, 32), {"data": 4, "model": 2}, "tpu-v5e"),
}


def paged_attention(q: jax.Array, cache: Any, table: jax.Array, lengths: jax.Array) -> jax.Array:
    """One query a sequence: q [b, k, g, h], pages [pages, page, k, h], table [b, slots] -> [b, k, g, h]."""
    keys, values = (jnp.take(cache[name], table, axis=0, mode="clip") for name in ("keys", "values"))
    keys, values = (x.reshape(x.shape[0], -1, *x.shape[3:]) for x in (keys, values))  # [b, t, k, h]
    scores = jnp.einsum("bkgh,btkh->bkgt", q * q.shape[-1] ** -0.5, keys).astype(jnp.float32)
    seen = jnp.arange(keys.shape[1]) <= lengths[:, None]
    weights = jax.nn.softmax(jnp.where(seen[:, None, None, :], scores, -1e30), axis=-1).astype(values.dtype)
    return jnp.einsum("bkgt,btkh->bkgh", weights, values)


def block(s: Sizes, x: jax.Array, layer: Any, cache: Any, table: jax.Array, lengths: jax.Array) -> Any:
    """A layer for one token of each sequence, x [b, d]; its key and value are written into the page they belong to."""
    h = rms_norm(x, layer["attention_norm"])
    q = jnp.einsum("bd,dnh->bnh", h, layer["wq"])
    k = jnp.einsum("bd,dkh->bkh", h, layer["wk"])
    v = jnp.einsum("bd,dkh->bkh", h, layer["wv"])
    angles = rotary_angles(lengths, q.shape[-1])[:, None, :]
    page = jnp.take_along_axis(table, lengths[:, None] // s.page, axis=1, mode="clip")[:, 0]
    new = {"keys": rotary(k, angles), "values": v}
    cache = {name: cache[name].at[page, lengths % s.page].set(new[name], mode="drop") for name in cache}
    grouped = rotary(q, angles).reshape(x.shape[0], k.shape[1], -1, k.shape[2])
    mixed = paged_attention(grouped, cache, table, lengths).reshape(q.shape)
    x = x + jnp.einsum("bnh,nhd->bd", mixed, layer["wo"])
    return x + feed_forward(rms_norm(x, layer["mlp_norm"]), layer), cache


def build(scale: str) -> Built:
    sizes, mesh, device = SCALES[scale]
    d = sizes.decoder

    def decode_step(cache: Any, params: Any, tokens: jax.Array, table: jax.Array, lengths: jax.Array) -> Any:
        x = jnp.take(params["embed"], tokens, axis=0, mode="clip")

        def layer(x: jax.Array, pair: Any) -> Any:
            return block(sizes, x, *pair, table, lengths)

        x, cache = jax.lax.scan(layer, x, (params["layers"], cache))
        logits = jnp.einsum("bd,dv->bv", rms_norm(x, params["final_norm"]), params["unembed"])
        return cache, jnp.argmax(logits.astype(jnp.float32), axis=-1).astype(jnp.int32)

    pages = shapes.floats(d.layers, sizes.pages, sizes.page, d.kv_heads, d.head_dim, dtype=d.dtype)
    ids = shapes.integers(sizes.batch)
    table = shapes.integers(sizes.batch, sizes.slots)
    args = ({"keys": pages, "values": pages}, parameters(d, d.dtype), ids, table, ids)
    return decode_step, args, {"donate": (0,), "mesh": mesh, "device": device}
