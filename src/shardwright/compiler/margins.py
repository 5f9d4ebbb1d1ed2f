"""How far the memory that a compiler takes may be from the estimate: measured, by platform and kind of program.

What a program's arguments take is known; the estimate errs in the rest, which the compiler decides about. So a margin
is a factor of the rest: a plan that is estimated at ``needed`` bytes, of which ``held`` are arguments, takes between
``held + low * (needed - held)`` and ``held + high * (needed - held)``. The figures are in ``margins.json``, with what
they were measured on; ``python benchmarks/memory_edge.py --margins`` writes them anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from shardwright.compiler.behaviours import everywhere

FORWARD, LOOPED, UNROLLED = "forward", "looped training", "unrolled training"
KINDS = (FORWARD, LOOPED, UNROLLED)
"""Kinds of programs, which ``price.estimate.kind_of`` tells apart."""


@dataclass(frozen=True)
class Margin:
    """How large a part of the estimate, arguments left out, compiled programs were seen to take.

    ``plans`` of so many ``programs`` are what it was measured on; where nothing was, it is another platform's.
    """

    low: float
    high: float
    plans: int
    programs: int

    @property
    def exact(self) -> bool:
        """Estimates are never off."""
        return self.low == self.high == 1.0

    def least_bytes(self, needed_bytes: float, held_bytes: float) -> float:
        """No less than this is needed, by all that was measured."""
        return held_bytes + self.low * (needed_bytes - held_bytes)

    def most_bytes(self, needed_bytes: float, held_bytes: float) -> float:
        """No more than this is needed, by all that was measured."""
        return held_bytes + self.high * (needed_bytes - held_bytes)

    def fits(self, needed_bytes: float, held_bytes: float, limit_bytes: float) -> bool | None:
        """Whether it surely fits; False where it surely does not, None where the estimate cannot tell."""
        if self.most_bytes(needed_bytes, held_bytes) <= limit_bytes:
            return True
        return False if self.least_bytes(needed_bytes, held_bytes) > limit_bytes else None


@cache
def margins() -> Mapping[str, Mapping[str, Margin]]:
    """All margins, by platform and kind of program."""
    found = json.loads(files("shardwright.compiler").joinpath("margins.json").read_text())
    names = ("low", "high", "plans", "programs")
    return {
        platform: {kind: Margin(*(margin[name] for name in names)) for kind, margin in kinds.items()}
        for platform, kinds in found["margins"].items()
    }


OFF_BY = everywhere(
    "how far the memory that is taken may be from the estimate",
    "What a program's arguments take is known; the estimate errs in the rest, which the compiler decides about. "
    "Between the margins of its kind the compiler is asked.",
    effect=margins,
    evidence="margins.json: the least and the most that compiled programs were seen to take, by platform and kind of "
    "program, with the versions (docs/benchmarks/memory_edge.md; python benchmarks/memory_edge.py --margins).",
    tests=(
        "test_margins.py::test_every_platform_and_kind_has_a_margin",
        "test_margins.py::test_fits_has_three_answers",
    ),
    where=("price.estimate.margin_of",),
)
RECORDS = (OFF_BY,)
