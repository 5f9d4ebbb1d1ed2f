"""Steps that slide a window: convolutions, pooling, sums and products so far."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from jax import lax

from grammar.sketch import Sketch, apart


def convolution(s: Sketch) -> bool:
    """Any layout, strides, pads, dilations of input and kernel, groups of features or of the batch."""
    spatial = s.choose([1, 1, 2])
    found = s.pick(
        ranks=(spatial + 2,), fits=lambda t: len(t.shape) == spatial + 2 and t.dtype == "f" and 0 not in t.shape
    )
    letters = "HW"[:spatial]
    layouts = ["".join(p) for p in (f"N{letters}C", f"NC{letters}", f"{letters}NC", f"C{letters}N")]
    lhs = s.choose(layouts)
    groups = s.choose([1, 1, 2, 3, 4])
    if found < 0 or s.chance(0.4):
        sizes = {"N": s.choose([1, 2, 4, 6, 3, 8]), "C": groups * s.choose([1, 2, 3])}
        sizes |= {letter: s.integer(3, 9) for letter in letters}
        found = s.argument([sizes[c] for c in lhs])
    shape = dict(zip(lhs, s[found].shape, strict=True))
    if shape["C"] % groups:
        groups = s.choose([g for g in range(1, shape["C"] + 1) if shape["C"] % g == 0])
    batch_groups = 1
    if groups == 1 and s.chance(0.2):
        batch_groups = s.choose([g for g in (1, 2, 3, 4) if shape["N"] % g == 0])
    kernel = {letter: s.choose([1, 2, 3]) for letter in letters}
    features = groups * batch_groups * s.choose([1, 2])
    rhs = s.choose([f"{letters}IO", f"OI{letters}", f"I{letters}O"])
    size = {"I": shape["C"] // groups, "O": features} | kernel
    weights = s.argument([size[c] for c in rhs])
    out = s.choose(layouts)
    strides = tuple(s.choose([1, 1, 2, 3]) for _ in letters)
    if s.chance(0.5):
        padding: Any = s.choose(["SAME", "VALID"])
        dilate = (1,) * spatial
    else:
        # None that cuts off: XLA on CPU gets gradients by kernels wrong there, with nothing split (jaxlib 0.10.2).
        padding = [(max(0, s.integer(-1, 3)), max(0, s.integer(-1, 3))) for _ in letters]
        dilate = tuple(s.choose([1, 1, 2, 3]) for _ in letters)
    kernel_dilate = tuple(s.choose([1, 1, 1, 2]) for _ in letters)
    scale = 1 / math.sqrt(max(1, math.prod(kernel.values()) * shape["C"] // groups))

    def fn(x: Any, w: Any) -> Any:
        return scale * lax.conv_general_dilated(
            x,
            w,
            strides,
            padding,
            lhs_dilation=dilate,
            rhs_dilation=kernel_dilate,
            dimension_numbers=(lhs, rhs, out),
            feature_group_count=groups,
            batch_group_count=batch_groups,
        )

    text = (
        f" {lhs}_{rhs}->{out} strides{strides} pad{padding} dilate{dilate}{kernel_dilate} groups{groups},{batch_groups}"
    )
    return s.step("convolution", text, [found, weights], fn)


def reduce_window(s: Sketch) -> bool:
    i = s.pick("f", fits=lambda t: 0 not in t.shape and len(t.shape) > 0)
    if i < 0:
        return False
    moving = [s.chance(0.7) for _ in s[i].shape]
    window = tuple(s.integer(1, 3) if m else 1 for m in moving)
    strides = tuple(s.choose([1, 1, 2, 3]) if m else 1 for m in moving)
    padding: Any = s.choose(["SAME", "VALID"])
    if s.chance(0.4):
        padding = tuple((s.integer(0, w - 1), s.integer(0, w - 1)) for w in window)
    name = s.choose(["sum", "max", "min"])
    init, how = {"sum": (0.0, lax.add), "max": (-jnp.inf, lax.max), "min": (jnp.inf, lax.min)}[name]
    dilations: dict[str, Any] = {}
    if name == "sum" and s.chance(0.4):
        dilations["base_dilation"] = tuple(s.choose([1, 2]) if m else 1 for m in moving)
        dilations["window_dilation"] = tuple(s.choose([1, 2]) if m else 1 for m in moving)
    prepare = (lambda x: 0.5 * x) if name == "sum" else (lambda x: x) if s[i].distinct else apart

    def fn(x: Any) -> Any:
        return lax.reduce_window(prepare(x), init, how, window, strides, padding, **dilations)

    return s.step("reduce_window", f" {name} {window} strides{strides} pad{padding} {dilations or ''}", [i], fn)


CUMULATIVE = {
    "cumsum": lambda x, axis, reverse: lax.cumsum(0.5 * x, axis, reverse),
    "cumprod": lambda x, axis, reverse: lax.cumprod(1 + 0.1 * jnp.tanh(x), axis, reverse),
    "cumlogsumexp": lax.cumlogsumexp,
    "cummax": lambda x, axis, reverse: lax.cummax(apart(x), axis, reverse),
}


def cumulative(s: Sketch) -> bool:
    i = s.pick("f")
    axis, reverse = s.integer(0, len(s[i].shape) - 1), s.chance(0.3)
    name = s.choose(sorted(CUMULATIVE))
    return s.step("cumulative", f" {name} {axis} {reverse}", [i], lambda x: CUMULATIVE[name](x, axis, reverse))
