"""Steps as people write them by hand: planned, run equal to plain ``jax.jit``, and priced as Shardy's program."""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.lax import with_sharding_constraint as constrain
from jax.sharding import AxisType, NamedSharding, reshard
from jax.sharding import PartitionSpec as P

import shardwright as sw
from programs import f32

MESH = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
EXPLICIT = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
RING = jax.make_mesh((8,), ("ring",), axis_types=(AxisType.Auto,))
AROUND = [(i, (i + 1) % 8) for i in range(8)]


def on(*spec):
    return NamedSharding(MESH, P(*spec))


def descend(loss):
    def step(w, x):
        value, grads = jax.value_and_grad(loss)(w, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, w, grads), value

    return step


def ring_attention(q, k, v):
    def hop(carry, _):
        k, v, most, total, out = carry
        scores = jnp.einsum("qnh,knh->nqk", q, k)
        larger = jnp.maximum(most, scores.max(-1))
        weights, before = jnp.exp(scores - larger[..., None]), jnp.exp(most - larger)
        out = out * before[..., None] + jnp.einsum("nqk,knh->nqh", weights, v)
        total = total * before + weights.sum(-1)
        return (lax.ppermute(k, "ring", AROUND), lax.ppermute(v, "ring", AROUND), larger, total, out), None

    zero = jnp.swapaxes(q, 0, 1) * 0
    (_, _, _, total, out), _ = lax.scan(hop, (k, v, zero[..., 0] - 1e30, zero[..., 0], zero), None, length=8)
    return jnp.swapaxes(out / total[..., None], 0, 1)


def attending(w, x):
    region = jax.shard_map(ring_attention, mesh=RING, in_specs=(P("ring"),) * 3, out_specs=P("ring"))
    q, k, v = (jnp.einsum("sd,dnh->snh", x, w[name]) for name in "qkv")
    return jnp.mean(jnp.einsum("snh,nhd->sd", region(q, k, v), w["o"]) ** 2)


def vmapped(w, x):
    region = jax.shard_map(
        lambda w, x: lax.psum(x @ w, "model"),
        mesh=MESH,
        in_specs=(P("model", None), P("data", "model")),
        out_specs=P("data", None),
    )
    return jnp.mean(jax.vmap(region, in_axes=(0, None))(w, x) ** 2)


def experts(w, x):
    def body(w, x):
        chosen = jax.nn.softmax(x[:, :4])
        sent = lax.all_to_all(jnp.einsum("te,td->etd", chosen, x), "data", split_axis=0, concat_axis=1, tiled=True)
        made = jax.nn.relu(jnp.einsum("etd,edf->etf", sent, w))
        back = lax.all_to_all(made, "data", split_axis=1, concat_axis=0, tiled=True)
        return jnp.einsum("te,etf->tf", chosen, back)

    return jnp.mean(jax.shard_map(body, mesh=MESH, in_specs=(P("data"), P("data")), out_specs=P("data"))(w, x) ** 2)


def fsdp_by_hand(w, x):
    def body(w, x):
        def layer(x, w):
            return jnp.tanh(x @ lax.all_gather(w, "data", axis=0, tiled=True)), None

        def loss(w):
            return jnp.mean(lax.scan(jax.checkpoint(layer, prevent_cse=False), x, w)[0] ** 2)

        value, grads = jax.value_and_grad(loss)(w)
        return w - 0.1 * grads / 4, lax.pmean(value, "data")

    specs = P(None, "data", None)
    region = jax.shard_map(body, mesh=MESH, in_specs=(specs, P("data")), out_specs=(specs, P()), check_vma=False)
    return region(w, x)


def zero_1(state, x):
    w, m = state
    value, grads = jax.value_and_grad(lambda w: jnp.mean((jax.nn.relu(x @ w) @ w.T) ** 2))(w)
    m = constrain(0.9 * m + constrain(grads, on("data")), on("data"))
    return (constrain(w - 0.1 * m, on()), m), value


def in_types(w, x):
    def layer(x, w):
        return reshard(reshard(jnp.tanh(x @ w), P("data", "model")), P("data", None)), None

    return jnp.mean(lax.scan(layer, x, w)[0] ** 2)


@jax.custom_vjp
def tied(x):
    return constrain(x, on("data", None))


