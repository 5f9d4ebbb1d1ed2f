"""Programs that are sharded already: what they say is kept, priced and obeyed, or dropped."""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.lax import with_sharding_constraint as constrain
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, reshard
from jax.sharding import PartitionSpec as P

import shardwright as sw
from programs import f32

MESH = {"data": 4, "model": 2}
AUTO = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
EXPLICIT = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
W, X = f32(16, 32), f32(8, 16)


def on(spec, mesh=AUTO):
    return NamedSharding(mesh, spec)


def named(w, x):
    return jnp.tanh(constrain(x @ w, on(P("data", P.UNCONSTRAINED))))


def by_context(w, x):
    return constrain(x @ w, P("data", None))


def explicit(w, x):
    h = reshard(jnp.tanh(x @ w), P("data", None))
    return jnp.einsum("bf,df->bd", h, w, out_sharding=P("data", None))


def region(w, x):
    body = jax.shard_map(
        lambda w, x: lax.psum(x @ w, "data"), mesh=AUTO, in_specs=(P("data", None), P(None, "data")), out_specs=P()
    )
    return jnp.tanh(body(w, x))


def partly_manual(w, x):
    body = jax.shard_map(
        lambda w, x: lax.psum(x @ w, "data"),
        in_specs=(P("data", None), P(None, "data")),
        out_specs=P(),
        axis_names={"data"},
    )
    return jnp.tanh(body(w, x))


def blocks(w, x):
    """A softmax within each device's part is not the softmax of the whole."""
    body = jax.shard_map(
        lambda w, x: jax.nn.softmax(x @ w, axis=0), mesh=AUTO, in_specs=(P(), P("data")), out_specs=P("data")
    )
    return body(w, x)


def logical(w, x):
    from flax import linen as nn

    with AUTO, nn.logical_axis_rules([("batch", "data"), ("hidden", "model")]):
        return jnp.tanh(nn.with_logical_constraint(x @ w, ("batch", "hidden"), mesh=AUTO))


JITTED = jax.jit(named, in_shardings=(on(P("data", "model")), on(P("data"))), out_shardings=on(P(None, "model")))
SHARDED = (
    jax.ShapeDtypeStruct((16, 32), jnp.float32, sharding=on(P(None, "model"), EXPLICIT)),
    jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=on(P("data"), EXPLICIT)),
)
STYLES = {
    "named": (named, nullcontext, (W, X)),
    "set_mesh": (by_context, lambda: jax.set_mesh(AUTO), (W, X)),
    "logical": (logical, nullcontext, (W, X)),
    "jitted": (JITTED, nullcontext, (W, X)),
    "explicit": (explicit, lambda: jax.set_mesh(EXPLICIT), SHARDED),
    "shard_map": (region, nullcontext, (W, X)),
    "partly manual": (partly_manual, lambda: jax.set_mesh(AUTO), (W, X)),
    "blocks": (blocks, nullcontext, (W, X)),
}


def inputs():
    random = np.random.default_rng(0)
    return [random.normal(size=s.shape).astype(np.float32) for s in (W, X)]


@pytest.mark.filterwarnings("ignore:.*context manager has been deprecated.*:DeprecationWarning")
@pytest.mark.parametrize("constraints", ["keep", "drop"])
@pytest.mark.parametrize("style", STYLES)
def test_the_planned_step_computes_what_the_plain_one_does(style, constraints):
    fn, context, args = STYLES[style]
    with context():
        plan = sw.partition(fn, *args, mesh=MESH, device="tpu-v5e", constraints=constraints)
        arrays = [jax.device_put(x, s.sharding) if s.sharding else x for x, s in zip(inputs(), args, strict=True)]
        want = jax.jit(fn)(*arrays)
    # Outside of the context in which it was planned.
    step = plan.jit(plan.make_mesh())
    found = step(*(plan.place(x, argument=k) for k, x in enumerate(inputs())))
    np.testing.assert_allclose(np.asarray(found), np.asarray(want), rtol=2e-5, atol=2e-5)
    assert bool(plan.own_shardings) == (constraints == "keep" or style in ("shard_map", "partly manual"))


