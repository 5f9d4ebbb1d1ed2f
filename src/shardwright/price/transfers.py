"""Moves between the memories of host and device: what they take, and how much of it the device computes meanwhile.

A *place* is a loop's body, or the program outside of loops. In each, a move takes the bytes of one device's part over
the rate of the link to its host, which carries both ways at once; the compiler starts a move ahead of where its result
is needed, so that the step waits only for what the place has no work beside (``compiler/offloading.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardwright.compiler.offloading import HIDDEN_MOVES
from shardwright.errors import DeviceError
from shardwright.ir.memory import moves_between
from shardwright.ir.program import Program

TO_HOST, TO_DEVICE, COMPUTE = range(3)
Seconds = NDArray[np.float64]


class Transfers:
    """The moves of a program, by the places where they stand."""

    def __init__(self, program: Program) -> None:
        self.program = program
        moves = [o for o in range(len(program.ops)) if moves_between(program, o)]
        self.places = sorted({self._place(program.ops[o].region) for o in moves})
        """The regions in which anything is moved."""
        self._numbers = {region: k for k, region in enumerate(self.places)}

    def __bool__(self) -> bool:
        return bool(self.places)

    def counts(self, roots: list[int]) -> Seconds | None:
        """How many of some kernels run in each place, one time through; None if none of them does."""
        found = np.zeros(len(self.places))
        for root in roots:
            number = self._numbers.get(self._place(self.program.ops[root].region))
            if number is not None:
                found[number] += 1
        return found if found.any() else None

    def beside(self, counts: Seconds | None, what: int, seconds: float) -> Seconds | None:
        """``seconds`` of each of so many kernels, as what is done in each place."""
        if counts is None or not seconds:
            return None
        found = np.zeros((3, len(self.places)))
        found[what] = counts * seconds
        return found

    def _place(self, region: int) -> int:
        """The loop's body, or the program, that a region is part of."""
        return self._places[region]

    @cached_property
    def _places(self) -> list[int]:
        return places_of(self.program)


def places_of(program: Program) -> list[int]:
    """For each region the loop's body or condition, or the program, that it is part of."""
    found: list[int] = []
    for number, region in enumerate(program.regions):
        own = region.op < 0 or region.role in ("body", "condition")
        found.append(number if own else found[program.ops[region.op].region])
    return found


def all_and_exposed(beside: Seconds | None, places: Sequence[int]) -> tuple[float, float]:
    """Seconds of all moves, and of those that no compute hides."""
    if beside is None:
        return 0.0, 0.0
    exposed = [
        HIDDEN_MOVES.effect(to_host, to_device, compute, place != 0)
        for (to_host, to_device, compute), place in zip(beside.T.tolist(), places, strict=True)
    ]
    return float(beside[[TO_HOST, TO_DEVICE]].sum()), sum(exposed)


def host_rate(bytes_per_second: float, device: str) -> float:
    """The rate of the link between a device and its host, which a program that uses it needs."""
    if not bytes_per_second:
        raise DeviceError(
            f"the program has values on the host, but the device {device!r} has no host_bytes_per_second, the rate of "
            "its link to the host; give one."
        )
    return bytes_per_second
