"""Shardings that a program has already, made ready to be read, or taken out; ``shard_map`` regions opened."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from shardwright import _jax
from shardwright.errors import PlanError
from shardwright.frontend.names import attributes_of
from shardwright.ir.build import main_of
from shardwright.ir.given import Given, from_shardy, mesh_symbol, meshes_of

KEEP, DROP = "keep", "drop"
_CONSTRAINT, _MANUAL, _SHARDING = "sdy.sharding_constraint", "sdy.manual_computation", "sdy.sharding"


def check_mode(constraints: str) -> None:
    """``constraints=`` is one of two words."""
    if constraints not in (KEEP, DROP):
        raise PlanError(f"constraints={constraints!r} is neither 'keep' nor 'drop'.")


def settle(
    module: Any,
    constraints: str,
    arguments: Sequence[NamedSharding | None],
    *,
    planned: bool,
) -> list[Given | None]:
    """Bring the shardings of a module operation (in place) into the form in which they are read.

    ``arguments`` are the shardings of main's, as far as JAX knows more of them than the module does. Where it is
    ``planned``, what the module says of arguments and results is a plan's and stays. Returns what arguments are given.
    """
    with module.context:
        return _Settled(module).run(constraints == KEEP, planned, arguments)


class _Settled:
    def __init__(self, module: Any) -> None:
        self.module = module
        self.constraints: list[Any] = []
        self.regions: list[Any] = []

        def visit(operation: Any) -> Any:
            if operation.name == _CONSTRAINT:
                self.constraints.append(operation)
            elif operation.name == _MANUAL:
                self.regions.append(operation)
            return _jax.ir.WalkResult.ADVANCE

        _jax.walk(module.operation, visit)
        self.meshes = {symbol: mesh for symbol, mesh in meshes_of(module).items() if mesh}
        self._unify()

    def run(self, keep: bool, planned: bool, arguments: Sequence[NamedSharding | None]) -> list[Given | None]:
        main = main_of(self.module)
        told: list[list[Any]] = [[], []]
        if not planned:
            for k, each in enumerate(("arg_attrs", "res_attrs")):
                told[k] = [a[_SHARDING] if _SHARDING in a else None for a in attributes_of(main, each)]
                self._clear(main, each)
        given = self._arguments(main, arguments, told[0]) if keep else []
        if keep:
            self._constrain_results(main, told[1])
        for operation in self.constraints:
            if not keep or not _says_something(operation):
                operation.results[0].replace_all_uses_with(operation.operands[0])
                operation.erase()
        for operation in self.regions:
            self._constrain_operands(operation)
        if not keep and not self.regions:
            self._forget_meshes(main)
        return given

    def _unify(self) -> None:
        """Have one symbol for one mesh: JAX may give it several, and Shardy takes them for different ones."""
        first: dict[tuple[tuple[str, int], ...], str] = {}
        symbol = {name: first.setdefault(tuple(mesh.items()), name) for name, mesh in self.meshes.items()}
        if all(name == found for name, found in symbol.items()):
            return
        for operation in self.constraints:
            operation.attributes["sharding"] = _on(operation.attributes["sharding"], symbol)
        for operation in self.regions:
            for each in ("in_shardings", "out_shardings"):
                shardings = _jax.sdy.TensorShardingPerValueAttr(operation.attributes[each]).shardings
                renamed = [_on(sharding, symbol) for sharding in shardings]
                operation.attributes[each] = _jax.sdy.TensorShardingPerValueAttr.get(renamed)

    def _forget_meshes(self, main: Any) -> None:
        """Take out the meshes that nothing is on any more."""
        used = {
            str(_jax.ir.FlatSymbolRefAttr(_jax.sdy.TensorShardingAttr(attributes[_SHARDING]).mesh_or_ref).value)
            for each in ("arg_attrs", "res_attrs")
            for attributes in attributes_of(main, each)
            if _SHARDING in attributes
        }
        for view in list(self.module.regions[0].blocks[0].operations):
            operation = view.operation
            if operation.name == "sdy.mesh" and _jax.ir.StringAttr(operation.attributes["sym_name"]).value not in used:
                operation.erase()

    def _arguments(
        self, main: Any, shardings: Sequence[NamedSharding | None], told: Sequence[Any]
    ) -> list[Given | None]:
        """What main's arguments are given: by the module, or as far as JAX knows more."""
        values = main.regions[0].blocks[0].arguments
        first = len(values) - len(shardings)  # JAX may lift closed-over arrays into arguments before the user's own
        out: list[Given | None] = []
        for k, value in enumerate(values):
            sharding = shardings[k - first] if k >= first else None
            attribute = told[k] if k < len(told) else None
            if attribute is None and sharding is not None:
                attribute = self._attribute(sharding, len(value.type.shape))
            out.append(None if attribute is None else from_shardy(attribute))
        return out

    def _constrain_results(self, main: Any, told: Sequence[Any]) -> None:
        """Constrain what main returns to its own shardings."""
        block = main.regions[0].blocks[0]
        terminator = block.operations[len(block.operations) - 1].operation
        for k, value in enumerate(terminator.operands):
            attribute = told[k] if k < len(told) else None
            maker = value.owner
            settled = not isinstance(maker, _jax.ir.Block) and maker.name == _CONSTRAINT
            if attribute is not None and value.type.shape and not settled:
                with _jax.ir.InsertionPoint(terminator), terminator.location:
                    terminator.operands[k] = _jax.sdy.ShardingConstraintOp(value, attribute).result

    def _constrain_operands(self, operation: Any) -> None:
        """Bring what a manual region takes to how it takes it, by a constraint of its own."""
        shardings = _jax.sdy.TensorShardingPerValueAttr(operation.attributes["in_shardings"]).shardings
        for k, sharding in enumerate(shardings):
            value = operation.operands[k]
            if value.type.shape:
                with _jax.ir.InsertionPoint(operation), operation.location:
                    operation.operands[k] = _jax.sdy.ShardingConstraintOp(value, sharding).result

    def _attribute(self, sharding: NamedSharding, rank: int) -> Any:
        """A sharding of JAX's as Shardy has it, on the module's mesh or a new one."""
        symbol = mesh_symbol(self.module, dict(sharding.mesh.shape))
        spec = (*sharding.spec, *(None,) * rank)[:rank]
        dims = []
        for entry in spec:
            open_ = entry is sharding.spec.UNCONSTRAINED
            names = () if entry is None or open_ else (entry,) if isinstance(entry, str) else tuple(entry)
            refs = [_jax.sdy.AxisRefAttr.get(name) for name in names]
            dims.append(_jax.sdy.DimensionShardingAttr.get(refs, is_closed=not open_))
        return _jax.sdy.TensorShardingAttr.get(symbol, dims)

    def _clear(self, main: Any, each: str) -> None:
        if each in main.attributes:
            kept = [
                {named.name: named.attr for named in attributes if named.name != _SHARDING}
                for attributes in main.attributes[each]
            ]
            main.attributes[each] = _jax.ir.ArrayAttr.get([_jax.ir.DictAttr.get(found) for found in kept])


