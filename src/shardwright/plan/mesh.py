"""Meshes as users give them: a dict, a jax Mesh or an AbstractMesh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, SupportsIndex

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, Mesh

from shardwright.devices import slice_shares
from shardwright.errors import MeshError
from shardwright.price import MeshShape

MOST_DEVICES, MOST_AXES = 2**20, 16
"""Of a mesh: more than anybody has. Beyond, a price takes long: a tiny GPT takes seconds on 16 axes, minutes on 32."""


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


def device_mesh(shape: MeshShape, devices: Sequence[Any] | None = None) -> Mesh:
    """A jax Mesh of that shape over the given devices, by default all that JAX sees."""
    found = list(jax.devices() if devices is None else devices)
    if len(found) < shape.devices:
        axes = dict(zip(shape.names, shape.sizes, strict=True))
        raise MeshError(f"the mesh {axes} needs {shape.devices} devices, but there are {len(found)}.")
    return Mesh(arranged(shape.sizes, found[: shape.devices]), shape.names)


def arranged(sizes: tuple[int, ...], devices: Sequence[Any]) -> np.ndarray:
    """Devices laid out as plans are priced: axes along the torus, the last ones within slices and nodes.

    In their own order where JAX does not know how, and where they are all alike.
    """
    slices = {getattr(device, "slice_index", 0) for device in devices}
    within, beyond = slice_shares(sizes, len(devices) // len(slices))
    for split in (False, True):
        try:
            if len(slices) > 1:
                return mesh_utils.create_hybrid_device_mesh(within, beyond, devices, allow_split_physical_axes=split)
            return mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=split)
        except (NotImplementedError, ValueError, AssertionError, AttributeError):
            continue
    return np.array(devices).reshape(sizes)


def check_mesh(shape: MeshShape, mesh: Mesh) -> None:
    """A plan runs on any mesh of its own axes and sizes."""
    if tuple(mesh.axis_names) != shape.names or tuple(mesh.devices.shape) != shape.sizes:
        raise MeshError(
            f"the plan is for the mesh {dict(zip(shape.names, shape.sizes, strict=True))}, not {dict(mesh.shape)}."
        )
