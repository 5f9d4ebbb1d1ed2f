"""The Pallas TPU kernels that ship with JAX, each in a program that calls it, and what their grids can be split by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu import all_gather, example_kernel, matmul
from jax.experimental.pallas.ops.tpu.flash_attention import BlockSizes, flash_attention
from jax.experimental.pallas.ops.tpu.megablox import ops as megablox
from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention
from jax.experimental.pallas.ops.tpu.random import philox, threefry
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.sharding import Mesh

import shardwright as sw

Program = tuple[str, Callable[..., Any], tuple[Any, ...]]


def array(*shape: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def gradient(attention: Callable[..., Any]) -> Callable[..., Any]:
    """Forward and backward, so that all kernels of an attention are called."""

    def loss(q: Any, k: Any, v: Any) -> Any:
        return (attention(q, k, v).astype(jnp.float32) ** 2).sum()

    return jax.value_and_grad(loss, argnums=(0, 1, 2))


def flash(q: Any, k: Any, v: Any, sizes: BlockSizes | None = None) -> Any:
    return flash_attention(q, k, v, causal=True, block_sizes=sizes)


def splash_attention(make: Any, q: Any, k: Any, v: Any, window: int = 0, **sizes: Any) -> Any:
    heads, length = q.shape[1], q.shape[2]
    one = masks.LocalMask((length, length), (window, 0), 0) if window else masks.CausalMask((length, length))
    blocks = splash.BlockSizes(**sizes) if sizes else None
    kernel = make(masks.MultiHeadMask([one] * heads), head_shards=1, q_seq_shards=1, block_sizes=blocks)
    return jax.vmap(kernel)(q, k, v)


_SIZES = "block_q", "block_kv", "block_kv_compute", "block_q_dkv", "block_kv_dkv", "block_kv_dkv_compute"
FUSED = {**dict.fromkeys(_SIZES, 512), "use_fused_bwd_kernel": True}


def gathered(x: Any) -> Any:
    devices = np.array(jax.devices())
    mesh = Mesh(devices, ("x",))
    return all_gather.all_gather(x, mesh=mesh, axis_name="x", memory_space=all_gather.pltpu.VMEM)


def programs() -> Iterator[Program]:
    """A name, a function and its arguments, for each."""
    q = array(8, 16, 2048, 128)
    grouped = array(8, 4, 2048, 128)
    yield "flash attention, forward and backward", gradient(flash), (q, q, q)
    short = array(8, 16, 128, 128)
    yield "flash attention of one step", flash, (short, short, short)
    mha, mqa = splash.make_splash_mha, splash.make_splash_mqa
    yield "splash attention", gradient(partial(splash_attention, mha)), (q, q, q)
    yield "splash attention in a window", gradient(partial(splash_attention, mha, window=512)), (q, q, q)
    yield "splash attention, grouped heads", gradient(partial(splash_attention, mha)), (q, grouped, grouped)
    yield "splash attention, backward in one", gradient(partial(splash_attention, mha, **FUSED)), (q, q, q)
    single = array(8, 2048, 128)
    yield "splash attention, one head of keys", gradient(partial(splash_attention, mqa)), (q, single, single)
    pages, lengths = array(8, 512, 16, 128), array(32, dtype=jnp.int32)
    given = array(32, 32, 128), pages, pages, lengths, array(32, 64, dtype=jnp.int32)
    for inline in (True, False):
        name = f"paged attention, {'a loop over' if inline else 'a grid index for'} the pages"
        yield name, partial(paged_attention, pages_per_compute_block=8, inline_seq_dim=inline), given
    ragged = (
        array(512, 32, 128), array(512, 16, 16, 128), lengths, array(32, 16, dtype=jnp.int32),
        array(33, dtype=jnp.int32), array(1, dtype=jnp.int32),
    )  # fmt: skip
    yield (
        "ragged paged attention",
        partial(ragged_paged_attention, num_kv_pages_per_block=4, num_queries_per_block=32),
        ragged,
    )
    groups = array(8, dtype=jnp.int32)

    def grouped_product(left: Any, right: Any, sizes: Any) -> Any:
        return (megablox.gmm(left, right, sizes, jnp.float32, (128, 128, 128)) ** 2).sum()

    products = array(2048, 512), array(8, 512, 1024), groups
    yield "megablox, forward and backward", jax.value_and_grad(grouped_product, argnums=(0, 1)), products
    for dtype in (jnp.bfloat16, jnp.float32):
        x = array(2048, 2048, dtype=dtype)
        yield f"matmul to {jnp.dtype(dtype).name}", partial(matmul.matmul, block_shape=(256, 256)), (x, x)
    key = array(2, dtype=jnp.uint32)
    yield "random, threefry", lambda k: threefry.plthreefry_random_bits(k, 32, (2048, 2048)), (key,)
    yield "random, philox", lambda k: philox.philox_random_bits(k, 32, (2048, 2048)), (key,)
    yield "example", example_kernel.double, (array(1024, 1024),)
    yield "all_gather", gathered, (array(1024, 128, dtype=jnp.float32),)


def rows() -> Iterator[dict[str, Any]]:
    """One for each kernel of each program."""
    for name, fn, args in programs():
        found = sw.analyse(fn, *args, platform="tpu").kernels
        for note in found:
            yield {
                "shipped": name,
                "jax": jax.__version__,
                "kernel": note.name,
                "split": list(note.split),
                "whole": [list(each) for each in note.whole],
            }
        if not found:
            yield {"shipped": name, "jax": jax.__version__, "kernel": "", "split": [], "whole": []}
