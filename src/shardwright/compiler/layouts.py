"""In which order the TPU compiler lays out the dimensions of a tensor: records with their evidence.

Gathers and scatters read and write *rows*: the dimensions that an index does not choose from. The compiler wants these
minor, one row after the other, where arguments and results lie as wastes least (``price/layout.py``). So a table of
narrow rows exists twice for a while: once as it came, and once in rows, each of them padded to whole tiles.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rows:
    """When a tensor that is gathered from or scattered to lies in rows.

    ``most_padding`` is what it may take for that, beside the least that it can take in any order; where it is as much
    or more, it is read and written as it lies. What was scattered is used in rows too where it updates no more than
    ``most_updated`` arguments, and else copied to lie as they do. A copy takes ``copy_slots`` of the vector unit for
    each byte that it reads or writes.
    """

    most_padding: float
    most_updated: int
    copy_slots: float
    evidence: str


ROWS = Rows(
    2.0,
    2,
    13.2,
    "libtpu of jax 0.10.2, v5e, training steps of f32 tables [n, width] that are looked up. In rows: 64 × 1,000,000 "
    "(1.9999 times the least), 96 × 699,136 and 192 × 349,568 (1.33). As they lie: 64 × 1,048,576 (2.0), 48 × as many "
    "(2.67), 32 × 2,000,000 (4.0), 16 and 8. Peaks for 1,000,000 × 64, 244 MiB, by number of tables: plain descent "
    "1,221 MiB (1), momentum 1,465 (1) and 3,451 (3), which is all in rows; Adam 1,465 (1) and 2,234 (2), which is one "
    "gradient in rows and as it lies. Adagrad is here and there: 1,953 (1) and 2,206 (3). Copies of 1,000,000 × 64 to "
    "rows and back: 1.65 ms each, of 768 MB read and written.",
)


@dataclass(frozen=True)
class TakenApart:
    """What becomes of gathered rows whose indices are added up along their last dimension, and of what is spread so.

    Such are bags of embeddings: ids [batch, tables, hots], rows [batch, tables, hots, width], summed over hots; and
    backward the same is spread again before it is scattered. Gathers and scatters have all indices in one dimension;
    to take them apart the tensor is copied so that either the rows or the last two indices are minor, whichever wastes
    less, padded to whole tiles. Rows of at most ``flat_width`` go through a flat tensor instead, and always have their
    indices minor. All slots are of the vector unit: of copies for each byte read or written, of flat ones for each that
    is not padding, of sums and spreads for each byte with its padding, and so of what is ``moved`` between devices,
    which has to be taken apart as well.
    """

    flat_width: int
    flat_slots: float
    sum_slots: float
    spread_slots: float
    flat_sum_slots: float
    flat_spread_slots: float
    moved_slots: float
    evidence: str


TAKEN_APART = TakenApart(
    8,
    86.0,
    33.0,
    22.5,
    19.0,
    10.2,
    10.2,
    "libtpu of jax 0.10.2, v5e, steps of descent of an f32 table [1000000, width] with ids [4096, 20, 8] summed "
    "over the last. Width 128: reduce 1.80 ms, broadcast 1.23, no copy. 64, 32 and 16: the same, as "
    "[4096,20,8,width] is padded to 128; with 32 and 16, whose tables are not in rows, copies of [655360,width] of "
    "0.61 to 0.63 ms each way as well, and a peak of 320 MiB. Width 8: [8,4096,20,8] with 20 × 8 minor, 384 MiB; "
    "reduce 1.25, broadcast 0.67, two loops that flatten and unflatten 1.19 ms. Ids [4096,8,20], width 8: 128 MiB, "
    "0.43, 0.23, 1.18. Ids [16384,21,8], width 16: 1,872 MiB; copies 3.41 each, reduce 7.40, broadcast 5.19. Ids "
    "[4096,8,128], width 32: the indices are minor; copies 1.63 each, reduce 2.79, broadcast 1.97. With one "
    "dimension of indices, or none summed, there is none of this. "
    "On 4x4, a table split by width into rows of 8, ids [16384,21,8], exchanged for rows of 128 before the sum: the "
    "same loops and [8,16384,21,8] of 1.5 GiB, and a copy of it of 2.67 ms each way.",
)
