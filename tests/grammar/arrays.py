"""Steps that compute with every entry, contract, reduce, or move entries to other places."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from grammar.sketch import Sketch, apart

UNARY = {
    "tanh": jnp.tanh,
    "sin": jnp.sin,
    "logistic": lax.logistic,
    "rsqrt": lambda x: lax.rsqrt(1 + x * x),
    "log1p": lambda x: jnp.log1p(x * x),
    "leaky": lambda x: jnp.where(x > 0.12345, x, 0.1 * x),  # zeros are no matter of rounding
    "clip": lambda x: jnp.clip(x, -1.2345, 1.2345),
    "erf": lax.erf,
    "exp": lambda x: jnp.exp(jnp.tanh(x)),
    "power": lambda x: jnp.tanh(x) ** 3,
}
COMPLEX = {
    "conj": jnp.conj,
    "square": lambda z: z * z / (1 + z.real**2 + z.imag**2),
    "exp": lambda z: jnp.exp(1j * jnp.tanh(z.real)),
    "turn": lambda z: 1j * z,
}
BINARY = {
    "add": lambda x, y: 0.5 * x + y,
    "sub": lambda x, y: x - 0.5 * y,
    "mul": lambda x, y: jnp.tanh(x) * y,
    "div": lambda x, y: x / (1 + jnp.tanh(y) ** 2),
    "select": lambda x, y: jnp.where(lax.broadcasted_iota(jnp.int32, x.shape, 0) % 2 == 0, x, y),
}
KEEPS_DISTINCT = ("tanh", "sin", "log1p", "leaky")


def elementwise(s: Sketch) -> bool:
    i = s.pick()
    if s[i].dtype == "c":
        name = s.choose(sorted(COMPLEX))
        return s.step("elementwise", f" {name}", [i], COMPLEX[name])
    name = s.choose(sorted(UNARY))
    return s.step("elementwise", f" {name}", [i], UNARY[name], distinct=s[i].distinct and name in KEEPS_DISTINCT[:1])


def binary(s: Sketch) -> bool:
    i = s.pick()
    j = s.pick(s[i].dtype, fits=lambda t: t.shape == s[i].shape)
    name = s.choose(sorted(BINARY))
    if s.chance(0.3):  # by NumPy's broadcasting
        j = s.argument([1 if s.chance(0.4) else size for size in s[i].shape[s.integer(0, len(s[i].shape) - 1) :]])
    if s[i].dtype == "c":
        name = s.choose(["add", "sub"])
    return s.step("elementwise", f" {name}", [i, j], BINARY[name])


def make_complex(s: Sketch) -> bool:
    i = s.pick("fc")
    if s[i].dtype == "c":
        name, fn = s.choose(
            [("real", jnp.real), ("imag", jnp.imag), ("abs", lambda z: jnp.sqrt(z.real**2 + z.imag**2 + 1))]
        )
        return s.step("complex", f" {name}", [i], fn)
    j = s.pick("f", fits=lambda t: t.shape == s[i].shape)
    return s.step("complex", "", [i, j], lambda x, y: lax.complex(x, jnp.tanh(y)))


def fft(s: Sketch) -> bool:
    i = s.pick("fc", fits=lambda t: 0 not in t.shape and len(t.shape) > 0)
    if i < 0:
        return False
    axis = s.integer(0, len(s[i].shape) - 1)
    names = ["fft", "ifft"] if s[i].dtype == "c" else ["fft", "rfft"]
    name = s.choose(names)
    return s.step("fft", f" {name} {axis}", [i], lambda x: getattr(jnp.fft, name)(x, axis=axis, norm="ortho"))


def dot(s: Sketch) -> bool:
    i = s.pick()
    a = s[i].shape
    if s.chance(0.5):
        contracted = s.integer(0, len(a) - 1)
        j = s.argument(s.choose([(a[contracted], s.size()), (s.size(), a[contracted]), (a[contracted],)]), s[i].dtype)
    else:
        j = s.pick(s[i].dtype)
    b = s[j].shape
    free = [(x, y) for x in range(len(a)) for y in range(len(b)) if a[x] == b[y]]
    pairs: list[tuple[int, int]] = []
    while free and len(pairs) < 3 and (not pairs or s.chance(0.4)):
        x, y = s.choose(free)
        pairs.append((x, y))
        free = [(p, q) for p, q in free if p != x and q != y]
    batches = s.integer(0, len(pairs))
    batch, contract = pairs[:batches], pairs[batches:]
    numbers = (
        (tuple(x for x, _ in contract), tuple(y for _, y in contract)),
        (tuple(x for x, _ in batch), tuple(y for _, y in batch)),
    )
    scale = 1 / math.sqrt(max(1, math.prod(a[x] for x, _ in contract)))
    return s.step("dot", f" {numbers}", [i, j], lambda x, y: lax.dot_general(x, y, numbers) * scale)


REDUCTIONS = {
    "sum": lambda x, axes: jnp.sum(x, axes) * 0.4,
    "mean": jnp.mean,
    "var": lambda x, axes: jnp.var(x, axes) + 0.1,
    "prod": lambda x, axes: jnp.prod(1 + 0.1 * jnp.tanh(x), axes),
    "logsumexp": lambda x, axes: jax.nn.logsumexp(x, axes),
    "max": lambda x, axes: jnp.max(apart(x), axes),
    "min": lambda x, axes: jnp.min(apart(x), axes),
    "max_of_distinct": jnp.max,
}


def reduce(s: Sketch) -> bool:
    i = s.pick(ranks=(2, 3, 4, 5))
    rank = len(s[i].shape)
    axes = tuple(sorted(s.order(rank)[: s.choose([1, 1, 2]) if rank > 2 else 1]))
    names = ["sum"] if s[i].dtype == "c" or 0 in s[i].shape else sorted(REDUCTIONS)
    name = s.choose(names)
    if name == "max_of_distinct" and not s[i].distinct:
        name = "max"
    keep = s.chance(0.2)
    fn = REDUCTIONS[name]
    return s.step(
        "reduce", f" {name}{axes}", [i], lambda x: jnp.expand_dims(fn(x, axes), axes) if keep else fn(x, axes)
    )


def argmax(s: Sketch) -> bool:
    i = s.pick("f", ranks=(2, 3), fits=lambda t: 0 not in t.shape and len(t.shape) > 1)
    if i < 0:
        return False
    axis = s.integer(0, len(s[i].shape) - 1)
    how = s.choose([jnp.argmax, jnp.argmin])
    return s.step("argmax", f" {axis}", [i], lambda x: how(apart(x), axis=axis).astype(jnp.int32))


def softmax(s: Sketch) -> bool:
    i = s.pick("f", fits=lambda t: 0 not in t.shape and len(t.shape) > 0)
    if i < 0:
        return False
    axis = s.integer(0, len(s[i].shape) - 1)
    return s.step("softmax", f" {axis}", [i], lambda x: jax.nn.softmax(x, axis=axis) * x.shape[axis])


def transpose(s: Sketch) -> bool:
    i = s.pick(ranks=(2, 3, 4))
    order = s.order(len(s[i].shape))
    return s.step("transpose", f" {order}", [i], lambda x: jnp.transpose(x, order), s[i].distinct)


def reverse(s: Sketch) -> bool:
    i = s.pick()
    axes = s.order(len(s[i].shape))[: s.integer(1, 2)]
    return s.step("reverse", f" {axes}", [i], lambda x: lax.rev(x, axes), s[i].distinct)


def reshape(s: Sketch) -> bool:
    i = s.pick()
    shape = s[i].shape
    k = s.integer(0, len(shape) - 1)
    divisors = [d for d in range(2, shape[k]) if shape[k] % d == 0]
    if divisors and s.chance(0.6):
        d = s.choose(divisors)
        out: tuple[int, ...] = (*shape[:k], d, shape[k] // d, *shape[k + 1 :])
    elif k + 1 < len(shape):
        out = (*shape[:k], shape[k] * shape[k + 1], *shape[k + 2 :])
    else:
        out = (*shape[:k], 1, *shape[k:])
    return s.step("reshape", f" {out}", [i], lambda x: jnp.reshape(x, out), s[i].distinct)


def broadcast(s: Sketch) -> bool:
    i = s.pick(ranks=(0, 1, 2, 3))
    out = list(s[i].shape)
    place = s.integer(0, len(out))
    size = s.size()
    kept = [k if k < place else k + 1 for k in range(len(out))]
    out.insert(place, size)
    return s.step("broadcast", f" {out}", [i], lambda x: lax.broadcast_in_dim(x, out, kept))


def concatenate(s: Sketch) -> bool:
    i = s.pick()
    shape = s[i].shape
    axis = s.integer(0, len(shape) - 1)
    inputs = [i]
    for _ in range(s.integer(1, 2)):
        inputs.append(
            s.pick(
                s[i].dtype,
                fits=lambda t: (
                    len(t.shape) == len(shape)
                    and all(a == b for k, (a, b) in enumerate(zip(t.shape, shape, strict=True)) if k != axis)
                ),
            )
            if s.chance(0.6)
            else s.argument([*shape[:axis], s.size(), *shape[axis + 1 :]], s[i].dtype)
        )
    return s.step(
        "concatenate", f" {axis}", inputs, lambda *xs: jnp.concatenate([(k + 1) * x for k, x in enumerate(xs)], axis)
    )


def strided_slice(s: Sketch) -> bool:
    i = s.pick(fits=lambda t: 0 not in t.shape and len(t.shape) > 0)
    if i < 0:
        return False
    index: list[Any] = []
    for size in s[i].shape:
        if s.chance(0.5):
            index.append(slice(None))
            continue
        start = s.integer(0, max(0, size // 2))
        stop = s.integer(start if s.chance(0.05) else min(size, start + 1), size)
        index.append(slice(start, stop, s.choose([1, 1, 2, 2, 3])))
    text = ",".join(f"{x.start}:{x.stop}:{x.step}" if x.step else ":" for x in index)
    return s.step("slice", f" [{text}]", [i], lambda x: x[tuple(index)], s[i].distinct)


def pad(s: Sketch) -> bool:
    i = s.pick()
    widths = [
        (s.integer(-2, 3), s.integer(-2, 3), s.choose([0, 0, 1, 2])) if s.chance(0.6) else (0, 0, 0) for _ in s[i].shape
    ]
    value = s.choose([0.0, 0.5])
    return s.step("pad", f" {widths} {value}", [i], lambda x: lax.pad(x, jnp.asarray(value, x.dtype), widths))


def mask(s: Sketch) -> bool:
    i = s.pick(ranks=(2, 3))
    name = s.choose(["tril", "triu", "roll", "diagonal", "diff"])
    shift = s.integer(-2, 3)
    fns = {
        "tril": jnp.tril,
        "triu": jnp.triu,
        "roll": lambda x: jnp.roll(x, shift, axis=0),
        "diagonal": jnp.diagonal,
        "diff": lambda x: jnp.diff(x, axis=-1),
    }
    return s.step("mask", f" {name}", [i], fns[name])


def factorise(s: Sketch) -> bool:
    """A Cholesky factor, or a triangular system, of well-conditioned matrices."""
    i = s.pick("f", ranks=(2, 3), fits=lambda t: len(t.shape) in (2, 3) and 0 not in t.shape)
    if i < 0:
        return False
    name = s.choose(["cholesky", "solve"])

    def fn(x: Any) -> Any:
        matrix = 2 * jnp.eye(x.shape[-2]) + 0.3 / x.shape[-1] * jnp.tanh(x) @ jnp.tanh(x).mT
        if name == "cholesky":
            return jnp.linalg.cholesky(matrix)
        return lax.linalg.triangular_solve(matrix, x, left_side=True, lower=True)

    return s.step("factorise", f" {name}", [i], fn)


def noise(s: Sketch) -> bool:
    """Random numbers from a key that the program has inside, which must not depend on how they are split."""
    i = s.pick("f")
    name = s.choose(["uniform", "bernoulli"])

    def fn(x: Any) -> Any:
        drawn = getattr(jax.random, name)(jax.random.key(7), shape=x.shape)
        return x * drawn if name == "uniform" else jnp.where(drawn, x, 0.5)

    return s.step("noise", f" {name}", [i], fn)


INTEGERS = {
    "affine": lambda n, _: (n * 3 + 1) % 11,
    "halve": lambda n, _: n // 2,
    "sum": lambda n, axis: jnp.sum(n, axis),
    "cumsum": lambda n, axis: jnp.cumsum(n, axis) % 32,
    "sort": lambda n, axis: jnp.sort(n, axis),
    "compare": lambda n, _: (n > 5).astype(jnp.int32) + lax.population_count(n),
}


def integers(s: Sketch) -> bool:
    i = s.pick("i", ranks=(1, 2))
    axis = s.integer(0, len(s[i].shape) - 1)
    name = s.choose(sorted(INTEGERS))
    return s.step("integers", f" {name} {axis}", [i], lambda n: INTEGERS[name](n, axis))
