"""What plans are commonly called: every tactic by name, parts of one as parts, and silence where nothing matches."""

from functools import cache

import jax
import jax.numpy as jnp
import pytest

import shardwright as sw
from programs import f32
from shardwright.devices import find_device
from shardwright.models import build
from shardwright.plan.strategy_names import common_names
from shardwright.problem import Problem
from shardwright.request import mesh_shape
from shardwright.traced import Traced
from small import SMALL

LAYERS = "state.params.layers."
HEADS, HIDDEN, VOCABULARY, WIDTH = (
    LAYERS + "wq[2]",
    LAYERS + "w_up[2]",
    "state.params.embed[0]",
    "state.params.embed[1]",
)
BATCH, SEQUENCE = "batch.tokens[0]", "batch.tokens[1]"


@cache
def traced(model):
    # TPUs round the operands of f32 products, so that a tiny product would rather gather them than reduce a sum.
    fn, args, options = build(model, preset="tiny", dtype="bfloat16")
    return Traced.of(fn, args, options["donate"], "tpu", None, None)


def names(model, *decisions, mesh=None):
    shape, device = mesh_shape(mesh or {"x": 2}), find_device("tpu-v5e")
    found = common_names(Problem.of(traced(model), device, 2**34, (shape,)).plan_of(list(decisions)))
    return found["x"] if mesh is None else found


@pytest.mark.parametrize(
    ("model", "tactic", "name"),
    [
        ("gpt", "data_parallel", "data parallel"),
        ("gpt", "fsdp", "ZeRO-3 / FSDP"),
        ("gpt", "zero1", "ZeRO-1"),
        ("gpt", "megatron", "Megatron"),
        ("gpt", "megatron_sequence", "Megatron with sequence parallelism"),
        ("gpt", "context_parallel", "context parallel"),
        ("moe", "expert_parallel", "expert parallel"),
        ("moe", "fsdp", "ZeRO-3 / FSDP"),
        ("moe", "megatron_sequence", "Megatron with sequence parallelism"),
        ("itx", "data_parallel", "data parallel"),
        ("itx", "megatron", "Megatron"),
        ("itx", "context_parallel", "context parallel"),
        ("mlp", "megatron", "Megatron"),
    ],
)
def test_a_tactic_has_its_name(model, tactic, name):
    assert names(model, f"{tactic}:x") == (name,)


@pytest.mark.parametrize(
    ("decisions", "expected"),
    [
        ([("x", HEADS)], ("Megatron, attention only",)),
        ([("x", HIDDEN)], ("Megatron, feed-forward only",)),
        ([("x", VOCABULARY)], ("Megatron, vocabulary only",)),
        ([("x", HEADS), ("x", HIDDEN)], ("Megatron, attention and feed-forward only",)),
        ([("x", HEADS), ("x", SEQUENCE)], ("Megatron, attention only", "sequence parallel elsewhere")),
        ([("x", BATCH), ("x", HIDDEN)], ("data parallel", "ZeRO-3 / FSDP of 13% of the parameters")),
        ([("x", SEQUENCE, (1, 0))], ("context parallel on the side of the keys",)),
        ([("x", SEQUENCE), ("x", WIDTH)], ("context parallel", "ZeRO-3 / FSDP")),
        # Width alone: every product is summed over the axis. Nobody does that, so it has no name.
        ([("x", WIDTH)], ()),
        # What comes before the batch takes the axis where it is; the batch is left with what has no contraction.
        ([("x", HEADS), ("x", HIDDEN), ("x", VOCABULARY), ("x", BATCH)], ("Megatron",)),
        # Heads split where weights are whole: sliced for each use, which is not what Megatron does.
        ([("x", HEADS), sw.Whole("x", "state")], ()),
    ],
)
def test_parts_of_strategies(decisions, expected):
    assert names("gpt", *decisions) == expected


def test_several_strategies_on_one_axis():
    assert names("moe", "expert_parallel:x", "data_parallel:x") == ("expert parallel", "data parallel elsewhere")
    assert names("moe", "expert_parallel:x", "fsdp:x") == ("expert parallel", "ZeRO-3 / FSDP elsewhere")
    assert names("moe", "expert_parallel:x", "megatron:x") == ("expert parallel", "Megatron, attention only")


def test_weights_by_heads_and_attention_by_batch():
    # In decoding: the cache is split by batch, so between projections and attention the axis changes places.
    fn, args, options = build("itx", layers=2)
    dimensions = ["params.layers.w_up[2]", "params.unembed[1]", "tokens[0]", "params.layers.wq[2]"]
    decisions = [("x", dimension) for dimension in dimensions]
    plan = sw.evaluate(fn, *args, mesh={"x": 4}, device="tpu-v5e", decisions=decisions, **options)
    megatron = "Megatron, feed-forward and attention's projections only"
    assert common_names(plan) == {"x": (megatron, "data parallel in attention")}


