"""How tensors lie on the mesh: arguments grouped by type and spec, each group with a picture.

A tensor is drawn as a sheet of two of its dimensions. Strips along an edge say over which axes that dimension is cut,
the first axis outermost; one device's block is filled; sheets behind it are copies on other devices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwright.apply import spec, spec_text
from shardwright.price.collectives import local_bytes
from shardwright.request import MeshShape
from shardwright.space.state import Sharding

if TYPE_CHECKING:
    from shardwright.plan import Plan

_LONG, _SHORT, _FLAT = 160.0, 72.0, 28.0
"""Sides of a sheet in pixels: at most, at least, and of what has no second dimension."""
_STRIP, _GAP = 13.0, 2.0
_BEHIND, _MOST_BEHIND = 5.0, 3
_LABELLED, _SEPARATE = 9.5, 2.2
"""From how many pixels on a part of a strip is labelled, and can be told from the next."""


@dataclass(frozen=True)
class Dimension:
    """``axes`` by number; ``drawn`` is "rows", "columns" or nothing where it is not on the sheet."""

    number: int
    size: int
    axes: tuple[int, ...]
    parts: int
    drawn: str = ""

    @property
    def local(self) -> int:
        """Its size on one device."""
        return -(-self.size // self.parts)


@dataclass(frozen=True)
class Rectangle:
    """``axis`` colours it; ``label`` stands in it."""

    x: float
    y: float
    width: float
    height: float
    axis: int = -1
    label: str = ""
    odd: bool = False


@dataclass(frozen=True)
class Picture:
    """A sheet, copies of it behind, one device's block, the cuts, and strips along the edges."""

    width: float
    height: float
    sheet: Rectangle
    behind: tuple[Rectangle, ...]
    block: Rectangle
    cuts: tuple[Rectangle, ...]
    strips: tuple[Rectangle, ...]


@dataclass(frozen=True)
class TensorKind:
    """Arguments of one type and spec. ``copied`` are the axes along which every device has the same."""

    type: str
    spec: str
    local_type: str
    paths: tuple[str, ...]
    bytes: float
    """Of all of them, on one device."""
    dimensions: tuple[Dimension, ...]
    copied: tuple[int, ...]
    copies: int
    picture: Picture

    @property
    def sentence(self) -> str:
        """What the picture shows."""
        cut = [f"dimension {d.number} is cut into {d.parts} parts" for d in self.dimensions if d.parts > 1]
        what = ", ".join(cut) if cut else "it is not cut"
        copies = f", in {self.copies} copies" if self.copies > 1 else ""
        return f"{self.type}: {what}; each device holds {self.local_type}{copies}."


def tensor_kinds(plan: Plan) -> list[TensorKind]:
    """The arguments by type and spec, those that take most memory first."""
    program, mesh = plan.analysis.program, plan.partitioned.mesh
    groups: dict[tuple[tuple[int, ...], str, Sharding], list[str]] = {}
    for argument in program.arguments:
        value = program.values[argument.value]
        groups.setdefault((value.shape, value.dtype, plan.partitioned.values[argument.value]), []).append(argument.path)
    found = []
    for (shape, dtype, sharding), paths in groups.items():
        value = program.values[next(a.value for a in program.arguments if a.path == paths[0])]
        dimensions = _dimensions(shape, sharding, mesh)
        used = {axis for axes in sharding for axis in axes}
        copied = tuple(axis for axis, n in enumerate(mesh.sizes) if axis not in used and n > 1)
        copies = mesh.ways(copied)
        found.append(
            TensorKind(
                str(value),
                spec_text(spec(sharding, mesh.names)),
                f"{dtype}[{','.join(str(d.local) for d in dimensions)}]",
                tuple(paths),
                len(paths) * local_bytes(value.bytes, sharding, mesh),
                dimensions,
                copied,
                copies,
                draw(dimensions, mesh, copies),
            )
        )
    return sorted(found, key=lambda kind: -kind.bytes)


