"""Softmaxes: where their exponentials are kept, and which product makes their scores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shardwright.compiler.fusing import Softmax
from shardwright.ir.kinds import CONTRACTIONS
from shardwright.ir.program import Program, bits_of


class KeptSoftmax(NamedTuple):
    """A softmax that stores its exponentials, its masked scores, the product that makes them, and a row's length."""

    exponentials: int
    scores: int
    product: int
    row: int


def size_of(program: Program, v: int) -> int:
    """How many entries a value has."""
    return math.prod(program.values[v].shape)


def products_reading(program: Program, fused: Sequence[bool], v: int) -> set[int]:
    """The contractions that read a value, at once or after ops that are computed inside others."""
    waiting, seen, found = [v], {v}, set[int]()
    while waiting:
        for u in program.users[waiting.pop()]:
            op = program.ops[u]
            if op.kind in CONTRACTIONS and not fused[u]:
                found.add(u)
            elif fused[u] and op.results[0] not in seen:
                seen.add(op.results[0])
                waiting.append(op.results[0])
    return found


def exponentials(program: Program, fused: Sequence[bool], softmax: Softmax) -> Iterator[KeptSoftmax]:
    """The softmaxes in one kernel that store their exponentials."""
    for op in program.ops:
        maker = program.values[op.operands[0]].op if op.kind == "exponential" else -1
        if maker < 0 or program.ops[maker].kind != "subtract":
            continue
        v, scores = op.results[0], program.ops[maker].operands[0]
        sums = [program.ops[u] for u in program.users[v] if program.ops[u].kind == "reduce"]
        read = [program.ops[u] for u in program.users[scores]]
        finds_rows = any(reader.attributes.get("reducer") == "maximum" for reader in read)
        if not sums or len(read) != 2 or not finds_rows:
            continue
        row = size_of(program, v) // max(size_of(program, sums[0].results[0]), 1)
        product, masked, turned = _way_back(program, fused, scores)
        once = not turned or len(products_reading(program, fused, v)) == 1
        if product >= 0 and masked and once and row <= softmax.longest_row:
            yield KeptSoftmax(v, scores, product, row)


def _way_back(program: Program, fused: Sequence[bool], v: int) -> tuple[int, bool, bool]:
    """The product that makes a value, or -1, and whether it is masked and its dimensions are turned on the way."""
    masked = turned = False
    while (o := program.values[v].op) >= 0:
        op = program.ops[o]
        if op.kind in CONTRACTIONS and not fused[o]:
            return o, masked, turned
        if not fused[o]:
            break
        masked, turned = masked or op.kind == "select", turned or op.kind == "transpose"
        before = made_of(program, v)
        if before is None:
            break
        v = before
    return -1, masked, turned


def made_of(program: Program, v: int) -> int | None:
    """The one value of its size that a value is made of, entry by entry; None where there are several, or none."""
    op = program.ops[program.values[v].op]
    held = [a for a in op.operands if size_of(program, a) == size_of(program, v) and not program.free[a]]
    if op.kind == "select":
        held = [a for a in held if a != op.operands[0] and _is_made(program, a)]
    elif len(held) > 1:
        held = [a for a in held if _is_made(program, a)]
    return held[0] if len(held) == 1 else None


def is_with_product(program: Program, fused: Sequence[bool], product: int, scores: int) -> bool:
    """Whether a softmax runs in the kernel of the product that makes its scores, and writes exponentials alone.

    That is so where the scores are of no wider type than the operands; else where no operand is an argument, and
    another product makes one of them as it is, or it is one that was repeated.
    """
    operands = program.ops[product].operands
    if any(bits_of(program.values[v].dtype) >= bits_of(program.values[scores].dtype) for v in operands):
        return True
    found = [_origin(program, fused, v) for v in operands]
    as_they_are = (program.ops[o].kind in CONTRACTIONS or program.ops[o].kind == "broadcast_in_dim" for o in found)
    return all(o >= 0 for o in found) and any(as_they_are)


def _origin(program: Program, fused: Sequence[bool], v: int) -> int:
    """The op that a value comes from, but for views and what is done with each entry; -1 for an argument."""
    repeats = -1
    while (o := program.values[v].op) >= 0 and fused[o]:
        before = made_of(program, v)
        if before is None:
            op = program.ops[o]
            if op.kind != "broadcast_in_dim":
                break
            repeats, before = o, op.operands[0]
        v = before
    return repeats if o >= 0 and repeats >= 0 else o


def _is_made(program: Program, v: int) -> bool:
    """Whether a value is neither given from outside nor repeats a smaller one."""
    o = program.values[v].op
    return o >= 0 and program.ops[o].kind != "broadcast_in_dim"
