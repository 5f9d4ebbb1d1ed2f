"""Pallas kernels in an annotated module: each device runs its own part of the grid, in a manual region.

The compiler cannot partition a kernel, and JAX refuses to have it tried. So the custom call that stands for one becomes
a region that is manual along every axis, in which the kernel is called on local arrays and on a grid that is smaller by
the axes that split it; where none does, on all of it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shardwright import _jax
from shardwright.apply.annotate import sharding_attribute
from shardwright.errors import PlanError
from shardwright.ir.build import ReadModule, functions_of, main_of
from shardwright.ir.given import mesh_symbol
from shardwright.ir.program import Op
from shardwright.price import Partitioned
from shardwright.request import MeshShape
from shardwright.space.state import Sharding


def place_kernels(read: ReadModule, partitioned: Partitioned, calls: Sequence[_jax.PallasCall], platform: str) -> None:
    """Replace each custom call that stands for a kernel, in the module and among the operations that were read."""
    if not calls:
        return
    mesh = partitioned.mesh
    bodies, sums = _Bodies(read.module, calls, platform), DeviceSums(read.module, mesh)
    with read.module.context:
        symbol = mesh_symbol(read.module, mesh.axes, add=True)
        for o, op in enumerate(read.program.ops):
            if "call" not in op.attributes:
                continue
            assignment = partitioned.assignments[o]
            factors = (-1,) * len(mesh.sizes) if assignment is None else assignment.factors
            shapes = [read.program.values[v].shape for v in (*op.operands, *op.results)]
            whole: list[Sharding] = [((),) * len(shape) for shape in shapes]
            shardings = whole if assignment is None else [*assignment.operands, *assignment.results]
            local = tuple(
                tuple(size // mesh.ways(axes) for size, axes in zip(shape, sharding, strict=True))
                for shape, sharding in zip(shapes, shardings, strict=True)
            )
            body = bodies.of(op.attributes["call"], _ways(factors, mesh), local, op.rule.reduction)
            free = [name for name in mesh.names if name not in manual_around(read, op)]
            partial = () if assignment is None else assignment.partial
            add = functools.partial(sums.of, axes=partial)
            read.operations[o] = _region(read.operations[o], body, symbol, mesh.names, free, shardings, add)


def whole_kernels(module: Any, calls: Sequence[_jax.PallasCall], platform: str) -> None:
    """Have every kernel that a custom call in a module operation stands for called as it is, for one device."""
    bodies = _Bodies(module, calls, platform)
    marked: list[Any] = []

    def visit(operation: Any) -> Any:
        if _jax.MARK in operation.attributes:
            marked.append(operation)
        return _jax.ir.WalkResult.ADVANCE

    _jax.walk(module.operation, visit)
    with module.context:
        for operation in marked:
            number = _jax.ir.IntegerAttr(operation.attributes[_jax.MARK]).value
            body = bodies.of(number, {}, calls[number].kernel.shapes, frozenset())
            with _jax.ir.InsertionPoint(operation), operation.location:
                call = call_of(body, list(operation.operands))
            replaced(operation, call)


def _ways(factors: Sequence[int], mesh: MeshShape) -> dict[int, int]:
    """Into how many parts each grid index is split, which is the factor of the same number."""
    out: dict[int, int] = {}
    for size, f in zip(mesh.sizes, factors, strict=True):
        if f >= 0:
            out[f] = out.get(f, 1) * size
    return out


def manual_around(read: ReadModule, op: Op) -> frozenset[str]:
    """The axes along which the region that an op is in is manual already."""
    given = next((own for v in op.results if (own := read.program.values[v].given) is not None), None)
    return frozenset() if given is None else given.local


class _Bodies:
    """Functions of a module that run a kernel on a part of its grid, each made when it is first asked for."""

    def __init__(self, module: Any, calls: Sequence[_jax.PallasCall], platform: str) -> None:
        self.module, self.calls, self.platform = module, calls, platform
        self.made: dict[tuple[int, tuple[tuple[int, int], ...]], Any] = {}

    def of(self, number: int, ways: Mapping[int, int], shapes: Sequence[tuple[int, ...]], sums: frozenset[int]) -> Any:
        """The function for a kernel by its number; ``shapes`` are those of local operands and results."""
        key = (number, tuple(sorted(ways.items())))
        if key not in self.made:
            name = f"shardwright_kernel_{len(self.made)}"
            self.made[key] = self._make(self.calls[number], ways, shapes, sums, name)
        return self.made[key]

    def _make(
        self,
        call: _jax.PallasCall,
        ways: Mapping[int, int],
        shapes: Sequence[tuple[int, ...]],
        sums: frozenset[int],
        name: str,
    ) -> Any:
        try:
            data = _jax.lowered_kernel(call, ways, shapes, sums, self.platform)
        except Exception as error:
            reason = str(error).strip().splitlines()
            grid = " × ".join(str(size // ways.get(k, 1)) for k, size in enumerate(call.kernel.grid)) or "one step"
            raise PlanError(
                f"JAX cannot lower the kernel {call.kernel.name!r} for {self.platform} on a grid of {grid} "
                f"({reason[0] if reason else type(error).__name__}), so its plan can be read but not run."
            ) from error
        return inserted(self.module, data, name)


def inserted(module: Any, data: bytes, name: str) -> Any:
    """The functions of a lowered module put into another one, where ``name`` begins theirs; returns its main one."""
    with module.context:
        lowered = _jax.ir.Module.parse(data).operation
        functions = functions_of(lowered)
        main = main_of(lowered)
        _rename(lowered, {symbol: f"{name}_{symbol}" for symbol in functions})
        block = module.regions[0].blocks[0]
        out = None
        for function in functions.values():
            copied = function.clone(_jax.ir.InsertionPoint(block))
            if function == main:
                out = copied
    return out


def _rename(module: Any, names: Mapping[str, str]) -> None:
    """Give the functions of a module operation other names, and have them be nobody else's."""

    def visit(operation: Any) -> Any:
        if operation.name == "func.func":
            symbol = _jax.ir.StringAttr(operation.attributes["sym_name"]).value
            operation.attributes["sym_name"] = _jax.ir.StringAttr.get(names[symbol])
            operation.attributes["sym_visibility"] = _jax.ir.StringAttr.get("private")
            for each in ("arg_attrs", "res_attrs"):  # how main is called from outside
                if each in operation.attributes:
                    del operation.attributes[each]
        elif operation.name == "func.call":
            symbol = _jax.ir.FlatSymbolRefAttr(operation.attributes["callee"]).value
            operation.attributes["callee"] = _jax.ir.FlatSymbolRefAttr.get(names[symbol])
        return _jax.ir.WalkResult.ADVANCE

    _jax.walk(module, visit)


