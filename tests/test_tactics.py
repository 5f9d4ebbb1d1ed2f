"""Tactics are found from the program's structure: what they decide for each built-in model, and without its names."""

from functools import cache

import jax
import pytest

import shardwright as sw
from programs import f32
from shardwright.models import build
from shardwright.request import MeshShape
from shardwright.space import TACTICS, expand
from shardwright.space.decisions import Whole, path_matches, paths_of
from shardwright.space.roles import Roles

MESH = MeshShape.of({"x": 2})


@cache
def analysed(model):
    fn, args, options = build(model, preset="tiny")
    return sw.analyse(fn, *args, **options)


def decided(model, tactic):
    try:
        return [d.dimension for d in expand(analysed(model), MESH, f"{tactic}:x") if not isinstance(d, Whole)]
    except sw.PinError:
        return None


LAYERS = "state.params.layers."


@pytest.mark.parametrize(
    ("model", "tactic", "dimensions"),
    [
        ("gpt", "data_parallel", ["batch.tokens[0]"]),
        ("gpt", "fsdp", ["batch.tokens[0]", "state.params.embed[1]"]),
        ("gpt", "megatron", [LAYERS + "wq[2]", LAYERS + "w_up[2]", "state.params.embed[0]"]),
        ("gpt", "context_parallel", ["batch.tokens[1]"]),
        ("gpt", "expert_parallel", None),
        ("gpt", "spatial", None),
        ("itx", "data_parallel", ["tokens[0]"]),
        ("itx", "fsdp", ["tokens[0]", "params.embed[1]"]),
        ("itx", "zero1", None),
        ("itx", "megatron", ["params.layers.wq[2]", "params.layers.w_up[2]"]),
        ("itx", "context_parallel", ["cache.k[2]"]),
        ("unet", "data_parallel", ["batch.timesteps[0]"]),
        ("unet", "spatial", ["batch.images[1]"]),
        ("unet", "expert_parallel", None),
        ("gns", "data_parallel", ["batch.edges[0]"]),
        ("gns", "context_parallel", None),
        ("moe", "data_parallel", ["batch.tokens[0]"]),
        ("moe", "expert_parallel", [LAYERS + "sparse.router[2]"]),
        ("moe", "context_parallel", ["batch.tokens[1]"]),
        ("vit", "data_parallel", ["batch.images[0]"]),
        ("vit", "context_parallel", ["batch.images[1]"]),
        ("mlp", "data_parallel", ["batch.inputs[0]"]),
        ("mlp", "context_parallel", None),
        ("mlp", "megatron_sequence", None),
    ],
)
def test_what_is_decided(model, tactic, dimensions):
    assert decided(model, tactic) == dimensions


def test_sequence_parallel_is_megatron_and_the_sequence():
    assert decided("gpt", "megatron_sequence") == [*decided("gpt", "megatron"), "batch.tokens[1]"]


def test_parameters_are_told_from_optimizer_state():
    roles = Roles(analysed("gpt"))
    paths = {analysed("gpt").program.argument_of[v].path.split(".")[1] for v in roles.parameters}
    assert paths == {"params"}
    whole = {d.path.split(".")[1] for d in expand(analysed("gpt"), MESH, "zero1:x") if isinstance(d, Whole)}
    assert whole == {"params"}


def test_fsdp_leaves_no_weight_whole_that_could_be_split():
    for model in ("gpt", "moe", "vit", "mlp", "gns"):
        fn, args, options = build(model, preset="tiny")
        plan = sw.evaluate(fn, *args, mesh={"x": 2}, decisions="fsdp:x", **options)
        program = plan.analysis.program
        for v in Roles(plan.analysis).weights:
            if all(size % 2 == 0 for size in program.values[v].shape):
                assert any(plan.partitioned.values[v]), program.argument_of[v].path


def test_names_do_not_matter():
    fn, args, _ = build("gpt", preset="tiny")

    def anonymous(a, b):
        state, loss = fn(jax.tree.unflatten(structure, a), {"tokens": b[0], "targets": b[1]})
        return jax.tree.leaves(state), loss

    leaves, structure = jax.tree.flatten(args[0])
    analysis = sw.analyse(anonymous, leaves, [args[1]["tokens"], args[1]["targets"]])
    for tactic in TACTICS:
        named = decided("gpt", tactic)
        try:
            found = [d.dimension for d in expand(analysis, MESH, f"{tactic}:x") if not isinstance(d, Whole)]
        except sw.PinError:
            found = None
        assert (found is None) == (named is None)
        if found:
            sizes = {d.name: d.size for d in analysis.descriptions}
            of_named = {d.name: d.size for d in analysed("gpt").descriptions}
            assert [sizes[d] for d in found] == [of_named[d] for d in named]