def test_each_axis_has_its_own():
    mesh = {"data": 2, "model": 2, "spare": 2}
    assert names("gpt", "zero1:data", "megatron_sequence:model", mesh=mesh) == {
        "data": ("ZeRO-1",),
        "model": ("Megatron with sequence parallelism",),
        "spare": (),
    }


def test_what_does_not_divide_is_not_done():
    fn, _, _ = SMALL["self-attention"]
    plan = sw.evaluate(fn, f32(9, 64), mesh={"x": 8}, device="tpu-v5e", decisions=[("x", "x[0]")])
    assert common_names(plan) == {"x": ()}  # 16 rows would be more padding than it is worth


def test_names_of_arguments_do_not_matter():
    fn, args, donate = SMALL["sgd"]

    def renamed(p, q, r):
        return list(fn({"a": p[0], "b": p[1]}, q, r).values())

    other = ([args[0]["a"], args[0]["b"]], *args[1:])
    for tactic in ("data_parallel", "fsdp", "megatron"):
        options = {"mesh": {"x": 2}, "device": "tpu-v5e", "donate": donate, "decisions": [f"{tactic}:x"]}
        found = common_names(sw.evaluate(fn, *args, **options))
        assert found == common_names(sw.evaluate(renamed, *other, **options))
        assert found["x"]


def test_programs_without_contractions_have_no_strategies():
    plan = sw.evaluate(lambda x: jnp.tanh(x), f32(8), mesh={"x": 2}, device="tpu-v5e", decisions=[("x", "x[0]")])
    assert common_names(plan) == {"x": ()}


def test_images_in_strips():
    fn, args, _ = SMALL["convolution"]
    plan = sw.evaluate(fn, *args, mesh={"x": 2}, device="tpu-v5e", decisions=["spatial:x"])
    assert common_names(plan) == {"x": ("spatial",)}


def test_a_batch_that_meets_itself_is_a_sequence():
    fn, args, _ = SMALL["self-attention"]
    plan = sw.evaluate(fn, *args, mesh={"x": 2}, device="tpu-v5e", decisions=["context_parallel:x"])
    assert common_names(plan) == {"x": ("context parallel",)}


def test_untrained_programs():
    def two_layers(params, x):
        return jax.nn.relu(x @ params["a"]) @ params["b"]

    args = {"a": f32(64, 256), "b": f32(256, 64)}, f32(32, 64)
    plan = sw.evaluate(two_layers, *args, mesh={"x": 2}, device="tpu-v5e", decisions=[("x", "params.a[1]")])
    assert common_names(plan) == {"x": ("Megatron",)}


def routed(params, x):
    """Tokens are sent to experts, and fetched back, by products."""
    experts, capacity = params["up"].shape[0], 16
    gates, chosen = jax.lax.top_k(jax.nn.softmax(x @ params["router"]), 1)
    to = jax.nn.one_hot(chosen[:, 0], experts)
    places = jax.nn.one_hot(jnp.sum(jnp.cumsum(to, 0) * to, -1).astype(int) - 1, capacity)
    sent = to[:, :, None] * places[:, None]
    h = jnp.einsum("tec,td->ecd", sent, x)
    h = jax.nn.relu(jnp.einsum("ecd,edf->ecf", h, params["up"]))
    h = jnp.einsum("ecf,efd->ecd", h, params["down"])
    return jnp.einsum("tec,ecd->td", sent * gates[:, :, None], h)


def trained(params, x):
    return jax.grad(lambda params: jnp.mean(routed(params, x) ** 2))(params)


@pytest.mark.parametrize("fn", [routed, trained])
def test_experts_in_parts_have_no_context(fn):
    params = {"router": f32(64, 8), "up": f32(8, 64, 256), "down": f32(8, 256, 64)}

    def names(dimension):
        plan = sw.evaluate(fn, params, f32(64, 64), mesh={"x": 4}, device="tpu-v5e", decisions=[("x", dimension)])
        return common_names(plan)["x"]

    assert names("params.up[0]") == ("expert parallel",)
    assert "context parallel" not in names("params.up[2]")


def test_frequencies_are_no_experts():
    def spectral(w, x):
        return jnp.fft.irfft(jnp.einsum("bki,kio->bko", jnp.fft.rfft(x, axis=1)[:, :16], w), 64, axis=1)

    w = jax.ShapeDtypeStruct((16, 32, 32), jnp.complex64)
    plan = sw.evaluate(spectral, w, f32(8, 64, 32), mesh={"x": 4}, device="tpu-v5e", decisions=[("x", "w[0]")])
    assert common_names(plan)["x"] == ()