def _dimensions(shape: tuple[int, ...], sharding: Sharding, mesh: MeshShape) -> tuple[Dimension, ...]:
    found = [Dimension(d, n, axes, mesh.ways(axes)) for d, (n, axes) in enumerate(zip(shape, sharding, strict=True))]
    # What is cut is shown first; then what is large, then what comes last, as in a matrix.
    order = sorted(found, key=lambda d: (-(d.parts > 1), -(d.size > 1), -d.size, -d.number))
    drawn = sorted(d.number for d in order[:2])
    names = {drawn[-1]: "columns", **({drawn[0]: "rows"} if len(drawn) > 1 else {})} if drawn else {}
    return tuple(Dimension(d.number, d.size, d.axes, d.parts, names.get(d.number, "")) for d in found)


def draw(dimensions: tuple[Dimension, ...], mesh: MeshShape, copies: int) -> Picture:
    """The picture of a tensor with these dimensions."""
    by_place = {d.drawn: d for d in dimensions}
    rows, columns = by_place.get("rows"), by_place.get("columns")
    width, height = _sides(rows, columns)
    left = len(rows.axes) * (_STRIP + _GAP) if rows else 0.0
    top = len(columns.axes) * (_STRIP + _GAP) if columns else 0.0
    sheet = Rectangle(left, top, width, height)
    behind = min(copies - 1, _MOST_BEHIND)
    strips: list[Rectangle] = []
    cuts: list[Rectangle] = []
    for d, length, across in ((columns, width, True), (rows, height, False)):
        if d is None:
            continue
        at, other = (left, height) if across else (top, width)
        before = shown = 1
        for level, axis in enumerate(d.axes):
            size = mesh.sizes[axis]
            place = level * (_STRIP + _GAP)
            strips += [_turned(r, across) for r in _strip(axis, size, before, at, length, place)]
            before, drawn, shown = before * size, shown, _shown(before * size, length)
            lines = [at + k * length / shown for k in range(1, shown) if k * drawn % shown]
            start = top if across else left
            cuts += [_turned(Rectangle(x, start, 0.0, other, axis), across) for x in lines]
    block = Rectangle(left, top, width / (columns.parts if columns else 1), height / (rows.parts if rows else 1))
    return Picture(
        math.ceil(left + width + behind * _BEHIND) + 2,
        math.ceil(top + height + behind * _BEHIND) + 2,
        sheet,
        tuple(Rectangle(left + k * _BEHIND, top + k * _BEHIND, width, height) for k in range(behind, 0, -1)),
        block,
        tuple(cuts),
        tuple(strips),
    )


def _sides(rows: Dimension | None, columns: Dimension | None) -> tuple[float, float]:
    """Width and height of the sheet: the longer dimension gets the longer side, within reason."""
    if columns is None:
        return _FLAT, _FLAT
    if rows is None:
        return _LONG if columns.size > 1 else _FLAT, _FLAT
    shrink = min(max((min(rows.size, columns.size) / max(rows.size, columns.size)) ** 0.3, _SHORT / _LONG), 1.0)
    return (_LONG, _LONG * shrink) if columns.size >= rows.size else (_LONG * shrink, _LONG)


def _strip(axis: int, size: int, before: int, at: float, length: float, place: float) -> list[Rectangle]:
    """An axis along an edge: ``before`` times its parts, each with the number of the device along the axis."""
    shown = _shown(before * size, length)
    each = length / shown
    labelled = shown == before * size and each >= _LABELLED
    return [
        Rectangle(at + k * each, place, each, _STRIP, axis, str(k % size) if labelled else "", odd=bool(k % 2))
        for k in range(shown)
    ]


def _shown(parts: int, length: float) -> int:
    """How many of so many equal parts are drawn: all, or as many as can be told apart."""
    return max(k for k in range(1, parts + 1) if parts % k == 0 and (k == 1 or length / k >= _SEPARATE))


def _turned(r: Rectangle, across: bool) -> Rectangle:
    return r if across else Rectangle(r.y, r.x, r.height, r.width, r.axis, r.label, r.odd)
