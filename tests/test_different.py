"""The few states that a compiler is asked about: fast, and different in what it would see."""

from __future__ import annotations

import pytest

import shardwright as sw
from programs import f32
from shardwright.search.actions import find_actions
from shardwright.search.different import Distances, different
from shardwright.search.game import Space
from shardwright.search.scores import Found, Scores
from shardwright.space.state import Entry, State

MESH = {"data": 4, "model": 4}


def perceptron(x, w, v):
    return (x @ w) @ v


@pytest.fixture(scope="module")
def scores():
    shapes = f32(2048, 16384), f32(16384, 16384), f32(16384, 2048)
    problem = sw.Problem(perceptron, *shapes, mesh=MESH, device="tpu-v5e")
    actions = find_actions(problem.analysis, problem.mesh, places=problem.places)
    space = Space(problem.analysis, problem.costs, actions, problem.start.state.whole, problem.start.keepers)
    out = Scores(problem.costs, space.order, problem.start.state, problem.limit_bytes)
    entries = [e for e in actions.entries[0] if isinstance(e, Entry)]
    out.cost(((), ()))
    for a in entries:
        for b in entries:
            out.cost(((a,), (b,)))
            out.cost(((a, b), (b,)))
    return out


def test_the_fastest_comes_first_and_the_others_are_different(scores):
    found = different(scores, 4, within=1.0)
    assert found[0] == scores.best
    assert 1 < len(found) <= 4
    ways = Distances(scores.costs)
    layouts = [ways.layouts(scores, f) for f in found]
    for k, one in enumerate(layouts):
        assert all(ways.distance(one, other) > 0 for other in layouts[:k])
    seconds = [f.cost.step_seconds for f in found]
    assert seconds[1:] == sorted(seconds[1:])


def test_the_best_is_always_compared_with_another(scores):
    near, far = different(scores, 4, within=1e-9), different(scores, 1, within=1e-9)
    assert near[0] == scores.best and len(near) == 2
    ways = Distances(scores.costs)
    assert ways.distance(*(ways.layouts(scores, f) for f in near)) > 0
    assert far == near[:1]


def test_axes_that_are_alike_may_be_exchanged(scores):
    ways = Distances(scores.costs)
    one = next(lists for lists in scores.known if len(lists[0]) == len(lists[1]) == 1 and lists[0] != lists[1])
    states = one, (one[1], one[0]), ((), ())
    first, turned, nothing = (ways.layouts(scores, Found(lists, scores.cost(lists))) for lists in states)
    assert ways.distance(first, turned) == 0.0
    assert ways.distance(first, nothing) > 0.5


def test_without_a_state_that_fits_there_is_none(scores):
    none = Scores(scores.costs, scores.order, State(((), ())), 1)
    none.cost(((), ()))
    assert different(none, 4) == []
