"""Sums over devices in a manual region, as ``psum`` in a ``shard_map`` makes them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from shardwright import _jax
from shardwright.request import MeshShape


class DeviceSums:
    """Sums over axes of a mesh, each on a channel of its own in a module operation."""

    def __init__(self, module: Any, mesh: MeshShape) -> None:
        self.module, self.mesh = module, mesh
        self.last_channel = 0

    def of(self, value: Any, axes: tuple[int, ...]) -> Any:
        """A value added up over axes of the mesh, where MLIR is inserting."""
        if not axes:
            return value
        scalar = _jax.ir.RankedTensorType.get([], _jax.ir.RankedTensorType(value.type).element_type)
        channel = f"#stablehlo.channel_handle<handle = {self._channel()}, type = 1>"
        attributes = {
            "replica_groups": _jax.ir.DenseIntElementsAttr.get(self._groups(axes)),
            "channel_handle": _jax.ir.Attribute.parse(channel),
            "use_global_device_ids": _jax.ir.UnitAttr.get(),
        }
        reduced = _jax.ir.Operation.create(
            "stablehlo.all_reduce", results=[value.type], operands=[value], attributes=attributes, regions=1
        )
        location = reduced.location
        block = _jax.ir.Block.create_at_start(reduced.regions[0], [scalar, scalar], [location, location])
        with _jax.ir.InsertionPoint(block), location:
            total = _jax.ir.Operation.create("stablehlo.add", results=[scalar], operands=list(block.arguments))
            _jax.ir.Operation.create("stablehlo.return", operands=[total.result])
        return reduced.result

    def _groups(self, axes: tuple[int, ...]) -> Any:
        """The devices that differ along these axes only, by their place in the mesh."""
        places = np.arange(self.mesh.devices, dtype=np.int64).reshape(self.mesh.sizes)
        last = np.moveaxis(places, axes, range(-len(axes), 0))
        return np.ascontiguousarray(last.reshape(-1, self.mesh.ways(axes)))

    def _channel(self) -> int:
        """A number that no collective in the module has."""
        if not self.last_channel:

            def visit(operation: Any) -> Any:
                if "channel_handle" in operation.attributes:
                    handle = re.search(r"handle = (\d+)", str(operation.attributes["channel_handle"]))
                    self.last_channel = max(self.last_channel, int(handle[1]) if handle else 0)
                return _jax.ir.WalkResult.ADVANCE

            _jax.walk(self.module, visit)
        self.last_channel += 1
        return self.last_channel
