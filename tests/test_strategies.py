"""The known strategies fall out of priority lists, with just the collectives that they are known for."""

from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardwright as sw
from programs import f32
from shardwright.verify.shardy import shardy_collectives

BATCH, TIME, WIDTH, HEADS, HEAD, HIDDEN = 4, 32, 64, 8, 16, 512


def block(x, w):
    """One transformer block; the three projections are one contraction, as Megatron has them."""
    q, k, v = jnp.einsum("btd,cdhk->cbthk", x, w["qkv"])
    weights = jax.nn.softmax(jnp.einsum("bthk,bshk->bhts", q, k) / HEAD**0.5, axis=-1)
    x = x + jnp.einsum("bhts,bshk,hkd->btd", weights, v, w["out"])
    return x + jnp.einsum("btf,fd->btd", jax.nn.gelu(jnp.einsum("btd,df->btf", x, w["up"])), w["down"])


def loss(layers, x):
    for w in layers:
        x = block(x, w)
    return jnp.mean(x**2)


def forward(layers, x):
    for w in layers:
        x = block(x, w)
    return x


def gradient(layers, x):
    return jax.grad(loss)(layers, x)


LAYER = {
    "qkv": f32(3, WIDTH, HEADS, HEAD),
    "out": f32(HEADS, HEAD, WIDTH),
    "up": f32(WIDTH, HIDDEN),
    "down": f32(HIDDEN, WIDTH),
}


def plan_of(fn, tactics, layers=2, mesh=None, batch=BATCH):
    args = [LAYER] * layers, f32(batch, TIME, WIDTH)
    return sw.evaluate(fn, *args, mesh=mesh or {"model": 4}, decisions=tactics)


def counted(plan, *, least_bytes=0.0):
    """Collectives by kind, ours and Shardy's; those of scalars and the like can be left out by their size."""
    ours = Counter(c.kind for c in plan.collectives if c.bytes > least_bytes)
    theirs = Counter(c.kind for c in shardy_collectives(plan) if c.bytes > least_bytes)
    return ours, theirs


def scores_of(plan):
    """Shardings of the attention scores and all that has their shape."""
    pairs = zip(plan.analysis.program.values, plan.partitioned.values, strict=True)
    return [sharding for value, sharding in pairs if value.shape[-2:] == (TIME, TIME)]


def test_megatron_has_two_all_reduces_forward_and_two_backward_per_layer():
    for layers in (1, 3):
        for found in counted(plan_of(forward, "megatron:model", layers)):
            assert found == {"all-reduce": 2 * layers}
        # the first layer's input needs no gradient, so what its attention would add is not there
        for found in counted(plan_of(gradient, "megatron:model", layers)):
            assert found == {"all-reduce": 4 * layers - 1}


def test_megatron_backward_with_a_gradient_of_the_input():
    def both(layers, x):
        return jax.grad(loss, argnums=(0, 1))(layers, x)

    for layers in (1, 3):
        for found in counted(plan_of(both, "megatron:model", layers), least_bytes=100):
            assert found == {"all-reduce": 4 * layers}


def test_data_parallel_has_one_gradient_reduction_per_parameter():
    plan = plan_of(gradient, "data_parallel:data=x[0]", mesh={"data": 4})
    for found in counted(plan):
        assert found == {"all-reduce": 2 * len(LAYER)}
    assert set(jax.tree.leaves(plan.in_specs[0])) == {P()}
    assert plan.in_specs[1] == P("data")


def test_zero3_gathers_and_scatters_and_all_reduces_no_gradient():
    plan = plan_of(gradient, "fsdp:data=x[0]", mesh={"data": 4})
    for found in counted(plan, least_bytes=100):
        assert found["all-reduce"] == 0
        assert found["reduce-scatter"] == 2 * len(LAYER)
        assert found["all-gather"] >= 2 * len(LAYER)
    for w in plan.in_specs[0]:
        assert all("data" in spec for spec in w.values())


def test_sequence_parallel_has_pairs_in_place_of_the_all_reduces():
    # few tokens and large weights, so that gathering activations is cheaper than gathering weights
    plan = plan_of(forward, "megatron_sequence:model=x[0]", batch=2)
    for found in counted(plan, least_bytes=100):
        assert found["all-reduce"] == 0
        assert found["reduce-scatter"] == 2 * 2
        assert found["all-gather"] == 2 * 2


def test_context_parallel_gathers_keys_and_values_only():
    plan = plan_of(forward, "context_parallel:model=x[0]", layers=1)
    for found in counted(plan):
        assert found == {"all-gather": 2}
    scores = scores_of(plan)
    assert all(s[-2] == (0,) and s[-1] == () for s in scores if any(s))


def test_key_side_is_the_other_choice():
    plan = plan_of(forward, [("model", "x[1]", (1,))], layers=1)
    assert any(s[-1] == (0,) for s in scores_of(plan))
    assert plan.verify("run").ok


@pytest.mark.parametrize("fn", [forward, gradient])
def test_tactics_combine_on_different_axes(fn):
    plan = plan_of(fn, ["fsdp:data=x[0]", "megatron:model"], mesh={"data": 2, "model": 4})
    up = plan.in_specs[0][0]["up"]
    assert up == P("data", "model")
    assert plan.verify("run").ok
