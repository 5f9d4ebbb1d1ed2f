"""Results: the memory that a caller gives for what a program returns, and what lies in it before.

``compiler.storing.RESULTS_FROM_THE_START`` says what XLA does, and how it was seen.
"""

from __future__ import annotations


def gaps_before(start: int, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """When the memory of a result lies idle before position ``start``, from which the result itself is in it.

    ``spans`` are those of other values that could lie there: as many as fit do, the longest first, and are taken out of
    the list, as they need no other result's memory.
    """
    taken: list[tuple[int, int]] = []
    for first, last in sorted(spans, key=lambda span: span[0] - span[1]):
        if last < start and all(last < a or b < first for a, b in taken):
            taken.append((first, last))
            spans.remove((first, last))
    gaps, free = [], 0
    for first, last in sorted(taken):
        if first > free:
            gaps.append((free, first - 1))
        free = last + 1
    return [*gaps, (free, start - 1)] if free < start else gaps
