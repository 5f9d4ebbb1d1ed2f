"""Meshes of other numbers of devices, with the axes of one that is given."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.request import MeshShape


def meshes_of(mesh: MeshShape, count: int) -> Iterator[MeshShape]:
    """A mesh with the first axis made longer or shorter, further ones only where it must; then all on the first."""
    sizes, left = list(mesh.sizes), count
    for axis in range(len(sizes) - 1, -1, -1):
        kept = sizes[axis] if axis else left
        while left % kept:
            kept -= 1
        sizes[axis], left = kept, left // kept
    yield MeshShape(mesh.names, tuple(sizes))
    alone = MeshShape(mesh.names, (count, *(1 for _ in sizes[1:])))
    if alone.sizes != tuple(sizes):
        yield alone
