"""Functions and arguments as users of JAX and its libraries have them: planned, placed and run as they are."""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import shardwright as sw
from programs import f32
from shardwright.frontend import trace

MESH = {"data": 4, "model": 2}
X, W = np.linspace(-1, 1, 16 * 8).reshape(16, 8).astype(np.float32), np.linspace(0, 1, 8 * 32).reshape(8, 32)


def planned(fn, *args, dimension="x[0]", **options):
    return sw.evaluate(fn, *args, mesh=MESH, device="tpu-v5e", decisions=[("data", dimension)], **options)


def same(found, expected):
    def leaf(a, b):
        if isinstance(b, jax.Array) and jnp.issubdtype(b.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        if callable(b) or isinstance(b, str):
            assert a is b
        else:
            np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(b, np.float32), rtol=1e-4, atol=1e-5)

    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(leaf, found, expected)


class Scaled:
    def __init__(self, scale):
        self.scale = scale

    def method(self, w, x):
        return x @ w * self.scale

    __call__ = method


def scaled(scale, w, x, *, shift=0.0):
    return x @ w * scale + shift


FUNCTIONS = {
    "bound method": (Scaled(2.0).method, "method"),
    "callable object": (Scaled(2.0), "Scaled"),
    "functools.partial": (functools.partial(scaled, 2.0, shift=1.0), "scaled"),
    "tree_util.Partial": (jax.tree_util.Partial(scaled, jnp.float32(2.0)), "scaled"),
    "jitted": (jax.jit(functools.partial(scaled, 2.0)), "scaled"),
    "jitted with static names": (
        functools.partial(jax.jit(scaled, static_argnames="shift"), 2.0, shift=1.0),
        "scaled",
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_every_kind(name):
    fn, called = FUNCTIONS[name]
    plan = planned(fn, f32(8, 32), f32(16, 8))
    assert str(plan).startswith(f"{called} on 8 × tpu-v5e")
    assert [a.path for a in plan.analysis.program.arguments] == ["w", "x"]
    same(plan.jit()(np.float32(W), X), fn(np.float32(W), X))


def test_leaves_of_every_kind():
    """None, numbers, raw and typed keys, int8, fp8, int4 and bool, donated."""

    def step(state, x):
        w = state["q"].astype(jnp.float32) * state["scale"] + state["fp8"].astype(jnp.float32)
        y = jnp.where(state["mask"], x @ w, 0) + state["int4"].astype(jnp.float32)
        noise = jax.vmap(lambda k: jax.random.bits(k, dtype=jnp.uint8))(state["keys"])[:, None]
        noise = noise + jax.random.bits(state["raw"], y.shape, jnp.uint8)
        new = state | {"step": state["step"] + 1, "mask": ~state["mask"], "keys": state["keys"][::-1]}
        return new, y + noise

    state = {
        "q": jnp.asarray(W * 4, jnp.int8),
        "fp8": jnp.asarray(W, jnp.float8_e4m3fn),
        "int4": jnp.ones((16, 32), jnp.int4),
        "mask": jnp.asarray(np.arange(16 * 32).reshape(16, 32) % 3 > 0),
        "scale": 0.5,
        "step": 3,
        "nothing": None,
        "raw": jax.random.PRNGKey(0),
        "keys": jax.random.split(jax.random.key(0), 16),
    }
    plan = planned(step, state, X, donate=0)
    assert plan.in_specs[0]["keys"] == plan.in_specs[0]["mask"] == P("data")
    assert (plan.in_specs[0]["raw"], plan.in_specs[0]["scale"], plan.in_specs[0]["nothing"]) == (P(), P(), None)
    expected = jax.jit(step)(state, X)
    same(plan.jit()(plan.place(state), plan.place(X)), expected)


def test_functions_among_the_leaves_are_constants():
    model = {"w": np.float32(W), "activation": jax.nn.relu}

    def step(model, x):
        y = model["activation"](x @ model["w"])
        return {**model, "w": model["w"] * 2}, y

    plan = planned(step, model, X, donate=0)
    assert plan.in_specs == ({"w": P(), "activation": None}, P("data"))
    assert plan.out_specs == ({"w": P(), "activation": None}, P("data"))
    run = plan.jit()
    same(run(plan.place(model), X), step(model, X))
    assert run.lower(model, X).compile().memory_analysis().output_size_in_bytes > 0
    assert plan.verify("shardy")
    assert [a.path for a in sw.analyse(step, model, X).program.arguments] == ["model.w", "x"]


class Regressor(eqx.Module):
    mlp: eqx.nn.MLP
    dropout: eqx.nn.Dropout
    name: str
    times: int = eqx.field(static=True)

    def __call__(self, x, key):
        return self.dropout(self.mlp(x), key=key) * self.times


def test_under_equinox_whatever_is_no_array_is_constant():
    @eqx.filter_jit
    def step(model, x, key):
        def loss(model):
            return jnp.mean(jax.vmap(model)(x, jax.random.split(key, x.shape[0])) ** 2)

        grads = eqx.filter_grad(loss)(model)
        return eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, grads))

    key = jax.random.key(0)
    model = Regressor(eqx.nn.MLP(8, 4, 32, 1, key=key), eqx.nn.Dropout(0.5, inference=True), "regressor", 2)
    plan = planned(step, model, X, key)
    assert plan.analysis.program.name == "step"
    assert [a.path for a in plan.analysis.program.arguments[:2]] == [
        "model.mlp.layers.0.weight",
        "model.mlp.layers.0.bias",
    ]
    found = plan.jit()(plan.place(model), X, key)
    same(found, step(model, X, key))
    assert (found.dropout.p, found.dropout.inference, found.name) == (0.5, True, "regressor")


