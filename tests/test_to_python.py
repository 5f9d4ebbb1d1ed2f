"""A plan as Python to paste: it runs, and means the same."""

import re
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardwright as sw
from programs import f32, i32

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
DATA = [("data", "batch.x[0]"), ("data", "state.params.w1[0]"), ("data", "state.params.w2[1]")]
ZERO3 = [*DATA, ("model", "state.params.w1[1]")]


def planned(fn, args, decisions, mesh=MESH, **options):
    return sw.evaluate(fn, *args, mesh=mesh, **({"device": "tpu-v5e"} | options), decisions=decisions)


def values(tree, seed=0):
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda s: jnp.asarray(random.normal(size=s.shape) * 0.1, s.dtype), tree)


def pasted(plan, name, fn, *, constraints=False):
    """What the pasted code defines, with the function by its name."""
    names = {name: fn}
    exec(plan.to_python(constraints=constraints), names)
    return names


def equal(found, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found, expected)


def specs_of(tree):
    return [x.sharding.spec for x in jax.tree.leaves(tree)]


def test_pasted_code_runs_and_shards_as_planned():
    plan = planned(train_step, ARGS, ZERO3, donate=(0,))
    names = pasted(plan, "train_step", train_step)
    assert (names["in_specs"], names["out_specs"]) == (plan.in_specs, plan.out_specs)
    assert dict(names["mesh"].shape) == MESH
    state, batch = values(ARGS)
    expected = train_step(state, batch)
    placed = plan.place(state, names["mesh"])
    found = names["step"](placed, batch)
    equal(found, expected)
    planned_specs = jax.tree.leaves(plan.out_specs, is_leaf=lambda s: isinstance(s, P))
    assert [P(*s) for s in specs_of(found)] == [P(*s) for s in planned_specs]
    assert all(x.is_deleted() for x in jax.tree.leaves(placed))


def test_in_specs_serve_plain_jit_as_they_are():
    plan = planned(train_step, ARGS, ZERO3)
    mesh = plan.make_mesh()
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), (plan.in_specs, plan.out_specs))
    step = jax.jit(train_step, in_shardings=shardings[0], out_shardings=shardings[1])
    equal(step(*values(ARGS)), train_step(*values(ARGS)))


def test_what_it_looks_like():
    plan = planned(train_step, ARGS, ZERO3, donate=(0,))
    lines = plan.to_python(constraints=False).splitlines()
    assert lines[0] == "# train_step on 8 × tpu-v5e (data 4 × model 2)."
    code = "\n".join(line for line in lines if not line.startswith("#")).strip()
    assert code == (
        """\
import jax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

state_specs = {
    "momentum": {"w1": P("data", "model"), "w2": P("model", "data")},
    "params": {"w1": P("data", "model"), "w2": P("model", "data")},
}
in_specs = (state_specs, {"x": P("data"), "y": P("data")})
out_specs = (state_specs, P())

step = jax.jit(
    train_step,
    in_shardings=jax.tree.map(lambda spec: NamedSharding(mesh, spec), in_specs),
    out_shardings=jax.tree.map(lambda spec: NamedSharding(mesh, spec), out_specs),
    donate_argnums=(0,),
)"""
    )


class Adam(NamedTuple):
    count: jax.Array
    mu: dict
    nu: dict


@jax.tree_util.register_dataclass
@dataclass
class State:
    params: dict
    opt: tuple


def adam_step(state, batch):
    def loss(params):
        return jnp.mean((jax.nn.relu(batch @ params["w1"]) @ params["w2"]) ** 2)

    adam, extra = state["opt"]
    value, grads = jax.value_and_grad(loss)(state["params"])
    mu = jax.tree.map(lambda m, g: 0.9 * m + g, adam.mu, grads)
    nu = jax.tree.map(lambda v, g: 0.9 * v + g * g, adam.nu, grads)
    params = jax.tree.map(lambda p, m, v: p - 0.1 * m / (jnp.sqrt(v) + 1), state["params"], mu, nu)
    return {"params": params, "opt": (Adam(adam.count + 1, mu, nu), extra)}, value


def test_a_named_tuple_goes_by_path():
    args = {"params": PARAMS, "opt": (Adam(i32(), PARAMS, PARAMS), None)}, f32(64, 16)
    plan = planned(adam_step, args, [("data", "batch[0]"), *ZERO3[1:]])
    text = plan.to_python(constraints=False)
    assert '".mu[\'w1\']": P("data", "model"),' in text
    assert 'by_path(args[0]["opt"][0], opt_specs)' in text
    names = pasted(plan, "adam_step", adam_step)
    state, batch = values(args)
    found = names["planned"](state, batch)(state, batch)
    equal(found, adam_step(state, batch))
    assert found[0]["opt"][0].mu["w1"].sharding.spec == P("data", "model")
    # Shapes do as well, and so nothing has to be allocated.
    names["planned"](*args).lower(*args)


class Empty(NamedTuple):
    pass


