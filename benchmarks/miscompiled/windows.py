"""Cases of ops that look at neighbours: convolutions, windows and their gradients, pads, slices, concatenations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import shardwright as sw
from benchmarks.miscompiled.case import Case, Input

LAYOUTS = {
    "NWC": ("NWC", "WIO", "NWC"),
    "NCW": ("NCW", "OIW", "NCW"),
    "CWN": ("CWN", "IWO", "WNC"),  # as the gradient of a kernel has it
}
SAME = "same"
PADDINGS = (SAME, (0, 0), (2, 1), (-1, 1), (0, -1))


def convolution(
    family: str,
    *,
    layout: str = "NWC",
    batch: int = 8,
    size: int = 16,
    features: tuple[int, int] = (16, 16),
    kernel: int = 3,
    stride: int = 1,
    dilate: tuple[int, int] = (1, 1),
    padding: Any = SAME,
    groups: int = 1,
    batch_groups: int = 1,
    focus: str = "",
    pairs: bool = True,
) -> Case:
    """A convolution along one dimension; ``dilate``: of the input and of the kernel; ``focus``: N, W or C."""
    lhs, rhs, out = LAYOUTS[layout]
    sizes = {"N": batch, "W": size, "C": features[0]}
    taps = {"W": kernel, "I": features[0] // groups, "O": features[1]}
    reach = dilate[1] * (kernel - 1)
    pads = (reach // 2, reach - reach // 2) if padding == SAME else padding

    def fn(x: jax.Array, k: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(
            x,
            k,
            (stride,),
            [pads],
            lhs_dilation=(dilate[0],),
            rhs_dilation=(dilate[1],),
            dimension_numbers=(lhs, rhs, out),
            feature_group_count=groups,
            batch_group_count=batch_groups,
        )

    attributes = {
        "layout": layout,
        "kernel": kernel,
        "stride": stride,
        "dilate": dilate,
        "padding": padding,
        "groups": groups,
        "batch_groups": batch_groups,
    }
    inputs = (Input(tuple(sizes[c] for c in lhs)), Input(tuple(taps[c] for c in rhs)))
    return Case(family, "convolution", attributes, fn, inputs, tuple((0, lhs.index(c)) for c in focus), pairs)


def convolutions() -> Iterator[Case]:
    """Plain, grouped by features, grouped by batch, and every stride, dilation and padding along the space."""
    for layout, kernel in product(LAYOUTS, (1, 3)):
        yield convolution("convolution", layout=layout, kernel=kernel)
        yield convolution("convolution", layout=layout, kernel=kernel, batch=13, size=14, features=(11, 15))
    for layout, size, groups in product(("NWC", "CWN"), (16, 14), (1, 4)):
        # The gradient of a kernel is a convolution by something as large as the image.
        yield convolution("convolution", layout=layout, kernel=size, size=size, padding=(1, 1), groups=groups)
    yield from on_images()
    plain = product((1, 2, 3), (1, 2, 3), ((1, 1),), PADDINGS)
    dilated = product((1, 2, 3), (1, 2), ((2, 1), (1, 2), (2, 2)), (SAME, (2, 1), (-1, 1)))
    for kernel, stride, dilate, padding in (*plain, *dilated):
        if (kernel == 1 and dilate[1] > 1) or (stride == 3 and padding not in (SAME, (2, 1))):
            continue
        for size in (16, 14) if padding in (SAME, (-1, 1)) else (16,):
            yield convolution(
                "convolution, window",
                size=size,
                features=(3, 5),
                batch=1,
                kernel=kernel,
                stride=stride,
                dilate=dilate,
                padding=padding,
                focus="W",
                pairs=False,
            )
    yield from grouped()
    yield from batch_grouped()
    yield from with_reversed_windows()


def on_images() -> Iterator[Case]:
    """Along two dimensions, which may be split by an axis each."""
    for taps, groups in product(((3, 3), (1, 1), (1, 3)), (1, 4, 16)):

        def fn(x: jax.Array, k: jax.Array, groups: int = groups) -> jax.Array:
            return lax.conv_general_dilated(
                x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups
            )

        yield Case(
            "convolution, feature groups" if groups > 1 else "convolution",
            "convolution",
            {"layout": "NHWC", "kernel": taps, "stride": 1, "groups": groups, "batch_groups": 1},
            fn,
            (Input((8, 8, 8, 16)), Input((*taps, 16 // groups, 16))),
            pairs=groups != 16 and taps != (1, 3),
        )


def grouped() -> Iterator[Case]:
    """Feature groups, down to a channel each (depthwise) with one or two results a channel."""
    family = "convolution, feature groups"
    for layout, kernel, (groups, features) in product(
        LAYOUTS,
        (1, 2, 3),
        ((2, (16, 16)), (4, (16, 32)), (8, (16, 16)), (16, (16, 16)), (16, (16, 32)), (3, (12, 12)), (14, (14, 14))),
    ):
        if kernel != 2 or layout == "NWC":
            pairs = layout == "NWC" and kernel != 2 and groups in (4, 8, 16)
            yield convolution(family, layout=layout, kernel=kernel, groups=groups, features=features, pairs=pairs)
    for kernel, stride, dilate, groups in product((1, 3), (1, 2), ((1, 1), (2, 1), (1, 2)), (4, 16)):
        if (stride, dilate) != (1, (1, 1)) and (kernel, dilate[1]) != (1, 2):
            yield convolution(family, kernel=kernel, stride=stride, dilate=dilate, groups=groups, pairs=groups == 4)
    for kernel, groups in product((1, 3), (4, 16)):
        yield convolution(family, kernel=kernel, groups=groups, batch=13, size=14)


def batch_grouped() -> Iterator[Case]:
    """Batch groups, as the gradient of a grouped convolution's kernel has them."""
    family = "convolution, batch groups"
    for layout, kernel, groups, stride in product(LAYOUTS, (1, 2, 3), (2, 4, 16), (1, 2)):
        if (kernel != 2 and stride == 1) or layout == "NWC":
            pairs = (layout, groups, stride) == ("NWC", 4, 1)
            yield convolution(
                family, layout=layout, kernel=kernel, stride=stride, batch=16, batch_groups=groups, pairs=pairs
            )
    for kernel, dilate, groups in product((1, 3), ((2, 1), (1, 2)), (4, 16)):
        if (kernel, dilate[1]) != (1, 2):
            yield convolution(family, kernel=kernel, dilate=dilate, batch=16, batch_groups=groups, pairs=False)
    for layout, kernel, groups, rim in product(("NWC", "CWN"), (1, 14), (2, 16), (0, 1)):
        # A kernel as large as the image is what a gradient has.
        yield convolution(
            family,
            layout=layout,
            kernel=kernel,
            size=14,
            padding=(rim, rim),
            batch=16,
            batch_groups=groups,
            pairs=False,
        )


