"""What a user gives, as typed values: meshes, devices, pins, budgets."""

from shardwright.request.budget import Budget, check_count
from shardwright.request.mesh import MeshLike, MeshShape, mesh_shape
from shardwright.request.pins import Decision, PinLike, Pins, Whole

__all__ = ["Budget", "Decision", "MeshLike", "MeshShape", "PinLike", "Pins", "Whole", "check_count", "mesh_shape"]
