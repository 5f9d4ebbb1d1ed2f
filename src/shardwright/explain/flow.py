"""Which values of a program are an argument itself, and which become its update: what a collective moves."""

from __future__ import annotations

import math
from collections.abc import Collection

from shardwright.ir.kinds import CARRIES, SAME_ENTRIES
from shardwright.ir.program import Program, is_elementwise
from shardwright.space.carried import carried_results


def forms_of(program: Program, arguments: Collection[int]) -> frozenset[int]:
    """The arguments' values, and their casts, slices and reshapes, inside of loops as well."""
    found = set(arguments)
    for op in program.ops:
        if op.kind == "while":
            body = program.regions[op.regions[-1]]
            for k, v in enumerate(op.operands):
                if v in found and body.results[k] == body.parameters[k]:
                    found.add(op.results[k])
                    found.update(program.regions[r].parameters[k] for r in op.regions)
        elif op.kind == "optimization_barrier":
            found.update(b for a, b in zip(op.operands, op.results, strict=True) if a in found)
        elif op.kind in SAME_ENTRIES and op.operands[0] in found:
            found.update(op.results)
    return frozenset(found)


def updates_of(program: Program, arguments: Collection[int]) -> frozenset[int]:
    """What arguments' next values are computed from, element by element: back to the contraction or sum that made it.

    An argument's next value is the result that has its path and type.
    """
    carried = carried_results(program)
    left = [v for argument in arguments for v in carried.get(argument, ())]
    found: set[int] = set()
    while left:
        v = left.pop()
        if v in found or program.free[v] or not program.values[v].shape:
            continue
        found.add(v)
        if program.values[v].op >= 0:
            left += _one_back(program, v)
    return frozenset(found)


def _one_back(program: Program, v: int) -> list[int]:
    op = program.ops[program.values[v].op]
    if op.kind in CARRIES:
        k = op.results.index(v)
        return [program.regions[op.regions[-1]].results[k]] if op.kind == "while" else [op.operands[k]]
    if op.kind == "dynamic_update_slice":  # a loop writes one layer's part at a time
        return [op.operands[1]]
    if op.kind in SAME_ENTRIES or (op.kind == "broadcast_in_dim" and _same_size(program, op.operands[0], v)):
        return [op.operands[0]]
    if is_elementwise(program, op) or op.kind == "select":
        return [x for x in op.operands if program.values[x].shape == program.values[v].shape]
    return []


def _same_size(program: Program, a: int, b: int) -> bool:
    """As many elements: a dimension of size one was added, no more."""
    return math.prod(program.values[a].shape) == math.prod(program.values[b].shape)
