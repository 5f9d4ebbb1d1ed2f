"""Collectives that a program has of its own: ``psum``, ``all_gather``, ``ppermute``, … in a ``shard_map``.

They run over manual axes, on shapes that are local along these. Dimensions that a collective does not change can be
split further, by axes that are left to the compiler.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from shardwright import _jax
from shardwright.errors import ModuleError
from shardwright.ir.kinds import COLLECTIVES
from shardwright.ir.rules import Dims, Rule

ATTRIBUTES = (
    *("replica_groups", "source_target_pairs"),
    *("all_gather_dim", "scatter_dimension", "split_dimension", "concat_dimension"),
)
"""What tells two collectives of one kind and type apart."""
_CHANGED = ("all_gather_dim", "scatter_dimension", "split_dimension", "concat_dimension")
_AXIS = re.compile(r'name = "((?:[^"\\]|\\.)*)"')


def is_collective(name: str) -> bool:
    """Whether an operation of MLIR, by its name, is a collective."""
    return name.startswith("stablehlo.") and name.partition(".")[2] in COLLECTIVES


def rule(attributes: Any, operands: Sequence[tuple[int, ...]], results: Sequence[tuple[int, ...]]) -> Rule:
    """Each operand has the factors of its result; dimensions that are gathered, scattered or exchanged are whole."""
    changed = {int(_jax.ir.IntegerAttr(attributes[name]).value) for name in _CHANGED if name in attributes}
    sizes: list[int] = []
    whole: set[int] = set()
    ins: list[Dims] = []
    outs: list[Dims] = []
    for before, after in zip(operands, results, strict=True):
        dims: tuple[list[tuple[int, ...]], list[tuple[int, ...]]] = ([], [])
        for d, pair in enumerate(zip(before, after, strict=True)):
            if pair[0] == pair[1] and d not in changed:
                sizes.append(pair[0])
                factors = (len(sizes) - 1,) * 2
            else:
                sizes.extend(pair)
                factors = (len(sizes) - 2, len(sizes) - 1)
                whole.update(factors)
            for side, factor in zip(dims, factors, strict=True):
                side.append((factor,))
        ins.append(tuple(dims[0]))
        outs.append(tuple(dims[1]))
    return Rule(tuple(sizes), tuple(ins), tuple(outs), whole=frozenset(whole))


def axes_of(operation: Any, mesh: Mapping[str, int] | None) -> tuple[str, ...]:
    """The mesh axes that a collective runs over, in the mesh's order."""
    attributes = operation.attributes
    if "source_target_pairs" in attributes:
        groups = _rows(attributes["source_target_pairs"])
    else:
        named = set(_AXIS.findall(str(attributes["replica_groups"])))
        if named:
            return tuple(axis for axis in mesh or () if axis in named)
        groups = _rows(attributes["replica_groups"])
    if mesh is None or any(device >= math.prod(mesh.values()) for group in groups for device in group):
        raise ModuleError(f"the module's {operation.name} is over devices of a mesh that the module does not have.")
    return tuple(
        axis for k, axis in enumerate(mesh) if any(_varies(group, k, tuple(mesh.values())) for group in groups)
    )


def _rows(attribute: Any) -> list[list[int]]:
    dense = _jax.ir.DenseIntElementsAttr(attribute)
    width = _jax.ir.ShapedType(dense.type).shape[1]
    flat = [int(dense[i]) for i in range(len(dense))]
    return [[d for d in flat[k : k + width] if d >= 0] for k in range(0, len(flat), width)]


def _varies(group: Sequence[int], axis: int, sizes: Sequence[int]) -> bool:
    """Whether the devices of a group lie at different places along an axis; devices are counted row by row."""
    behind = math.prod(sizes[axis + 1 :])
    return len({device // behind % sizes[axis] for device in group}) > 1