tied.defvjp(lambda x: (tied(x), None), lambda _, g: (constrain(g, on(None, "model")),))


def both_ways(w, x):
    return jnp.mean(tied(jnp.tanh(tied(x @ w)) @ w.T) ** 2)


def carried(w, x):
    y = lax.map(lambda row: constrain(jnp.tanh(row @ w), on("data", None)), x)

    def body(carry):
        return carry[0] + 1, constrain(jnp.tanh(carry[1] @ w), on(None, "data", "model"))

    return lax.while_loop(lambda carry: (carry[0] < 5) & (jnp.sum(carry[1]) < 1e9), body, (0, y))[1]


HEADS = {"q": f32(16, 2, 8), "k": f32(16, 2, 8), "v": f32(16, 2, 8), "o": f32(2, 8, 16)}
TYPED = (
    jax.ShapeDtypeStruct((3, 16, 16), jnp.float32, sharding=NamedSharding(EXPLICIT, P(None, None, "model"))),
    jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=NamedSharding(EXPLICIT, P("data", None))),
)
STEPS = {
    "ring attention": (descend(attending), (HEADS, f32(32, 16)), RING),
    "region under vmap": (descend(vmapped), (f32(3, 16, 16), f32(8, 16)), MESH),
    "experts by all_to_all": (descend(experts), (f32(4, 16, 16), f32(8, 16)), MESH),
    "FSDP by hand": (fsdp_by_hand, (f32(3, 16, 16), f32(8, 16)), MESH),
    "ZeRO-1": (zero_1, ((f32(16, 32), f32(16, 32)), f32(8, 16)), MESH),
    "explicit scan": (descend(in_types), TYPED, EXPLICIT),
    "custom_vjp": (descend(both_ways), (f32(16, 32), f32(8, 16)), MESH),
    "map and while": (carried, (f32(16, 16), f32(3, 8, 16)), MESH),
}


@pytest.mark.parametrize("constraints", ["keep", "drop"])
@pytest.mark.parametrize("name", STEPS)
def test_a_step_runs_as_plain_jit_does(name, constraints):
    step, shapes, mesh = STEPS[name]
    random = np.random.default_rng(0)
    args = jax.tree.map(lambda s: (0.3 * random.normal(size=s.shape)).astype(np.float32), shapes)
    explicit = mesh is EXPLICIT
    with jax.set_mesh(mesh) if explicit else nullcontext():
        placed = jax.tree.map(lambda a, s: jax.device_put(a, s.sharding), args, shapes) if explicit else args
        expected = jax.tree.leaves(jax.jit(step)(*placed))
        plan = sw.partition(step, *shapes, mesh=dict(mesh.shape), device="tpu-v5e", constraints=constraints)
    for mine, plain in zip(jax.tree.leaves(plan.jit()(*args)), expected, strict=True):
        np.testing.assert_allclose(mine, plain, rtol=2e-4, atol=2e-5)


def larger(shapes):
    def times(s):
        sharding = getattr(s, "sharding", None)
        return jax.ShapeDtypeStruct(tuple(d * 64 if d >= 8 else d for d in s.shape), s.dtype, sharding=sharding)

    return jax.tree.map(times, shapes)


@pytest.mark.parametrize("name", ["ZeRO-1", "explicit scan", "custom_vjp", "map and while"])
def test_a_step_is_priced_as_shardys_program(name):
    step, shapes, mesh = STEPS[name]
    with jax.set_mesh(mesh) if mesh is EXPLICIT else nullcontext():
        plan = sw.evaluate(step, *larger(shapes), mesh=dict(mesh.shape), device="tpu-v5e", decisions=[])
    verdict = plan.verify("shardy")
    assert verdict.ok and verdict.figures["ratio"] == pytest.approx(1.0, rel=0.1)


def test_what_a_body_returns_otherwise_crosses_in_every_trip():
    def fn(x):
        return lax.fori_loop(0, 6, lambda _, x: constrain(jnp.sin(x), on("data")), x)

    plan = sw.partition(fn, f32(1024, 64), device="tpu-v5e", replicate=("data", "model"))
    border = [c for c in plan.collectives if c.where == "border"]
    assert [c.times for c in border] == [6]
    assert sum(c.seconds for c in plan.estimate.collectives) == pytest.approx(plan.estimate.comm_seconds)