def with_reversed_windows() -> Iterator[Case]:
    """Windows that are turned around, which files of other frameworks may have; JAX turns the kernel instead."""
    for layout, kernel in product(("NWC", "CWN"), (1, 3)):
        yield reversed_window(convolution("", layout=layout, kernel=kernel))
    for groups, batch_groups in ((4, 1), (16, 1), (1, 4)):
        yield reversed_window(convolution("", batch=16, groups=groups, batch_groups=batch_groups, pairs=False))
    for kernel, stride, dilate, (padding, size) in product(
        (2, 3), (1, 2), ((1, 1), (2, 1), (1, 2)), ((SAME, 14), ((2, 1), 16))
    ):
        yield reversed_window(
            convolution(
                "",
                size=size,
                features=(3, 5),
                batch=1,
                kernel=kernel,
                stride=stride,
                dilate=dilate,
                padding=padding,
                focus="W",
                pairs=False,
            )
        )


def reversed_window(case: Case) -> Case:
    """The same convolution with its window turned around: written as StableHLO, and read again."""

    @cache
    def module() -> sw.StableHLO:
        shapes = [jax.ShapeDtypeStruct(i.shape, i.dtype) for i in case.inputs]
        text = jax.jit(case.fn).lower(*shapes).as_text()
        with TemporaryDirectory() as folder:
            file = Path(folder) / "reversed.mlir"
            file.write_text(text.replace("reverse = [false]", "reverse = [true]"))
            return sw.read_stablehlo(file)

    return replace(case, family="convolution, reversed window", fn=lambda x, k: module()(x, k)[0])


