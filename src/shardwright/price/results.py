"""Results: the memory that a caller gives for what a program returns, and what lies in it before.

``compiler.storing.RESULTS_FROM_THE_START`` says what XLA does, and how it was seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import floor
from typing import NamedTuple

_STEPS = 8
"""Parts of a result's memory are told apart in eighths, rounded down; what is smaller than one is not looked at."""


class Span(NamedTuple):
    """Bytes that are needed from position ``start`` up to and with ``end``."""

    bytes: int
    start: int
    end: int


class Idle(NamedTuple):
    """From when to when which part of a result's memory has nothing in it."""

    start: int
    end: int
    part: float


@dataclass
class _Room:
    """The memory of a result that is in it from ``start`` on, and the values that lie in it before, in no order."""

    bytes: int
    start: int
    end: int
    taken: list[Span] = field(default_factory=list)

    def takes(self, span: Span) -> bool:
        """Whether a value may lie in it, and does from now on."""
        large_enough = self.bytes / _STEPS <= span.bytes <= self.bytes and span.bytes
        if not large_enough or (span.end >= self.start and self.end >= span.start):
            return False
        if any(span.start <= other.end and other.start <= span.end for other in self.taken):
            return False
        self.taken.append(span)
        return True

    def idle(self) -> list[Idle]:
        """What is left of it before the result is there."""
        found, free = [], 0
        for span in sorted(self.taken, key=lambda each: each.start):
            if span.start >= self.start:
                break
            if span.start > free:
                found.append(Idle(free, span.start - 1, 1.0))
            if part := 1 - floor(_STEPS * span.bytes / self.bytes) / _STEPS:
                found.append(Idle(span.start, span.end, part))
            free = span.end + 1
        return [*found, Idle(free, self.start - 1, 1.0)] if free < self.start else found


def idle_before(results: Sequence[Span], others: Sequence[Span]) -> list[list[Idle]]:
    """For each result when its memory lies idle before it is there, wholly or in part.

    Of the ``others`` the largest are given a place first: in the smallest memory of a result that they fit in and that
    is free while they are there. No two are in the same at a time.
    """
    rooms = [_Room(*span) for span in results]
    smallest_first = sorted(rooms, key=lambda room: room.bytes)
    for span in sorted(others, key=lambda each: -each.bytes):
        any(room.takes(span) for room in smallest_first)
    return [room.idle() for room in rooms]
