"""Stacks: what a loop over layers keeps for the loop that goes back over them.

Written as JAX writes a scan: the first loop carries an array with a slice for each turn and updates one in each, the
second carries it unchanged and reads one in each.
"""

from __future__ import annotations

from shardwright.advice.draft import Draft
from shardwright.ir.program import Op
from shardwright.ir.rules import Rule

Dims = tuple[tuple[int, ...], ...]


def new_stack(draft: Draft, loop: int, kept: int, index: int, trips: int) -> tuple[int, list[int]]:
    """Let a loop keep a value of its body in every turn: the stack that it gives back, and the ops that write it.

    The ops belong at the end of the body; ``index`` is the body's value that counts the turns.
    """
    op = draft.ops[loop]
    near = op._replace(region=op.regions[-1])
    stack, one = draft.stacked(kept, trips), draft.stacked(kept, 1)
    shape = draft.values[stack].shape
    start = draft.scalar(draft.values[kept].dtype)
    draft.before[loop].append(draft.op(op, "constant", (), (start,), Rule((), (), ((),), known=False)))
    empty = draft.like(stack)
    every = _each(len(shape))
    draft.before[loop].append(draft.op(op, "broadcast_in_dim", (start,), (empty,), Rule(shape, ((),), (every,))))
    parameter, after, slot = draft.carry(loop, empty)
    written = draft.like(stack)
    inner = every[1:]
    widen = draft.op(near, "broadcast_in_dim", (kept,), (one,), Rule((1, *shape[1:]), (inner,), (every,)))
    zeros, made = _zeros(draft, near, len(shape) - 1)
    rule = Rule(
        (shape[0], *shape[1:], 1),
        (every, ((len(shape),), *inner), *((),) * len(shape)),
        (every,),
        whole=frozenset({len(shape)}),
    )
    write = draft.op(near, "dynamic_update_slice", (parameter, one, index, *zeros), (written,), rule)
    draft.give_back(loop, slot, written)
    draft.stacks.append(stack)
    return after, [widen, *made, write]


def read_stack(draft: Draft, near: Op, stack: int, like: int, index: int) -> tuple[int, list[int]]:
    """Read a turn's slice of a stack: the value, which is like another, and the ops that read it."""
    shape = draft.values[stack].shape
    every = _each(len(shape))
    one, out = draft.stacked(like, 1), draft.like(like)
    zeros, made = _zeros(draft, near, len(shape) - 1)
    rule = Rule(
        (*shape, 1),
        (every, *((),) * len(shape)),
        (((len(shape),), *every[1:]),),
        whole=frozenset({0, len(shape)}),
    )
    cut = draft.op(near, "dynamic_slice", (stack, index, *zeros), (one,), rule)
    shown = draft.op(near, "reshape", (one,), (out,), Rule((1, *shape[1:]), (every,), (every[1:],)))
    return out, [*made, cut, shown]


def _each(rank: int) -> Dims:
    """A factor for each dimension."""
    return tuple([(k,) for k in range(rank)])


def _zeros(draft: Draft, near: Op, count: int) -> tuple[list[int], list[int]]:
    values = [draft.scalar("i32") for _ in range(count)]
    rule = Rule((), (), ((),), known=False)
    return values, [draft.op(near, "constant", (), (v,), rule) for v in values]
