"""Automap: how far a sharding propagates in small programs, and what the search over it finds."""

import random
from functools import cache

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import shardwright as sw
from benchmarks.baselines.automap import automap, possible_splits
from benchmarks.baselines.propagate import Propagation
from programs import f32
from shardwright.devices import find_device
from shardwright.models import build
from shardwright.price import CostModel, Places
from shardwright.request import MeshShape

MESH = MeshShape.of({"data": 4, "model": 2})
DEVICE = find_device("tpu-v5e")


def after(fn, args, *splits):
    """The shardings of arguments and results, by path, once ``"x[0] model"`` and the like have been propagated."""
    analysis = sw.analyse(fn, *args)
    costs = CostModel(Places(analysis), MESH, DEVICE)
    program, classes = analysis.program, costs.classes
    propagation = Propagation(classes, MESH)
    paths = {argument.path: argument.value for argument in program.arguments}
    masks = propagation.whole
    for split in splits:
        place, axis = split.split()
        path, dimension = place[:-1].split("[")
        masks = propagation.shard(
            masks, propagation.place(classes.of_value[paths[path]], int(dimension)), MESH.names.index(axis)
        )
    shardings = propagation.shardings(masks)
    names = [path.removeprefix("result.") for path in program.results]
    paths |= dict(zip(names, program.regions[0].results, strict=True))
    return {path: text(shardings[classes.of_value[value]]) for path, value in paths.items()}


def text(sharding):
    return " ".join("+".join(MESH.names[axis] for axis in axes) or "-" for axes in sharding)


def dense(x, w):
    return {"y": jax.nn.relu(x @ w)}


DENSE = f32(8, 16), f32(16, 32)


@pytest.mark.parametrize(
    ("splits", "x", "w", "y"),
    [
        (["x[0] data"], "data -", "- -", "data -"),
        (["w[1] model"], "- -", "- model", "- model"),
        (["x[1] model"], "- model", "model -", "- -"),  # partial sums
        (["w[0] model"], "- model", "model -", "- -"),
        (["x[0] data", "w[1] model"], "data -", "- model", "data model"),
        (["x[0] data", "x[0] model"], "data+model -", "- -", "data+model -"),
        (["x[0] model", "x[0] data"], "data+model -", "- -", "data+model -"),  # in the mesh's order
    ],
)
def test_a_dense_layer(splits, x, w, y):
    assert after(dense, DENSE, *splits) == {"x": x, "w": w, "y": y}


def test_what_comes_first_stays():
    # The weight takes the axis on its own, but the product already uses it for the batch: stored sharded, as in FSDP.
    assert after(dense, DENSE, "x[0] data", "w[1] data") == {"x": "data -", "w": "- data", "y": "data -"}
    assert after(dense, DENSE, "w[1] data", "x[0] data") == {"x": "data -", "w": "- data", "y": "- data"}


def test_an_axis_that_does_not_divide_stops():
    assert after(dense, (f32(8, 16), f32(16, 30)), "w[1] data") == {"x": "- -", "w": "- -", "y": "- -"}
    both = after(dense, (f32(4, 16), f32(16, 32)), "x[0] data", "x[0] model")
    assert both == {"x": "data -", "w": "- -", "y": "data -"}

    def split(x):
        return {"y": x.reshape(3, 4, 5)}

    assert after(split, (f32(12, 5),), "x[0] data") == {"x": "data -", "y": "- - -"}  # the major part has size 3


def test_a_conflict_stops():
    def symmetric(x):
        return {"s": x @ x.T}

    # Both sides of the product have the axis, so neither dimension of s gets it.
    assert after(symmetric, (f32(8, 16),), "x[0] data") == {"x": "data -", "s": "- -"}
    assert after(symmetric, (f32(8, 16),), "x[1] data") == {"x": "- data", "s": "- -"}

    def scores(x, q, k):
        return {"s": (x @ q) @ (x @ k).T}

    args = f32(8, 16), f32(16, 32), f32(16, 32)
    assert after(scores, args, "x[0] data") == {"x": "data -", "q": "- -", "k": "- -", "s": "- -"}