class Box:
    """A pytree that can be changed in place, as Flax's modules can."""

    def __init__(self, value):
        self.value = value


jax.tree_util.register_pytree_with_keys(
    Box, lambda b: (((jax.tree_util.GetAttrKey("value"), b.value),), None), lambda _, children: Box(*children)
)


def test_changes_in_place_that_are_not_returned_are_planned_and_made():
    def update(boxes, x, *, scale):
        for box in boxes:
            box.value = box.value + scale * jnp.sum(x)
        return jnp.sum(x)

    def boxes():
        return [Box(jnp.ones(8)), Box(jnp.zeros(8))]

    x, expected = jnp.abs(jnp.asarray(X)), boxes()
    plan = planned(update, boxes(), x, kwargs={"scale": 2.0}, donate=0)
    assert plan.analysis.program.results == ("result", "result.boxes.0.value", "result.boxes.1.value")
    assert plan.out_specs == P()
    given = boxes()
    same((plan.jit()(given, x, scale=2.0), given), (update(expected, x, scale=2.0), expected))
    with pytest.raises(sw.PlanError, match=r"update changes boxes\.0\.value in place and does not return it"):
        plan.to_python()
    with pytest.raises(sw.TraceError, match=r"changes boxes\.0\.value and 1 more in place .* which jax\.jit loses"):
        sw.analyse(jax.jit(update), boxes(), x, kwargs={"scale": 2.0})


@pytest.mark.parametrize("jit", [lambda fn: fn, nnx.jit])
def test_a_module_of_flax_is_trained_in_place(jit):
    def step(model, optimizer, x):
        loss, grads = nnx.value_and_grad(lambda model: jnp.mean(model(x) ** 2))(model)
        optimizer.update(model, grads)
        return loss

    optimize = optax.adam(0.1)

    def state():
        model = nnx.Linear(8, 4, rngs=nnx.Rngs(0))
        return model, nnx.Optimizer(model, optimize, wrt=nnx.Param)

    expected, found = state(), state()
    plan = planned(jit(step), *found, X)
    assert {"model.kernel.value", "optimizer.opt_state.0.mu.kernel.value"} <= {*plan.argument_paths}
    run = plan.jit()
    for _ in range(2):
        same(run(*found, X), nnx.jit(step)(*expected, X))
    same(found, expected)


def test_changes_in_place_that_do_no_harm_pass():
    def returned(box, x):
        box.value = box.value + jnp.sum(x)
        return box, x

    def of_a_dict(batch, x):
        batch["x"] = batch["x"] / 255
        return batch["x"] @ x

    def handed_through(box, x):
        box.value = jax.jit(lambda value: (value, x))(box.value)[0]
        return x

    sw.analyse(returned, Box(f32(8)), f32(4))
    sw.analyse(of_a_dict, {"x": f32(8, 4)}, f32(4, 2))
    sw.analyse(handed_through, Box(f32(8)), f32(4))


def test_numpy_arrays_are_taken_at_jax_precision():
    program = trace(lambda w, x: x @ w, W, X.astype(np.float64))
    assert [str(program.values[a.value]) for a in program.arguments] == ["f32[8,32]", "f32[16,8]"]


def test_paths_that_read_the_same_are_told_apart():
    def fn(tree, x):
        return x @ tree["a.b"] + tree["a"]["b"]

    plan = planned(fn, {"a.b": f32(8, 32), "a": {"b": f32(16, 32)}}, f32(16, 8))
    assert [a.path for a in plan.analysis.program.arguments] == ["tree['a']['b']", "tree['a.b']", "x"]
    assert plan.in_specs[0] == {"a.b": P(), "a": {"b": P("data")}}


def test_a_tree_is_placed_as_the_argument_whose_shapes_it_has():
    def fn(w, x, y):
        return (x @ w - y) ** 2

    plan = planned(fn, f32(8, 32), f32(16, 8), f32(16, 32), pin={"w": P(None, "model")})
    assert plan.place(np.zeros((16, 8))).sharding.spec == P("data")
    assert plan.place(np.zeros((8, 32))).sharding.spec == P(None, "model")
    with pytest.raises(sw.PlanError, match="this could be w or x or y, which the plan places differently; say which"):
        plan.place(np.zeros((32, 8)))
    with pytest.raises(sw.PlanError, match="argument 1 has 1 leaf, but 2 were given"):
        plan.place([X, X], argument=1)


