"""Loops that run once are opened, and what is then there twice is computed once, as XLA does both."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardwright as sw
from programs import f32
from shardwright.frontend.trace import trace


def loss(w, x, prevent_cse=False):
    def layer(x, w):
        return jnp.sin(jax.nn.softmax(x) @ w), None

    y, _ = jax.lax.scan(jax.checkpoint(layer, prevent_cse=prevent_cse), x, w)
    return jnp.sum(y)


def kinds(fn, *args):
    return [op.kind for op in trace(fn, *args).ops]


def test_a_checkpoint_in_a_loop_of_one_trip_is_void():
    found = kinds(jax.grad(loss), f32(1, 16, 16), f32(8, 16))
    assert "while" not in found
    assert found.count("dot_general") == 2  # forward, and the gradient of the weight; not recomputed, nor of x
    longer = kinds(jax.grad(loss), f32(2, 16, 16), f32(8, 16))
    assert longer.count("while") == 2 and longer.count("dot_general") == 4


def test_a_barrier_keeps_what_is_recomputed_apart():
    def step(w, x):
        return jax.value_and_grad(lambda w: loss(w, x, prevent_cse=True))(w)

    found = kinds(step, f32(1, 16, 16), f32(8, 16))
    assert "while" not in found and found.count("dot_general") == 3


def test_an_opened_loop_computes_the_same():
    def step(w, x):
        def outer(x, _):
            grads = jax.grad(lambda w: loss(w, x))(w)  # a loop of one trip in one of three
            return x + jnp.sum(grads), grads

        return jax.lax.scan(outer, x, None, length=3)

    plan = sw.partition(step, f32(1, 16, 16), f32(8, 16), mesh={"a": 4, "b": 2}, device="tpu-v5e")
    assert [loop.trips for loop in plan.analysis.program.loops] == [3]
    random = np.random.default_rng(0)
    args = [random.normal(size=s).astype(np.float32) for s in ((1, 16, 16), (8, 16))]
    for mine, plain in zip(jax.tree.leaves(plan.jit()(*args)), jax.tree.leaves(step(*args)), strict=True):
        np.testing.assert_allclose(mine, plain, rtol=2e-5, atol=2e-5)


def test_constants_of_complex_numbers_are_left_alone():
    def turned(x):
        return jax.lax.fori_loop(0, 1, lambda _, x: x * jnp.array([1j, 2.0]), x)

    assert "while" not in kinds(turned, jax.ShapeDtypeStruct((3, 2), jnp.complex64))


def test_lines_and_scopes_are_those_of_the_loop():
    program = trace(jax.grad(loss), f32(1, 16, 16), f32(8, 16))
    products = [op.source for op in program.ops if op.kind == "dot_general"]
    assert all(source.file == __file__ and source.function == "layer" for source in products)
    assert [source.backward for source in products] == [False, True]


@pytest.mark.slow
def test_weights_are_gathered_once_as_the_compiler_does():
    def train(w, x):
        return w - 0.1 * jax.grad(loss)(w, x)

    args = f32(1, 2048, 2048), f32(4096, 2048)
    plan = sw.evaluate(
        train, *args, mesh={"data": 4}, device="tpu-v5e", decisions=[("data", "x[0]"), ("data", "w[1]")], donate=0
    )
    gathers = [c for c in plan.collectives if c.kind == "all-gather"]
    verdict = plan.verify("tpu:v5e:2x2")
    assert len(gathers) == 1 == verdict.figures["counts"]["all-gather"]
