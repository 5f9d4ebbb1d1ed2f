"""Sums that are added up: which of their reductions the compiler makes one, in a state.

How an op runs is chosen as if all sums that its own is added to were partial over the same axes, and reduced with it.
``compiler.moving.ADDED_UP`` says what becomes of them where they are not.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.ir.move_terms import Addition
from shardwright.price.collectives import Move

Moves = tuple[Move, ...]
"""What brings a sum to where it must be."""


def reduced_together(addition: Addition, moves: Sequence[Moves]) -> list[Moves]:
    """The moves of an addition's sums, in order, where only those that can be are reduced at once."""
    out = list(moves)
    for members in _groups(addition, [_reduced_over(own) for own in moves]):
        for k in members:
            out[k] = tuple([m._replace(addends=len(members)) if m.addends > 1 else m for m in moves[k]])
    return out


_Reduced = tuple[tuple[str, tuple[int, ...]], ...]
"""How a sum is reduced: by which collectives over which axes."""


def _reduced_over(moves: Moves) -> _Reduced:
    """How a sum is reduced that others may be reduced with; nothing where none may."""
    return tuple([(move.kind, move.axes) for move in moves if move.addends > 1])


def _groups(addition: Addition, reduced_over: Sequence[_Reduced]) -> list[list[int]]:
    """Numbers of sums that are reduced at once."""
    found: list[list[int]] = []
    numbers = iter(range(len(reduced_over)))

    def visit(part: Addition) -> tuple[_Reduced, list[int]]:
        """How what is added up here is yet to be reduced, and the sums in it."""
        if isinstance(part, int):
            k = next(numbers)
            return reduced_over[k], [k]
        parts = [visit(each) for each in part]
        if len({axes for axes, _ in parts}) == 1:
            return parts[0][0], [k for _, members in parts for k in members]
        found.extend(members for axes, members in parts if axes)
        return (), []

    found.append(visit(addition)[1])
    return found
