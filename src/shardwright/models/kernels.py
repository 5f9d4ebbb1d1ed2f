"""Attention by the Pallas kernels that JAX ships for TPUs, in the place of plain attention.

Letters in shapes are those of ``layers.py``; also p pages in all, m pages of a sequence, and q tokens of a page.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.custom_partitioning import custom_partitioning

Array = jax.Array

PLAIN, FLASH, SPLASH, PAGED = "plain", "flash", "splash", "paged"
PAGE = 64
"""Tokens of a page of the cache."""
_LANES = 128
"""What the kernels' blocks of a sequence are multiples of."""
_LARGEST_BLOCK = 512


def attention(kernel: str, q: Array, k: Array, v: Array, *, causal: bool) -> Array:
    """Attend from queries [b, s, n, h] to keys and values, as ``layers.attention`` does; returns [b, s, n, h].

    Sequences are padded to whole blocks of the kernel, with tokens that no other looks at.
    """
    length, head_dim = q.shape[1], q.shape[3]
    padding = -length % _LANES
    wide = -head_dim % _LANES if head_dim > _LANES else 0
    q, k, v = (_padded(x, padding, wide) for x in (q, k, v))
    if kernel == SPLASH:
        mixed = _splash(q * head_dim**-0.5, k, v)
    else:
        mixed = _flash(q, k, v, causal, head_dim**-0.5, length)
    return mixed[:, :length, :, :head_dim]


def _padded(x: Array, rows: int, features: int) -> Array:
    """A longer sequence of wider heads: x [b, s, ..., h]."""
    if not rows and not features:
        return x
    return jnp.pad(x, ((0, 0), (0, rows), *((0, 0),) * (x.ndim - 3), (0, features)))


def _flash(q: Array, k: Array, v: Array, causal: bool, scale: float, length: int) -> Array:
    from jax.experimental.pallas.ops.tpu import flash_attention as kernels  # takes a second

    heads, rows = q.shape[2], q.shape[1]
    block = _block(rows)
    sizes = kernels.BlockSizes(
        block_q=block,
        block_k_major=block,
        block_k=block,
        block_b=1,
        block_q_major_dkv=block,
        block_k_major_dkv=block,
        block_k_dkv=block,
        block_q_dkv=block,
        block_k_major_dq=block,
        block_k_dq=block,
        block_q_dq=block,
    )
    k, v = (_repeated(x, heads) for x in (k, v))
    segments = None
    if rows > length and not causal:  # causal queries come before all padding
        real = jnp.broadcast_to((jnp.arange(rows) < length).astype(jnp.int32), q.shape[:2])
        segments = kernels.SegmentIds(real, real)
    q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))
    mixed = kernels.flash_attention(q, k, v, segment_ids=segments, causal=causal, sm_scale=scale, block_sizes=sizes)
    return jnp.swapaxes(mixed, 1, 2)


def _splash(q: Array, k: Array, v: Array) -> Array:
    """Causal attention; query heads that share keys and values are a kernel's own heads."""
    shared = k.ndim == 3
    groups = q.shape[2] // (1 if shared else k.shape[2])
    q = jnp.swapaxes(q, 1, 2)  # [b, n, s, h]
    k, v = (x if shared else jnp.swapaxes(x, 1, 2) for x in (k, v))
    if shared:
        return jnp.swapaxes(jax.vmap(_splash_kernel(q.shape[1], q.shape[2], True))(q, k, v), 1, 2)
    if groups == 1:
        return jnp.swapaxes(jax.vmap(_splash_kernel(q.shape[1], q.shape[2], False))(q, k, v), 1, 2)
    grouped = q.reshape(q.shape[0], k.shape[1], groups, *q.shape[2:])
    mixed = jax.vmap(jax.vmap(_splash_kernel(groups, q.shape[2], True)))(grouped, k, v)
    return jnp.swapaxes(mixed.reshape(q.shape), 1, 2)


def _splash_kernel(heads: int, rows: int, shared: bool) -> Any:
    from jax.experimental.pallas.ops.tpu import splash_attention as kernels

    block = _block(rows)
    sizes = kernels.BlockSizes(
        block_q=block,
        block_kv=block,
        block_kv_compute=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_kv_dkv_compute=block,
        block_q_dq=block,
        block_kv_dq=block,
    )
    mask = kernels.MultiHeadMask([kernels.CausalMask((rows, rows))] * heads)
    make = kernels.make_splash_mqa if shared else kernels.make_splash_mha
    return make(mask, block_sizes=sizes, head_shards=1, q_seq_shards=1)


def _repeated(x: Array, heads: int) -> Array:
    """Keys or values once for each query head: [b, t, h] or [b, t, k, h] -> [b, t, n, h]."""
    if x.ndim == 3:
        return jnp.broadcast_to(x[:, :, None], (*x.shape[:2], heads, x.shape[2]))
    return jnp.repeat(x, heads // x.shape[2], axis=2)


def _block(rows: int) -> int:
    """The largest block, of some powers of two, that sequences of so many rows are whole ones of."""
    block = _LARGEST_BLOCK
    while rows % block:
        block //= 2
    return block


def paged_attention(q: Array, k: Array, v: Array, lengths: Array, pages: Array) -> Array:
    """Attend from one query a sequence to the pages of its cache.

    q [b, n, h], k and v [k, p, q, h], lengths [b], pages [b, m] -> [b, n, h]. The kernel has the number of heads and of
    sequences in it, so that no part of its grid could be run alone; the function says how it may be split instead.
    """
    out: Array = _paged()(q * q.shape[-1] ** -0.5, k, v, lengths, pages)
    return out


@cache
def _paged() -> Any:
    from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention as kernel

    def paged(q: Array, k: Array, v: Array, lengths: Array, pages: Array) -> Array:
        at_once = next(n for n in (8, 4, 2, 1) if pages.shape[1] % n == 0)
        out: Array = kernel(q, k, v, lengths, pages, pages_per_compute_block=at_once)
        return out

    def partition(mesh: Any, args: Any, result: Any) -> Any:
        return mesh, paged, result.sharding, tuple(arg.sharding for arg in args)

    def rule(_mesh: Any, operands: Any, _results: Any) -> tuple[str, dict[str, Any]]:
        groups = operands[0].shape[1] // operands[1].shape[0]
        heads = "(k g)" if groups > 1 else "k"
        whole = ("h", "p", "t", "m")  # in the order in which they stand in the rule
        text = f"b {heads} h, k p t h, k p t h, b, b m -> b {heads} h"
        return text, {"need_replication_factors": whole, **({"g": groups} if groups > 1 else {})}

    function: Any = custom_partitioning(paged)
    function.def_partition(partition, sharding_rule=rule)
    return function
