"""Plans that are run beside the plain function: what the verdict sees, and what it says."""

import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardwright as sw
from programs import f32
from shardwright.verify.agreement import Reference, compare, compare_again, find_carried


def test_a_run_that_aborts_tells_which_check_failed():
    """The compiler's partitioner aborts on padding that is negative before and has gaps inside."""

    def fn(x):
        return lax.pad(x, 0.0, [(-1, 2, 1)])

    plan = sw.evaluate(fn, f32(28), mesh={"data": 2})
    aborting = jax.jit(fn, in_shardings=NamedSharding(plan.make_mesh(), P("data")))
    plan.__dict__["_exports"] = {"cpu": (export.export(aborting)(f32(28)), None)}
    verdict = plan.verify("run")
    assert not verdict
    assert re.fullmatch(
        r"the process was ended by SIGABRT: Check failed: .* \(1 vs. -1\), in spmd_partitioner.cc:\d+", verdict.message
    )


def normal(seed, *shape, dtype=np.float32):
    return (0.2 * np.random.default_rng(seed).normal(size=shape)).astype(dtype)


def reference(step, inputs, **more):
    """What a step makes of inputs, and of inputs that differ from them by a rounding."""
    nudges = [
        (x * (1 + float(jnp.finfo(x.dtype).eps) * np.random.default_rng(k).uniform(-1, 1, x.shape))).astype(x.dtype)
        for k, x in enumerate(inputs)
    ]
    return Reference(inputs, step(*inputs), nudges, step(*nudges), **more)


def gradient(x, error):
    """Something of the arguments' shape that is none of them; an error is a part of its largest entry."""
    g = np.tanh(x.T)
    return g + np.float32(error) * np.roll(g, 1)


def descent(error=0.0):
    return lambda p, x: [p - np.float32(0.001) * gradient(x, error)]


def momentum(error=0.0):
    def step(p, m, x):
        after = np.float32(0.9) * m + np.float32(0.01) * gradient(x, error)
        return [p - np.float32(0.1) * after, after]

    return step


ARRAYS = normal(0, 64, 32), normal(1, 64, 32), normal(2, 32, 64)


@pytest.mark.parametrize(("step", "inputs"), [(descent, ARRAYS[1:]), (momentum, ARRAYS)])
def test_what_is_added_to_an_argument_is_compared(step, inputs):
    found = step(0.05)(*inputs)
    right = reference(step(), inputs)
    assert compare(right.results[:1], found[:1])["ok"]  # beside the argument it is hardly to be seen
    verdict = compare(right.results, found, right)
    assert not verdict["ok"]
    assert verdict["worst"]["error"] == pytest.approx(0.05, abs=0.02)
    assert "argument" in verdict["worst"]
    same = compare(right.results, step()(*inputs), right)
    assert same["ok"]
    assert same["unseen"] == []


def test_which_arguments_a_result_carries():
    after, momentum_after = momentum()(*ARRAYS)
    assert find_carried(after, ARRAYS) == (0, 1)
    assert find_carried(momentum_after, ARRAYS) == (1,)
    assert find_carried(gradient(ARRAYS[2], 0.0), ARRAYS) == ()
    few = normal(3, 3)
    assert find_carried(few, [few]) == ()  # chance could do that
    assert find_carried(few, [few], named=0) == (0,)


def test_an_argument_that_comes_back_as_it_was_must_do_so():
    p = normal(0, 8, 8)
    right = reference(lambda p: [p], [p])
    assert compare(right.results, [p], right)["ok"]
    assert not compare(right.results, [p + np.float32(1e-6)], right)["ok"]


def test_what_rounding_hides_is_said():
    inputs = [x.astype(ml_dtypes.bfloat16) for x in ARRAYS[1:]]

    def step(rate):
        return lambda p, x: [(p.astype(np.float32) - rate * np.tanh(x.T.astype(np.float32))).astype(p.dtype)]

    right = reference(step(1e-7), inputs, coarsest="bfloat16")
    verdict = compare(right.results, step(2e-7)(*inputs), right)
    assert verdict["ok"]
    assert verdict["unseen"] == [0]
    assert list(right.hidden()) == [0]
    clearer = [np.where(np.arange(32) % 2, inputs[0], 0).astype(inputs[0].dtype), inputs[1]]  # as a second run has it
    half_empty = reference(step(1e-7), clearer, coarsest="bfloat16")
    assert not compare_again(verdict, right.hidden(), step(2e-7)(*clearer), half_empty)["ok"]
    again = compare_again(verdict, right.hidden(), half_empty.results, half_empty)
    assert again["ok"]
    assert again["unseen"] == []


def test_the_tolerance_is_told_where_nothing_differs():
    same = [np.arange(3), normal(0, 4)]
    verdict = compare(same, same)
    assert verdict["ok"]
    assert verdict["worst"] == {"leaf": 1, "error": 0.0, "tolerance": 3e-4}
    assert compare([np.arange(3)], [np.arange(3)])["worst"]["tolerance"] == 0
    assert compare([], [])["worst"] is None


@jax.custom_vjp
def too_steep(x):
    return x


too_steep.defvjp(lambda x: (x, None), lambda _, g: (1.3 * g,))


def descend(dtype, rate, through=lambda w: w):
    def step(params, x):
        def loss(params):
            return jnp.mean(jnp.tanh(x @ params["w1"]) @ through(params["w2"]))

        grads = jax.grad(loss)(params)
        return jax.tree.map(lambda p, g: (p - rate * g).astype(p.dtype), params, grads)

    def array(*shape):
        return jax.ShapeDtypeStruct(shape, dtype)

    args = {"w1": array(16, 32), "w2": array(32, 8), "unused": array(5)}, array(64, 16)
    return sw.evaluate(step, *args, mesh={"data": 2, "model": 2}, decisions=["data_parallel:data", "megatron:model"])


@pytest.mark.parametrize(("dtype", "rate"), [(jnp.float32, 1e-4), (jnp.bfloat16, 1e-3)])
def test_wrong_gradients_are_found(dtype, rate):
    """A part of them is too large by 30%; a step is so small that its result hardly differs."""
    plan = descend(dtype, rate)
    verdict = plan.verify("run")
    assert verdict, verdict.message
    assert "of what is added to params." in verdict.message
    plan.__dict__["_exports"] = {"cpu": descend(dtype, rate, too_steep).export("cpu")}
    verdict = plan.verify("run")
    assert not verdict
    assert "of what is added to params.w2" in verdict.message


def test_a_plan_says_whether_it_was_verified():
    plan = sw.evaluate(lambda x: x * 2, f32(8), mesh={"data": 2}, decisions=[("data", "x[0]")])
    assert plan.verified is None
    verdict = plan.verify("shardy")
    assert plan.verified == {"shardy": verdict}
    assert repr(plan.verified) == "Verified(shardy: ok)"
    assert str(plan.verified) == str(verdict)
    plan.verify("cpu")
    assert plan.verified
    assert list(plan.verified) == ["shardy", "cpu"]
