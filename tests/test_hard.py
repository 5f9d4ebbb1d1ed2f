"""Where local improvement gets stuck, the tree search gets it out."""

from __future__ import annotations

import math

import pytest

from benchmarks.ablation import FULL, GAIN, NO_TREE, SLACK, run
from benchmarks.hard import HARD


@pytest.mark.parametrize("name", ["chain of 4", "grams", "towers"])
def test_the_tree_finds_what_local_improvement_does_not(name: str) -> None:
    problem = HARD[name].problem()
    whole, work = run(problem, FULL, 0, math.inf, math.inf)
    without, _ = run(problem, NO_TREE, 0, work, math.inf)
    assert not whole.cost.over_bytes(problem.limit_bytes)
    assert 1e6 * whole.cost.step_seconds <= (1 + SLACK) * HARD[name].best_us
    missed = without.cost.over_bytes(problem.limit_bytes) > 0
    assert missed or without.cost.step_seconds >= (1 + GAIN) * whole.cost.step_seconds


def test_the_hard_cases_are_of_many_kinds() -> None:
    assert len(HARD) >= 12
    assert len({name.partition(" of ")[0].partition(",")[0] for name in HARD}) >= 6
    assert len({tuple(case.mesh.items()) for case in HARD.values()}) >= 3
