"""Shardings that a program has of its own: what its author has decided, on the value where it stands.

They come from ``with_sharding_constraint``, from ``in_shardings`` and ``out_shardings`` of a jitted function, from
arguments that are sharded already, from types in explicit mode, and from the specs of a ``shard_map``. A region that a
``shard_map`` makes is on shapes that are local along its manual axes, so that nothing in it may be split by these.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, permutations
from typing import Any, NamedTuple

from shardwright import _jax
from shardwright.errors import ModuleError

_MOST_ORDERED = 6
"""Axes of which all orders are compared."""
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')


class Given(NamedTuple):
    """The sharding that a value is given, by names of axes.

    ``axes`` are those of each dimension, major first. Where ``open`` says so, more axes may follow them, but for those
    that are ``barred``: the manual axes of a region that the value goes into or comes from. ``local`` are those of the
    region that it is in, along which no op there can be split.
    """

    axes: tuple[tuple[str, ...], ...]
    open: tuple[bool, ...]
    barred: frozenset[str] = frozenset()
    local: frozenset[str] = frozenset()

    @property
    def decides(self) -> bool:
        """Whether anything is decided, other than which axes are out of reach."""
        return not all(self.open) or any(self.axes)

    @property
    def named(self) -> frozenset[str]:
        """The axes that it names."""
        return (self.barred | self.local).union(*self.axes)


def local(rank: int, manual: frozenset[str]) -> Given | None:
    """Of a value in a region whose axes are manual, with nothing decided; None where none is."""
    return Given(((),) * rank, (True,) * rank, local=manual) if manual else None


def order_of(given: Iterable[tuple[Given, int]], mesh: Sequence[str]) -> tuple[str, ...]:
    """The order of a mesh's axes that most of what is split over several has, by bytes; nothing if it is the mesh's."""
    ahead: Counter[tuple[str, str]] = Counter()
    for each, size in given:
        for axes in each.axes:
            ahead.update(dict.fromkeys(combinations(axes, 2), size))
    if len(mesh) > _MOST_ORDERED or not any(mesh.index(a) > mesh.index(b) for a, b in ahead):
        return ()
    best = max(permutations(mesh), key=lambda order: sum(ahead[pair] for pair in combinations(order, 2)))
    return () if best == tuple(mesh) else best


def from_shardy(attribute: Any, manual: frozenset[str] = frozenset()) -> Given:
    """A sharding attribute of Shardy's, of a value in a region where these axes are manual."""
    sdy = _jax.sdy
    axes: list[tuple[str, ...]] = []
    is_open: list[bool] = []
    for each in sdy.TensorShardingAttr(attribute).dimension_shardings:
        dimension = sdy.DimensionShardingAttr(each)
        refs = [sdy.AxisRefAttr(axis) for axis in dimension.axes]
        if any(ref.sub_axis_info is not None for ref in refs):
            raise ModuleError(
                f"the module has the sharding {attribute}, which splits a dimension by a part of an axis; "
                "make the parts axes of the mesh, or plan with constraints='drop'."
            )
        axes.append(tuple(ref.name for ref in refs))
        is_open.append(not dimension.is_closed)
    return Given(tuple(axes), tuple(is_open), local=manual)


def manual_axes(operation: Any) -> frozenset[str]:
    """The axes over which a region is manual; Shardy's bindings give no way to them but their text."""
    return frozenset(_QUOTED.findall(str(operation.attributes["manual_axes"])))


def meshes_of(module: Any) -> dict[str, dict[str, int]]:
    """The meshes of a module operation by their symbols: the size of each axis, in order."""
    found: dict[str, dict[str, int]] = {}
    for view in module.regions[0].blocks[0].operations:
        operation = view.operation
        if operation.name == "sdy.mesh":
            mesh = _jax.sdy.MeshAttr(operation.attributes["mesh"])
            symbol = str(_jax.ir.StringAttr(operation.attributes["sym_name"]).value)
            found[symbol] = {axis.name: axis.size for axis in map(_jax.sdy.MeshAxisAttr, mesh.axes)}
    return found


def mesh_symbol(module: Any, axes: Mapping[str, int], *, add: bool = True) -> str:
    """The symbol of a mesh with these axes, which a module operation has or is given, first of all that it has."""
    known = meshes_of(module)
    found = next((symbol for symbol, mesh in known.items() if list(mesh.items()) == list(axes.items())), None)
    if found is not None:
        return found
    if not add:
        raise ModuleError(f"the module was not lowered for the mesh {dict(axes)}.")
    sdy, block = _jax.sdy, module.regions[0].blocks[0]
    taken = {
        str(_jax.ir.StringAttr(view.operation.attributes["sym_name"]).value)
        for view in block.operations
        if "sym_name" in view.operation.attributes
    }
    symbol = next(name for name in ("mesh", *(f"mesh_{i}" for i in range(len(taken)))) if name not in taken)
    with _jax.ir.InsertionPoint.at_block_begin(block), module.location:
        sdy.MeshOp(symbol, sdy.MeshAttr.get([sdy.MeshAxisAttr.get(name, size) for name, size in axes.items()]))
    return symbol


def own_mesh(module: Any) -> Mapping[str, int] | None:
    """The mesh that a module is written for; None where it is for none, or for one device."""
    distinct = {tuple(mesh.items()): mesh for mesh in meshes_of(module).values() if any(n > 1 for n in mesh.values())}
    if len(distinct) > 1:
        listed = " and ".join(str(mesh) for mesh in distinct.values())
        raise ModuleError(f"the program has shardings on several meshes, {listed}; give them all one mesh.")
    return next(iter(distinct.values()), None)
