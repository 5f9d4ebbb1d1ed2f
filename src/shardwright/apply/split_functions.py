"""Functions with a rule of their own in an annotated module: each device runs what their ``partition`` gives it.

JAX has XLA call a function's ``partition`` back while it partitions a program, which no exported module can. Here the
plan knows every sharding by then: ``partition`` is asked at once, and what it answers is lowered as a region that is
manual along every axis, with the collectives that it has.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from jax.sharding import AbstractMesh, PartitionSpec

from shardwright import _jax
from shardwright.apply.annotate import sharding_attribute
from shardwright.apply.specs import spec
from shardwright.apply.split_kernels import call_of, inserted, replaced
from shardwright.errors import PlanError
from shardwright.ir.build import ReadModule, body_of
from shardwright.ir.given import mesh_symbol
from shardwright.price import Partitioned
from shardwright.request import MeshShape
from shardwright.space.state import Sharding

_MESH, _REGION = "sdy.mesh", "sdy.manual_computation"


def place_functions(
    read: ReadModule,
    partitioned: Partitioned,
    calls: Sequence[_jax.FunctionCall],
    mesh: AbstractMesh,
    platform: str,
) -> None:
    """Replace each custom call that stands for a function, in the module and among the operations that were read."""
    if not calls:
        return
    axes = partitioned.mesh
    made: dict[tuple[int, tuple[PartitionSpec, ...]], Any] = {}
    with read.module.context:
        symbol = mesh_symbol(read.module, axes.axes, add=True)
        for o, op in enumerate(read.program.ops):
            if "function" not in op.attributes:
                continue
            number, assignment = op.attributes["function"], partitioned.assignments[o]
            whole: list[Sharding] = [((),) * len(read.program.values[v].shape) for v in (*op.operands, *op.results)]
            shardings = whole if assignment is None else [*assignment.operands, *assignment.results]
            key = number, tuple(spec(sharding, axes.names) for sharding in shardings)
            name = f"shardwright_function_{len(made)}"
            if axes.devices == 1:  # where JAX makes no region
                if key not in made:
                    made[key] = inserted(read.module, _jax.lowered_function(calls[number], platform), name)
                with _jax.ir.InsertionPoint(read.operations[o]), read.operations[o].location:
                    call = call_of(made[key], list(read.operations[o].operands))
                read.operations[o] = replaced(read.operations[o], call)
                continue
            if key not in made:
                made[key] = _region(read.module, calls[number], mesh, key[1], platform, name, symbol, axes)
            read.operations[o] = _placed(read.operations[o], made[key])
        if axes.devices > 1:
            for function, _ in made.values():
                function.erase()


def whole_functions(module: Any, calls: Sequence[_jax.FunctionCall], platform: str) -> None:
    """Have every function that a custom call in a module operation stands for called as it is, for one device."""
    marked: list[Any] = []

    def visit(operation: Any) -> Any:
        if _jax.FUNCTION_MARK in operation.attributes:
            marked.append(operation)
        return _jax.ir.WalkResult.ADVANCE

    _jax.walk(module.operation, visit)
    bodies: dict[int, Any] = {}
    with module.context:
        for operation in marked:
            number = _jax.ir.IntegerAttr(operation.attributes[_jax.FUNCTION_MARK]).value
            if number not in bodies:
                data = _jax.lowered_function(calls[number], platform)
                bodies[number] = inserted(module, data, f"shardwright_function_{len(bodies)}")
            with _jax.ir.InsertionPoint(operation), operation.location:
                call = call_of(bodies[number], list(operation.operands))
            replaced(operation, call)


def _region(
    module: Any,
    call: _jax.FunctionCall,
    mesh: AbstractMesh,
    specs: Sequence[PartitionSpec],
    platform: str,
    name: str,
    symbol: str,
    axes: MeshShape,
) -> tuple[Any, Any]:
    """A function of the module that holds what every device runs, and the region in it."""
    try:
        part = _jax.lowered_part(call, mesh, specs, platform)
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise PlanError(
            f"the partition of {call.function.name!r} does not take operands and results sharded as "
            f"{', '.join(map(str, specs))} ({reason[0] if reason else type(error).__name__}), though its sharding rule "
            "allows it; give it a sharding_rule that says what it takes, or one by its name as rules=."
        ) from error
    function = inserted(module, _on_mesh(module, part.module, symbol), name)
    regions = [each.operation for each in body_of(function).operations if each.operation.name == _REGION]
    (region,) = regions
    number = {axis: a for a, axis in enumerate(axes.names)}
    for each, found in (("in_shardings", part.operands), ("out_shardings", part.results)):
        attributes = [sharding_attribute(symbol, axes.names, _sharding(s, number)) for s in found]
        region.attributes[each] = _jax.sdy.TensorShardingPerValueAttr.get(attributes)
    return function, region


def _sharding(found: PartitionSpec, number: dict[str, int]) -> Sharding:
    return tuple(
        () if axes is None else tuple(number[a] for a in ((axes,) if isinstance(axes, str) else axes)) for axes in found
    )


def _on_mesh(module: Any, data: bytes, symbol: str) -> bytes:
    """A lowered module that refers to its meshes, which are all the same, as another module does."""
    lowered = _jax.ir.Module.parse(data).operation
    meshes = [view.operation for view in lowered.regions[0].blocks[0].operations if view.operation.name == _MESH]
    ours = next(
        view.operation
        for view in module.regions[0].blocks[0].operations
        if view.operation.name == _MESH and _jax.ir.StringAttr(view.operation.attributes["sym_name"]).value == symbol
    )
    names = []
    for mesh in meshes:
        names.append(_jax.ir.StringAttr(mesh.attributes["sym_name"]).value)
        for key in mesh.attributes:  # newer collectives name the axes of a mesh that has them as StableHLO's, too
            if key not in ours.attributes:
                ours.attributes[key] = mesh.attributes[key]
    for mesh in meshes[1:]:
        mesh.erase()
    text = str(lowered.get_asm(enable_debug_info=True))
    return re.sub(rf"@({'|'.join(map(re.escape, names))})\b", f"@{symbol}", text).encode()


def _placed(operation: Any, made: tuple[Any, Any]) -> Any:
    """A custom call replaced by a copy of the region, on the call's own operands."""
    function, region = made
    arguments = list(body_of(function).arguments)
    copy = region.clone(_jax.ir.InsertionPoint(operation))
    for k, value in enumerate(region.operands):
        copy.operands[k] = operation.operands[arguments.index(value)]
    return replaced(operation, copy)
