"""All cases, in the order of the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from benchmarks.miscompiled import others, windows
from benchmarks.miscompiled.case import Case

CASES = (*windows.all_cases(), *others.all_cases())
BY_NAME = {case.name: case for case in CASES}


def spread(cases: Iterable[Case]) -> list[Case]:
    """The same part of every family at any time, so that runs that are cut short have seen something of all."""
    cases = list(cases)
    total = Counter(case.family for case in cases)
    met: Counter[str] = Counter()
    place = {}
    for case in cases:
        place[case.name] = met[case.family] / total[case.family]
        met[case.family] += 1
    return sorted(cases, key=lambda case: place[case.name])