def pads() -> Iterator[Case]:
    """Low, high and interior, each zero, positive and negative."""
    for size, low, high, interior in product((16, 14, 13), (0, 1, 3, -2), (0, 1, -2), (0, 1, 2)):
        config = [(low, high, interior), (0, 0, 0)]
        yield Case(
            "pad",
            "pad",
            {"low": low, "high": high, "interior": interior},
            lambda x, config=config: lax.pad(x, jax.numpy.float32(0.25), config),
            (Input((size, 6)),),
            focus=((0, 0),),
            pairs=low == high == 1,
        )
    for size, config in product((16, 13), ([(1, 0, 0), (0, 1, 0)], [(0, 1, 1), (0, 1, 1)], [(1, -1, 0), (1, 1, 1)])):
        yield Case(
            "pad",
            "pad",
            {"both dimensions": [list(c) for c in config]},
            lambda x, config=config: lax.pad(x, jax.numpy.float32(0.25), config),
            (Input((size, size)),),
        )


def slices() -> Iterator[Case]:
    """Starts, ends and strides; parts that are nearly all and parts that are not."""
    for size, start, cut, stride in product((16, 14, 13), (0, 1, 5), (0, 3), (1, 2, 3)):
        yield Case(
            "slice",
            "slice",
            {"start": start, "cut": cut, "stride": stride},
            lambda x, start=start, stop=size - cut, stride=stride: lax.slice(x, (start, 0), (stop, 6), (stride, 1)),
            (Input((size, 6)),),
            focus=((0, 0),),
            pairs=start == 0,
        )
    for size, start, stop, stride in (
        (4, 1, 2, 3),
        (4, 2, 3, 4),
        (3, 2, 3, 3),
        (8, 1, 2, 5),
        (8, 1, 4, 5),
        (16, 5, 6, 2),
    ):
        yield Case(
            "slice",
            "slice",
            {"one entry": start, "stop": stop, "stride": stride},
            lambda x, start=start, stop=stop, stride=stride: lax.slice(x, (start, 0), (stop, 6), (stride, 1)),
            (Input((size, 6)),),
            focus=((0, 0),),
        )
    for size in (16, 13):
        yield Case(
            "slice",
            "slice",
            {"both dimensions": True},
            lambda x, size=size: lax.slice(x, (1, 0), (size, size - 1), (1, 2)),
            (Input((size, size)),),
        )


def concatenations() -> Iterator[Case]:
    """Two and three parts, alike and not, along the dimension that is split and beside it."""
    for sizes in (
        (8, 8),
        (16, 16),
        (15, 1),
        (1, 15),
        (16, 1),
        (7, 7),
        (13, 13),
        (5, 6, 7),
        (1, 14, 1),
        (12, 4),
        (3, 10),
    ):
        for other in (8, 7):
            yield Case(
                "concatenate",
                "concatenate",
                {},
                lambda *parts: lax.concatenate(parts, 0),
                tuple(Input((n, other)) for n in sizes),
            )


