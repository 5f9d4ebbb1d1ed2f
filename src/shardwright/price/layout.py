"""Bytes that a tensor takes in a device's memory, padding included.

A TPU keeps the two minor dimensions of a tensor in tiles of 8 × 128 elements of four bytes (narrower types pack
several rows into a word, and their tiles are padded alike), so [512, 3] may take as much as [512, 128]. A second-minor
dimension below 8 gets a tile of 1, 2 or 4 rows (XLA, "Tiled layout"; seen in compiled programs as ``T(8,128)``,
``T(2,128)``). The compiler chooses which dimensions are minor, for arguments too unless the user says so, and takes
those that waste least: f32[16384,3] lies as {0,1:T(4,128)}. What is read or written row by row is another matter: see
``compiler/layouts.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from shardwright.compiler.layouts import ROWS, TAKEN_APART
from shardwright.ir.program import bits_of

_ROWS, _APART = ROWS.effect, TAKEN_APART.effect
"""Asked only where a device has tiles."""


def stored_bytes(shape: Sequence[int], dtype: str, tile: tuple[int, int] | None) -> float:
    """Bytes of a tensor of this (local) shape."""
    return _stored_bytes(tuple(shape), dtype, tile)


@cache
def _stored_bytes(shape: tuple[int, ...], dtype: str, tile: tuple[int, int] | None) -> float:
    element = bits_of(dtype) / 8
    count = math.prod(shape)
    if tile is None or not shape or not count:
        return count * element
    if len(shape) == 1:
        return padded(shape[0], tile[1]) * element
    best = min(
        count // (shape[i] * shape[j]) * _tiled(shape[i], shape[j], tile)
        for j in range(len(shape))
        for i in range(len(shape))
        if i != j
    )
    return best * element


def row_bytes(shape: Sequence[int], dtype: str, tile: tuple[int, int] | None, rows: Sequence[int]) -> float:
    """Bytes of a tensor that lies with the dimensions ``rows`` minor; none if it does not, or does so anyway."""
    if tile is None or not rows or len(shape) < 2:
        return 0.0
    *outer, second, minor = [shape[d] for d in (*(d for d in range(len(shape)) if d not in rows), *rows)]
    size = math.prod(outer) * _tiled(second, minor, tile) * bits_of(dtype) / 8
    least = stored_bytes(shape, dtype, tile)
    return size if least < size < _ROWS.most_padding * least else 0.0


def row_copy_slots(shape: Sequence[int], dtype: str, tile: tuple[int, int] | None, rows: Sequence[int]) -> float:
    """Slots of the vector unit for a copy of a table in rows; none where there is no such copy."""
    copy = row_bytes(shape, dtype, tile, rows)
    return _ROWS.copy_slots * (copy + stored_bytes(shape, dtype, tile)) if copy else 0.0


def apart_bytes(shape: Sequence[int], dtype: str, tile: tuple[int, int] | None, rows: int) -> float:
    """Bytes of the copy in which the indices of gathered rows are taken apart; none where they lie so anyway."""
    if tile is None:
        return 0.0
    *outer, before, last = [size for d, size in enumerate(shape) if d != rows]
    element, width, many = bits_of(dtype) / 8, shape[rows], math.prod(outer)
    by_rows = many * before * _tiled(last, width, tile) * element
    by_index = many * width * _tiled(before, last, tile) * element
    if width <= _APART.flat_width:
        return by_index
    return 0.0 if width % tile[1] == 0 else min(by_rows, by_index)


def apart_slots(shape: Sequence[int], dtype: str, tile: tuple[int, int] | None, rows: int) -> float:
    """Slots of the vector unit for the copies by which gathered rows are taken apart, or put together again."""
    copy, least = apart_bytes(shape, dtype, tile, rows), stored_bytes(shape, dtype, tile)
    if tile is None or not copy:
        return 0.0
    if shape[rows] <= _APART.flat_width:
        return _APART.flat_slots * least
    in_rows = padded(shape[rows], tile[1]) <= _ROWS.most_padding * shape[rows]  # as the table does then: no copy
    return 0.0 if in_rows else _ROWS.copy_slots * (least + copy)


def apart_work_slots(
    shape: Sequence[int], dtype: str, tile: tuple[int, int] | None, rows: int, *, spread: bool, moved: bool
) -> float:
    """Slots of the vector unit for adding up rows that were taken apart, or for spreading them so.

    What was ``moved`` between devices lies as wastes least.
    """
    if tile is None:
        return 0.0
    copy, least, known = apart_bytes(shape, dtype, tile, rows), stored_bytes(shape, dtype, tile), _APART
    if moved or shape[rows] > known.flat_width:
        return (known.spread_slots if spread else known.sum_slots) * (least if moved else copy or least)
    return (known.flat_spread_slots if spread else known.flat_sum_slots) * copy


def apart_move_slots(shape: Sequence[int], dtype: str, tile: tuple[int, int] | None, rows: int) -> float:
    """Slots of the vector unit for bringing what was taken apart, with its padding, to how devices exchange it."""
    return _APART.moved_slots * apart_bytes(shape, dtype, tile, rows)


def padded(size: int, multiple: int) -> int:
    """The next multiple."""
    return -(-size // multiple) * multiple


def _tiled(second: int, minor: int, tile: tuple[int, int]) -> int:
    rows = tile[0]
    while rows > 1 and rows // 2 >= second:
        rows //= 2
    return padded(second, rows) * padded(minor, tile[1])