def test_the_batch_can_be_named():
    def fn(x, w):
        return x @ w

    analysis = sw.analyse(fn, f32(8, 16), f32(16, 4))
    assert [d.dimension for d in expand(analysis, MESH, "data_parallel:x=w[1]")] == ["w[1]"]


def test_what_does_not_divide_is_said():
    analysis = sw.analyse(lambda x, w: x @ w, f32(7, 16), f32(16, 4))
    with pytest.raises(
        sw.PinError, match=r"data_parallel does not apply: 2 devices do not divide the batch x\[0\] of 7"
    ):
        expand(analysis, MESH, "data_parallel:x=x[0]")


def test_the_batch_is_found_where_hidden_dimensions_touch_as_much():
    def infer(w1, w2, x):
        return jax.nn.relu(x @ w1) @ w2

    def train(params, x):
        return jax.tree.map(lambda p, g: p - g, params, jax.grad(lambda p: infer(*p, x).sum())(params))

    weights = f32(16, 32), f32(32, 8)
    for analysis in (sw.analyse(infer, *weights, f32(64, 16)), sw.analyse(train, weights, f32(64, 16))):
        assert analysis.descriptions[Roles(analysis).batch].name == "x[0]"


def test_the_height_of_labelled_pictures_is_not_the_batch():
    """It touches nearly as many FLOPs, and fewer arguments have it."""

    def loss(params, pictures, labels):
        for kernel in params[:-1]:
            pictures = jax.lax.conv_general_dilated(
                pictures, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
        return ((pictures.mean((1, 2)) @ params[-1] - labels) ** 2).mean()

    def train(params, pictures, labels):
        return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params, pictures, labels))

    params = [f32(3, 3, 4, 8), f32(3, 3, 8, 8), f32(8, 2)]
    analysis = sw.analyse(train, params, f32(8, 32, 32, 4), f32(8, 2))
    assert [d.dimension for d in expand(analysis, MESH, "data_parallel:x")] == ["pictures[0]"]
    assert [d.dimension for d in expand(analysis, MESH, "spatial:x")] == ["pictures[1]"]


def test_paths_are_said_shortly():
    program = analysed("gpt").program
    value = {a.path: a.value for a in program.arguments}
    parameters = [v for path, v in value.items() if path.startswith("state.params")]
    assert paths_of(program, parameters) == ["state.params"]
    norms = [v for path, v in value.items() if path.endswith("norm")]
    assert sorted(paths_of(program, norms)) == ["*.attention_norm", "*.final_norm", "*.mlp_norm"]
    assert paths_of(program, [value["state.params.embed"]]) == ["state.params.embed"]  # not those of the optimizer
    for chosen in (parameters, norms, [value["state.params.embed"], value["batch.tokens"]]):
        matched = {v for path, v in value.items() if any(path_matches(p, path) for p in paths_of(program, chosen))}
        assert matched == set(chosen)


def test_the_batch_of_a_network_that_is_only_run():
    """The width touches as many FLOPs and is in the result too, but weights share it."""

    def predict(params, x):
        for layer in params:
            x = x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]
        return x

    analysis = sw.analyse(predict, [{"up": f32(16, 64), "down": f32(64, 16)}] * 2, f32(8, 16))
    assert [d.dimension for d in expand(analysis, MESH, "data_parallel:x")] == ["x[0]"]
    assert [d.dimension for d in expand(analysis, MESH, "megatron:x")] == ["params.*.up[1]"]


def test_several_tactics_and_axes_at_once():
    fn, args, _ = build("moe", preset="tiny")
    analysis, mesh = sw.analyse(fn, *args), MeshShape.of({"data": 2, "model": 2})
    apart = [expand(analysis, mesh, f"{name}:{axis}") for axis in mesh.names for name in ("expert_parallel", "fsdp")]
    together = expand(analysis, mesh, "expert_parallel+fsdp:data, model")
    assert together == list(dict.fromkeys(d for decisions in apart for d in decisions))
    with pytest.raises(sw.PinError, match="there is no tactic 'fsd'; did you mean fsdp"):
        expand(analysis, mesh, "expert_parallel+fsd:data")
