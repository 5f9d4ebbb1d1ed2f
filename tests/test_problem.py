"""``sw.Problem``: every stage by itself, and what it shares with the problems made of it."""

import jax.numpy as jnp
import pytest

import shardwright as sw
from programs import f32
from shardwright.request import Budget, MeshShape

ARGS = f32(256, 512), f32(512, 128), f32(1024, 256)


def step(w1, w2, x):
    return jnp.tanh(x @ w1) @ w2


def problem(**options):
    return sw.Problem(step, *ARGS, device="tpu-v5e", **{"mesh": {"data": 4, "model": 2}, **options})


def test_the_stages_give_what_partition_gives():
    whole = problem()
    outcome = whole.search(few=3)
    plan = whole.plan(outcome.simple, search=outcome.search)
    found = sw.partition(step, *ARGS, mesh={"data": 4, "model": 2}, device="tpu-v5e", progress=False)
    assert plan.decisions == found.decisions
    assert plan.in_specs == found.in_specs
    assert whole.price(outcome.simple).step_seconds == plan.estimate.step_seconds == found.estimate.step_seconds


def test_pins_come_first_in_every_state():
    pinned = problem(pin=("model", "w1[1]"))
    outcome = pinned.search(Budget(simulations=4))
    plan = pinned.plan(outcome.best)
    assert str(plan.decisions[[d.axis for d in plan.decisions].index("model")]) == "model: w1[1]"
    assert plan.decided is not None and plan.decided.state == pinned.start.state


def test_decisions_follow_the_pins():
    plan = problem(pin="data_parallel:data").plan_of([("model", "w1[1]")])
    decisions = ["data_parallel:data", ("model", "w1[1]")]
    same = sw.evaluate(step, *ARGS, mesh={"data": 4, "model": 2}, device="tpu-v5e", decisions=decisions)
    assert plan.decisions == same.decisions


def test_an_open_mesh_is_chosen_first():
    given = problem(mesh=8)
    assert len(given.shapes) > 1
    with pytest.raises(sw.MeshError, match=r"problem\.on\(shape\)"):
        _ = given.mesh
    chosen = given.on(given.shapes[-1])
    assert chosen.mesh == given.shapes[-1] and chosen.search(Budget(simulations=0)).best is not None


def test_another_limit_has_the_same_prices_and_another_mesh_its_own():
    whole = problem()
    tight = whole.within(2**20)
    assert tight.costs is whole.costs and (tight.limit_bytes, whole.limit_bytes) == (2**20, whole.device.usable_bytes)
    other = whole.on(MeshShape.of({"data": 2, "model": 4}), like=whole.costs)
    assert other.costs is not whole.costs and other.traced is whole.traced


def test_what_is_traced_again_keeps_the_rest():
    halved = problem().again(shapes=(*ARGS[:2], f32(512, 256)))
    assert halved.program.values[halved.program.arguments[2].value].shape == (512, 256)
    assert (halved.mesh, halved.limit_bytes) == (problem().mesh, problem().limit_bytes)
