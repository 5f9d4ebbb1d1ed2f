"""Shortcuts: a slice that takes one piece back out of what was put together is that piece.

``compiler.simplifying.PIECES`` says what XLA does with it, and where such pairs come from.
"""

from __future__ import annotations

from dataclasses import replace

from shardwright.ir.program import Op, Program
from shardwright.ir.rules import Rule

_UNREAD = frozenset({"concatenate", "slice"})
_NOTHING = Rule((), (), ((),), known=False)


def with_shortcuts(program: Program) -> Program:
    """The program as the compiler will see it, under the same numbers; what is not computed is a constant in it."""
    pieces = _find_pieces(program)
    if not pieces:
        return program
    ops = [op._replace(operands=tuple([pieces.get(v, v) for v in op.operands])) for op in program.ops]
    numbers: dict[object, int] = {}
    for o in _unread(program, ops):
        op, value = ops[o], program.values[ops[o].results[0]]
        number = -1 - numbers.setdefault((value.shape, value.dtype), len(numbers))
        ops[o] = Op("constant", (), op.results, _NOTHING, op.region, op.source, number)
    # What was decided for the program as it is written stands.
    classes = {**program.shape_classes, **{-1 - n: -1 - n for n in numbers.values()}}
    return replace(program, ops=tuple(ops), told_move_terms=program.move_terms, told_shape_classes=classes)


def _find_pieces(program: Program) -> dict[int, int]:
    """The value that each slice or concatenation is, if it is one."""
    found: dict[int, int] = {}
    for op in program.ops:
        if op.kind == "slice":
            piece = _cut(program, found, op)
        elif op.kind == "concatenate":
            filled = [v for v in op.operands if program.values[v].bytes]
            piece = filled[0] if len(filled) == 1 else None
        else:
            continue
        if piece is not None:
            found[op.results[0]] = found.get(piece, piece)
    return found


def _cut(program: Program, found: dict[int, int], op: Op) -> int | None:
    """The value that a slice is, through all that was put together on the way to it."""
    shape, start = program.values[op.results[0]].shape, list(op.attributes["start"])
    if op.attributes["strides"] != (1,) * len(shape):
        return None
    v = op.operands[0]
    while True:
        v = found.get(v, v)
        whole = program.values[v].shape
        if whole == shape:
            return v
        maker = program.values[v].op
        if maker < 0 or program.ops[maker].kind != "concatenate":
            return None
        d = program.ops[maker].attributes["dimension"]
        if any(shape[k] != size for k, size in enumerate(whole) if k != d):
            return None
        for piece in program.ops[maker].operands:
            size = program.values[piece].shape[d]
            if start[d] + shape[d] <= size:
                v = piece
                break
            if start[d] < size:
                return None
            start[d] -= size


def _unread(program: Program, ops: list[Op]) -> list[int]:
    """The slices and concatenations that nobody reads any more."""
    reads = [0] * len(program.values)
    for op in ops:
        for v in op.operands:
            reads[v] += 1
    out = []
    for o in range(len(ops) - 1, -1, -1):
        op = ops[o]
        if op.kind in _UNREAD and not reads[op.results[0]] and op.results[0] not in program.returned:
            out.append(o)
            for v in op.operands:
                reads[v] -= 1
    return out
