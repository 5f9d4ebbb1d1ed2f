"""The designed programs: small ones, each of one class, over the shapes and types that models have.

Every third of a class is held out of the fit. None of them is of a model that estimates are judged by.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

BF16, F32, I8, I32 = jnp.bfloat16, jnp.float32, jnp.int8, jnp.int32
_HELD_OUT = 3
_LETTER = {BF16: "bf16", F32: "f32", I8: "i8", I32: "i32"}


@dataclass(frozen=True)
class Designed:
    """A program to compile: its class, its name within it, the function and the shapes of its arguments."""

    group: str
    name: str
    fn: Callable[..., Any]
    args: tuple[jax.ShapeDtypeStruct, ...]
    held_out: bool = False

    @property
    def key(self) -> str:
        """A name that no other designed program has."""
        return f"{self.group}/{self.name}"


def designed() -> list[Designed]:
    """All designed programs, with every third of each class held out."""
    found: dict[str, list[Designed]] = {}
    for group, name, fn, args in itertools.chain.from_iterable(make() for make in _MAKERS):
        members = found.setdefault(group, [])
        members.append(Designed(group, name, fn, tuple(args), len(members) % _HELD_OUT == 1))
    return [program for members in found.values() for program in members]


Made = Iterator[tuple[str, str, Callable[..., Any], Sequence[jax.ShapeDtypeStruct]]]


def _array(*shape: int, dtype: Any = BF16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def _dims(*sizes: int) -> str:
    return "x".join(map(str, sizes))


# Products.


def _product(out: Any) -> Callable[..., Any]:
    def product(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.dot(x, w, preferred_element_type=out)

    return product


_LARGE = [(4096, 4096, 4096), (2048, 2048, 8192), (2048, 8192, 2048), (16384, 1024, 4096), (4096, 1024, 1024)]
_LARGE += [(1024, 1024, 1024), (512, 2048, 512), (8192, 768, 3072), (16384, 3072, 768), (1536, 6144, 1536)]
_DEPTHS = [64, 96, 128, 192, 256, 512, 1024, 2048]
_FEW = [1, 8, 16, 64, 128, 256]
_NARROW = [8, 32, 64, 128, 200, 256]


def _products() -> Made:
    for (m, k, n), (given, out) in itertools.product(_LARGE, [(BF16, BF16), (BF16, F32), (F32, F32), (I8, I32)]):
        name = f"{_dims(m, k, n)} {_LETTER[given]} {_LETTER[out]}"
        yield "product, large", name, _product(out), [_array(m, k, dtype=given), _array(k, n, dtype=given)]
    for (m, n), (given, out) in zip(
        [(4096, 4096), (16384, 1024), (4096, 4096)], [(BF16, BF16), (BF16, F32), (F32, F32)], strict=True
    ):
        for k in _DEPTHS:
            name = f"{_dims(m, k, n)} {_LETTER[given]} {_LETTER[out]}"
            yield "product, shallow", name, _product(out), [_array(m, k, dtype=given), _array(k, n, dtype=given)]
    for m, (k, n), given in itertools.product(_FEW, [(4096, 4096), (1024, 8192)], [BF16, F32]):
        name = f"{_dims(m, k, n)} {_LETTER[given]}"
        yield "product, few rows", name, _product(given), [_array(m, k, dtype=given), _array(k, n, dtype=given)]
    for n, (m, k), given in itertools.product(_NARROW, [(8192, 4096), (65536, 256)], [BF16, F32]):
        name = f"{_dims(m, k, n)} {_LETTER[given]}"
        yield "product, few columns", name, _product(given), [_array(m, k, dtype=given), _array(k, n, dtype=given)]
    for (m, k, n), given in itertools.product(_LARGE[::3], [BF16, F32]):  # as gradients of weights
        name = f"{_dims(m, k, n)} {_LETTER[given]} transposed"
        args = [_array(k, m, dtype=given), _array(k, n, dtype=given)]
        yield "product, transposed", name, lambda x, w: jnp.einsum("km,kn->mn", x, w), args
        args = [_array(m, k, dtype=given), _array(n, k, dtype=given)]
        yield "product, transposed", f"{name} right", lambda x, w: jnp.einsum("mk,nk->mn", x, w), args


_HEADS = [(8, 16, 1024, 64), (8, 16, 1024, 128), (16, 8, 512, 64), (32, 12, 256, 64), (64, 12, 196, 64)]
_HEADS += [(64, 8, 128, 64), (64, 4, 64, 128), (4, 8, 2048, 128), (16, 16, 256, 80), (128, 4, 64, 32)]
_SCORES = ["bthd,bshd->bhts", "bhtd,bhsd->bhts"]
_WEIGHTED = ["bhts,bshd->bthd", "bhts,bhsd->bhtd"]


def _einsum(formula: str, out: Any) -> Callable[..., Any]:
    def product(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.einsum(formula, x, y, preferred_element_type=out)

    return product


def _attention_shapes(formula: str, b: int, h: int, t: int, d: int) -> list[tuple[int, ...]]:
    size = {"b": b, "h": h, "t": t, "s": t, "d": d}
    return [tuple(size[c] for c in part) for part in formula.split("->")[0].split(",")]


def _batched_products() -> Made:
    for heads, (given, out) in itertools.product(_HEADS, [(BF16, BF16), (BF16, F32), (F32, F32)]):
        for what, formulas in (("scores", _SCORES), ("weighted sums", _WEIGHTED)):
            for formula in formulas[(given == F32) :] if given == out else formulas[1:]:
                name = f"{_dims(*heads)} {formula} {_LETTER[given]} {_LETTER[out]}"
                args = [_array(*shape, dtype=given) for shape in _attention_shapes(formula, *heads)]
                yield f"attention, {what}", name, _einsum(formula, out), args
    for b, h, t, d in _HEADS[::3]:  # one query, as in decoding
        given = BF16
        for formula in ("bhd,bshd->bhs", "bhs,bshd->bhd"):
            args = [_array(*shape, dtype=given) for shape in _attention_shapes(formula, b, h, t, d)]
            yield "attention, one query", f"{_dims(b, h, t, d)} {formula}", _einsum(formula, given), args
    for e, c, k, n in [(8, 1024, 1024, 4096), (16, 512, 1024, 2048), (64, 128, 512, 512), (32, 256, 1024, 1024)]:
        for given in (BF16, F32):
            args = [_array(e, c, k, dtype=given), _array(e, k, n, dtype=given)]
            yield "product, experts", f"{_dims(e, c, k, n)} {_LETTER[given]}", _einsum("eck,ekn->ecn", given), args
    for n, m in [(4096, 64), (16384, 32), (1024, 128), (65536, 16), (512, 256)]:  # many small ones
        for given in (BF16, F32):
            args = [_array(n, m, m, dtype=given), _array(n, m, m, dtype=given)]
            yield "product, many small", f"{_dims(n, m)} {_LETTER[given]}", _einsum("nij,njk->nik", given), args


def _gelu(x: jax.Array, w: jax.Array, b: jax.Array) -> jax.Array:
    return jax.nn.gelu(jnp.dot(x, w) + b)


def _swiglu(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
    return jax.nn.silu(jnp.dot(x, w)) * jnp.dot(x, v)


def _residual(x: jax.Array, w: jax.Array, r: jax.Array) -> jax.Array:
    return r + jnp.dot(x, w)


def _scaled_in(x: jax.Array, w: jax.Array, s: jax.Array) -> jax.Array:
    return jnp.dot(jax.nn.relu(x) * s, w)


def _row_sums(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.sum(jnp.dot(x, w, preferred_element_type=F32), axis=-1)


def _updated(x: jax.Array, g: jax.Array, w: jax.Array) -> jax.Array:
    return w - 0.1 * jnp.einsum("km,kn->mn", x, g, preferred_element_type=F32)


def _fused_products() -> Made:
    for m, k, n in [(4096, 1024, 4096), (2048, 4096, 1024), (16384, 256, 1024)]:
        for given in (BF16, F32):
            x, w = _array(m, k, dtype=given), _array(k, n, dtype=given)
            end = f"{_dims(m, k, n)} {_LETTER[given]}"
            yield "product, fused", f"gelu {end}", _gelu, [x, w, _array(n, dtype=given)]
            yield "product, fused", f"swiglu {end}", _swiglu, [x, w, w]
            yield "product, fused", f"residual {end}", _residual, [x, w, _array(m, n, dtype=given)]
            yield "product, fused", f"scaled {end}", _scaled_in, [x, w, _array(k, dtype=given)]
            yield "product, fused", f"row sums {end}", _row_sums, [x, w]
            args = [_array(m, k, dtype=given), _array(m, n, dtype=given), _array(k, n, dtype=F32)]
            yield "product, fused", f"updated {end}", _updated, args


# Parts of layers, forward and backward.


def _attention(masked: bool, wide: bool) -> Callable[..., Any]:
    def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        b, t, _, d = q.shape
        grouped = q.reshape(b, t, k.shape[2], -1, d)
        scores = jnp.einsum("btkgd,bskd->bkgts", grouped, k, preferred_element_type=F32 if wide else q.dtype) * d**-0.5
        if masked:
            scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -1e9)
        weights = jax.nn.softmax(scores.astype(F32), axis=-1).astype(q.dtype)
        return jnp.einsum("bkgts,bskd->btkgd", weights, v).reshape(q.shape)

    return attention


def _feed_forward(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
    return jax.nn.gelu(x @ w.astype(x.dtype)) @ v.astype(x.dtype)


def _gated(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
    gate, up = jnp.split(x @ w.astype(x.dtype), 2, -1)
    return (jax.nn.silu(gate) * up) @ v.astype(x.dtype)


def _rotary(x: jax.Array, angles: jax.Array) -> jax.Array:
    first, second = jnp.split(x.astype(F32), 2, -1)
    sine, cosine = jnp.sin(angles)[:, None], jnp.cos(angles)[:, None]
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1).astype(x.dtype)


def _label_loss(x: jax.Array, table: jax.Array, labels: jax.Array) -> jax.Array:
    logits = (x @ table.astype(x.dtype)).astype(F32)
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1))


def _embedding_gradient(g: jax.Array, tokens: jax.Array, table: jax.Array) -> jax.Array:
    return table - 0.1 * jnp.zeros_like(table).at[tokens].add(g.astype(table.dtype))


def _all_gradients(fn: Callable[..., Any], count: int) -> Callable[..., Any]:
    def gradients(g: jax.Array, *args: jax.Array) -> Any:
        return jax.vjp(lambda *changed: fn(*changed, *args[count:]), *args[:count])[1](g)

    return gradients


_WHOLE = [(8, 1024, 16, 16, 64), (32, 256, 12, 12, 64), (4, 2048, 8, 2, 128), (64, 196, 12, 12, 64)]
_WHOLE += [(64, 128, 8, 8, 64), (16, 512, 8, 8, 128), (4, 1024, 8, 1, 256)]


def _layers() -> Made:
    for (b, t, h, few, d), given, masked in itertools.product(_WHOLE, [BF16, F32], [True, False]):
        q, k = _array(b, t, h, d, dtype=given), _array(b, t, few, d, dtype=given)
        fn = _attention(masked, wide=h != few)
        end = f"{_dims(b, t, h, few, d)} {_LETTER[given]}{' masked' if masked else ''}"
        yield "attention, whole", end, fn, [q, k, k]
        yield "attention, backward", end, _all_gradients(fn, 3), [q, q, k, k]
    for (m, k, n), given in itertools.product(
        [(8192, 1024, 4096), (16384, 768, 3072), (4096, 2048, 5632)], [BF16, F32]
    ):
        x, v, end = _array(m, k, dtype=given), _array(n, k, dtype=F32), f"{_dims(m, k, n)} {_LETTER[given]}"
        for what, fn, w in (
            ("gelu", _feed_forward, _array(k, n, dtype=F32)),
            ("gated", _gated, _array(k, 2 * n, dtype=F32)),
        ):
            yield "feed forward", f"{what} {end}", fn, [x, w, v]
            yield "feed forward, backward", f"{what} {end}", _all_gradients(fn, 3), [x, x, w, v]
    for (b, t, h, d), given in itertools.product(
        [(8, 1024, 16, 64), (4, 2048, 16, 128), (8, 512, 8, 256)], [BF16, F32]
    ):
        x, end = _array(b, t, h, d, dtype=given), f"{_dims(b, t, h, d)} {_LETTER[given]}"
        yield "rotary", end, _rotary, [x, _array(t, d // 2, dtype=F32)]
        yield "rotary", f"backward {end}", _all_gradients(_rotary, 1), [x, x, _array(t, d // 2, dtype=F32)]
    for (n, k, vocabulary), given in itertools.product(
        [(4096, 1024, 32000), (2048, 768, 50257), (8192, 512, 8192)], [BF16, F32]
    ):
        args = [_array(n, k, dtype=given), _array(k, vocabulary, dtype=F32), _array(n, dtype=I32)]
        end = f"{_dims(n, k, vocabulary)} {_LETTER[given]}"
        yield "loss by labels", end, _label_loss, args
        yield "loss by labels", f"backward {end}", jax.grad(_label_loss, (0, 1)), args
    for (rows, width), count, given in itertools.product(
        [(50257, 768), (32000, 2048), (8192, 512)], [4096, 16384], [BF16, F32]
    ):
        args = [_array(count, width, dtype=given), _array(count, dtype=I32), _array(rows, width, dtype=F32)]
        yield "embedding, backward", f"{rows}x{width} {count} {_LETTER[given]}", _embedding_gradient, args


# Elementwise, reductions, norms.

_CHAINS: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "multiply add": lambda x, y: x * y + y,
    "long chain": lambda x, y: jnp.maximum(x * y + y, 0) * (x - y) + (x + 2) * (y - 3) + jnp.minimum(x, y),
    "exp": lambda x, y: jnp.exp(x) + y,
    "tanh": lambda x, y: jnp.tanh(x) * y,
    "divide": lambda x, y: x / (jnp.abs(y) + 1),
    "rsqrt": lambda x, y: lax.rsqrt(x) * y,
    "log": lambda x, y: jnp.log(x) * y,
    "logistic": lambda x, y: jax.nn.sigmoid(x) * y,
    "gelu": lambda x, y: jax.nn.gelu(x) + y,
    "erf": lambda x, y: lax.erf(x) + y,
    "select": lambda x, y: jnp.where(x > y, x, -y),
    "sine": lambda x, y: jnp.sin(x) * y,
}
_PLANES = [(4096, 4096), (16384, 1024), (64, 512, 768)]


def _elementwise() -> Made:
    for (what, fn), shape, given in itertools.product(_CHAINS.items(), _PLANES[::2], [BF16, F32]):
        cheap = what in ("add", "multiply add", "long chain", "select")
        group = "elementwise, cheap" if cheap else "elementwise, expensive"
        yield group, f"{what} {_dims(*shape)} {_LETTER[given]}", fn, [_array(*shape, dtype=given)] * 2
    for shape in _PLANES[:3]:
        yield "elementwise, cheap", f"to f32 {_dims(*shape)}", lambda x: x.astype(F32), [_array(*shape)]
        yield "elementwise, cheap", f"to bf16 {_dims(*shape)}", lambda x: x.astype(BF16), [_array(*shape, dtype=F32)]
    for n in (1 << 20, 1 << 24):
        f32 = _array(n, dtype=F32)
        yield "elementwise, optimizer", f"adam {n}", _adam, [f32, f32, f32, f32]
    for shape in _PLANES[:2]:
        f32 = _array(*shape, dtype=F32)
        yield "elementwise, optimizer", f"adam {_dims(*shape)}", _adam, [f32, f32, f32, f32]
        yield "elementwise, optimizer", f"momentum {_dims(*shape)}", _momentum, [f32, f32, f32]


def _adam(p: jax.Array, g: jax.Array, m: jax.Array, v: jax.Array) -> tuple[jax.Array, ...]:
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v


def _momentum(p: jax.Array, g: jax.Array, m: jax.Array) -> tuple[jax.Array, ...]:
    m = 0.9 * m + g
    return p - 1e-3 * m, m


def _layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    wide = x.astype(F32)
    mean = wide.mean(-1, keepdims=True)
    centred = wide - mean
    return (centred * lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-6) * scale + bias).astype(x.dtype)


def _rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    wide = x.astype(F32)
    return (wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


def _masked_softmax(x: jax.Array) -> jax.Array:
    seen = jnp.tril(jnp.ones(x.shape[-2:], bool))
    return jax.nn.softmax(jnp.where(seen, x, -1e9), axis=-1)


def _loss_of(fn: Callable[..., Any]) -> Callable[..., Any]:
    def backward(x: jax.Array, g: jax.Array, *rest: jax.Array) -> Any:
        return jax.vjp(lambda x: fn(x, *rest), x)[1](g)

    return backward


_ROWS = [(16384, 1024), (4096, 4096), (32, 512, 768), (65536, 256)]
_MAPS = [(4, 16, 1024, 1024), (32, 12, 256, 256), (64, 12, 196, 196), (64, 8, 128, 128), (2, 8, 2048, 2048)]


def _norms() -> Made:
    for shape, given in itertools.product(_ROWS, [BF16, F32]):
        x, s = _array(*shape, dtype=given), _array(shape[-1], dtype=F32)
        end = f"{_dims(*shape)} {_LETTER[given]}"
        yield "layer norm", f"layer norm {end}", _layer_norm, [x, s, s]
        yield "layer norm", f"backward {end}", _loss_of(_layer_norm), [x, x, s, s]
        yield "layer norm", f"rms norm {end}", _rms_norm, [x, s]
        yield "layer norm", f"rms backward {end}", _loss_of(_rms_norm), [x, x, s]
    for shape, given in itertools.product([*_MAPS, _ROWS[1]], [BF16, F32]):
        x, end = _array(*shape, dtype=given), f"{_dims(*shape)} {_LETTER[given]}"
        yield "softmax", f"softmax {end}", jax.nn.softmax, [x]
        yield "softmax", f"backward {end}", _loss_of(jax.nn.softmax), [x, x]
        if len(shape) == 4:
            yield "softmax", f"masked {end}", _masked_softmax, [x]
            yield "softmax", f"in f32 {end}", lambda x: jax.nn.softmax(x.astype(F32)).astype(BF16), [x]


_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum of last": lambda x: jnp.sum(x, -1),
    "sum of first": lambda x: jnp.sum(x, 0),
    "sum of all": jnp.sum,
    "max of last": lambda x: jnp.max(x, -1),
    "max of first": lambda x: jnp.max(x, 0),
    "squares of last": lambda x: jnp.sum(x * x, -1),
    "squares of first": lambda x: jnp.sum(x * x, 0),
    "argmax": lambda x: jnp.argmax(x, -1),
    "sums of both": lambda x: (jnp.sum(x, -1), jnp.sum(x * x, -1)),
    "log sum exp": lambda x: jax.nn.logsumexp(x, -1),
}


def _reductions() -> Made:
    for (what, fn), shape, given in itertools.product(_REDUCTIONS.items(), [_ROWS[0], (512, 32768)], [BF16, F32]):
        kind = "along first" if "first" in what else "along last"
        yield f"reduction, {kind}", f"{what} {_dims(*shape)} {_LETTER[given]}", fn, [_array(*shape, dtype=given)]
    for shape in [(64, 128, 1024), (256, 64, 512), (8, 1024, 2048)]:
        for given in (BF16, F32):
            x = _array(*shape, dtype=given)
            name = f"middle {_dims(*shape)} {_LETTER[given]}"
            yield "reduction, along first", name, lambda x: jnp.sum(x, 1), [x]


# What moves data.


def _moves() -> Made:
    for (rows, width), count, given in itertools.product(
        [(50257, 768), (32000, 4096), (1024, 128)], [4096, 65536], [BF16, F32]
    ):
        if count * width > 1 << 27:
            continue
        name = f"{rows}x{width} {count} {_LETTER[given]}"
        args = [_array(rows, width, dtype=given), _array(count, dtype=I32)]
        yield "gather", name, lambda t, i: t[i], args
        args = [*args, _array(count, width, dtype=given)]
        yield "scatter", name, lambda t, i, u: t.at[i].add(u), args
        if rows < 50000:
            held = rows
            yield "segment sum", name, lambda i, u, held=held: jax.ops.segment_sum(u, i, held), args[1:]
    for n, vocabulary in ((4096, 32000), (16384, 1024)):
        taken = [_array(n, vocabulary, dtype=F32), _array(n, dtype=I32)]
        yield "gather", f"along {n}x{vocabulary}", lambda x, i: jnp.take_along_axis(x, i[:, None], 1), taken
        yield "one hot", f"{n}x{vocabulary}", lambda i, v=vocabulary: jax.nn.one_hot(i, v), taken[1:]
        yield "one hot", f"loss {n}x{vocabulary}", _cross_entropy, taken
    orders = [((8, 1024, 16, 64), (0, 2, 1, 3)), ((8, 1024, 16, 128), (0, 2, 1, 3)), ((4096, 4096), (1, 0))]
    orders += [((64, 512, 768), (0, 2, 1)), ((64, 512, 768), (1, 0, 2)), ((8, 16, 1024, 64), (0, 1, 3, 2))]
    orders += [((16, 256, 12, 64), (0, 2, 3, 1)), ((128, 56, 56, 64), (0, 3, 1, 2))]
    for (shape, order), given in itertools.product(orders, [BF16, F32]):
        name = f"{_dims(*shape)} {order} {_LETTER[given]}"
        yield "transpose", name, lambda x, order=order: jnp.transpose(x, order), [_array(*shape, dtype=given)]
    reshapes = [((8192, 1024), (8192, 16, 64)), ((8, 1024, 16, 64), (8192, 1024)), ((64, 64, 768), (4096, 768))]
    reshapes += [((8192, 1024), (8192, 8, 128)), ((4096, 4096), (16777216,)), ((256, 196, 768), (50176, 768))]
    for (shape, into), given in itertools.product(reshapes, [BF16, F32]):
        name = f"{_dims(*shape)} to {_dims(*into)} {_LETTER[given]}"
        yield "reshape", name, lambda x, into=into: jnp.reshape(x, into), [_array(*shape, dtype=given)]
    for shape, given in itertools.product([(8, 1024, 1024), (4096, 4096)], [BF16, F32]):
        x, end = _array(*shape, dtype=given), f"{_dims(*shape)} {_LETTER[given]}"
        yield "concatenate", f"last {end}", lambda x, y: jnp.concatenate([x, y], -1), [x, x]
        yield "concatenate", f"first {end}", lambda x, y: jnp.concatenate([x, y], 0), [x, x]
        yield "concatenate", f"pad {end}", lambda x: jnp.pad(x, ((0, 0),) * (x.ndim - 1) + ((3, 5),)), [x]
        yield "concatenate", f"slice {end}", lambda x: x[..., 128:640], [x]
        yield "concatenate", f"rotary {end}", _rotated, [x]


def _rotated(x: jax.Array) -> jax.Array:
    half = x.shape[-1] // 2
    return jnp.concatenate([-x[..., half:], x[..., :half]], -1) * 2 + x


def _cross_entropy(x: jax.Array, labels: jax.Array) -> jax.Array:
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(x) * jax.nn.one_hot(labels, x.shape[-1]), -1))


# Convolutions.

_CONVOLUTIONS = [(32, 56, 64, 64, 3, 1), (64, 14, 256, 256, 3, 1), (32, 64, 128, 256, 3, 2), (16, 32, 512, 512, 3, 1)]
_CONVOLUTIONS += [(64, 28, 256, 64, 1, 1), (32, 224, 3, 64, 7, 2)]


def _convolution(stride: int, groups: int = 1) -> Callable[..., Any]:
    def convolution(x: jax.Array, w: jax.Array) -> jax.Array:
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(
            x, w, (stride, stride), "SAME", dimension_numbers=numbers, feature_group_count=groups
        )

    return convolution


def _gradient(fn: Callable[..., Any], which: int) -> Callable[..., Any]:
    def backward(x: jax.Array, w: jax.Array, g: jax.Array) -> Any:
        return jax.vjp(fn, x, w)[1](g)[which]

    return backward


def _convolutions() -> Made:
    for (b, side, given_width, width, window, stride), given in itertools.product(_CONVOLUTIONS, [BF16, F32]):
        x, w = _array(b, side, side, given_width, dtype=given), _array(window, window, given_width, width, dtype=given)
        g = _array(b, side // stride, side // stride, width, dtype=given)
        fn, end = _convolution(stride), f"{_dims(b, side, given_width, width, window, stride)} {_LETTER[given]}"
        yield "convolution", end, fn, [x, w]
        yield "convolution, backward", f"inputs {end}", _gradient(fn, 0), [x, w, g]
        yield "convolution, backward", f"weights {end}", _gradient(fn, 1), [x, w, g]
    for b, side, width in ((32, 56, 128), (64, 14, 512)):
        x, w = _array(b, side, side, width), _array(3, 3, 1, width)
        fn = _convolution(1, width)
        yield "convolution, depthwise", _dims(b, side, width), fn, [x, w]
        yield "convolution, depthwise", f"inputs {_dims(b, side, width)}", _gradient(fn, 0), [x, w, x]
    for b, length, width in ((8, 2048, 1024), (16, 1024, 512)):
        x, w = _array(b, length, width), _array(4, 1, width)

        def causal(x: jax.Array, w: jax.Array) -> jax.Array:
            numbers = ("NWC", "WIO", "NWC")
            return lax.conv_general_dilated(
                x, w, (1,), [(3, 0)], dimension_numbers=numbers, feature_group_count=x.shape[-1]
            )

        yield "convolution, depthwise", f"causal {_dims(b, length, width)}", causal, [x, w]


# Loops, orders, random numbers.


def _scanned(x: jax.Array, w: jax.Array) -> jax.Array:
    return lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, w)[0]


def _cached(cache: jax.Array, x: jax.Array) -> jax.Array:
    def body(k: int, cache: jax.Array) -> jax.Array:
        part = lax.dynamic_index_in_dim(cache, k, 0, keepdims=False) + x
        return lax.dynamic_update_index_in_dim(cache, part, k, 0)

    return lax.fori_loop(0, cache.shape[0], body, cache)


def _loops() -> Made:
    for layers, rows, width in ((8, 1024, 1024), (12, 4096, 768), (16, 256, 512), (4, 64, 2048)):
        for given in (BF16, F32):
            args = [_array(rows, width, dtype=given), _array(layers, width, width, dtype=given)]
            yield "loop of products", f"{_dims(layers, rows, width)} {_LETTER[given]}", _scanned, args
    for layers, shape in ((8, (1024, 1024)), (12, (16, 128, 768)), (4, (4096, 1024)), (6, (8, 512, 1024))):
        args = [_array(layers, *shape), _array(*shape)]
        yield "loop of slices", f"{layers} {_dims(*shape)}", _cached, args
    for rows, width in ((4096, 1024), (65536, 64)):
        x = _array(rows, width, dtype=F32)
        yield "sort", f"sort {_dims(rows, width)}", lambda x: jnp.sort(x, -1), [x]
        yield "sort", f"top {_dims(rows, width)}", lambda x: lax.top_k(x, 8), [x]
        yield "cumulative sum", f"last {_dims(rows, width)}", lambda x: jnp.cumsum(x, -1), [x]
        yield "cumulative sum", f"first {_dims(rows, width)}", lambda x: jnp.cumsum(x, 0), [x]
    key = jax.ShapeDtypeStruct((2,), jnp.uint32)
    for shape in ((4096, 4096), (64, 512, 768)):
        name = _dims(*shape)
        yield "random", f"bits {name}", lambda k, s=shape: jax.random.bits(k, s), [key]
        yield "random", f"normal {name}", lambda k, s=shape: jax.random.normal(k, s), [key]
        yield "random", f"bernoulli {name}", lambda k, s=shape: jax.random.bernoulli(k, 0.1, s), [key]


_MAKERS = (
    _products,
    _batched_products,
    _fused_products,
    _layers,
    _elementwise,
    _norms,
    _reductions,
    _moves,
    _convolutions,
    _loops,
)


def moved_bytes(program: Designed) -> int:
    """The bytes of all arguments."""
    return sum(math.prod(a.shape) * a.dtype.itemsize for a in program.args)