def _window(size: int, stride: int, dilate: tuple[int, int], padding: Any) -> dict[str, Any]:
    reach = dilate[1] * (size - 1)
    pads = (reach // 2, reach - reach // 2) if padding == SAME else padding
    return {
        "window_dimensions": (1, size),
        "window_strides": (1, stride),
        "padding": ((0, 0), pads),
        "base_dilation": (1, dilate[0]),
        "window_dilation": (1, dilate[1]),
    }


def reduce_windows() -> Iterator[Case]:
    """Sums and maxima over windows of every stride, dilation and padding, and cumulative ones."""
    for window, stride, dilate, padding, size in product(
        (1, 2, 3), (1, 2, 3), ((1, 1), (2, 1), (1, 2)), (SAME, (2, 1)), (16, 14)
    ):
        if (window == 1 and dilate[1] > 1) or (dilate != (1, 1) and stride == 3) or (padding != SAME and stride == 3):
            continue
        for kind in ("sum", "max") if dilate == (1, 1) and size == 14 else ("sum",):
            config = _window(window, stride, dilate, padding)
            yield Case(
                "reduce_window",
                "reduce_window",
                {"kind": kind, "window": window, "stride": stride, "dilate": dilate, "padding": padding},
                lambda x, config=config, kind=kind: lax.reduce_window(
                    x,
                    0.0 if kind == "sum" else -float("inf"),
                    lax.add if kind == "sum" else lax.max,
                    config["window_dimensions"],
                    config["window_strides"],
                    config["padding"],
                    config["base_dilation"],
                    config["window_dilation"],
                ),
                (Input((6, size)),),
                focus=((0, 1),),
                pairs=padding == SAME and stride == 2,
            )
    yield from of_two_operands()
    for size, batch in ((16, 8), (13, 14)):
        for name, fn in (("cumsum", lax.cumsum), ("cummax", lax.cummax), ("cumlogsumexp", lax.cumlogsumexp)):
            for reverse in (False, True):
                yield Case(
                    "cumulative reduce_window",
                    "reduce_window",
                    {"kind": name, "reverse": reverse},
                    lambda x, fn=fn, reverse=reverse: fn(x, axis=1, reverse=reverse),
                    (Input((batch, size)),),
                )


def of_two_operands() -> Iterator[Case]:
    """The largest entry of each window, and what stands at its place in another tensor."""

    def larger(a: Any, b: Any) -> Any:
        first = a[0] > b[0]
        return lax.select(first, a[0], b[0]), lax.select(first, a[1], b[1])

    for window, stride, dilate, size in product((2, 3), (1, 2), ((1, 1), (2, 1), (1, 2)), (16, 14)):
        config = _window(window, stride, dilate, SAME)
        yield Case(
            "reduce_window, two operands",
            "reduce_window",
            {"window": window, "stride": stride, "dilate": dilate},
            lambda x, y, config=config: lax.reduce_window((x, y), (-jnp.inf, jnp.int32(0)), larger, **config),
            (Input((6, size)), Input((6, size), "int32")),
            focus=((0, 1),),
            pairs=stride == 2,
        )


def select_and_scatters() -> Iterator[Case]:
    """The gradient of a maximum over windows; JAX pads outside of the op."""
    for window, stride, size in product((1, 2, 3), (1, 2, 3), (16, 15, 14, 13)):
        config = _window(window, stride, (1, 1), (0, 0))
        result = (size - window) // stride + 1
        yield Case(
            "select_and_scatter",
            "select_and_scatter",
            {"window": window, "stride": stride},
            lambda source, x, config=config: select_and_scatter_add(source, x, config),
            (Input((6, result)), Input((6, size))),
            focus=((1, 1),),
            pairs=stride == 2,
        )
    for batch, size in ((8, 16), (13, 14)):
        config = _window(2, 2, (1, 1), (0, 0))
        yield Case(
            "select_and_scatter",
            "select_and_scatter",
            {"window": 2, "stride": 2},
            lambda source, x, config=config: select_and_scatter_add(source, x, config),
            (Input((batch, size // 2)), Input((batch, size))),
        )


def select_and_scatter_add(source: jax.Array, operand: jax.Array, config: dict[str, Any]) -> jax.Array:
    """What JAX has no public name for: the gradient of a maximum over windows, for a given gradient."""

    def pool(x: jax.Array) -> jax.Array:
        return lax.reduce_window(
            x, -float("inf"), lax.max, config["window_dimensions"], config["window_strides"], config["padding"]
        )

    return jax.vjp(pool, operand)[1](source)[0]


def all_cases() -> Iterator[Case]:
    """In the order of the page."""
    yield from convolutions()
    yield from pads()
    yield from slices()
    yield from concatenations()
    yield from reduce_windows()
    yield from select_and_scatters()
