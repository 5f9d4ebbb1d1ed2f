"""Tensors that are laid out anew because they are gathered from, scattered to, or were gathered and are taken apart.

``compiler/layouts.py`` says when a compiler does so, and what it takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shardwright.devices import Device
from shardwright.ir.program import Op, Program, is_elementwise
from shardwright.price.layout import apart_bytes, apart_move_slots, apart_slots, apart_work_slots, row_copy_slots

TABLE, SUMMED, SPREAD = "copy in rows", "gathered rows taken apart and added up", "rows spread before a scatter"


class Laid(NamedTuple):
    """A value that an op has laid out anew, and why; ``rows`` are the dimensions that no index chooses from.

    ``made`` and ``used`` are the ops between which a copy is there.
    """

    value: int
    rows: tuple[int, ...]
    why: str
    op: int
    made: int = -1
    used: int = -1


class LaidWork(NamedTuple):
    """What laying a value out anew takes once: seconds, and bytes of a copy that is there in between."""

    seconds: float = 0.0
    copy_bytes: float = 0.0


def laid_work(laid: Laid, own: Sequence[int], wanted: Sequence[int], dtype: str, device: Device) -> LaidWork:
    """Of a device's part of a value; ``own`` is its shape in the gather or scatter, ``wanted`` that outside of it.

    Where these differ, it is exchanged between devices.
    """
    tile, rows = device.tile, laid.rows
    if laid.why == TABLE:
        slots, copy = row_copy_slots(own, dtype, tile, rows), 0.0  # its memory is a buffer's
    else:
        moved = tuple(own) != tuple(wanted)
        slots = apart_slots(own, dtype, tile, rows[0])
        slots += apart_move_slots(own, dtype, tile, rows[0]) if moved else 0.0
        slots += apart_work_slots(wanted, dtype, tile, rows[0], spread=laid.why == SPREAD, moved=moved)
        copy = apart_bytes(own, dtype, tile, rows[0])
    rate = device.vector_ops_per_second
    return LaidWork(slots / rate if rate else 0.0, copy)


def taken_apart(program: Program) -> Iterator[Laid]:
    """What was gathered, or is scattered, by indices of several dimensions that are added up along the last of them."""
    for o, op in enumerate(program.ops):
        if op.kind == "gather":
            v = op.results[0]
            rows = _rows_of(op, op.rule.results[0])
            for u in _reached(program, v) if _several(program, v, rows) else ():
                user = program.ops[u]
                if user.kind == "reduce" and _lost(user, 0) == {_last_index(program, v, rows)}:
                    yield Laid(v, rows, SUMMED, o, o, u)
                    break
        elif op.kind == "scatter" and len(op.operands) == 3:
            v = op.operands[2]
            rows = _rows_of(op, op.rule.operands[2])
            maker = _made_by(program, v) if _several(program, v, rows) else -1
            if maker >= 0 and _spread_over(program, program.ops[maker]) == {_last_index(program, v, rows)}:
                yield Laid(v, rows, SPREAD, o, maker, o)


def _rows_of(op: Op, dims: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The dimensions of what is gathered or scattered that its indices do not have."""
    chosen = {f for dim in op.rule.operands[1] for f in dim}
    return tuple(d for d, dim in enumerate(dims) if not dim or dim[0] not in chosen)


def _several(program: Program, v: int, rows: tuple[int, ...]) -> bool:
    """Whether there is one dimension of rows, and several of indices."""
    shape = program.values[v].shape
    return len(rows) == 1 and sum(size > 1 for d, size in enumerate(shape) if d not in rows) >= 2


def _last_index(program: Program, v: int, rows: tuple[int, ...]) -> int:
    return max(d for d in range(len(program.values[v].shape)) if d not in rows)


def _reached(program: Program, v: int) -> Iterator[int]:
    """The ops that use a value, at once or after others that work element by element."""
    waiting, seen = list(program.users[v]), set()
    while waiting:
        u = waiting.pop()
        if u not in seen:
            seen.add(u)
            yield u
            if is_elementwise(program, program.ops[u]):
                waiting += program.users[program.ops[u].results[0]]


def _lost(op: Op, operand: int) -> set[int]:
    """The dimensions of an operand that no result has."""
    left = {f for dim in op.rule.results[0] for f in dim}
    return {d for d, dim in enumerate(op.rule.operands[operand]) if dim and dim[0] not in left}


def _made_by(program: Program, v: int) -> int:
    """The op that a value comes from, before others that work element by element; -1 for none."""
    while (o := program.values[v].op) >= 0 and is_elementwise(program, program.ops[o]) and program.ops[o].operands:
        held = [a for a in program.ops[o].operands if not program.free[a]]
        if not held:
            return -1
        v = held[0]
    return o


def _spread_over(program: Program, op: Op) -> set[int]:
    """The dimensions along which a broadcast repeats its operand."""
    if op.kind != "broadcast_in_dim":
        return set()
    shape = program.values[op.operands[0]].shape
    kept = {f for dim, size in zip(op.rule.operands[0], shape, strict=True) if size > 1 for f in dim}
    sizes = program.values[op.results[0]].shape
    return {d for d, dim in enumerate(op.rule.results[0]) if sizes[d] > 1 and not kept.intersection(dim)}
