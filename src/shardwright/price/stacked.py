"""Caches that go into a loop as slices of a stack and come out stacked again: what is copied in each turn, and after.

``compiler/storing.py`` says what the TPU compiler does (``STACKED``, ``GIVEN_BACK``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from shardwright.ir.kinds import ADDS_DIMENSIONS, IN_PLACE, VIEWS
from shardwright.ir.program import Op, Program
from shardwright.price.relaid import before, order_read, order_written


class Turned(NamedTuple):
    """The rows of tiles into which a slice is taken and put, and whether it is copied in between.

    The stack may be copied to the order of what is written ``before`` the loop.
    """

    cut_rows: int
    put_rows: int
    between: bool
    before: bool


class Stacked(NamedTuple):
    """A slice of a stack that a loop writes single positions of and stacks again.

    ``value`` is the new stack, the loop's result, and ``start`` and ``end`` are the positions of the loop. ``slab`` is
    the slice with what was written. ``written`` is the order of its dimensions, from the outermost to the innermost,
    that what is written has, and ``read`` that in which a product reads it, if one does; ``positions`` are those of
    which single ones are written. ``cut`` takes the slice out of its stack, and ``put`` brings it to the new one, which
    is ``given_back`` where it takes over a donated argument that the loop reads.
    """

    value: int
    slab: int
    written: tuple[int, ...]
    read: tuple[int, ...]
    positions: tuple[int, ...]
    cut: int
    put: int
    start: int
    end: int
    given_back: bool = False

    def turned(self, local: Sequence[int], whole: Sequence[int]) -> Turned:
        """How a device's part of the slice is copied, of this local shape, and of this shape in all."""
        natural, written, read = (
            [d for d in order if local[d] > 1] for order in (range(len(local)), self.written, self.read or self.written)
        )
        rows = local[-2] if len(local) > 1 else 1
        if any(local[d] < whole[d] for d in self.positions):
            return Turned(local[written[-2]] if len(written) > 1 else 1, rows, written != read, True)
        return Turned(rows, rows, natural != read, False)


def find_stacked(program: Program, loop: Op, slot: int, is_argument: Callable[[int], bool]) -> Stacked | None:
    """How a loop fills a stack with slices of another one, an argument, if it writes to single positions of them."""
    body = program.regions[loop.regions[-1]]
    put = program.values[body.results[slot]].op
    if put < 0 or program.ops[put].kind != "dynamic_update_slice":
        return None
    if program.ops[put].operands[0] != body.parameters[slot]:
        return None
    slab = before(program, program.ops[put].operands[1], ADDS_DIMENSIONS)
    v = slab
    written: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()
    while (o := program.values[v].op) >= 0 and program.ops[o].kind in IN_PLACE:
        slices = program.ops[o].kind == "dynamic_update_slice"
        if slices and (order := order_written(program, program.ops[o])):
            written = order
            sizes = program.values[program.ops[o].operands[1]].shape
            positions = tuple([d for d, size in enumerate(program.values[v].shape) if sizes[d] == 1 < size])
        v = program.ops[o].operands[0]
    v = before(program, v, VIEWS)
    cut = program.values[v].op
    if not written or cut < 0 or program.ops[cut].kind != "dynamic_slice":
        return None
    stack = program.ops[cut].operands[0]
    if stack not in body.parameters or stack not in body.results:
        return None
    if not is_argument(loop.operands[body.parameters.index(stack)]):
        return None
    kept = [d for d, size in enumerate(program.values[slab].shape) if size > 1]
    read, span = order_read(program, slab, kept), (body.op, body.stop - 1)
    return Stacked(loop.results[slot], slab, written, read, positions, cut, put, *span)