@pytest.mark.parametrize("style", ["named", "set_mesh", "jitted", "explicit", "shard_map", "partly manual"])
def test_the_mesh_is_the_programs_own(style):
    fn, context, args = STYLES[style]
    with context():
        plan = sw.evaluate(fn, *args, device="tpu-v5e")
        assert plan.mesh == MESH
        assert sw.partition(fn, *args, mesh=8, device="tpu-v5e", seconds=0).mesh == MESH


def test_a_constraint_is_a_pin_on_the_value_where_it_stands(tmp_path):
    def fn(x, w):
        h = jnp.tanh(x @ w)
        return constrain(h, on(P("data", "model"))) * 2, jnp.sum(h)

    plan = sw.partition(fn, f32(4096, 4096), f32(4096, 4096), mesh=MESH, device="tpu-v5e")
    (own,) = plan.own_shardings
    assert (own.what, own.spec, own.source.function) == ("constraint", P("data", "model"), "fn")
    assert plan.partitioned.values[own.value] == ((0,), (1,))
    assert plan.out_specs[0] == P("data", "model")
    (line,) = [line for line in str(plan).splitlines() if line.startswith("Keeps")]
    assert line.startswith("Keeps the program's own shardings of 1 constraint (at test_own_shardings.py:")
    told = str(plan.explain(str(own.source)))
    assert 'Yours: f32[4096,4096] P("data", "model"). Without it the step would take' in told
    assert plan.to_dict()["own_shardings"]["count"] == {"constraint": 1}
    plan.report(tmp_path / "plan.html")
    assert (
        '<p class="own">Keeps the program&#39;s own shardings of 1 constraint' in (tmp_path / "plan.html").read_text()
    )


def test_what_a_constraint_costs_is_told():
    def fn(x, w):
        return jnp.sum(jnp.tanh(constrain(x @ w, on(P(None, None)))))

    args = f32(8192, 1024), f32(1024, 8192)
    plan = sw.partition(fn, *args, mesh=MESH, device="tpu-v5e")
    without = plan.cost_without_own.step_seconds
    assert without < 0.5 * plan.estimate.step_seconds
    dropped = sw.partition(fn, *args, mesh=MESH, device="tpu-v5e", constraints="drop")
    assert dropped.estimate.step_seconds <= without * 1.001
    assert dropped.own_shardings == () and "Keeps" not in str(dropped)


def test_what_is_pinned_stays_without_a_constraint_too():
    def fn(x, w):
        return jnp.sum(jnp.tanh(constrain(x @ w, on(P("data", None)))))

    args = f32(8192, 1024), f32(1024, 8192)
    free = sw.partition(fn, *args, mesh=MESH, device="tpu-v5e")
    plan = sw.partition(fn, *args, mesh=MESH, device="tpu-v5e", replicate=("data", "model"))
    whole = sw.evaluate(lambda x, w: jnp.sum(jnp.tanh(x @ w)), *args, mesh=MESH, device="tpu-v5e", decisions=[])
    assert plan.cost_without_own.step_seconds == pytest.approx(whole.estimate.step_seconds, rel=0.01)
    assert free.cost_without_own.step_seconds < 0.5 * whole.estimate.step_seconds


def test_an_open_dimension_is_decided_by_the_search():
    def fn(x, w, v):
        return constrain(x @ w, on(P("data", P.UNCONSTRAINED))) @ v

    plan = sw.evaluate(
        fn, f32(64, 16), f32(16, 32), f32(32, 8), mesh=MESH, device="tpu-v5e", decisions=[("model", "w[1]")]
    )
    (own,) = plan.own_shardings
    assert plan.partitioned.values[own.value] == ((0,), (1,))


def test_resharding_that_a_constraint_asks_for_is_priced():
    def fn(x):
        y = constrain(x, on(P("data", None)))
        return constrain(jnp.tanh(y), on(P(None, "data")))

    plan = sw.evaluate(fn, f32(1024, 1024), device="tpu-v5e")
    assert [(c.kind, c.axes, c.bytes) for c in plan.collectives] == [
        ("all-to-all", ("data",), 1024 * 1024 * 4 / 4 * 3 / 4)
    ]
    assert plan.verify("shardy")


