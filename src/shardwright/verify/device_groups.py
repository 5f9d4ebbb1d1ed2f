"""The groups of devices that a collective of XLA's program runs in, and the axes of the mesh that they lie along."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

_GROUPS = re.compile(r"\breplica_groups=")
_LISTS = re.compile(r"\{((?:\{[\d,]*\},?\s*)*)\}")
_LIST = re.compile(r"\{([\d,]+)\}")
_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"mesh\[([^\]]*)\](?:, device_ids=\(([^)]*\)?[^)]*)\))? \{([^}]*)\}")
_MESH_IOTA = re.compile(r"(?:<=)?\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH_AXIS = re.compile(r"'?([^',=]+)'?=(\d+)")
_GROUP_AXIS = re.compile(r"'?([^',:]+)'?(?::\((\d+)\)(\d+))?(?:,|$)")
_PAIRS = re.compile(r"\bsource_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
_PAIR = re.compile(r"\{(\d+),(\d+)\}")

Groups = tuple[tuple[int, ...], ...]


class Span(NamedTuple):
    """The mesh's axes that a group runs along, and how many devices of each it takes.

    ``size`` is the number of devices in a group; where a group holds only a part of an axis, it is smaller than the
    product of the axes' own sizes.
    """

    axes: tuple[int, ...]
    sizes: tuple[int, ...]
    size: int


def replica_groups(attributes: str, devices: int) -> Groups:
    """The groups in an instruction's attributes, in any of the three ways that XLA prints them.

    Lists (``{{0,1},{2,3}}``), a reshaped and transposed range (``[4,2]<=[2,4]T(1,0)``), or axes of a mesh of the
    compiler's own making (``mesh['a'=4,'b'=2] {'b'}``). No groups mean one of all devices.
    """
    start = _GROUPS.search(attributes)
    if start:
        at = start.end()
        if iota := _IOTA.match(attributes, at):
            rows, size = _numbers(iota[1])
            return _rows(_iota(_numbers(iota[2]), iota[3]).reshape(rows, size))
        if mesh := _MESH.match(attributes, at):
            return _mesh_groups(mesh[1], mesh[2], mesh[3])
        lists = _LISTS.match(attributes, at)
        if lists and (found := _LIST.findall(lists[1])):
            return tuple(_numbers(group) for group in found)
    return (tuple(range(devices)),)


def permuted_pairs(attributes: str) -> Groups:
    """Source and target of every transfer of a collective permute."""
    found = _PAIRS.search(attributes)
    return tuple((int(a), int(b)) for a, b in _PAIR.findall(found[1])) if found else ()


def span(groups: Groups, sizes: Sequence[int]) -> Span:
    """The axes of a mesh of these sizes along which the devices of a group differ.

    Device ``k`` is the mesh's k-th in row-major order, as JAX assigns them. The group that touches most stands for all.
    """
    if not groups or math.prod(sizes) == 0:
        return Span((), (), 1)
    best = Span((), (), 1)
    for group in groups:
        ids = np.array([k for k in group if k < math.prod(sizes)], dtype=np.int64)
        coordinates = np.unravel_index(ids, tuple(sizes))
        counts = [len(np.unique(c)) for c in coordinates]
        axes = tuple(a for a, n in enumerate(counts) if n > 1)
        found = Span(axes, tuple(counts[a] for a in axes), len(group))
        if (found.size, len(found.axes)) > (best.size, len(best.axes)):
            best = found
    return best


def permuted_span(pairs: Groups, sizes: Sequence[int]) -> Span:
    """The axes along which a source and its target differ, over all pairs."""
    moved = [(a, b) for a, b in pairs if a != b]
    if not moved:
        return Span((), (), 1)
    sources, targets = (np.unravel_index(np.array(side), tuple(sizes)) for side in zip(*moved, strict=True))
    axes = tuple(a for a in range(len(sizes)) if np.any(sources[a] != targets[a]))
    return Span(axes, tuple(sizes[a] for a in axes), 2)


@dataclass(frozen=True)
class _Part:
    """A piece of one axis: ``size`` of it, with ``before`` pieces more major than it."""

    axis: int
    before: int
    size: int


def _mesh_groups(axes: str, device_ids: str | None, grouped: str) -> Groups:
    named = [(name.strip(), int(size)) for name, size in _MESH_AXIS.findall(axes)]
    sizes = [size for _, size in named]
    positions = {name: k for k, (name, _) in enumerate(named)}
    ids = _device_ids(device_ids, math.prod(sizes)).reshape(sizes)
    parts = [
        _Part(positions[name.strip()], int(before or 1), int(size) if size else sizes[positions[name.strip()]])
        for name, before, size in _GROUP_AXIS.findall(grouped)
        if name.strip()
    ]
    # Split every axis where a part begins or ends, then bring the parts' pieces to the end.
    pieces: list[_Part] = []
    for axis, size in enumerate(sizes):
        cuts = {1, size}
        for part in parts:
            if part.axis == axis:
                cuts |= {part.before, part.before * part.size}
        ordered = sorted(cuts)
        pieces += [_Part(axis, a, b // a) for a, b in itertools.pairwise(ordered)] or [_Part(axis, 1, 1)]
    inside = [
        k
        for part in parts
        for k, piece in enumerate(pieces)
        if piece.axis == part.axis and part.before <= piece.before < part.before * part.size
    ]
    outside = [k for k in range(len(pieces)) if k not in inside]
    turned = ids.reshape([piece.size for piece in pieces]).transpose(outside + inside)
    return _rows(turned.reshape(-1, math.prod(pieces[k].size for k in inside)))


def _device_ids(text: str | None, devices: int) -> np.ndarray:
    if text is None:
        return np.arange(devices)
    if iota := _MESH_IOTA.match(text.strip()):
        return _iota(_numbers(iota[1]), iota[2]).reshape(-1)
    return np.array(_numbers(text))


def _iota(shape: Sequence[int], order: str | None) -> np.ndarray:
    ids = np.arange(math.prod(shape)).reshape(tuple(shape))
    return ids.transpose(_numbers(order)) if order else ids


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part.strip())


def _rows(array: np.ndarray) -> Groups:
    return tuple(tuple(int(k) for k in row) for row in array)
