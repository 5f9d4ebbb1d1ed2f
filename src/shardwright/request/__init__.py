"""What a user gives, as typed values: meshes, devices by where they are, pins, budgets."""

from shardwright.request.mesh import MeshShape, mesh_shape

__all__ = ["MeshShape", "mesh_shape"]
