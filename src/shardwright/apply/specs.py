"""Shardings as JAX has them, as a person writes them, and on main's arguments and results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from shardwright import _jax
from shardwright.apply.annotate import sharding_attribute
from shardwright.frontend.names import ALIAS, attributes_of
from shardwright.ir.build import main_of
from shardwright.ir.given import mesh_symbol
from shardwright.ir.memory import MEMORY_KIND
from shardwright.price import Partitioned
from shardwright.space.state import Sharding


def spec(sharding: Sharding, names: Sequence[str]) -> PartitionSpec:
    """A value's sharding as JAX writes it, without trailing Nones."""
    parts: list[Any] = [
        None if not axes else names[axes[0]] if len(axes) == 1 else tuple(names[a] for a in axes) for axes in sharding
    ]
    while parts and parts[-1] is None:
        parts.pop()
    return PartitionSpec(*parts)


def named(mesh: Any, specs: Any, memory_kinds: Sequence[str | None] = ()) -> Any:
    """A tree of ``NamedSharding`` from a tree of ``PartitionSpec``.

    ``memory_kinds`` tells, leaf by leaf, where one lies that is not in the device's own memory.
    """
    leaves, structure = jax.tree.flatten(specs, is_leaf=lambda s: isinstance(s, PartitionSpec))
    kinds = memory_kinds or [None] * len(leaves)
    shardings = [NamedSharding(mesh, s, memory_kind=kind) for s, kind in zip(leaves, kinds, strict=True)]
    return jax.tree.unflatten(structure, shardings)


def spec_text(spec: PartitionSpec) -> str:
    """A spec as Python: ``P(None, ("data", "model"))``."""

    def entry(axes: Any) -> str:
        if isinstance(axes, (tuple, list)):
            inner = ", ".join(map(entry, axes))
            return f"({inner},)" if len(axes) == 1 else f"({inner})"
        if axes is PartitionSpec.UNCONSTRAINED:
            return "P.UNCONSTRAINED"
        return "None" if axes is None else f'"{axes}"'

    return f"P({', '.join(map(entry, spec))})"


_DONOR = "jax.buffer_donor"
_DEVICES = "mhlo.num_partitions"


def write_boundary(module: Any, partitioned: Partitioned) -> None:
    """Give a module operation (in place) the plan's mesh, and its main function the plan's shardings."""
    mesh, program = partitioned.mesh, partitioned.program
    with module.context:
        symbol = mesh_symbol(module, mesh.axes)
        main = main_of(module)
        given = [partitioned.values[argument.value] for argument in program.arguments]
        returned = [partitioned.values[v] for v in program.regions[0].results]
        _set_shardings(main, "arg_attrs", symbol, mesh.names, given)
        _set_shardings(main, "res_attrs", symbol, mesh.names, returned)
        _set_memory_kinds(main, "arg_attrs", [argument.memory_kind for argument in program.arguments])
        _set_memory_kinds(main, "res_attrs", program.result_kinds)
        _loosen_aliases(main, given, returned)
        if _DEVICES in module.attributes:
            number = _jax.ir.IntegerAttr(module.attributes[_DEVICES]).type
            module.attributes[_DEVICES] = _jax.ir.IntegerAttr.get(number, mesh.devices)


def _set_shardings(main: Any, each: str, mesh: str, names: Sequence[str], shardings: Sequence[Sharding]) -> None:
    before = attributes_of(main, each) or [None] * len(shardings)
    after = [
        _jax.ir.DictAttr.get({**_entries(had), "sdy.sharding": sharding_attribute(mesh, names, sharding)})
        for had, sharding in zip(before, shardings, strict=True)
    ]
    main.attributes[each] = _jax.ir.ArrayAttr.get(after)


def _set_memory_kinds(main: Any, each: str, kinds: Sequence[str | None]) -> None:
    """Say which of main's arguments or results lie on the host."""
    after = [
        _jax.ir.DictAttr.get(_entries(had) | ({MEMORY_KIND: _jax.ir.StringAttr.get(kind)} if kind is not None else {}))
        for had, kind in zip(main.attributes[each], kinds, strict=True)
    ]
    main.attributes[each] = _jax.ir.ArrayAttr.get(after)


def _loosen_aliases(main: Any, given: Sequence[Sharding], returned: Sequence[Sharding]) -> None:
    """An argument cannot share a buffer with a result that is split differently; it may still give its buffer away."""
    out = []
    for had, sharding in zip(main.attributes["arg_attrs"], given, strict=True):
        entries = _entries(had)
        if ALIAS in entries and returned[_jax.ir.IntegerAttr(entries[ALIAS]).value] != sharding:
            del entries[ALIAS]
            entries[_DONOR] = _jax.ir.BoolAttr.get(True)
        out.append(_jax.ir.DictAttr.get(entries))
    main.attributes["arg_attrs"] = _jax.ir.ArrayAttr.get(out)


def _entries(attributes: Any) -> dict[str, Any]:
    return {entry.name: entry.attr for entry in attributes} if attributes else {}
