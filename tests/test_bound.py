"""Bounds: no state takes less by the same prices, whatever was decided, and where nothing is moved some come close."""

from __future__ import annotations

import random

import jax
import jax.numpy as jnp
import pytest

import shardwright as sw
from programs import f32
from shardwright.models import build
from shardwright.price.bound import Bound, least_step_seconds
from shardwright.space.state import Entry, State

MESHES = {"data": 4, "model": 2}, {"a": 2, "b": 2, "c": 2}


def random_states(problem: sw.Problem, count: int):
    """States with entries of any group, resolution and exception on every axis, fitting or not."""
    chance, groups = random.Random(0), problem.analysis.groups
    for _ in range(count):
        lists = []
        for _ in problem.mesh.sizes:
            chosen = chance.sample(range(len(groups)), min(len(groups), chance.randint(0, 5)))
            sides = [tuple(chance.randrange(2) for _ in groups[g].conflicts) for g in chosen]
            lists.append(tuple(Entry(g, bits) for g, bits in zip(chosen, sides, strict=True)))
        yield State(tuple(lists), problem.start.state.whole)


@pytest.mark.parametrize("mesh", MESHES, ids=len)
@pytest.mark.parametrize("name", ["mlp", "gpt", "moe", "gns", "decode"])
def test_no_state_takes_less(name, mesh):
    fn, args, options = build("itx" if name == "decode" else name, preset="tiny")
    problem = sw.Problem(fn, *args, mesh=mesh, device="tpu-v5e", **options)
    least = least_step_seconds(problem.costs)
    assert least > 0
    for state in random_states(problem, 30):
        assert problem.price(state).compute_seconds >= least * (1 - 1e-9)


def rows(x, w):
    return jax.nn.relu(x @ w)


def test_it_is_reached_where_nothing_has_to_be_moved():
    plan = sw.partition(rows, f32(8192, 1024), f32(1024, 4096), mesh={"data": 4}, device="tpu-v5e", progress=False)
    bound = plan.bound()
    assert bound.gap < 0.01
    assert bound.least_seconds <= plan.estimate.step_seconds
    assert "% more than the best there is" in str(bound)


def test_it_is_said_how_loose_it_is():
    assert str(Bound(1.0, 3.0, 1.5)) == (
        "No plan on this mesh takes less than 1 s by these prices; this one takes 3 s, at most 3.0 times the best "
        "there is. The bound has no communication in it, which makes up 50% of the step."
    )
    assert "No bound" in str(Bound(0.0, 1.0, 1.0))


def test_a_program_without_work_has_none():
    def same(x):
        return jnp.transpose(x)

    assert sw.evaluate(same, f32(8, 8), mesh={"data": 2}, device="tpu-v5e", decisions=[]).bound().least_seconds >= 0
