"""Plans: what a user reads off them, runs with them, saves and loads."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P

import shardwright as sw
from programs import f32

MESH = {"data": 4, "model": 2}


def train_step(state, batch):
    def loss(params):
        h = jax.nn.relu(batch["x"] @ params["w1"])
        return jnp.mean((h @ params["w2"] - batch["y"]) ** 2)

    value, grads = jax.value_and_grad(loss)(state["params"])
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], grads)
    params = jax.tree.map(lambda p, m: p - 0.1 * m, state["params"], momentum)
    return {"params": params, "momentum": momentum}, value


PARAMS = {"w1": f32(16, 32), "w2": f32(32, 8)}
ARGS = {"params": PARAMS, "momentum": PARAMS}, {"x": f32(64, 16), "y": f32(64, 8)}


def planned(decisions, mesh=None, **options):
    return sw.evaluate(train_step, *ARGS, mesh=mesh or MESH, decisions=decisions, donate=(0,), **options)


def values(tree, seed=0):
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda s: jnp.asarray(random.normal(size=s.shape) * 0.1, s.dtype), tree)


def test_specs_have_the_shape_of_arguments_and_result():
    plan = planned(["data_parallel:data", ("model", "state.params.w1[1]")])
    w = {"w1": P(None, "model"), "w2": P("model")}
    assert plan.in_specs == ({"params": w, "momentum": w}, {"x": P("data"), "y": P("data")})
    assert plan.out_specs == ({"params": w, "momentum": w}, P())
    assert plan.mesh == MESH


def test_in_specs_serve_plain_jit():
    plan = planned(["fsdp:data"])
    mesh = plan.make_mesh()
    shardings = jax.tree.map(lambda s: jax.NamedSharding(mesh, s), plan.in_specs)
    assert np.isfinite(jax.jit(train_step, in_shardings=shardings)(*values(ARGS))[1])


@pytest.mark.parametrize("tactics", ["fsdp:data", "zero1:data", ["data_parallel:data", "megatron:model"]])
def test_steps_equal_those_of_the_plain_function(tactics):
    plan = planned(tactics)
    mesh = plan.make_mesh()
    step = plan.jit(mesh)
    state, batch = values(ARGS)
    expected, plain = state, jax.jit(train_step)
    state = plan.place(state, mesh)
    for k in range(3):
        batch = values(ARGS[1], seed=k)
        expected, expected_loss = plain(expected, batch)
        state, loss = step(state, plan.place(batch, mesh))
        assert float(loss) == pytest.approx(float(expected_loss), rel=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), state, expected)


def test_donation():
    plan = planned("data_parallel:data")
    state, batch = values(ARGS)
    placed = plan.place(state)
    plan.jit()(placed, plan.place(batch))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(placed))
    placed = plan.place(values(ARGS[0], seed=1))
    plan.jit(donate_argnums=())(placed, plan.place(batch))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(placed))


def test_zero1_keeps_parameters_whole_and_shards_the_rest():
    plan = planned("zero1:data")
    assert set(jax.tree.leaves(plan.in_specs[0]["params"])) == {P()}
    assert all("data" in spec for spec in jax.tree.leaves(plan.in_specs[0]["momentum"]))
    assert plan.out_specs[0] == plan.in_specs[0]


def test_any_mesh_of_the_right_shape():
    plan = sw.evaluate(train_step, *ARGS, mesh=AbstractMesh((4, 2), ("data", "model")), decisions=["fsdp:data"])
    reversed_devices = Mesh(np.array(jax.devices()[::-1]).reshape(4, 2), ("data", "model"))
    assert np.isfinite(plan.jit(reversed_devices)(*values(ARGS))[1])
    with pytest.raises(sw.MeshError, match=r"plan is for the mesh \{'data': 4, 'model': 2\}, not \{'data': 8\}"):
        plan.jit(Mesh(np.array(jax.devices()), ("data",)))
    assert sw.evaluate(train_step, *ARGS, mesh=reversed_devices).mesh == MESH


def test_a_plan_for_4096_devices_is_made_on_one():
    plan = planned(["fsdp:data", "megatron:model"], mesh={"data": 8, "model": 8}, platform="tpu")
    assert plan.partitioned.mesh.devices == 64
    decisions = [("a", "x[0]"), ("b", "x[0]")]
    huge = sw.evaluate(lambda x, w: x @ w, f32(4096, 64), f32(64, 64), mesh={"a": 64, "b": 64}, decisions=decisions)
    assert huge.in_specs[0] == P(("a", "b"))
    with pytest.raises(sw.MeshError, match="needs 4096 devices, but there are 8"):
        huge.make_mesh()


def test_place_by_position_path_and_structure():
    plan = planned("fsdp:data")
    state, batch = values(ARGS)
    for placed in (plan.place(batch), plan.place(batch, argument=1), plan.place(batch, argument="batch")):
        assert placed["x"].sharding.spec == P("data")
    w1 = plan.place(state["params"]["w1"], argument="state.params.w1")
    assert w1.sharding.spec == plan.in_specs[0]["params"]["w1"]
    with pytest.raises(sw.PlanError, match="no argument has this structure"):
        plan.place([1, 2, 3])
    with pytest.raises(
        sw.PlanError, match=r"'state.paramz' matches 0 leaves of the arguments, but 2 were given; did you"
    ):
        plan.place(state["params"], argument="state.paramz")
    with pytest.raises(sw.PlanError, match="there is no argument 7"):
        plan.place(batch, argument=7)


def test_random_keys_are_never_split():
    def fn(key, x):
        return x + jax.random.normal(key, x.shape), key

    key = jax.eval_shape(lambda: jax.random.key(0))
    plan = sw.evaluate(fn, key, f32(8, 4), mesh={"data": 2}, decisions=[("data", "x[0]")])
    assert plan.in_specs == (P(), P("data"))
    found, _ = plan.jit()(jax.random.key(1), jnp.ones((8, 4)))
    np.testing.assert_allclose(found, fn(jax.random.key(1), jnp.ones((8, 4)))[0], rtol=1e-5, atol=1e-6)


def test_save_and_load(tmp_path):
    plan = planned(["zero1:data", ("model", "state.params.w1[1]")])
    file = tmp_path / "plan.json"
    plan.save(file)
    assert list(tmp_path.iterdir()) == [file]
    assert len(file.read_text()) < 2200
    again = sw.load(file, train_step, *ARGS)
    assert again.decisions == plan.decisions
    assert (again.in_specs, again.out_specs, again.donate) == (plan.in_specs, plan.out_specs, (0,))


def test_loading_what_does_not_fit(tmp_path):
    plan = planned(["fsdp:data"])
    file = tmp_path / "plan.json"
    plan.save(file)
    content = json.loads(file.read_text())
    with pytest.raises(sw.PlanError, match=r"does not fit <lambda> \(.*\): there is no dimension 'batch.x\[0\]'"):
        sw.load(file, lambda a: a * 2, f32(64, 16))
    for change, message in {
        "shardwright_plan": "its version is 99",
        "decisions": "is damaged: decisions is 3, not a list",
        "mesh": "is damaged: mesh is 3, not an object",
    }.items():
        file.write_text(json.dumps(content | {change: {"shardwright_plan": 99, "decisions": 3, "mesh": 3}[change]}))
        with pytest.raises(sw.PlanError, match=message):
            sw.load(file, train_step, *ARGS)
    file.write_text("{")
    with pytest.raises(sw.PlanError, match="it is not JSON"):
        sw.load(file, train_step, *ARGS)
    with pytest.raises(sw.PlanError, match=r"cannot read the plan .*none.json: No such file"):
        sw.load(tmp_path / "none.json", train_step, *ARGS)
    with pytest.raises(sw.PlanError, match="cannot write the plan"):
        plan.save(tmp_path / "no" / "folder.json")


def test_it_prints():
    text = str(planned(["fsdp:data", "megatron:model"]))
    assert text.startswith("train_step on 8 × cpu (data 4 × model 2)\nFits: ")
    assert "\ndata: ZeRO-3 / FSDP\n 1  batch.x[0] " in text
    assert "reduce-scatter" in text
    assert "test_plan.py:" in text


@pytest.mark.parametrize(
    ("decisions", "message"),
    [
        ("fsdq:data", "no tactic 'fsdq'; did you mean fsdp"),
        ("fsdp:date", "names the axis 'date', but the mesh has data, model"),
        (("data", "batch.z[0]"), r"no dimension 'batch.z\[0\]'; did you mean batch"),
        (("data", "batch.x[5]"), r"batch.x has 2 dimensions, so there is no 'batch.x\[5\]'"),
        (("data", "batch.x[0]", (1,)), "has 0 conflicts"),
        ({"batch.z": P("data")}, "no argument matches the pin 'batch.z'; did you mean batch"),
        ({"batch.x": P("data", "model", "data")}, "longer than batch.x of shape"),
        ({"batch.x": "data"}, "needs a PartitionSpec"),
        ({"batch.x": P(("data", "model", "data"))}, r"splits batch.x\[0\] of 64 into|clashes"),
        ("expert_parallel:model", "expert_parallel does not apply: the program has no expert dimension"),
        (
            [{"batch.x": P("data")}, {"batch.x": P("model")}],
            r"the pin 'batch.x': P\('data',?\) clashes with the other pins",
        ),
        (3, "a pin is a tactic such as 'fsdp:data'"),
        (sw.Whole("data", "nothing"), "no argument matches 'nothing'"),
    ],
)
def test_bad_decisions(decisions, message):
    with pytest.raises(sw.PinError, match=message):
        planned(decisions)


@pytest.mark.parametrize("mesh", [{}, {"data": 0}, {"data": 2.5}, {3: 4}, "data", {"data": True}])
def test_bad_meshes(mesh):
    with pytest.raises(sw.MeshError):
        sw.evaluate(train_step, *ARGS, mesh=mesh)


def test_one_of_two_tied_arguments_can_be_kept_whole():
    plan = planned([{"batch.x": P("data")}, {"batch.y": P()}])
    assert plan.in_specs[1] == {"x": P("data"), "y": P()}
    assert plan.verify("run")


def test_pins_by_path_prefix_and_glob():
    plan = planned([], pin=[{"batch": P("data")}, {"state.*.w1": P(None, "model")}])
    assert plan.in_specs[1] == {"x": P("data"), "y": P("data")}
    assert plan.in_specs[0]["params"]["w1"] == P(None, "model")


def test_verify_run_finds_a_wrong_program():
    plan = planned("data_parallel:data")

    def slightly_off(state, batch):
        return train_step(state, {"x": batch["x"] * 1.01, "y": batch["y"]})

    other = sw.evaluate(slightly_off, *ARGS, mesh=MESH, decisions=plan.decisions)
    plan.__dict__["_exports"] = {"cpu": other.export("cpu")}
    verdict = plan.verify("run")
    assert not verdict
    assert "the largest difference is" in verdict.message
    with pytest.raises(sw.PlanError, match="verified on 'run' or 'shardy'"):
        plan.verify("gut feeling")


def test_arguments_that_are_not_used_stay_arguments():
    plan = sw.evaluate(lambda x, _: x * 2, f32(8, 4), f32(3), mesh={"data": 2}, decisions=[("data", "x[0]")])
    assert plan.in_specs == (P("data"), P())
    np.testing.assert_array_equal(plan.jit()(jnp.ones((8, 4)), jnp.ones(3)), 2 * np.ones((8, 4)))


def test_constants_that_are_closed_over():
    table = jnp.arange(32.0).reshape(4, 8)
    plan = sw.evaluate(lambda x: x @ table, f32(8, 4), mesh={"data": 2}, decisions=[("data", "x[0]"), ("data", "x[1]")])
    np.testing.assert_allclose(plan.jit()(jnp.ones((8, 4))), np.ones((8, 4)) @ np.asarray(table))


def test_callbacks_into_python_are_run_as_planned():
    seen = []

    def fn(x, w):
        h = x @ w
        jax.debug.callback(seen.append, h.sum())
        doubled = jax.pure_callback(lambda x: np.asarray(x) * 2, jax.ShapeDtypeStruct(h.shape, h.dtype), h)
        jax.experimental.io_callback(seen.append, None, h.max(), ordered=True)
        return doubled + 1

    plan = sw.evaluate(fn, f32(8, 4), f32(4, 4), mesh={"data": 2}, decisions=[("data", "x[1]")])
    assert plan.in_specs == (P(None, "data"), P("data"))
    step, args = plan.jit(), (jnp.ones((8, 4)), jnp.ones((4, 4)))
    np.testing.assert_array_equal(step(*args), np.full((8, 4), 9.0))
    jax.effects_barrier()
    assert sorted(map(float, seen)) == [4, 128]
    assert "all-reduce" in step.lower(*args).compile().as_text()  # the decision is inside
    with pytest.raises(sw.PlanError, match=r"fn calls back into Python .* JAX cannot export .*; plan.jit runs it"):
        plan.verify("run")


def test_shardy_is_given_the_program_of_the_plans_own_platform():
    def fn(x):
        return jax.lax.platform_dependent(x, tpu=lambda x: x + 1, cpu=lambda x: jnp.sort(x, 0))

    plan = sw.evaluate(fn, f32(64, 8), mesh={"data": 4}, device="tpu-v5e", decisions=[("data", "x[0]")])
    assert plan.verify("shardy").figures["shardy_counts"] == {}
    assert plan.verify("shardy", platform="cpu").figures["shardy_counts"]