def _region(
    operation: Any,
    body: Any,
    symbol: str,
    names: Sequence[str],
    free: Sequence[str],
    shardings: Sequence[Sharding],
    add: Callable[[Any], Any],
) -> Any:
    """A custom call replaced by a region, manual along the free axes, that calls a function on local arrays.

    ``add`` makes of a result of one device that of all.
    """
    count = len(operation.operands)
    sdy = _jax.sdy
    attributes = [sharding_attribute(symbol, names, sharding) for sharding in shardings]
    with _jax.ir.InsertionPoint(operation), operation.location:
        if not free:
            made = call_of(body, list(operation.operands))
        else:
            made = sdy.ManualComputationOp(
                [value.type for value in operation.results],
                list(operation.operands),
                sdy.TensorShardingPerValueAttr.get(attributes[:count]),
                sdy.TensorShardingPerValueAttr.get(attributes[count:]),
                sdy.ManualAxesAttr.get([_jax.ir.StringAttr.get(name) for name in free]),
            ).operation
            types = _function_type(body).inputs
            block = _jax.ir.Block.create_at_start(made.regions[0], types, [operation.location] * len(types))
            with _jax.ir.InsertionPoint(block):
                results = zip(call_of(body, list(block.arguments)).results, operation.results, strict=True)
                sdy.ReturnOp([add(mine) if any(True for _ in value.uses) else mine for mine, value in results])
    return replaced(operation, made)


def _function_type(function: Any) -> Any:
    return _jax.ir.FunctionType(_jax.ir.TypeAttr(function.attributes["function_type"]).value)


def call_of(function: Any, operands: Sequence[Any]) -> Any:
    """A call of a function, where MLIR is inserting."""
    symbol = _jax.ir.StringAttr(function.attributes["sym_name"]).value
    return _jax.ir.Operation.create(
        "func.call",
        results=list(_function_type(function).results),
        operands=list(operands),
        attributes={"callee": _jax.ir.FlatSymbolRefAttr.get(symbol)},
    )


def replaced(operation: Any, made: Any) -> Any:
    """Another operation in the place of one, and that one gone."""
    for old, new in zip(operation.results, made.results, strict=True):
        old.replace_all_uses_with(new)
    operation.erase()
    return made


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