def _on(attribute: Any, symbol: Mapping[str, str]) -> Any:
    """A sharding on the mesh that another symbol names as well."""
    sharding = _jax.sdy.TensorShardingAttr(attribute)
    name = str(_jax.ir.FlatSymbolRefAttr(sharding.mesh_or_ref).value)
    if symbol.get(name, name) == name:
        return attribute
    return _jax.sdy.TensorShardingAttr.get(symbol[name], sharding.dimension_shardings)


def _says_something(operation: Any) -> bool:
    """Whether a constraint decides anything: of a scalar, or with every dimension open, it does not."""
    return bool(operation.results[0].type.shape) and from_shardy(operation.attributes["sharding"]).decides


def on_blocks(
    body: Callable[..., tuple[Any, Sequence[PartitionSpec]]],
    args: Sequence[Any],
    sizes: Mapping[str, int],
    in_specs: Sequence[PartitionSpec],
    manual: Set[str],
) -> Any:
    """What a region returns for flat arguments.

    ``body`` runs on one device's parts, and returns a tree with the specs of its leaves. It raises ``NameError`` where
    it names an axis, as a collective does.
    """
    axes = [axis for axis in sizes if axis in manual]
    out_specs: list[PartitionSpec] = []

    def mapped(*parts: Any) -> Any:
        tree, specs = body(*parts)
        out_specs[:] = specs
        return tree

    blocks = [_blocks(x, _entries(spec, jnp.ndim(x)), sizes) for x, spec in zip(args, in_specs, strict=True)]
    for axis in reversed(axes):
        in_axes = tuple(0 if axis in own else None for _, own in blocks)
        mapped = jax.vmap(mapped, in_axes=in_axes, axis_size=sizes[axis])
    leaves, tree = jax.tree.flatten(mapped(*(x for x, _ in blocks)))
    whole = [_together(x, spec, axes, sizes) for x, spec in zip(leaves, out_specs, strict=True)]
    return jax.tree.unflatten(tree, whole)


def _entries(spec: PartitionSpec, rank: int) -> list[tuple[str, ...]]:
    """The axes of each dimension."""
    found = [() if entry is None else (entry,) if isinstance(entry, str) else tuple(entry) for entry in spec]
    return [*found, *[()] * (rank - len(found))]


def _blocks(x: Any, entries: Sequence[tuple[str, ...]], sizes: Mapping[str, int]) -> tuple[Any, frozenset[str]]:
    """An array with a dimension for each axis that splits it, in the mesh's order and in front; and these axes."""
    shape: list[int] = []
    place: dict[str, int] = {}
    for size, names in zip(jnp.shape(x), entries, strict=True):
        for axis in names:
            place[axis] = len(shape)
            shape.append(sizes[axis])
        shape.append(size // math.prod(sizes[axis] for axis in names))
    front = [place[axis] for axis in sizes if axis in place]
    rest = [d for d in range(len(shape)) if d not in front]
    return jnp.transpose(jnp.reshape(x, shape), (*front, *rest)), frozenset(place)


def _together(x: Any, spec: PartitionSpec, axes: Sequence[str], sizes: Mapping[str, int]) -> Any:
    """An array from its blocks, which lie in front; along axes that the spec does not have they are all the same."""
    rank = x.ndim - len(axes)
    entries = _entries(spec, rank)
    used = {axis for names in entries for axis in names}
    x = x[tuple(slice(None) if axis in used else 0 for axis in axes)]
    left = [axis for axis in axes if axis in used]
    order: list[int] = []
    shape: list[int] = []
    for d, names in enumerate(entries):
        order += [*(left.index(axis) for axis in names), len(left) + d]
        shape.append(math.prod(sizes[axis] for axis in names) * x.shape[len(left) + d])
    return jnp.reshape(jnp.transpose(x, order), shape)
