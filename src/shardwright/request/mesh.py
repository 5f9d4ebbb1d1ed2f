"""Meshes as users give them, and their shape, which is all that a plan needs to know of one."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import index
from typing import Any, SupportsIndex

from jax.sharding import AbstractMesh, Mesh

from shardwright.errors import MeshError

MOST_DEVICES, MOST_AXES = 2**20, 16
"""Of a mesh: more than anybody has. Beyond, a price takes long: a tiny GPT takes seconds on 16 axes, minutes on 32."""


@dataclass(frozen=True)
class MeshShape:
    """The names and sizes of a mesh's axes, in order; the devices themselves do not matter to a plan.

    ``order`` is that in which several axes split one dimension, major first; by default the mesh's own. It is how a
    plan writes shardings, and no part of the mesh.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    order: tuple[int, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, axes: Mapping[str, int], order: Sequence[str] = ()) -> MeshShape:
        """From a dict such as ``{"data": 4, "model": 2}``; ``order`` has all of its axes or none."""
        names = tuple(axes)
        return cls(names, tuple(axes.values()), tuple(names.index(name) for name in order))

    @cached_property
    def major_first(self) -> tuple[int, ...]:
        """The axes by number, in the order in which they split one dimension."""
        return self.order or tuple(range(len(self.names)))

    @property
    def axes(self) -> dict[str, int]:
        """The size of each axis by its name."""
        return dict(zip(self.names, self.sizes, strict=True))

    @cached_property
    def devices(self) -> int:
        """How many devices there are."""
        count = 1
        for size in self.sizes:
            count *= size
        return count

    def numbers(self, names: Container[str]) -> frozenset[int]:
        """The axes of these names, by number."""
        return frozenset(axis for axis, name in enumerate(self.names) if name in names)

    def ways(self, axes: tuple[int, ...]) -> int:
        """Into how many parts these axes split a dimension."""
        parts = 1
        for axis in axes:
            parts *= self.sizes[axis]
        return parts


MeshLike = Mapping[str, int] | Mesh | AbstractMesh | MeshShape | int | str | None
"""A mesh as users give it: its axes, a number of devices, devices by where they are, or None for the program's own."""


def mesh_shape(mesh: Any) -> MeshShape:
    """The axes of a mesh in any of the forms that are allowed."""
    if isinstance(mesh, MeshShape):
        return mesh
    if isinstance(mesh, (Mesh, AbstractMesh)):
        return MeshShape.of(dict(mesh.shape))
    if not isinstance(mesh, Mapping) or not mesh:
        raise MeshError(
            f"a mesh is a dict such as {{'data': 4, 'model': 2}}, a jax Mesh or an AbstractMesh, not {mesh!r}."
        )
    for name, size in mesh.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise MeshError(f"the mesh axis {name!r} needs a name such as 'data'.")
        if isinstance(size, bool) or not isinstance(size, SupportsIndex) or index(size) < 1:
            raise MeshError(f"the mesh axis {name!r} needs a whole number of devices, not {size!r}.")
    shape = MeshShape.of({name: index(size) for name, size in mesh.items()})
    if shape.devices > MOST_DEVICES or len(shape.names) > MOST_AXES:
        raise MeshError(f"a mesh has at most {MOST_AXES} axes and {MOST_DEVICES:,} devices; this one has more.")
    return shape