def test_a_carried_value_crosses_a_loop():
    def looped(x, w):
        def step(carry, layer):
            carry = jnp.tanh(carry @ layer)
            return carry, carry.sum(1)

        carry, sums = lax.scan(step, x, w)
        return {"carry": carry, "sums": sums}

    args = f32(8, 16), f32(3, 16, 16)
    batch = after(looped, args, "x[0] data")
    assert batch == {"x": "data -", "w": "- - -", "carry": "data -", "sums": "- data"}
    # Contracted and made again in every turn: within the product the axis would split two factors.
    width = after(looped, args, "x[1] model")
    assert width["x"] == width["carry"] == "- model"
    assert width["sums"] == "- -"


@cache
def model(name):
    fn, args, options = build(name, preset="tiny")
    costs = CostModel(Places(sw.analyse(fn, *args, **options)), MESH, DEVICE)
    return fn, args, options, costs


def data_parallel(name):
    fn, args, options, _ = model(name)
    mesh = dict(zip(MESH.names, MESH.sizes, strict=True))
    return sw.evaluate(fn, *args, mesh=mesh, device=DEVICE, decisions=["data_parallel:data"], **options).estimate


def test_data_parallelism():
    costs = model("mlp")[-1]
    propagation = Propagation(costs.classes, MESH)
    masks = propagation.whole
    for argument in costs.classes.program.arguments:
        if argument.path.startswith("batch"):
            masks = propagation.shard(masks, propagation.place(costs.classes.of_value[argument.value], 0), 0)
    cost, expected = costs.evaluate_shardings(propagation.shardings(masks)), data_parallel("mlp")
    # Shardings that no state gives leave the ops free to use any axis, so that they may come out a little cheaper.
    assert cost.step_seconds <= expected.step_seconds * (1 + 1e-9)
    assert cost.step_seconds == pytest.approx(expected.step_seconds, rel=3e-3)
    assert cost.peak_bytes == expected.peak_bytes


def test_the_search_finds_at_least_data_parallelism():
    costs, expected = model("mlp")[-1], data_parallel("mlp")
    found = automap(costs, 1 << 30)
    assert found.fits(1 << 30)
    assert found.cost is not None
    assert found.cost.step_seconds <= expected.step_seconds * (1 + 1e-6)


def test_the_search_is_the_same_for_a_seed():
    costs = model("mlp")[-1]
    runs = [automap(costs, 1 << 30, simulations=60, seed=seed) for seed in (3, 3)]
    assert runs[0].cost == runs[1].cost
    assert runs[0].note == runs[1].note


def test_the_search_keeps_to_its_limits():
    costs = model("mlp")[-1]
    at_once = automap(costs, 1 << 30, seconds=0.0)
    assert at_once.note.startswith("1 simulations")
    smallest = automap(costs, 1, simulations=100)  # nothing fits into a byte
    assert not smallest.fits(1)
    fastest = automap(costs, 1 << 30, simulations=100)
    assert smallest.cost is not None
    assert fastest.cost is not None
    assert smallest.cost.peak_bytes <= fastest.cost.peak_bytes
    assert fastest.cost.step_seconds <= smallest.cost.step_seconds


@pytest.mark.parametrize("name", ["gpt", "moe"])
def test_every_value_can_be_sharded_as_told(name):
    costs = model(name)[-1]
    propagation = Propagation(costs.classes, MESH)
    splits, rng = possible_splits(propagation), random.Random(0)
    assert splits
    for _ in range(40):
        masks = propagation.whole
        for split in rng.choices(splits, k=6):
            before, masks = masks, propagation.shard(masks, *split)
            assert all(old & new == old for old, new in zip(before, masks, strict=True))  # nothing is taken away
        for c, sharding in zip(costs.classes.values.keys, propagation.shardings(masks), strict=True):
            axes = [axis for found in sharding for axis in found]
            assert len(axes) == len(set(axes))
            assert all(size % MESH.ways(found) == 0 for size, found in zip(c.shape, sharding, strict=True))
            assert all(found == tuple(sorted(found)) for found in sharding)
