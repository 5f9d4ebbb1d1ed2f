"""Values that are kept rounded: what only products read, and these round it, is rounded when it is made.

``compiler.storing.KEPT_ROUNDED`` says what XLA does, and how it was seen.
"""

from __future__ import annotations

from shardwright.compiler import Compiler
from shardwright.compiler.storing import KEPT_ROUNDED
from shardwright.ir.kinds import CONSTRAINT, CUTS, VIEWS
from shardwright.ir.program import Op, Program, bits_of

_MOVING = VIEWS | CUTS | {"concatenate", "pad", CONSTRAINT}
"""Ops whose result has their operand's entries, rounded or not."""


def kept_rounded(program: Program, compiler: Compiler) -> list[str]:
    """For each value the type that it is kept in, if that is not its own; else nothing."""
    narrow = compiler[KEPT_ROUNDED]
    out = [""] * len(program.values)
    if not narrow:
        return out
    carried = {v for region in program.regions for v in region.results}
    terms, users = program.move_terms, program.users
    for o in range(len(program.ops) - 1, -1, -1):
        op = program.ops[o]
        if op.regions or op.rule.reduction:
            continue
        for v in op.results:
            wide = v not in carried and users[v] and bits_of(program.values[v].dtype) > bits_of(narrow)
            if wide and all(_rounds(program.ops[u], terms[u].rounds, out, narrow, program) for u in users[v]):
                out[v] = narrow
    return out


def _rounds(op: Op, product: bool, kept: list[str], narrow: str, program: Program) -> bool:
    """Whether an op has no use for more bits of its operands."""
    if op.kind == "convert":
        return program.values[op.results[0]].dtype == narrow
    return product or (op.kind in _MOVING and bool(kept[op.results[0]]))
