"""What users give by mistake, or in a form that JAX takes: done, or refused in one sentence."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardwright as sw
from programs import f32


def product(x, w):
    return jnp.tanh(x @ w)


ARGS = f32(16, 8), f32(8, 32)


@pytest.mark.parametrize("mesh", [{"data": np.int64(4), "model": np.int32(2)}, np.int64(8), {"data": np.uint8(8)}])
def test_sizes_of_a_mesh_may_be_numpy_integers(mesh):
    plan = sw.partition(product, *ARGS, mesh=mesh, device="tpu-v5e", simulations=1, progress=False)
    assert np.prod(list(plan.mesh.values())) == 8
    assert {type(size) for size in plan.mesh.values()} == {int}


@pytest.mark.parametrize("search", [sw.partition, sw.pareto, sw.fit])
@pytest.mark.parametrize(
    "budget",
    [
        {"seconds": float("nan")},
        {"seconds": -1},
        {"seconds": True},
        {"seconds": "1"},
        {"simulations": -5},
        {"simulations": 2.5},
        {"simulations": float("nan")},
    ],
)
def test_budgets_that_are_none(search, budget):
    (name,) = budget
    with pytest.raises(sw.PlanError, match=f"^{name}=.* at least 0"):
        search(product, *ARGS, mesh={"data": 2}, device="tpu-v5e", progress=False, **budget)


@pytest.mark.parametrize("memory", [float("nan"), -1, 0, "-3GiB", float("inf"), True])
def test_amounts_of_memory_that_are_none(memory):
    with pytest.raises(sw.DeviceError, match="an amount of memory is a positive number"):
        sw.partition(product, *ARGS, mesh={"data": 2}, device="tpu-v5e", memory=memory, progress=False)


def test_numpy_numbers_are_budgets():
    options = {"mesh": {"data": 2}, "device": "tpu-v5e", "progress": False}
    assert sw.partition(product, *ARGS, seconds=np.float32(0), simulations=np.int64(0), **options)


def test_a_spec_that_leaves_a_dimension_open():
    """What it says is obeyed; the dimension that is open is decided by the search."""

    def wide(x, w):
        return jnp.tanh(x @ w)

    args = f32(64, 512), f32(512, 4096)
    options = {"mesh": {"data": 2, "model": 2}, "device": "tpu-v5e", "progress": False}
    closed = sw.partition(wide, *args, pin={"w": P("data")}, **options)
    assert closed.in_specs[1] == P("data")
    plan = sw.partition(wide, *args, pin={"w": P("data", P.UNCONSTRAINED)}, **options)
    assert plan.in_specs[1] == P("data", "model")
    deep = f32(3, 2**20), f32(2**20, 3)
    assert sw.partition(wide, *deep, **options).in_specs[1][0]
    assert sw.partition(wide, *deep, pin={"w": P(None, P.UNCONSTRAINED)}, **options).in_specs[1] == P()
    assert sw.partition(wide, *args, pin={"w": P(("data",), P.UNCONSTRAINED)}, **options | {"mesh": 4}).in_specs[1][0]


def test_a_spec_that_leaves_a_dimension_open_clashes_by_what_it_decides():
    open_one = {"x": P("data", P.UNCONSTRAINED)}
    mesh = {"data": 2, "model": 2}
    plan = sw.evaluate(product, *ARGS, decisions=[open_one, ("model", "x[1]")], mesh=mesh)
    assert plan.in_specs[0] == P("data", "model")
    with pytest.raises(sw.PinError, match=r"clashes with the pin \('model', 'x\[0\]'\)"):
        sw.evaluate(product, *ARGS, decisions=[open_one, ("model", "x[0]")], mesh=mesh)


def test_a_rule_for_a_custom_call_that_is_not_there():
    def solve(a, b):
        return jnp.linalg.cholesky(a) @ b

    args = f32(4, 8, 8), f32(4, 8, 2)
    ops = sw.analyse(solve, *args, platform="cpu").program.ops
    (called,) = {op.attributes["target"] for op in ops if op.kind == "custom_call"}
    with pytest.raises(sw.RuleError, match=f"no custom call of that name; it has .*did you mean {called}"):
        sw.evaluate(solve, *args, mesh={"data": 2}, device="cpu", rules={called + "x": "a b c -> a b c"})
    with pytest.raises(sw.RuleError, match="it has none at all"):
        sw.analyse(product, *ARGS, rules={"my_kernel": "a b -> a b"})


def test_a_plan_is_pickled_with_its_function_or_says_what_to_do():
    plan = sw.evaluate(product, *ARGS, mesh={"data": 4}, decisions=[("data", "x[0]")])
    plan.export("cpu")
    again = pickle.loads(pickle.dumps(plan))
    assert again.in_specs == plan.in_specs
    assert again.estimate.step_seconds == plan.estimate.step_seconds
    assert str(again) == str(plan)
    inputs = jnp.ones((16, 8)), jnp.ones((8, 32))
    np.testing.assert_allclose(again.jit()(*inputs), product(*inputs), rtol=1e-6)

    scale = 2.0
    closure = sw.evaluate(lambda x: x * scale, f32(8), mesh={"data": 2})
    with pytest.raises(sw.PlanError, match=r"plan\.save writes the plan without the function, and sw.load reads it"):
        pickle.dumps(closure)
    assert copy.copy(closure).mesh == copy.deepcopy(closure).mesh == {"data": 2}
    assert jax.tree.leaves(closure.in_specs, is_leaf=lambda s: isinstance(s, P))