def test_arguments_that_are_sharded_are_pinned():
    args = [jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=on(spec)) for s, spec in ((W, P("model")), (X, P("data")))]
    plan = sw.partition(lambda w, x: x @ w, *args, device="tpu-v5e")
    assert plan.in_specs == (P("model"), P("data"))
    assert [own.what for own in plan.own_shardings] == ["argument", "argument"]
    explained = str(plan.explain("w"))
    assert "split: yours, by the argument's own sharding" in explained
    placed = [jax.device_put(x, s.sharding) for x, s in zip(inputs(), args, strict=True)]
    assert sw.partition(lambda w, x: x @ w, *placed, device="tpu-v5e").in_specs == plan.in_specs
    alone = [jax.device_put(x, jax.devices()[0]) for x in inputs()]
    assert not sw.partition(lambda w, x: x @ w, *alone, mesh=MESH, device="tpu-v5e").own_shardings


def test_a_jitted_function_pins_its_arguments_and_results():
    plan = sw.partition(JITTED, W, X, device="tpu-v5e")
    assert plan.in_specs == (P("data", "model"), P("data"))
    assert plan.out_specs == P(None, "model")
    assert [own.what for own in plan.own_shardings] == ["argument", "argument", "constraint", "constraint"]


def test_other_meshes_are_refused_in_one_sentence():
    with pytest.raises(sw.MeshError, match=r"\{'x': 8\}, but the program has shardings on \{'data': 4, 'model': 2\};"):
        sw.partition(named, W, X, mesh={"x": 8}, device="tpu-v5e")
    with pytest.raises(sw.MeshError, match="for 16 devices, but the program has shardings on 8, "):
        sw.partition(named, W, X, mesh=16, device="tpu-v5e")
    with pytest.raises(sw.MeshError, match="the program's own mesh is taken, but it has none; give one"):
        sw.partition(lambda x: x * 2, X, device="tpu-v5e")
    with pytest.raises(sw.PlanError, match="constraints='maybe' is neither 'keep' nor 'drop'"):
        sw.partition(named, W, X, mesh=MESH, device="tpu-v5e", constraints="maybe")
    plan = sw.partition(named, W, X, mesh={"x": 8}, device="tpu-v5e", constraints="drop")
    assert set(plan.mesh) == {"x"}
    np.testing.assert_allclose(plan.jit()(*inputs()), jax.jit(named)(*inputs()), rtol=2e-5, atol=2e-5)


def test_two_meshes_in_one_program_are_refused():
    other = AbstractMesh((8,), ("x",), axis_types=(AxisType.Auto,))

    def fn(x):
        return constrain(constrain(x, on(P("data"))) * 2, on(P("x"), other))

    with pytest.raises(sw.ShardwrightError, match="shardings on several meshes"):
        sw.partition(fn, X, device="tpu-v5e")


def test_a_plan_is_saved_with_what_became_of_the_shardings(tmp_path):
    for constraints in ("keep", "drop"):
        plan = sw.partition(named, W, X, mesh=MESH, device="tpu-v5e", constraints=constraints)
        plan.save(tmp_path / "plan.json")
        loaded = sw.load(tmp_path / "plan.json", named, W, X)
        assert loaded.options["constraints"] == constraints
        assert loaded.in_specs == plan.in_specs
        assert loaded.estimate.step_seconds == pytest.approx(plan.estimate.step_seconds)


