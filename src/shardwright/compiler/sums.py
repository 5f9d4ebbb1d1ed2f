"""Partial sums that the TPU compiler does not scatter: it reduces them whole, and each device takes its part.

A sum (``reduce``, ``ragged_dot``) over devices that becomes split along them is one fusion, "all-reduce-scatter", which
sends half of what an all-reduce does; but not where its group is every device of a square or a cuboid of chips. Seen in
the final programs of libtpu 0.0.42 for f32[32768,512], summed from [32768,512,64] split along its last dimension:

- whole, over all devices of v5e and v6e 4x4 and 8x8 (by one axis or two) and of v5p 2x2x2, 2x2x4, 2x4x4 and 4x4x4;
- scattered, over all devices of v5e 2x2, 2x4 and 4x8, of v6e 2x4 and of v5p 2x2x1;
- scattered, over some: 4 of v5e 4x4, 8 of 4x4 and of 8x8, 16 of 16x16, 4 of v6e 4x4, 4 and 16 of v5p 4x4x4.

Products are not meant: where there is enough work to hide it behind, they are loops that scatter their sums.
"""

from __future__ import annotations

from collections.abc import Sequence

_LEAST_SQUARE = 4


def reduced_whole(sides: Sequence[int]) -> bool:
    """Whether sums over all devices of a slice are reduced whole; ``sides`` are its chips along each dimension."""
    longer = [side for side in sides if side > 1]
    return len(longer) == 3 or (len(longer) == 2 and longer[0] == longer[1] >= _LEAST_SQUARE)
