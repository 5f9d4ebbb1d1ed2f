"""What the TPU compiler makes of ``ragged_dot``: a kernel of tiles, or a dense product for every group.

- Where each row meets its group's matrix, it is a kernel that goes through tiles of 128 rows, once for each group that
  has rows in a tile: ``rows / 128 + groups - 1`` tiles, which its metadata has (``s32[71]`` for 8,192 rows in 8 groups,
  ``s32[47]`` for 4,096 in 16). The compiler gives no cycles for it.
- Where each group contracts its own rows, as in the gradient of the matrices, every group multiplies all rows, with
  those of the others masked: ``convolution(bf16[8,8192,2048], bf16[8,8192,1024])`` of selects for 8 groups. Its
  cycles are those of the dense products and, for each group and each entry of both operands, ``MASK_SLOTS`` slots of
  the vector unit. That form and its figure are from the first four shapes (the geometric mean of what each asks for);
  the fifth, in f32, was known then but not used, and the last three were compiled afterwards to judge it:

  rows × depth × columns, groups    compiled, ms   estimate, of it
  8192 × 2048 × 1024, 8                    2.254   1.13
  4096 × 1024 × 4096, 16                   4.879   0.97
  2048 × 512 × 2048, 4                     0.196   1.05
  4096 × 1024 × 1024, 64                   7.001   0.83
  8192 × 2048 × 1024, 8, f32               3.392   0.96
  4096 × 4096 × 512, 8                     1.342   1.15
  8192 × 1024 × 2048, 32                   8.992   1.13
  2048 × 2048 × 2048, 16                   2.755   0.80

All by the libtpu of jax 0.10.2, for v5e:2x2, unsplit. With rows that 8 does not divide the first form is dense as well,
and 10 to 18 times as slow as its dense products (4,100 rows); it is not priced so, since numbers of tokens are even.
"""

from __future__ import annotations

from typing import NamedTuple

PLATFORMS = frozenset({"tpu"})
TILE_ROWS = 128
MASK_SLOTS = 33.0


class RaggedWork(NamedTuple):
    """The FLOPs of a ragged product as a multiple of those that count, and slots of the vector unit besides."""

    times: float
    masking_slots: float


def ragged_work(rows: int, depth: int, columns: int, groups: int, *, one_matrix_a_group: bool) -> RaggedWork:
    """The work of a ragged product of local sizes: of ``rows`` with groups, ``depth`` and ``columns`` without.

    ``one_matrix_a_group``: the rows are contracted, and the result has a matrix for each group.
    """
    if one_matrix_a_group:
        return RaggedWork(groups, MASK_SLOTS * groups * rows * (depth + columns))
    return RaggedWork((rows + TILE_ROWS * (groups - 1)) / rows if rows else 1.0, 0.0)
