"""What a Pallas kernel says of itself, as plain data: its grid, and which block of each array a step of it works on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

TARGET = "tpu_custom_call"
"""What a kernel is called as on a TPU, whichever it is."""


@dataclass(frozen=True)
class Block:
    """Which part of an operand or result a step of the grid works on.

    ``sizes`` are those of the part, 0 for a dimension that is not cut into blocks. ``index`` is, for each dimension,
    the grid index that is the block's number along it and nothing else, or -1. ``mixed`` are the grid indices that its
    place depends on in any other way.
    """

    shape: tuple[int, ...]
    bits: int
    sizes: tuple[int, ...]
    index: tuple[int, ...]
    mixed: frozenset[int] = frozenset()

    @cached_property
    def follows(self) -> frozenset[int]:
        """The grid indices that it depends on at all."""
        return self.mixed | {k for k in self.index if k >= 0}

    def transferred_bytes(self, grid: tuple[int, ...]) -> float:
        """Bytes that a device moves, of blocks that stay where they are while their place does not change."""
        steps = math.prod(grid[: max(self.follows) + 1]) if self.follows else 1
        block = math.prod(part or whole for part, whole in zip(self.sizes, self.shape, strict=True))
        return steps * block * self.bits / 8


@dataclass(frozen=True)
class Kernel:
    """A kernel's grid and blocks, and what in its body stands in the way of a smaller grid.

    ``scalars``: shapes of the operands that come before the blocked ones. ``numbered``: grid indices whose number the
    body asks for, or their count where that is not a constant in it by now. ``carries``: it has memory that outlives a
    step. ``parallel``: grid indices whose steps the author declares independent, or that ``vmap`` added. ``aliases``:
    operands that a result is written over. ``fixed`` says why the grid must stay as it is altogether, if it must.
    ``flops`` and ``transcendentals`` are of all steps.
    """

    name: str
    grid: tuple[int, ...]
    scalars: tuple[tuple[int, ...], ...]
    operands: tuple[Block, ...]
    results: tuple[Block, ...]
    numbered: frozenset[int] = frozenset()
    carries: bool = False
    parallel: frozenset[int] = frozenset()
    aliases: tuple[tuple[int, int], ...] = ()
    fixed: str = ""
    flops: int = 0
    transcendentals: int = 0

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Of operands, then of results."""
        return self.operands + self.results
