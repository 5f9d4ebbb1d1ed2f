"""Two plans side by side."""

import json

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardwright as sw
from programs import f32

MESH = {"data": 4, "model": 2}
MIB = 2**20


def step(params, x, y):
    def loss(params):
        hidden = jax.nn.relu(x @ params["a"])
        return jnp.mean((hidden @ params["b"] - y) ** 2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


ARGS = {"a": f32(1024, 4096), "b": f32(4096, 256)}, f32(8192, 1024), f32(8192, 256)


def planned(decisions, mesh=MESH, fn=step, args=ARGS, device="tpu-v5e", **options):
    return sw.evaluate(fn, *args, mesh=mesh, device=device, decisions=decisions, **options)


@pytest.fixture(scope="module")
def data():
    return planned([("data", "x[0]")])


@pytest.fixture(scope="module")
def zero3():
    return planned([("data", "x[0]"), ("data", "params.a[0]"), ("data", "params.b[1]")])


def figures(difference):
    return {f.name: (f.a, f.b) for f in difference.figures}


def test_data_parallel_beside_zero3(data, zero3):
    d = sw.diff(data, zero3)
    found = figures(d)
    assert found["step"] == (data.estimate.step_seconds, zero3.estimate.step_seconds)
    assert found["peak"] == (data.estimate.peak_bytes, zero3.estimate.peak_bytes)
    assert found["collectives"] == (2, 4)
    # Twice 3/4 of 20 MiB of gradients; or gradients scattered, and weights gathered, which a TPU rounds to bf16 first.
    assert found["sent"] == (30 * MIB, 22.5 * MIB)
    (change,) = d.decisions
    assert (change.axis, change.only_a, change.moved) == ("data", (), ())
    assert change.only_b == (sw.Decision("data", "params.a[0]"), sw.Decision("data", "params.b[1]"))
    assert {(c.paths, c.a, c.b, c.a_bytes, c.b_bytes) for c in d.arguments} == {
        (("params.a",), P(), P("data"), 16 * MIB, 4 * MIB),
        (("params.b",), P(), P(None, "data"), 4 * MIB, 1 * MIB),
    }
    assert {(c.kind, c.axes, c.a_times, c.b_times) for c in d.kinds} == {
        ("all-reduce", ("data",), 2, 0),
        ("all-gather", ("data",), 0, 2),
        ("reduce-scatter", ("data",), 0, 2),
    }
    assert sum(c.difference_seconds for c in d.collectives) == pytest.approx(
        zero3.estimate.comm_seconds - data.estimate.comm_seconds, abs=1e-9
    )
    assert {c.source.function for c in d.collectives} == {"loss"}
    assert figures(sw.diff(zero3, data)) == {name: (b, a) for name, (a, b) in found.items()}


def test_a_plan_beside_itself(data):
    d = sw.diff(data, planned([("data", "x[0]")]))
    assert (d.decisions, d.arguments, d.kinds, d.collectives) == ((), (), (), ())
    assert all(f.ratio == 1 for f in d.figures)
    assert "Both fit, and they take equally long." in str(d)
    assert "The decisions are the same." in str(d)


def test_other_meshes_and_devices(data):
    other = planned([("rows", "x[0]"), ("columns", "params.a[1]")], {"rows": 2, "columns": 8}, device="tpu-v5p")
    d = sw.diff(data, other)
    assert [change.axis for change in d.decisions] == ["data", "rows", "columns"]
    assert (d.a, d.b) == ("8 × tpu-v5e (data 4 × model 2)", "16 × tpu-v5p (rows 2 × columns 8)")
    assert {c.paths for c in d.arguments} == {("params.a",), ("params.b",), ("x",), ("y",)}
    assert str(d).splitlines()[0] == f"step: a on {d.a}, b on {d.b}"


def test_alike_arguments_are_one_row():
    def update(params, x):
        return [jnp.tanh(p) for p in params], x

    args = [f32(64, 8)] * 5, f32(4)
    a = planned([], {"data": 4}, update, args)
    b = planned([("data", f"params.{k}[0]") for k in range(5)], {"data": 4}, update, args)
    (change,) = sw.diff(a, b).arguments
    assert len(change.paths) == 5
    assert (change.a_bytes, change.b_bytes) == (5 * 64 * 8 * 4, 5 * 64 * 8)


def test_decisions_in_another_order():
    first = [("data", "x[0]"), ("data", "params.a[0]"), ("data", "params.b[1]")]
    d = sw.diff(planned(first), planned([first[2], *first[:2]]))
    (change,) = d.decisions
    assert (change.only_a, change.only_b) == ((), ())
    assert change.moved == (sw.Decision("data", "params.b[1]"),)


def test_what_does_not_fit_is_said_first(data):
    tight = planned([("data", "x[0]"), ("model", "params.a[1]")], memory=10 * MIB)
    assert str(sw.diff(data, tight)).splitlines()[1] == "Only a fits."
    assert "Neither fits" in str(sw.diff(tight, tight))


def test_in_words(data, zero3):
    lines = str(sw.diff(data, zero3)).splitlines()
    assert lines[0] == "step: a and b on 8 × tpu-v5e (data 4 × model 2)"
    assert [line.split()[0] for line in lines[4:12]] == [
        "step",
        "compute",
        "communication",
        "of",  # it not hidden
        "peak",
        "arguments",
        "sent",
        "collectives",
    ]
    words = [" ".join(line.split()) for line in lines]
    assert "axis only in a only in b" in words
    assert "data params.a[0]" in words
    assert 'params.a 1 f32[1024,4096] P() P("data") 16.0 MiB 4.0 MiB' in words
    assert max(map(len, lines)) <= 120


def test_for_machines(data, zero3):
    again = json.loads(json.dumps(sw.diff(data, zero3).to_dict()))
    assert again["figures"][0]["name"] == "step"
    assert again["figures"][0]["ratio"] == pytest.approx(zero3.estimate.step_seconds / data.estimate.step_seconds)
    assert again["arguments"][0]["b"] == ["data"]
    assert again["decisions"][0]["only_b"][0]["dimension"] == "params.a[0]"


def other(params, x, y):
    return step(params, x, y)


@pytest.mark.parametrize(
    ("fn", "args", "message"),
    [
        (other, ARGS, "plans of different functions, step and other"),
        (step, (ARGS[0], f32(64, 1024), f32(64, 256)), r"x is f32\[8192,1024\] and f32\[64,1024\]"),
    ],
)
def test_plans_that_cannot_be_compared(data, fn, args, message):
    with pytest.raises(sw.PlanError, match=message):
        sw.diff(data, planned([("data", "x[0]")], fn=fn, args=args))


def test_something_else_than_plans(data):
    with pytest.raises(sw.PlanError, match="compares two plans, not"):
        sw.diff(data, "plan.json")