def test_a_whole_step_in_a_region_is_priced_as_what_it_is():
    def step(w, x):
        def local(w, x):
            grad = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
            return w - 0.1 * lax.psum(grad, "data")

        # Every device takes its part of the batch, and all of the weights.
        return jax.shard_map(local, mesh=MESH8, in_specs=(P(), P("data")), out_specs=P(), check_vma=False)(w, x)

    MESH8 = Mesh(np.array(jax.devices()), ("data",))
    plan = sw.partition(step, f32(512, 1024), f32(4096, 512), device="tpu-v5e")
    (sent,) = plan.collectives
    assert (sent.kind, sent.axes, sent.where) == ("all-reduce", ("data",), "own")
    assert sent.bytes == 2 * 512 * 1024 * 4 * 7 / 8
    by_hand = sw.evaluate(
        lambda w, x: w - 0.1 * jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w),
        f32(512, 1024),
        f32(4096, 512),
        mesh={"data": 8},
        device="tpu-v5e",
        decisions=[("data", "x[0]")],
    )
    assert plan.estimate.step_seconds == pytest.approx(by_hand.estimate.step_seconds, rel=0.1)
    assert plan.estimate.peak_fraction == pytest.approx(by_hand.estimate.peak_fraction, rel=0.1)
    assert plan.verify("shardy")


@pytest.mark.parametrize(
    ("body", "specs", "kind", "sent"),
    [
        (lambda x: lax.psum(x, "data"), (P("data"), P()), "all-reduce", 2 * 256 * 32 * 3 / 4),
        (
            lambda x: lax.all_gather(x, "data", tiled=True),
            (P("data"), P()),
            "all-gather",
            1024 * 32 * 3 / 4,
        ),
        (
            lambda x: lax.psum_scatter(x, "data", tiled=True),
            (P(), P("data")),
            "reduce-scatter",
            1024 * 32 * 3 / 4,
        ),
        (
            lambda x: lax.all_to_all(x, "data", 1, 0, tiled=True),
            (P("data"), P(None, "data")),
            "all-to-all",
            256 * 32 * 3 / 4,
        ),
        (
            lambda x: lax.ppermute(x, "data", [(i, (i + 1) % 4) for i in range(4)]),
            (P("data"), P("data")),
            "collective-permute",
            256 * 32,
        ),
    ],
)
def test_collectives_of_a_region_are_priced(body, specs, kind, sent):
    fn = jax.shard_map(body, mesh=AUTO, in_specs=specs[0], out_specs=specs[1], check_vma=False)
    plan = sw.evaluate(lambda x: fn(x), f32(1024, 32), device="tpu-v5e")
    (own,) = [c for c in plan.collectives if c.where == "own"]
    assert (own.kind, own.axes, own.bytes) == (kind, ("data",), 4 * sent)


def test_an_automatic_axis_is_decided_inside_of_a_region():
    def fn(w, x):
        body = jax.shard_map(
            lambda w, x: lax.psum(jnp.sum(jnp.tanh(x @ w), axis=0), "data"),
            mesh=AUTO,
            in_specs=(P(), P("data")),
            out_specs=P(),
            axis_names={"data"},
        )
        return body(w, x)

    plan = sw.partition(fn, f32(4096, 8192), f32(1024, 4096), device="tpu-v5e")
    inside = [o for o, op in enumerate(plan.analysis.program.ops) if op.kind == "dot_general"]
    (assignment,) = (plan.partitioned.assignments[o] for o in inside)
    assert assignment.factors[0] == -1 and assignment.factors[1] >= 0
    assert plan.verify("run")


def test_a_region_in_a_loop_and_under_grad_and_remat_is_priced_and_obeyed():
    def layer(h, w):
        mix = jax.shard_map(lambda h: jax.nn.softmax(h, axis=-1), mesh=AUTO, in_specs=P("data"), out_specs=P("data"))
        return mix(h @ w), None

    def loss(ws, x):
        return jnp.sum(lax.scan(jax.checkpoint(layer), x, ws)[0] ** 2)

    plan = sw.partition(jax.grad(loss), f32(3, 16, 16), f32(8, 16), device="tpu-v5e")
    assert {own.what for own in plan.own_shardings} == {"shard_map"}
    assert plan.verify("run")
    dropped = sw.partition(
        jax.grad(loss), f32(3, 16, 16), f32(8, 16), mesh={"x": 8}, constraints="drop", device="tpu-v5e"
    )
    assert not dropped.own_shardings
    assert not any(op.kind == "manual_computation" for op in dropped.analysis.program.ops)


