"""Where local improvement gets stuck, the tree search gets it out."""

from __future__ import annotations

from functools import cache

import pytest

from benchmarks.ablation import FULL, GAIN, NO_DRAWS, NO_TREE, RESTARTS, SLACK, run
from benchmarks.hard import HARD, HardProblem
from shardwright.search import Outcome

STUCK = ("chain of 4", "trained, 3 axes", "towers, 3 axes", "experts", "branches")
"""Those that are searched in a second or two."""


@cache
def searched(name: str) -> tuple[HardProblem, Outcome, int]:
    problem = HARD[name].problem()
    return problem, *run(problem, FULL, 0)


def test_the_tree_finds_what_local_improvement_does_not() -> None:
    better = []
    for name in STUCK:
        problem, whole, work = searched(name)
        without, _ = run(problem, NO_TREE, 0, work)
        assert not whole.cost.over_bytes(problem.limit_bytes)
        missed = without.cost.over_bytes(problem.limit_bytes) > 0
        assert missed or whole.cost.step_seconds <= (1 + SLACK) * without.cost.step_seconds, name
        if missed or without.cost.step_seconds >= (1 + GAIN) * whole.cost.step_seconds:
            better.append(name)
    assert len(better) >= 3, better  # which of them are hard changes with the prices


@pytest.mark.parametrize("variant", [RESTARTS, NO_DRAWS])
@pytest.mark.parametrize("name", ["chain of 4", "experts"])
def test_with_the_same_work_neither_half_of_the_tree_search_is_better_than_both(name: str, variant: str) -> None:
    problem, whole, work = searched(name)
    half, _ = run(problem, variant, 0, work, whole.search.evaluations)
    missed = half.cost.over_bytes(problem.limit_bytes) > 0
    assert missed or half.cost.step_seconds >= whole.cost.step_seconds / (1 + SLACK)


def test_the_hard_cases_are_of_many_kinds() -> None:
    assert len(HARD) >= 12
    assert len({name.partition(" of ")[0].partition(",")[0] for name in HARD}) >= 6
    assert len({tuple(case.mesh.items()) for case in HARD.values()}) >= 3
