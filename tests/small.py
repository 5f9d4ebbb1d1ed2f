"""Programs so small that every state of theirs can be met: a search must find the best."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from programs import f32, i32

Small = tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]
"""A function, its arguments, and which of them it may overwrite."""


def bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def product(x: Any, w: Any) -> Any:
    return x @ w


def outer(x: Any, y: Any) -> Any:
    return jnp.outer(x, y)


def chain(x: Any, a: Any, b: Any) -> Any:
    return jax.nn.relu(x @ a) @ b


def tower(x: Any, a: Any, b: Any, c: Any) -> Any:
    return jnp.tanh(jnp.tanh(x @ a) @ b) @ c


def gram(x: Any) -> Any:
    return x @ x.T


def covariance(x: Any) -> Any:
    centred = x - x.mean(0)
    return centred.T @ centred / x.shape[0]


def attention(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(q @ k.T) @ v


def self_attention(x: Any) -> Any:
    return jax.nn.softmax(x @ x.T) @ x


def heads(q: Any, k: Any, v: Any) -> Any:
    weights = jax.nn.softmax(jnp.einsum("tnh,snh->nts", q, k))
    return jnp.einsum("nts,snh->tnh", weights, v)


def sgd(params: Any, x: Any, y: Any) -> Any:
    def loss(params: Any) -> Any:
        return jnp.mean((jax.nn.relu(x @ params["a"]) @ params["b"] - y) ** 2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


def momentum(state: Any, x: Any, y: Any) -> Any:
    grads = jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(state["w"])
    speed = 0.9 * state["m"] + grads
    return {"w": state["w"] - 0.1 * speed, "m": speed}


def linear(w: Any, x: Any, y: Any) -> Any:
    return jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)


def lookup(table: Any, ids: Any) -> Any:
    return jnp.tanh(table[ids])


def language(table: Any, ids: Any) -> Any:
    logits = table[ids] @ table.T
    return jax.nn.logsumexp(logits, -1).mean()


def repeated(x: Any, w: Any) -> Any:
    return lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, w)[0]


def power(x: Any, w: Any) -> Any:
    return lax.fori_loop(0, 8, lambda _, c: c @ w, x)


def convolution(x: Any, w: Any) -> Any:
    return jax.nn.relu(lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))


def experts(x: Any, w: Any) -> Any:
    return jax.nn.relu(jnp.einsum("ecd,edf->ecf", x, w))


def normalised(x: Any, scale: Any, w: Any) -> Any:
    return (x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True)) * scale) @ w


def pooled(x: Any, w: Any) -> Any:
    return jnp.max(x, axis=1) @ w


def bilinear(x: Any, w: Any, y: Any) -> Any:
    return jnp.einsum("bi,ijk,bj->bk", x, w, y)


def transposed(x: Any) -> Any:
    return jnp.sort(x.T @ x, axis=-1)


def messages(nodes: Any, sources: Any, targets: Any, w: Any) -> Any:
    sent = jax.nn.relu(nodes[sources] @ w)
    return jax.ops.segment_sum(sent, targets, num_segments=nodes.shape[0])


def decode(query: Any, keys: Any, values: Any) -> Any:
    return jax.nn.softmax(jnp.einsum("bh,bsh->bs", query, keys)) @ values


SMALL: dict[str, Small] = {
    "product": (product, (f32(1024, 4096), f32(4096, 2048)), ()),
    "product, narrow": (product, (bf16(65536, 512), bf16(512, 64)), ()),
    "outer": (outer, (f32(8192), f32(4096)), ()),
    "chain": (chain, (bf16(2048, 1024), bf16(1024, 4096), bf16(4096, 512)), ()),
    "chain, small batch": (chain, (bf16(16, 4096), bf16(4096, 16384), bf16(16384, 4096)), ()),
    "tower": (tower, (bf16(512, 1024), bf16(1024, 1024), bf16(1024, 1024), bf16(1024, 1024)), ()),
    "gram": (gram, (f32(4096, 1024),), ()),
    "covariance": (covariance, (f32(16384, 512),), ()),
    "attention": (attention, (bf16(2048, 128), bf16(8192, 128), bf16(8192, 128)), ()),
    "self-attention": (self_attention, (bf16(8192, 256),), ()),
    "heads": (heads, (bf16(2048, 16, 64), bf16(2048, 16, 64), bf16(2048, 16, 64)), ()),
    "sgd": (sgd, ({"a": f32(1024, 4096), "b": f32(4096, 256)}, f32(8192, 1024), f32(8192, 256)), (0,)),
    "sgd, small batch": (sgd, ({"a": f32(4096, 8192), "b": f32(8192, 4096)}, f32(64, 4096), f32(64, 4096)), (0,)),
    "momentum": (momentum, ({"w": f32(4096, 4096), "m": f32(4096, 4096)}, f32(512, 4096), f32(512, 4096)), (0,)),
    "linear": (linear, (f32(2048, 1024), f32(32768, 2048), f32(32768, 1024)), ()),
    "lookup": (lookup, (f32(65536, 512), i32(8192)), ()),
    "language": (language, (bf16(32768, 512), i32(64, 128)), ()),
    "repeated": (repeated, (bf16(2048, 1024), bf16(8, 1024, 1024)), ()),
    "power": (power, (f32(1024, 2048), f32(2048, 2048)), ()),
    "convolution": (convolution, (bf16(16, 64, 64, 128), bf16(3, 3, 128, 256)), ()),
    "experts": (experts, (bf16(8, 1024, 512), bf16(8, 512, 2048)), ()),
    "normalised": (normalised, (f32(8192, 1024), f32(1024), f32(1024, 4096)), ()),
    "pooled": (pooled, (f32(256, 128, 1024), f32(1024, 512)), ()),
    "bilinear": (bilinear, (f32(512, 256), f32(256, 256, 128), f32(512, 256)), ()),
    "transposed": (transposed, (f32(8192, 1024),), ()),
    "messages": (messages, (f32(4096, 512), i32(65536), i32(65536), f32(512, 512)), ()),
    "decode": (decode, (bf16(64, 128), bf16(64, 4096, 128), bf16(4096, 512)), ()),
}
MESHES: dict[str, dict[str, int]] = {
    "one axis": {"x": 8},
    "two axes": {"data": 4, "model": 2},
    "two other axes": {"data": 2, "model": 8},
    "three axes": {"a": 2, "b": 2, "c": 4},
}