def test_tracing_with_regions_opened_leaves_nothing_behind():
    inner = jax.jit(blocks)
    fn = lambda w, x: inner(w, x) + 1  # noqa: E731
    sw.partition(fn, W, X, mesh=MESH, device="tpu-v5e", constraints="drop")
    assert "manual_computation" in jax.jit(fn).lower(W, X).as_text()


def test_explicit_mode_is_priced():
    with jax.set_mesh(EXPLICIT):
        args = (
            jax.ShapeDtypeStruct((4096, 8192), jnp.float32, sharding=on(P(None, "model"), EXPLICIT)),
            jax.ShapeDtypeStruct((1024, 4096), jnp.float32, sharding=on(P("data"), EXPLICIT)),
        )
        plan = sw.partition(explicit, *args, device="tpu-v5e")
    assert plan.verify("shardy")
    assert sum(c.total_bytes for c in plan.collectives) > 1e6
    assert plan.in_specs == (P(None, "model"), P("data"))


def test_a_loop_in_explicit_mode_has_its_length():
    with jax.set_mesh(EXPLICIT):
        x = jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=on(P("data"), EXPLICIT))
        plan = sw.evaluate(lambda x: lax.fori_loop(0, 7, lambda _, x: jnp.tanh(x), x), x, device="tpu-v5e")
    assert [(loop.trips, loop.known) for loop in plan.analysis.program.loops] == [(7, "exact")]


def test_implied_decisions_keep_the_order_that_the_program_has():
    """With the batch on ``data`` in what has both, and the width where there is no batch: FSDP."""

    def fn(w, x):
        w = constrain(w, on(P("data", "model")))
        return constrain(x @ w, on(P("data", "model")))

    args = f32(1024, 2048), f32(512, 1024)
    plan = sw.evaluate(fn, *args, mesh=MESH, device="tpu-v5e", pin={"x": P("data")})
    assert [str(d) for d in plan.decisions if isinstance(d, sw.Decision)][:3] == [
        "data: x[0]",
        "data: w[0]",
        "model: w[1]",
    ]


def test_other_numbers_of_devices_are_not_tried_for_what_is_on_one_mesh():
    found = sw.fit(named, W, f32(64, 16), device="tpu-v5e", memory="64KiB", ask_compiler=False)
    assert found.plan is not None and found.devices is None
    with pytest.raises(sw.ShardwrightError, match="4"):
        sw.fit(named, W, f32(64, 16), device="tpu-v5e", verify="tpu:v5e:2x2")
    with pytest.raises(sw.InfeasibleError) as error:
        sw.partition(named, W, f32(64, 16), device="tpu-v5e", memory="1KiB", ask_compiler=False)
    assert "the mesh {" not in str(error.value)


def test_axes_in_another_order_than_the_meshs_are_obeyed():
    def fn(w, x):
        return constrain(jnp.tanh(x @ w), on(P(("model", "data"), None))) @ w.T

    x = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=on(P(("model", "data"))))
    plan = sw.partition(fn, W, x, device="tpu-v5e")
    assert plan.in_specs[1] == P(("model", "data"))
    assert not [c for c in plan.collectives if c.kind == "collective-permute"]
    assert plan.verify("shardy").ok
    np.testing.assert_allclose(plan.jit()(*inputs()), jax.jit(fn)(*inputs()), rtol=2e-5, atol=2e-5)


def test_most_of_what_is_split_over_several_axes_says_in_which_order():
    def fn(w, x):
        h = constrain(jnp.tanh(x), on(P(("model", "data"), None)))
        return h, constrain(jnp.tanh(w[0]), on(P(("data", "model"))))

    plan = sw.evaluate(fn, W, X, device="tpu-v5e")
    assert plan.partitioned.mesh.order == (1, 0)
    assert plan.partitioned.mesh == sw.evaluate(named, W, X, device="tpu-v5e").partitioned.mesh
    assert plan.verify("run").ok
