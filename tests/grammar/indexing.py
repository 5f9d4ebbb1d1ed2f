"""Steps that read or write where indices say, or that sort. Indices come from integers: no rounding moves them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from grammar.sketch import Sketch, Tensor, apart


def not_empty(t: Tensor) -> bool:
    return 0 not in t.shape and len(t.shape) > 0


def indices(s: Sketch, shape: tuple[int, ...] | None = None) -> int:
    """A tensor of integers, of some shape or of this one."""
    if shape is None:
        return s.pick("i", ranks=(1, 2)) if s.chance(0.3) else s.argument(s.shape(s.choose([1, 1, 2])), "i")
    same = s.pick("i", fits=lambda t: t.shape == shape)
    return same if same >= 0 and s.chance(0.3) else s.argument(shape, "i")


def gather(s: Sketch) -> bool:
    i = s.pick(fits=not_empty)
    if i < 0:
        return False
    shape = s[i].shape
    axis = s.integer(0, len(shape) - 1)
    name = s.choose(["take", "take", "along", "pairs", "fill"])
    if name == "along":
        j = indices(s, (*shape[:axis], s.integer(1, 6), *shape[axis + 1 :]))
        return s.step(
            "gather", f" along {axis}", [i, j], lambda x, n: jnp.take_along_axis(x, n % shape[axis], axis, mode="clip")
        )
    if name == "pairs" and len(shape) > 1:
        j = indices(s, (s.integer(1, 8),))
        k = indices(s, s[j].shape)
        other = (axis + 1) % len(shape)

        def fn(x: Any, n: Any, m: Any) -> Any:
            index: list[Any] = [slice(None)] * len(shape)
            index[axis], index[other] = n % shape[axis], m % shape[other]
            return x[tuple(index)]

        return s.step("gather", f" pairs {axis},{other}", [i, j, k], fn)
    j = indices(s)
    if name == "fill":  # some indices lie outside
        return s.step(
            "gather",
            f" fill {axis}",
            [i, j],
            lambda x, n: jnp.take(x, n % (shape[axis] + 2), axis, mode="fill", fill_value=0),
        )
    return s.step("gather", f" take {axis}", [i, j], lambda x, n: jnp.take(x, n % shape[axis], axis, mode="clip"))


def scatter(s: Sketch) -> bool:
    """Some indices are there twice or thrice, but where a value is set."""
    i = s.pick(fits=not_empty)
    if i < 0:
        return False
    shape, dtype = s[i].shape, s[i].dtype
    names = ["add", "add", "set", "outside", "pairs"] + (
        ["mul", "max", "min"] if dtype == "f" and not s.gradient else []
    )
    name = s.choose(names)
    count = s.integer(1, 8)
    if name == "set":  # no index twice
        count = s.integer(1, shape[0])
        j = s.argument((count, *shape[1:]), dtype)
        start = s.integer(0, shape[0] - count)
        k = s.argument((1,), "i")
        return s.step(
            "scatter",
            f" set {count}",
            [i, j, k],
            lambda x, u, n: x.at[(start + jnp.arange(count) + n) % shape[0]].set(u, mode="promise_in_bounds"),
        )
    j = indices(s, (count,))
    if name == "pairs" and len(shape) > 1:
        k, u = indices(s, (count,)), s.argument((count, *shape[2:]), dtype)
        return s.step(
            "scatter", " pairs", [i, j, k, u], lambda x, n, m, v: x.at[n % shape[0], m % shape[1]].add(v, mode="drop")
        )
    u = s.argument((count, *shape[1:]), dtype)
    if name in ("add", "outside", "pairs"):
        beyond = 2 if name == "outside" else 0
        return s.step(
            "scatter",
            f" add {count} {name}",
            [i, j, u],
            lambda x, n, v: x.at[n % (shape[0] + beyond)].add(v, mode="drop"),
        )

    def fn(x: Any, n: Any, v: Any) -> Any:
        return getattr(x.at[n % shape[0]], {"mul": "multiply"}.get(name, name))(1.2 + 0.1 * v if name == "mul" else v)

    return s.step("scatter", f" {name} {count}", [i, j, u], fn)


def segment_sum(s: Sketch) -> bool:
    i = s.pick(fits=not_empty)
    if i < 0:
        return False
    shape = s[i].shape
    segments = s.size() or 1
    j = indices(s, (shape[0],))
    return s.step(
        "scatter",
        f" segments {segments}",
        [i, j],
        lambda x, n: jnp.zeros((segments, *shape[1:]), x.dtype).at[n % segments].add(x, mode="drop"),
    )


def dynamic_slice(s: Sketch) -> bool:
    """Indices within bounds: XLA of jaxlib 0.10.2 forgets to clamp when it merges two dynamic slices."""
    i = s.pick(fits=not_empty)
    if i < 0:
        return False
    shape = s[i].shape
    axis = s.integer(0, len(shape) - 1)
    size = s.integer(1, shape[axis])
    j = indices(s, (2,))
    rest = shape[axis] - size + 1
    name = s.choose(["slice", "update", "both"])

    def fn(x: Any, n: Any) -> Any:
        if name == "slice":
            return lax.dynamic_slice_in_dim(x, n[0] % rest, size, axis)
        piece = (
            lax.dynamic_slice_in_dim(x, n[0] % rest, size, axis)
            if name == "both"
            else lax.slice_in_dim(x, 0, size, axis=axis)
        )
        return lax.dynamic_update_slice_in_dim(
            x, jnp.tanh(piece) * 2 if piece.dtype == jnp.float32 else piece * 2, n[1] % rest, axis
        )

    return s.step("dynamic_slice", f" {name} {axis} {size}", [i, j], fn)


def sort(s: Sketch) -> bool:
    """One operand, or several with one or two keys."""
    i = s.pick("f", fits=not_empty)
    if i < 0:
        return False
    shape = s[i].shape
    axis = s.integer(0, len(shape) - 1)
    key = (lambda x: x) if s[i].distinct else apart
    name = s.choose(["one", "several", "several", "two keys", "argsort", "top_k"])
    if name == "one":
        return s.step("sort", f" {axis}", [i], lambda x: lax.sort(key(x), dimension=axis))
    if name == "argsort":
        return s.step("sort", f" argsort {axis}", [i], lambda x: jnp.argsort(key(x), axis=axis).astype(jnp.int32))
    if name == "top_k":
        k = s.integer(1, shape[-1])
        return s.step("sort", f" top_k {k}", [i], lambda x: lax.top_k(key(x), k)[0])
    others = [s.pick("f", fits=lambda t: t.shape == shape), s.argument(shape)]
    if name == "several":

        def several(x: Any, y: Any, z: Any) -> Any:
            a, b, c = lax.sort((key(x), y, z), dimension=axis, num_keys=1)
            return a + 0.5 * b * jnp.tanh(c)

        return s.step("sort", f" three {axis}", [i, *others], several)
    n = indices(s, shape)

    def two_keys(x: Any, m: Any, y: Any) -> Any:
        a, b, c = lax.sort((m % 3, key(x), y), dimension=axis, num_keys=2)
        return a.astype(x.dtype) * 0.1 + b * jnp.tanh(c)

    return s.step("sort", f" two keys {axis}", [i, n, others[0]], two_keys)
