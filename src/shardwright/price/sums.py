"""Sums that end a product's kernel: where nothing else reads what is summed up, only its sums are stored.

``compiler.fusing.SUMMED_INSIDE`` says what XLA does, and how it was seen.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.ir.kinds import PRODUCTS
from shardwright.ir.program import Op, Program


def sum_of(program: Program, v: int, after: int, newest: Sequence[int]) -> int:
    """The op that is the only one to read a value and adds it up; -1 if there is none.

    All else that it needs is there before op ``after``, by ``newest`` of every value.
    """
    users = set(program.users[v])
    if len(users) != 1 or v in program.returned:
        return -1
    (u,) = users
    op = program.ops[u]
    if op.region != program.ops[program.values[v].op].region or op.operands.count(v) != 1:
        return -1
    others = [a for a in op.operands if a != v]
    if any(newest[a] > after for a in others):
        return -1
    return u if _adds_up(op, op.operands.index(v)) else -1


def _adds_up(op: Op, operand: int) -> bool:
    """Whether an op reduces an operand alone, or is a batch of its products with vectors."""
    if op.kind == "reduce":
        return len(op.results) == 1
    if op.kind not in PRODUCTS or not op.flops:
        return False
    own, other = ({f for dim in op.rule.operands[k] for f in dim} for k in (operand, 1 - operand))
    made = {f for dim in op.rule.results[0] for f in dim}
    return made < own and bool(made & other)
