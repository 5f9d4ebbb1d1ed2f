"""A plan's mesh over real devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import Mesh

from shardwright.devices import slice_shares
from shardwright.errors import MeshError
from shardwright.request import MeshShape


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
