"""What the choice between ways to run an op weighs: seconds of its work and of the moves around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shardwright.ir.program import Op
from shardwright.price.collectives import Move


class Prices(Protocol):
    """Prices on a device and a mesh."""

    def move_seconds(self, move: Move) -> float:
        """Of a collective."""

    def rounding(self, dtype: str) -> float:
        """The part of its bytes that an operand of a product has once it is rounded, if it may be."""

    def reduces_whole(self, axes: tuple[int, ...]) -> bool:
        """Whether sums over these axes are reduced whole where they could be scattered; not those of products."""

    def loop_seconds(
        self, local_bytes: float, work_seconds: float, whole: Sequence[float], part: Sequence[float]
    ) -> float:
        """Of making a product a loop that scatters its partial sums, of so many bytes on each device.

        It takes ``work_seconds`` without. ``whole`` are rows and columns of its result on a device, ``part`` those of
        what one turn makes.
        """

    def work_seconds(self, op: Op, dtype: str, split: float, touched_bytes: float) -> float:
        """Of an op's part on one device: its FLOPs split so many ways, its operands and results of so many bytes."""