class Moments(NamedTuple):
    mean: Any
    count: Any


def test_states_of_any_type_are_verified_by_running():
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(0.1, 100)))

    def step(params, state, moments, x):
        grads = jax.grad(lambda p: jnp.mean((x @ p["w"]) ** 2))(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, Moments(moments.mean + x.mean(0), moments.count + 1)

    params = {"w": f32(8, 32)}
    state = jax.eval_shape(optimizer.init, params)
    plan = planned(step, params, state, Moments(f32(8), 0), f32(16, 8), donate=(0, 1))
    assert {"state.1.0.mu.w", "moments.mean"} <= {a.path for a in plan.analysis.program.arguments}
    assert plan.verify("run")


def keyworded(scale, w, *rest, x, key, mode="relu"):
    h = jax.nn.relu(x @ w) if mode == "relu" else x @ w
    return h * scale + jax.random.uniform(key, h.shape) + sum(rest), w + 1


def test_keyword_and_static_arguments_are_planned_as_the_function_takes_them(tmp_path):
    w, x, key = jnp.asarray(W, jnp.float32), jnp.asarray(X), jax.random.key(3)
    given = {"kwargs": {"key": key, "x": x, "mode": "relu"}, "static_argnames": ("scale", "mode")}
    plan = planned(keyworded, 2, w, 1.0, donate=1, **given)
    assert plan.argument_paths == ["w", "rest.0", "key", "x"]
    assert (plan.in_specs, plan.kwarg_specs) == ((P(), P()), {"key": P(), "x": P("data")})
    assert plan.donate == (0,)
    step, expected = plan.jit(), keyworded(2, w, 1.0, x=x, key=key)
    placed = plan.place(x, argument="x")
    assert placed.sharding.spec == P("data")
    same(step(2, jnp.array(w), 1.0, x=placed, key=key), expected)
    assert step.lower(2, w, 1.0, mode="relu", x=x, key=key).compile() is not None
    assert plan.verify("run")
    jitted = jax.jit(keyworded, static_argnames=given.pop("static_argnames"))
    again = planned(jitted, 2, w, 1.0, donate="w", **given)
    assert (again.in_specs, again.kwarg_specs, again.donate) == (plan.in_specs, plan.kwarg_specs, plan.donate)

    for call, words in {
        "step(3, w, 1.0, x=x, key=key)": "scale is 2 in the plan",
        "step(2, w, 1.0, x=x, key=key, mode='tanh')": "mode is 'relu' in the plan",
        "step(2, w, x=x, key=key)": "planned with rest.0, which is missing",
        "step(2, w, 1.0, 2.0, x=x, key=key)": "planned without rest.1",
    }.items():
        with pytest.raises(sw.PlanError, match=words):
            eval(call)

    plan.save(tmp_path / "plan.json")
    again = sw.load(tmp_path / "plan.json", jitted, 2, w, 1.0, **given)
    assert (again.kwarg_specs, again.donate) == (plan.kwarg_specs, plan.donate)
    pasted = {"keyworded": keyworded}
    exec(plan.to_python(), pasted)
    same(pasted["step"](jnp.array(w), 1.0, key, x), expected)


def test_arguments_of_a_jit_that_are_static_are_found():
    repeated = jax.jit(lambda x, n: jnp.tile(x, n), static_argnums=1)
    plan = planned(repeated, f32(8), 3)
    assert (plan.in_specs, plan.result.shape) == ((P("data"),), (24,))


def test_wrong_keyword_arguments_are_told_in_one_sentence():
    def step(w, *, x, sizes=()):
        return x @ w.reshape(*sizes, 8, 8)

    w, x = f32(8, 8), f32(16, 8)
    for options, words in (
        ({}, "missing a required .*argument: 'x'"),
        ({"kwargs": {"x": x, "y": x}}, "by keyword x, y: got an unexpected keyword argument 'y'"),
        ({"kwargs": [x]}, "kwargs must be a dict"),
        ({"kwargs": {"x": x}, "static_argnames": "size"}, "'size', which is no parameter of step; did you mean sizes"),
        (
            {"kwargs": {"x": x, "sizes": []}, "static_argnames": "sizes"},
            "step is a list, which cannot be hashed",
        ),
        ({"kwargs": {"x": x, "sizes": ()}, "static_argnames": "sizes", "donate": "sizes"}, "sizes, which is static"),
        ({"kwargs": {"x": x}, "donate": "z"}, "'z', which is no argument of this call of step"),
    ):
        with pytest.raises(sw.TraceError, match=words):
            planned(step, w, **options)
