"""Where the arguments of a plan go: ``jax.device_put`` by the plan's specs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardwright.devices import slice_shares
from shardwright.errors import MeshError, PlanError, nearest
from shardwright.frontend.leaves import Sealed, opened
from shardwright.frontend.names import leaf_paths, parameter_names
from shardwright.request import MeshShape
from shardwright.space.decisions import path_matches

if TYPE_CHECKING:
    from shardwright.plan.plan import Plan


def place(plan: Plan, tree: Any, mesh: Mesh, argument: int | str | None) -> Any:
    """Place an argument, or a part of one, which ``argument`` names by its position or path."""
    check_mesh(plan.partitioned.mesh, mesh)
    leaves, structure = jax.tree.flatten(plan.fn.seal(tree) if isinstance(plan.fn, Sealed) else tree)
    if isinstance(argument, str):
        specs = [s for p, s in zip(_paths(plan), _places(plan), strict=True) if path_matches(argument, p)]
        there = f"{argument!r} matches {len(specs)} leaves of the arguments"
    else:
        position = _position(plan, leaves, structure) if argument is None else argument
        if not 0 <= position < len(plan.args):
            raise PlanError(f"there is no argument {position}; the plan has {len(plan.args)}.")
        specs = _places_of(plan, position)
        there = f"argument {position} has {len(specs)} {'leaf' if len(specs) == 1 else 'leaves'}"
    if len(specs) != len(leaves):
        known = nearest(argument, _paths(plan)) if isinstance(argument, str) else ""
        raise PlanError(f"{there}, but {len(leaves)} were given{known}.")
    placed = [
        jax.device_put(x, NamedSharding(mesh, spec, memory_kind=kind))
        for x, (spec, kind) in zip(leaves, specs, strict=True)
    ]
    return opened(jax.tree.unflatten(structure, placed))


def _position(plan: Plan, leaves: list[Any], structure: Any) -> int:
    """Which argument a tree is, by its structure and then by its shapes."""
    found = [k for k, planned in enumerate(plan.args) if structure == jax.tree.structure(planned)]
    shapes = [np.shape(leaf) for leaf in leaves]
    found = [k for k in found if shapes == [np.shape(leaf) for leaf in jax.tree.leaves(plan.args[k])]] or found
    if not found:
        raise PlanError("no argument has this structure; say which one it is with argument=.")
    if any(_places_of(plan, k) != _places_of(plan, found[0]) for k in found):
        names = parameter_names(plan.fn, len(plan.args))
        raise PlanError(
            f"this could be {' or '.join(names[k] for k in found)}, which the plan places differently; say which one "
            "it is with argument=."
        )
    return found[0]


def _paths(plan: Plan) -> list[str]:
    return leaf_paths(parameter_names(plan.fn, len(plan.args)), plan.args)


Place = tuple[PartitionSpec, str | None]
"""A leaf's spec, and where it lies if that is on the host."""


def _places(plan: Plan) -> list[Place]:
    specs = jax.tree.leaves(plan.argument_specs, is_leaf=lambda s: isinstance(s, PartitionSpec))
    return list(zip(specs, plan.argument_kinds, strict=True))


def _places_of(plan: Plan, position: int) -> list[Place]:
    """Of one argument."""
    counts = [len(jax.tree.leaves(argument)) for argument in plan.args]
    first = sum(counts[:position])
    return _places(plan)[first : first + counts[position]]


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
