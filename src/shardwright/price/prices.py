"""Prices on a device: what the choice between ways to run one op weighs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from shardwright.compiler import Compiler
from shardwright.compiler.moving import LOOPED_PRODUCTS, ROUNDED, WHOLE_SLICES
from shardwright.devices import AxisLink, Device, Part, axis_parts, joined
from shardwright.ir.program import Op, bits_of
from shardwright.price.collectives import ALL_GATHER, ALL_TO_ALL, Move, collective_seconds
from shardwright.price.ways import Loop
from shardwright.request import MeshShape

_WIDE = 4
"""Bytes of an entry: narrower ones are packed."""


@dataclass(frozen=True)
class DevicePrices:
    """Prices on a device, with the parts of links that each axis of its mesh runs on."""

    device: Device
    parts: tuple[tuple[Part, ...], ...]
    _over: dict[tuple[int, ...], tuple[list[AxisLink], list[int]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """The links and sizes that a collective over some axes has."""

    @classmethod
    def of(cls, device: Device, mesh: MeshShape, topology: Sequence[int] | None = None) -> DevicePrices:
        """With the links that a mesh of this shape has; ``topology`` is a torus's own shape, if it is known."""
        return cls(device, axis_parts(device, mesh.sizes, topology))

    def move_seconds(self, move: Move) -> float:
        """Of a collective, and of copies behind it."""
        return self.link_seconds(move) + self.copy_seconds(move)

    def link_seconds(self, move: Move) -> float:
        """Of a collective on its links."""
        seconds = collective_seconds(move.kind, move.bytes * move.scale, *self._links(move.axes), move.sharers)
        return seconds / move.addends

    def _links(self, axes: tuple[int, ...]) -> tuple[list[AxisLink], list[int]]:
        found = self._over.get(axes)
        if found is None:
            parts = joined(part for a in axes for part in self.parts[a])
            found = self._over[axes] = ([p.link for p in parts], [p.size for p in parts])
        return found

    def copy_seconds(self, move: Move) -> float:
        """Of copies that bring what was moved into place, on a device that has layouts.

        See ``compiler.layouts.MOVED_INTO_PLACE``.
        """
        if self.device.tile is None or not self.device.vector_ops_per_second:
            return 0.0
        costs = self.device.kernel_costs
        slots = costs.relayout_slots if move.kind == ALL_TO_ALL else 0.0
        if move.kind == ALL_GATHER and not move.in_place:
            slots = costs.relayout_slots + costs.small_tile_slots
        n = math.prod(self._links(move.axes)[1]) if slots else 1
        if n == 1:
            return 0.0
        return 2 * slots * move.bytes * move.scale * n / (n - 1) / self.device.vector_ops_per_second

    def rounding(self, dtype: str) -> float:
        """The part of its bytes that an operand of a product has once it is rounded, if it may be."""
        bits = self._compiler[ROUNDED]
        return bits / bits_of(dtype) if dtype == "f32" and bits else 1.0

    @cached_property
    def _compiler(self) -> Compiler:
        return self.device.compiler

    def reduces_whole(self, axes: tuple[int, ...]) -> bool:
        """Whether sums over these axes are reduced whole where they could be scattered; not those of products."""
        return axes in self._reduce_whole

    @cached_property
    def _reduce_whole(self) -> frozenset[tuple[int, ...]]:
        """Sets of axes, in order: all of the mesh, with or without those of one device."""
        along: dict[int, int] = {}
        for part in (part for parts in self.parts for part in parts):
            along[part.dimension] = along.get(part.dimension, 1) * part.size
        if min(along, default=-1) < 0 or not self._compiler[WHOLE_SLICES](tuple(along.values())):
            return frozenset()
        split = tuple([a for a, parts in enumerate(self.parts) if math.prod(part.size for part in parts) > 1])
        return frozenset({split, tuple(range(len(self.parts)))})

    def makes_loop(self, matrix_seconds: float, scatter_seconds: float) -> bool:
        """Whether a product that takes so long is made a loop that scatters its sums, which takes so long."""
        return matrix_seconds >= self._compiler[LOOPED_PRODUCTS].least_part * scatter_seconds

    def loop_seconds(self, loop: Loop) -> tuple[float, float]:
        """What making a product a loop that scatters its sums takes more: its products, and adding up their parts."""
        unit, rate, looped = (
            self.device.matrix_unit,
            self.device.memory_bytes_per_second,
            self._compiler[LOOPED_PRODUCTS],
        )
        slower = math.prod(max(unit / b, 1) / max(unit / a, 1) for a, b in zip(loop.whole, loop.part, strict=True))
        matrix_seconds = slower * max(loop.work_seconds - (loop.operand_bytes + loop.local_bytes) / rate, 0.0)
        reading_seconds = loop.ways / 4 * loop.uncut_bytes / (rate * looped.read_part)  # of half of the turns
        passes = looped.passes if loop.entry_bytes >= _WIDE else looped.narrow_passes
        return (
            (1 - 1 / slower) * matrix_seconds + max(reading_seconds - matrix_seconds / 2, 0.0),
            passes * loop.local_bytes / rate,
        )

    def work_seconds(self, op: Op, dtype: str, split: float, touched_bytes: float) -> float:
        """Of an op's part on one device, each tensor read or written once."""
        matrix = op.flops / split / self.device.flops(dtype) if op.flops else 0.0
        return matrix + touched_bytes / self.device.memory_bytes_per_second
