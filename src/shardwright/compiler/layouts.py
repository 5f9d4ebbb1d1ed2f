"""In which order the TPU compiler lays out the dimensions of a tensor: records with their evidence.

Gathers and scatters read and write *rows*: the dimensions that an index does not choose from. The compiler wants these
minor, one row after the other, where arguments and results lie as wastes least (``cost/layout.py``). So a table of
narrow rows exists twice for a while: once as it came, and once in rows, each of them padded to whole tiles.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rows:
    """When a tensor that is gathered from or scattered to lies in rows.

    ``most_padding`` is what it may take for that, beside the least that it can take in any order; where it is as much
    or more, it is read and written as it lies. What was scattered is used in rows too where it updates no more than
    ``most_updated`` arguments, and else copied to lie as they do.
    """

    most_padding: float
    most_updated: int
    evidence: str


ROWS = Rows(
    2.0,
    2,
    "libtpu of jax 0.10.2, v5e, training steps of f32 tables [n, width] that are looked up. In rows: 64 × 1,000,000 "
    "(1.9999 times the least), 96 × 699,136 and 192 × 349,568 (1.33). As they lie: 64 × 1,048,576 (2.0), 48 × as many "
    "(2.67), 32 × 2,000,000 (4.0), 16 and 8. Peaks for 1,000,000 × 64, 244 MiB, by number of tables: plain descent "
    "1,221 MiB (1), momentum 1,465 (1) and 3,451 (3), which is all in rows; Adam 1,465 (1) and 2,234 (2), which is one "
    "gradient in rows and as it lies. Adagrad is here and there: 1,953 (1) and 2,206 (3).",
)
