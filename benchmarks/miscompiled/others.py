"""Cases of all other ops: elementwise, shapes, products, reductions, indexing, sorting, linear algebra, loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.miscompiled.case import Case, Input

SIZES = ((16, 8), (14, 13))
"""Rows and columns: divided by 2, 4 and 8; divided by hardly any."""


def each(
    family: str,
    op: str,
    about: dict[str, Any],
    fn: Callable[..., Any],
    *makers: Callable[[int, int], Input],
    sizes: Sequence[tuple[int, int]] = SIZES,
) -> Iterator[Case]:
    """A case for each of the sizes; a maker is a function of rows and columns."""
    for rows, columns in sizes:
        yield Case(family, op, about, fn, tuple(maker(rows, columns) for maker in makers))


def matrix(n: int, m: int) -> Input:
    """Rows and columns."""
    return Input((n, m))


def flags(n: int, m: int) -> Input:
    """Rows and columns of booleans."""
    return Input((n, m), "bool")


def whole_numbers(n: int, m: int) -> Input:
    """Rows and columns of integers."""
    return Input((n, m), "int32")


def complex_numbers(n: int, m: int) -> Input:
    """Rows and columns of complex numbers."""
    return Input((n, m), "complex64")


def elementwise() -> Iterator[Case]:
    """One to three operands, several types."""
    ops: dict[str, tuple[Callable[..., Any], tuple[Callable[[int, int], Input], ...]]] = {
        "tanh": (jnp.tanh, (matrix,)),
        "add": (lax.add, (matrix, matrix)),
        "shift_left": (lax.shift_left, (whole_numbers, whole_numbers)),
        "compare": (lax.lt, (matrix, matrix)),
        "select": (lax.select, (flags, matrix, matrix)),
        "clamp": (lambda a, x, b: lax.clamp(a - 1, x, b + 1), (matrix, matrix, matrix)),
        "convert": (lambda x: lax.convert_element_type(x, "int32"), (matrix,)),
        "complex": (lax.complex, (matrix, matrix)),
        "real": (lax.real, (complex_numbers,)),
        "imag": (lax.imag, (complex_numbers,)),
        "multiply": (lax.mul, (complex_numbers, complex_numbers)),
        "erf": (lax.erf, (matrix,)),
        "reduce_precision": (lambda x: lax.reduce_precision(x, 5, 4), (matrix,)),
        "optimization_barrier": (lax.optimization_barrier, (matrix,)),
        "bitcast_convert": (lambda x: lax.bitcast_convert_type(x, "int16"), (matrix,)),
    }
    for name, (fn, makers) in ops.items():
        for sizes in SIZES if name in ("add", "bitcast_convert") else SIZES[1:]:
            inputs = tuple(maker(*sizes) for maker in makers)
            yield Case("elementwise", name, {"op": name}, fn, inputs, pairs=name == "add")


def shapes() -> Iterator[Case]:
    """Broadcasts, transposes, reshapes, reversals, iota."""
    yield from each(
        "broadcast_in_dim",
        "broadcast_in_dim",
        {"new": "first"},
        lambda x: lax.broadcast_in_dim(x, (8, *x.shape), (1, 2)),
        matrix,
    )
    yield from each(
        "broadcast_in_dim",
        "broadcast_in_dim",
        {"new": "middle"},
        lambda x: lax.broadcast_in_dim(x, (x.shape[0], 7, x.shape[1]), (0, 2)),
        matrix,
    )
    yield from each(
        "broadcast_in_dim",
        "broadcast_in_dim",
        {"stretched": True},
        lambda x: lax.broadcast_in_dim(x, (x.shape[0], 16), (0, 1)),
        lambda n, _: Input((n, 1)),
    )
    yield from each("transpose", "transpose", {}, lambda x: lax.transpose(x, (1, 0)), matrix)
    yield from each(
        "transpose", "transpose", {"rank": 3}, lambda x: lax.transpose(x, (2, 0, 1)), lambda n, m: Input((n, m, 11))
    )
    for source, target in (
        ((8, 16), (128,)),
        ((128,), (8, 16)),
        ((14, 13), (182,)),
        ((182,), (14, 13)),
        ((6, 16), (96,)),
        ((96,), (6, 16)),
        ((96,), (2, 48)),
        ((8, 6, 4), (8, 24)),
        ((8, 6, 4), (48, 4)),
        ((8, 24), (8, 6, 4)),
        ((48, 4), (8, 6, 4)),
        ((4, 12), (12, 4)),
        ((16, 6), (8, 12)),
        ((8, 12), (16, 6)),
        ((14, 4), (28, 2)),
        ((13, 1), (13,)),
        ((13,), (1, 13)),
        ((3, 8, 4), (6, 16)),
        ((2, 7, 8), (14, 8)),
        ((14, 8), (2, 7, 8)),
        ((12, 7), (4, 21)),
    ):
        yield Case(
            "reshape",
            "reshape",
            {"to": target},
            lambda x, target=target: lax.reshape(x, target),
            (Input(source),),
        )
    yield from each("reverse", "reverse", {"dimensions": (0,)}, lambda x: lax.rev(x, (0,)), matrix)
    yield from each("reverse", "reverse", {"dimensions": (0, 1)}, lambda x: lax.rev(x, (0, 1)), matrix)
    yield from each("iota", "add", {"iota": True}, lambda x: x + lax.broadcasted_iota("float32", x.shape, 0), matrix)


def products() -> Iterator[Case]:
    """Dot products with batch dimensions and several contracted ones."""
    for about, a, b, dims in (
        ({"form": "ij,jk"}, (16, 8), (8, 24), (((1,), (0,)), ((), ()))),
        ({"form": "ij,jk"}, (14, 13), (13, 11), (((1,), (0,)), ((), ()))),
        ({"form": "ji,jk"}, (8, 16), (8, 24), (((0,), (0,)), ((), ()))),
        ({"form": "bij,bjk"}, (8, 16, 8), (8, 8, 24), (((2,), (1,)), ((0,), (0,)))),
        ({"form": "bij,bjk"}, (7, 14, 13), (7, 13, 11), (((2,), (1,)), ((0,), (0,)))),
        ({"form": "abij,abkj"}, (4, 8, 16, 8), (4, 8, 24, 8), (((3,), (3,)), ((0, 1), (0, 1)))),
        ({"form": "abi,abk"}, (4, 8, 16), (4, 8, 24), (((0, 1), (0, 1)), ((), ()))),
        ({"form": "abi,abk"}, (7, 13, 14), (7, 13, 11), (((0, 1), (0, 1)), ((), ()))),
        ({"form": "j,jk"}, (14,), (14, 13), (((0,), (0,)), ((), ()))),
        ({"form": "i,j"}, (14,), (13,), (((), ()), ((), ()))),
    ):
        yield Case(
            "dot_general",
            "dot_general",
            about,
            lambda x, y, dims=dims: lax.dot_general(x, y, dims, precision="highest"),
            (Input(a), Input(b)),
        )


def ragged_products() -> Iterator[Case]:
    """Rows in groups, each with a matrix of its own: groups of rows, of what is summed, and of the batch.

    XLA has no code for the op on CPU, so what runs is what JAX puts in its place there: masks and a product.
    """
    of_rows = lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), [0], [0])
    of_sums = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])
    of_batch = lax.RaggedDotDimensionNumbers((((2,), (1,)), ((0,), (0,))), [0], [])
    in_batches = lax.RaggedDotDimensionNumbers((((2,), (2,)), ((0,), (1,))), [1], [0])
    for rows, summed, columns, batch in ((16, 8, 24, 8), (14, 13, 11, 7)):
        for mode, numbers, a, b, counts in (
            ("rows", of_rows, (rows, summed), (4, summed, columns), (4,)),
            ("sums", of_sums, (rows, summed), (rows, columns), (4,)),
            ("batch", of_batch, (rows, 6, summed), (rows, summed, columns), (4,)),
            ("rows in batches", in_batches, (batch, rows, summed), (4, batch, summed, columns), (batch, 4)),
        ):
            yield Case(
                "ragged_dot",
                "ragged_dot",
                {"groups of": mode},
                lambda x, y, n, numbers=numbers: lax.ragged_dot_general(x, y, n, numbers, precision="highest"),
                (Input(a), Input(b), Input(counts, "int32", "sizes", rows)),
                platform="tpu",
            )


def reductions() -> Iterator[Case]:
    """Sums, maxima, products, of one and of several operands."""
    for name, fn in (("sum", jnp.sum), ("max", jnp.max), ("prod", jnp.prod)):
        yield from each("reduce", "reduce", {"kind": name, "dimensions": 0}, lambda x, fn=fn: fn(x, axis=0), matrix)
    yield from each("reduce", "reduce", {"kind": "sum", "dimensions": 1}, lambda x: jnp.sum(x, axis=1), matrix)
    yield from each("reduce", "reduce", {"kind": "sum", "dimensions": "all"}, jnp.sum, matrix)
    yield from each(
        "reduce",
        "reduce",
        {"kind": "sum", "dimensions": "0 and 2"},
        lambda x: jnp.sum(x, axis=(0, 2)),
        lambda n, m: Input((n, m, 12)),
    )
    yield from each("reduce", "reduce", {"kind": "or"}, lambda x: jnp.any(x, axis=0), flags)
    for axis in (0, 1):
        yield from each(
            "reduce", "reduce", {"kind": "argmax", "dimensions": axis}, lambda x, a=axis: jnp.argmax(x, a), matrix
        )

    def pair(x: jax.Array, y: jax.Array) -> Any:
        def step(a: Any, b: Any) -> Any:
            first = a[0] > b[0]
            return lax.select(first, a[0], b[0]), lax.select(first, a[1], b[1])

        return lax.reduce((x, y), (jnp.float32(-jnp.inf), jnp.int32(0)), step, (0,))

    yield from each("reduce", "reduce", {"kind": "two operands"}, pair, matrix, whole_numbers)


def indexing() -> Iterator[Case]:
    """Slices at run time, gathers and scatters of several forms."""
    for part in (5, 8, 12):
        yield from each(
            "dynamic_slice",
            "dynamic_slice",
            {"size": part},
            lambda x, i, part=part: lax.dynamic_slice(x, (i, jnp.int32(0)), (part, x.shape[1])),
            matrix,
            lambda *_: Input((), "int32", "indices", 3),
        )
        yield from each(
            "dynamic_update_slice",
            "dynamic_update_slice",
            {"size": part},
            lambda x, u, i: lax.dynamic_update_slice(x, u, (i, jnp.int32(0))),
            matrix,
            lambda _, m, part=part: Input((part, m)),
            lambda *_: Input((), "int32", "indices", 3),
        )
    yield from gathers()
    yield from scatters()


def indices(count: int, *, below: int = 0, width: int = 1) -> Callable[[int, int], Input]:
    """Numbers of rows, some of them twice."""
    return lambda n, m: Input((count, width), "int32", "indices", below or min(n, m))


def gathers() -> Iterator[Case]:
    """Rows, columns, single entries, windows, one of each row."""

    def gather(dims: lax.GatherDimensionNumbers, sizes: Callable[[Any], tuple[int, ...]]) -> Callable[..., Any]:
        return lambda x, i: lax.gather(x, i, dims, sizes(x), mode="promise_in_bounds")

    rows = lax.GatherDimensionNumbers((1,), (0,), (0,))
    columns = lax.GatherDimensionNumbers((0,), (1,), (1,))
    entries = lax.GatherDimensionNumbers((), (0, 1), (0, 1))
    windows = lax.GatherDimensionNumbers((1, 2), (), (0,))
    batched = lax.GatherDimensionNumbers((), (1,), (1,), (0,), (0,))
    for count, sizes in ((16, SIZES[:1]), (11, SIZES[1:])):
        yield from each(
            "gather",
            "gather",
            {"of": "rows"},
            gather(rows, lambda x: (1, x.shape[1])),
            matrix,
            indices(count),
            sizes=sizes,
        )
        yield from each(
            "gather",
            "gather",
            {"of": "columns"},
            gather(columns, lambda x: (x.shape[0], 1)),
            matrix,
            indices(count),
            sizes=sizes,
        )
        yield from each(
            "gather",
            "gather",
            {"of": "entries"},
            gather(entries, lambda _: (1, 1)),
            matrix,
            indices(count, width=2),
            sizes=sizes,
        )
        yield from each(
            "gather",
            "gather",
            {"of": "windows"},
            gather(windows, lambda x: (5, x.shape[1])),
            matrix,
            indices(count, below=8),
            sizes=sizes,
        )
    yield from each(
        "gather",
        "gather",
        {"of": "one of each row"},
        gather(batched, lambda _: (1, 1)),
        matrix,
        lambda n, m: Input((n, 6, 1), "int32", "indices", m),
    )


def scatters() -> Iterator[Case]:
    """Add, multiply, largest and set; rows, columns, entries, windows, one of each row; some indices twice."""
    rows = lax.ScatterDimensionNumbers((1,), (0,), (0,))
    columns = lax.ScatterDimensionNumbers((0,), (1,), (1,))
    entries = lax.ScatterDimensionNumbers((), (0, 1), (0, 1))
    windows = lax.ScatterDimensionNumbers((1, 2), (), (0,))
    batched = lax.ScatterDimensionNumbers(
        (), (1,), (1,), operand_batching_dims=(0,), scatter_indices_batching_dims=(0,)
    )
    kinds = {"add": lax.scatter_add, "mul": lax.scatter_mul, "max": lax.scatter_max}

    def scatter(kind: str, dims: lax.ScatterDimensionNumbers) -> Callable[..., Any]:
        return lambda x, i, u: kinds[kind](x, i, u, dims, mode="promise_in_bounds")

    for count, sizes in ((16, SIZES[:1]), (11, SIZES[1:])):
        for kind in kinds:
            yield from each(
                "scatter",
                "scatter",
                {"kind": kind, "of": "rows"},
                scatter(kind, rows),
                matrix,
                indices(count),
                lambda _, m, count=count: Input((count, m)),
                sizes=sizes,
            )
        yield from each(
            "scatter",
            "scatter",
            {"kind": "add", "of": "columns"},
            scatter("add", columns),
            matrix,
            indices(count),
            lambda n, _, count=count: Input((n, count)),
            sizes=sizes,
        )
        yield from each(
            "scatter",
            "scatter",
            {"kind": "add", "of": "entries"},
            scatter("add", entries),
            matrix,
            indices(count, width=2),
            lambda *_, count=count: Input((count,)),
            sizes=sizes,
        )
        yield from each(
            "scatter",
            "scatter",
            {"kind": "add", "of": "windows"},
            scatter("add", windows),
            matrix,
            indices(count, below=8),
            lambda _, m, count=count: Input((count, 5, m)),
            sizes=sizes,
        )
    yield from each(
        "scatter",
        "scatter",
        {"kind": "add", "of": "one of each row"},
        scatter("add", batched),
        matrix,
        lambda n, m: Input((n, 6, 1), "int32", "indices", m),
        lambda n, _: Input((n, 6)),
    )
    yield from each(
        "scatter",
        "scatter",
        {"kind": "set", "of": "rows"},
        # Which of two writes to one place stays is not defined, so each place is written once.
        lambda x, u: lax.scatter(
            x, jnp.array([[2], [0], [5]], jnp.int32), u, rows, mode="promise_in_bounds", unique_indices=True
        ),
        matrix,
        lambda _, m: Input((3, m)),
    )


def sorts() -> Iterator[Case]:
    """One, two and three operands, either dimension; the largest few."""
    for dimension in (0, 1):
        yield from each(
            "sort", "sort", {"operands": 1, "dimension": dimension}, lambda x, d=dimension: lax.sort(x, d), matrix
        )
        yield from each(
            "sort",
            "sort",
            {"operands": 2, "dimension": dimension},
            lambda x, y, d=dimension: lax.sort((x, y), d, num_keys=1),
            matrix,
            whole_numbers,
        )
    yield from each(
        "sort",
        "sort",
        {"operands": 3, "dimension": 1},
        lambda x, y, z: lax.sort((x, y, z), 1, num_keys=2),
        whole_numbers,
        matrix,
        matrix,
    )
    yield from each("top_k", "top_k", {"k": 3}, lambda x: lax.top_k(x, 3), matrix)
    yield from each("top_k", "top_k", {"k": 8}, lambda x: lax.top_k(x, 8), matrix)


def algebra() -> Iterator[Case]:
    """Transforms, factorizations and solves, a batch of them each."""
    for kind in ("FFT", "IFFT"):
        yield from each(
            "fft", "fft", {"kind": kind}, lambda x, kind=kind: lax.fft(x, kind, (x.shape[1],)), complex_numbers
        )
    yield from each("fft", "fft", {"kind": "RFFT"}, lambda x: lax.fft(x, "RFFT", (x.shape[1],)), matrix)
    yield from each(
        "fft", "fft", {"kind": "FFT", "rank": 2}, lambda x: lax.fft(x, "FFT", x.shape[-2:]), complex_numbers
    )
    solves: dict[str, Callable[..., Any]] = {
        "cholesky": lax.linalg.cholesky,
        "qr": lambda x: jnp.linalg.qr(x, "r"),
        "lu": lambda x: lax.linalg.lu(x)[0],
        "eigh": jnp.linalg.eigvalsh,
        "triangular solve": lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
    }
    for batch, (of, fn) in product((8, 13), solves.items()):
        inputs = (Input((batch, 6, 6), holds="positive definite"),)
        if of == "triangular solve":
            inputs = (Input((batch, 6, 6), holds="triangular"), Input((batch, 6, 14)))
        yield Case("linear algebra", "custom_call", {"of": of}, fn, inputs, pairs=False)
    for shape in SIZES:
        yield Case(
            "rng_bit_generator",
            "rng_bit_generator",
            {"shape": shape},
            lambda key, shape=shape: lax.rng_bit_generator(key, shape)[1],
            (Input((4,), "uint32"),),
        )


def control() -> Iterator[Case]:
    """A loop and a branch whose values are split."""
    yield from each(
        "while",
        "while",
        {},
        lambda x, y: lax.fori_loop(0, 3, lambda _, c: (jnp.tanh(c[0] + c[1]), c[1] * 0.5), (x, y)),
        matrix,
        matrix,
    )
    yield from each(
        "case",
        "case",
        {},
        lambda i, x: lax.switch(i, [jnp.tanh, lambda v: v * 2, lambda v: v[::-1]], x),
        lambda *_: Input((), "int32", "indices", 3),
        matrix,
    )


def all_cases() -> Iterator[Case]:
    """In the order of the page."""
    for cases in (elementwise, shapes, products, ragged_products, reductions, indexing, sorts, algebra, control):
        yield from cases()
