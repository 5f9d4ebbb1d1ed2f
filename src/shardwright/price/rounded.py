"""Values that are kept rounded: what only products read, and these round it, is rounded when it is made.

What comes from the host's memory is as it was there. Sums of such a value do not count as readers: they are taken in
the kernel that makes it, before it is rounded.

``compiler.storing.KEPT_ROUNDED`` says what XLA does, and how it was seen.
"""

from __future__ import annotations

from functools import partial

from shardwright.compiler import Compiler
from shardwright.compiler.storing import KEPT_ROUNDED
from shardwright.ir.kinds import CONSTRAINT, CONTRACTIONS, CUTS, VIEWS
from shardwright.ir.memory import moved_to
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
        if op.regions or moved_to(op) is not None or (op.rule.reduction and op.kind not in CONTRACTIONS):
            continue
        for v in op.results:
            wide = v not in carried and users[v] and bits_of(program.values[v].dtype) > bits_of(narrow)
            readers = [program.ops[u] for u in users[v] if program.ops[u].kind != "reduce"]
            products = [terms[u].rounds for u in users[v] if program.ops[u].kind != "reduce"]
            if wide and readers and all(map(partial(_rounds, program, out, narrow), readers, products)):
                out[v] = narrow
    return out


def _rounds(program: Program, kept: list[str], narrow: str, op: Op, product: bool) -> bool:
    """Whether an op has no use for more bits of its operands."""
    if op.kind == "convert":
        return program.values[op.results[0]].dtype == narrow
    return product or (op.kind in _MOVING and bool(kept[op.results[0]]))