def test_a_chain_of_named_tuples_goes_by_path_as_a_whole():
    def step(w, opt, x):
        return w * jnp.mean(x @ w), (opt[0], Adam(opt[1].count + 1, opt[1].mu + w, opt[1].nu * w))

    args = f32(16, 32), (Empty(), Adam(i32(), f32(16, 32), f32(16, 32))), f32(64, 16)
    plan = planned(step, args, [("data", "w[1]")])
    text = plan.to_python(constraints=False)
    assert 'in_specs = (P(None, "data"), by_path(args[1], opt_specs), P())' in text
    assert '"[1].mu": P(None, "data"),' in text
    names = pasted(plan, "step", step)
    w, opt, x = values(args)
    equal(names["planned"](w, opt, x)(w, opt, x), step(w, opt, x))


def test_a_module_goes_by_path_too():
    def step(state, x):
        new = jax.tree.map(lambda p: p * jnp.mean(x @ state.params["w1"]), state.params)
        return State(new, state.opt)

    args = State(PARAMS, (f32(4), f32(4))), f32(64, 16)
    plan = planned(step, args, ["fsdp:data"])
    names = pasted(plan, "step", step)
    state, x = values(args)
    found = names["planned"](state, x)(state, x)
    equal(found, step(state, x))
    assert specs_of(found.params) == jax.tree.leaves(plan.out_specs.params)


def layered(layers, x):
    for layer in layers:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x


def test_layers_are_written_once():
    layers = [{"w": f32(32, 32), "b": f32(32), "c": f32(32)}] * 6
    plan = planned(layered, (layers, f32(64, 32)), [("data", "x[0]")])
    text = plan.to_python(constraints=False)
    assert 'in_specs = ([layers_specs] * 6, P("data"))' in text
    names = pasted(plan, "layered", layered)
    equal(names["step"](*values((layers, f32(64, 32)))), layered(*values((layers, f32(64, 32)))))


@pytest.mark.parametrize(
    ("fn", "args", "decisions", "mesh"),
    [
        (lambda x: x * 2, (f32(8, 4),), [("data", "x[0]")], {"data": 8}),
        (
            lambda tree: jax.tree.map(jnp.tanh, tree),
            ({(1, "a"): f32(8), (2, "b"): [f32(8), None]},),
            [],
            {"a": 4, "b": 2},
        ),
        (lambda x, _: (x + 1,), (f32(8, 4), f32(3)), [("data", "x[0]")], MESH),
        (lambda x: {"a": [], "b": x + 1}, (f32(8),), [], MESH),
    ],
)
def test_other_forms_of_arguments_and_results(fn, args, decisions, mesh):
    plan = planned(fn, args, decisions, mesh)
    names = pasted(plan, "fn", fn)
    assert (names["in_specs"], names["out_specs"]) == (plan.in_specs, plan.out_specs)
    equal(names["step"](*values(args)), fn(*values(args)))


def product(x, w):
    return jnp.tanh(x @ w)


def test_what_is_decided_inside_is_said_in_comments():
    plan = planned(product, (f32(64, 32), f32(32, 16)), [("data", "x[0]"), ("data", "w[0]")])
    text = plan.to_python()
    said = re.findall(r"#   (jax\.lax\.with_sharding_constraint\(x, .*\))  # x: (\S+), (.*)", text)
    # The weight is stored in parts and gathered where it is used.
    assert ("jax.lax.with_sharding_constraint(x, P())", "f32[32,16]", "operand of dot_general") in said
    assert re.search(r"# test_to_python.py:\d+ \(product\)\n", text)
    names = pasted(plan, "product", product, constraints=True)

    @jax.jit
    def constrained(x):
        return eval(said[0][0], {**names, "x": x})

    with jax.set_mesh(names["mesh"]):
        assert constrained(jnp.ones((32, 16))).sharding.is_fully_replicated


def test_nothing_to_say_about_the_inside():
    plan = planned(product, (f32(64, 32), f32(32, 16)), [("data", "x[0]")])
    assert plan.to_python().splitlines()[-1] == (
        "# Inside of the function the compiler does by itself what the plan says."
    )


def test_a_program_that_cannot_be_lowered_for_a_mesh_has_specs_all_the_same():
    def fn(x):
        return jax.pure_callback(lambda x: np.asarray(x) * 2, jax.ShapeDtypeStruct(x.shape, x.dtype), x) + 1

    plan = planned(fn, (f32(8, 4),), [("data", "x[0]")], device="cpu")
    text = plan.to_python()
    assert pasted(plan, "fn", fn)["in_specs"] == (P("data"),)
    assert "\n# " in text


def test_leaves_that_are_no_arrays_are_not_for_plain_jit():
    def fn(model, x):
        return model["activation"](x @ model["w"])

    args = {"activation": jnp.tanh, "w": f32(32, 16)}, f32(64, 32)
    plan = planned(fn, args, [("data", "x[0]")])
    with pytest.raises(sw.PlanError, match=r"no arrays, which jax.jit does not take; run the plan with plan.jit"):
        plan.to_python()
