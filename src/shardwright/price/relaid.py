"""Caches that a loop writes to position by position: in which order they lie inside, and when they are copied for it.

``compiler/storing.py`` says what the TPU compiler does (``RELAID``). An order names the dimensions of a tensor from the
outermost to the innermost; dimensions of which a device has one entry do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shardwright.ir.kinds import ADDS_DIMENSIONS, CUTS, IN_PLACE, PRODUCTS, VIEWS
from shardwright.ir.program import Op, Program


class Relaid(NamedTuple):
    """What a loop carries and writes single positions of; ``value`` is the loop's result.

    ``written`` is the order that what is written has, and ``read`` that in which a product reads the tensor, if one
    does. ``first`` is the dimension that is second to the innermost in the former. ``maker`` is the product that makes
    what is written, where nothing but views is between. Where the copy can be done without, it is a buffer of its own
    from position ``start`` to ``end``; else ``start`` is -1.
    """

    value: int
    written: tuple[int, ...]
    read: tuple[int, ...]
    first: int
    maker: int
    start: int = -1
    end: int = -1

    def is_copied(self, local: Sequence[int], *, moved: bool) -> bool:
        """Whether it lies otherwise in the loop than outside, of this local shape.

        ``moved``: what is written comes out of a collective. Then, and where there is one row to write, the product
        that reads it is asked how it is to lie.
        """
        inside = self.read if self.read and (moved or local[self.first] == 1) else self.written
        order = [d for d in inside if local[d] > 1]
        return order != sorted(order)


def find_relaid(program: Program, value: int, parameter: int, result: int) -> Relaid | None:
    """How a loop writes into what it carries, if it writes single positions of an inner dimension."""
    v = result
    while v != parameter and (o := program.values[v].op) >= 0:
        op = program.ops[o]
        if op.kind not in IN_PLACE and op.kind not in VIEWS:
            return None
        if op.kind == "dynamic_update_slice" and (found := _written(program, op, value)):
            return found._replace(read=_read(program, v) or _read(program, parameter))
        v = op.operands[0]
    return None


def _written(program: Program, op: Op, value: int) -> Relaid | None:
    order = order_written(program, op)
    if not order:
        return None
    o = program.values[before(program, op.operands[1], ADDS_DIMENSIONS)].op
    maker = o if o >= 0 and program.ops[o].kind in PRODUCTS else -1
    return Relaid(value, order, (), _first_whole(program, op), maker)


def before(program: Program, v: int, kinds: frozenset[str]) -> int:
    """What a value was before ops of these kinds."""
    while (o := program.values[v].op) >= 0 and program.ops[o].kind in kinds:
        v = program.ops[o].operands[0]
    return v


def _first_whole(program: Program, op: Op) -> int:
    """The first dimension of which an update writes more than a single position."""
    whole, part = (program.values[v].shape for v in op.operands[:2])
    return next(d for d, (w, p) in enumerate(zip(whole, part, strict=True)) if not p == 1 < w)


def order_written(program: Program, op: Op) -> tuple[int, ...]:
    """The order of what an update writes single positions of an inner dimension of; none for another update."""
    whole, part = (program.values[v].shape for v in op.operands[:2])
    single = [p == 1 < w for w, p in zip(whole, part, strict=True)]
    rest = [d for d, one in enumerate(single) if not one]
    if not rest or not any(single[rest[0] :]):
        return ()
    outer = [d for d, one in enumerate(single) if one]
    return (*outer, *rest[1:-1], rest[0], rest[-1]) if len(rest) > 1 else (*outer, *rest)


def _read(program: Program, v: int) -> tuple[int, ...]:
    """The order in which a product of matrices reads a slice of a value; none where none does."""
    shape = program.values[v].shape
    for u in program.users[v]:
        if program.ops[u].kind in CUTS:
            part = program.ops[u].results[0]
            kept = [d for d, size in enumerate(program.values[part].shape) if size > 1]
            if order := order_read(program, part, kept):
                return (*(d for d in range(len(shape)) if d not in kept), *order)
    return ()


def order_read(program: Program, part: int, kept: Sequence[int]) -> tuple[int, ...]:
    """The order in which a product of matrices reads a value; ``kept`` are its dimensions, or numbers for them."""
    while len(users := program.users[part]) == 1 and program.ops[users[0]].kind == "reshape":
        part = program.ops[users[0]].results[0]
    left = [d for d, size in enumerate(program.values[part].shape) if size > 1]
    for w in program.users[part]:
        op = program.ops[w]
        if op.kind in PRODUCTS and len(left) == len(kept) and (batch := _batch(op, part)) is not None:
            inner = [d for d, own in zip(kept, left, strict=True) if own not in batch]
            outer = [d for d, own in zip(kept, left, strict=True) if own in batch]
            return (*outer, *inner)
    return ()


def _batch(op: Op, v: int) -> set[int] | None:
    """The batch dimensions of a product's operand; None where the other operand has no more than a row for each."""
    k = op.operands.index(v)
    own, other = op.rule.operands[k], {f for dim in op.rule.operands[1 - k] for f in dim}
    results = {f for dim in op.rule.results[0] for f in dim}
    rows = [f for f in other & results if f not in {f for dim in own for f in dim} and op.rule.sizes[f] > 1]
    return {d for d, dim in enumerate(own) if dim and dim[0] in other & results} if rows else None
