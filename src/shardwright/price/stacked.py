"""Caches that go into a loop as slices of a stack and come out stacked again: what is copied in each turn, and after.

``compiler/storing.py`` says what the TPU compiler does (``STACKED``, ``GIVEN_BACK``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from shardwright.ir.kinds import ADDS_DIMENSIONS, IN_PLACE, VIEWS
from shardwright.ir.program import Op, Program
from shardwright.price.relaid import order_read, order_written


class Stacked(NamedTuple):
    """A slice of a stack that a loop writes single positions of and stacks again.

    ``slab`` is the slice with what was written, and ``order`` the one in which its dimensions lie in the loop, from the
    outermost to the innermost. ``cut`` takes the slice out of its stack, and ``put`` brings it to the new one.
    """

    slab: int
    order: tuple[int, ...]
    cut: int
    put: int

    def is_copied(self, local: Sequence[int]) -> bool:
        """Whether a slice of this local shape lies otherwise in the loop than in its stack."""
        order = [d for d in self.order if local[d] > 1]
        return order != sorted(order)


def find_stacked(program: Program, loop: Op, slot: int, is_argument: Callable[[int], bool]) -> Stacked | None:
    """How a loop fills a stack with slices of another one, an argument, if it writes to single positions of them."""
    body = program.regions[loop.regions[-1]]
    put = program.values[body.results[slot]].op
    if put < 0 or program.ops[put].kind != "dynamic_update_slice":
        return None
    if program.ops[put].operands[0] != body.parameters[slot]:
        return None
    slab = _before(program, program.ops[put].operands[1], ADDS_DIMENSIONS)
    v = slab
    order: tuple[int, ...] = ()
    while (o := program.values[v].op) >= 0 and program.ops[o].kind in IN_PLACE:
        order = order or order_written(program, program.ops[o])
        v = program.ops[o].operands[0]
    v = _before(program, v, VIEWS)
    cut = program.values[v].op
    if not order or cut < 0 or program.ops[cut].kind != "dynamic_slice":
        return None
    stack = program.ops[cut].operands[0]
    if stack not in body.parameters or stack not in body.results:
        return None
    if not is_argument(loop.operands[body.parameters.index(stack)]):
        return None
    dims = range(len(program.values[slab].shape))
    read = order_read(program, slab, dims)
    return Stacked(slab, read or order, cut, put)


def _before(program: Program, v: int, kinds: frozenset[str]) -> int:
    while (o := program.values[v].op) >= 0 and program.ops[o].kind in kinds:
        v = program.ops[o].operands[0]
    return v
