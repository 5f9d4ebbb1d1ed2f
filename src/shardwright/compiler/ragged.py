"""What the TPU compiler makes of ``ragged_dot``: a kernel of tiles, or a dense product for every group."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from shardwright.compiler.behaviours import TPU, Behaviour

_TILE_ROWS = 128
_MASK_SLOTS = 33.0


class RaggedWork(NamedTuple):
    """The FLOPs of a ragged product as a multiple of those that count, and slots of the vector unit besides."""

    times: float = 1.0
    masking_slots: float = 0.0


RaggedSizes = Callable[[int, int, int, int], RaggedWork]
"""From local sizes: rows that are in groups, depth and columns that are not, and groups."""


def _tiles(rows: int, depth: int, columns: int, groups: int) -> RaggedWork:  # noqa: ARG001
    return RaggedWork((rows + _TILE_ROWS * (groups - 1)) / rows if rows else 1.0)


def _dense(rows: int, depth: int, columns: int, groups: int) -> RaggedWork:
    return RaggedWork(groups, _MASK_SLOTS * groups * rows * (depth + columns))


def _as_counted(rows: int, depth: int, columns: int, groups: int) -> RaggedWork:  # noqa: ARG001
    return RaggedWork()


_TILES: RaggedSizes = _tiles
_DENSE: RaggedSizes = _dense

RAGGED_ROWS = Behaviour(
    name="a ragged product is a kernel of tiles",
    what="Where each row meets its group's matrix, a kernel goes through tiles of 128 rows, once for each group that "
    "has rows in a tile: rows / 128 + groups - 1 tiles.",
    effect=_TILES,
    otherwise=_as_counted,
    platforms=TPU,
    ops=("ragged_dot",),
    evidence="Its metadata, libtpu of jax 0.10.2, v5e:2x2, unsplit: s32[71] for 8,192 rows in 8 groups, s32[47] for "
    "4,096 in 16. The compiler gives no cycles for it. With rows that 8 does not divide it is dense, and 10 to 18 "
    "times as slow as its dense products (4,100 rows); it is not priced so, since numbers of tokens are even.",
    tests=("test_flops.py::test_ragged_dot_multiplies_every_row_once",),
    where=("price.compute.matrix_seconds",),
)

RAGGED_MATRICES = Behaviour(
    name="the gradient of a ragged product's matrices is dense",
    what="Where each group contracts its own rows, every group multiplies all rows, with those of the others masked: "
    "the cycles of the dense products and, for each group and each entry of both operands, 33 slots of the vector "
    "unit.",
    effect=_DENSE,
    otherwise=_as_counted,
    platforms=TPU,
    ops=("ragged_dot",),
    evidence="convolution(bf16[8,8192,2048], bf16[8,8192,1024]) of selects for 8 groups, libtpu of jax 0.10.2, "
    "v5e:2x2, unsplit. Rows × depth × columns, groups: compiled ms, estimate over it. Fitted to: 8192 × 2048 × 1024, "
    "8: 2.254, 1.13; 4096 × 1024 × 4096, 16: 4.879, 0.97; 2048 × 512 × 2048, 4: 0.196, 1.05; 4096 × 1024 × 1024, 64: "
    "7.001, 0.83. Not used for it: 8192 × 2048 × 1024, 8, f32: 3.392, 0.96; 4096 × 4096 × 512, 8: 1.342, 1.15; 8192 "
    "× 1024 × 2048, 32: 8.992, 1.13; 2048 × 2048 × 2048, 16: 2.755, 0.80.",
    tests=(
        "test_flops.py::test_the_gradient_of_ragged_matrices_multiplies_every_row_once_but_is_computed_for_every_group",
    ),
    where=("price.compute.matrix_seconds",),
)

RECORDS = (RAGGED_ROWS, RAGGED_MATRICES)
