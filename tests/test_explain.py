"""Explanations of plans: what is said of arguments and lines, and that the prices are those of the decisions."""

import json
import re
from functools import cache
from random import Random
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardwright as sw
from programs import f32
from shardwright.devices import find_device
from shardwright.explain.reasons import dimension_reasons
from shardwright.problem import Problem
from shardwright.request import MeshShape
from shardwright.traced import Traced
from small import SMALL

MESH = {"data": 4, "model": 2}
MIB = 2**20


def step(params, x, y):
    def loss(params):
        hidden = jax.nn.relu(x @ params["a"])
        return jnp.mean((hidden @ params["b"] - y) ** 2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


ARGS = {"a": f32(1024, 4096), "b": f32(4096, 256)}, f32(8192, 1024), f32(8192, 256)
DATA = [("data", "x[0]")]
ZERO3 = [("data", "x[0]"), ("data", "params.a[0]"), ("data", "params.b[1]")]
MEGATRON = [("data", "x[0]"), ("model", "params.a[1]")]


def planned(decisions, fn=step, args=ARGS, mesh=MESH, **options):
    return sw.evaluate(fn, *args, mesh=mesh, device="tpu-v5e", decisions=decisions, **options)


@cache
def priced(decisions):
    return planned(decisions)


@pytest.fixture(scope="module")
def data():
    return planned(DATA)


@pytest.fixture(scope="module")
def zero3():
    return planned(ZERO3)


@pytest.fixture(scope="module")
def megatron():
    return planned(MEGATRON)


@pytest.fixture(scope="module")
def attention():
    fn, args, _ = SMALL["self-attention"]
    return planned([("rows", "x[0]")], fn, args, {"rows": 8})


def outcomes(explanation):
    """For each dimension of the one kind of argument what each axis makes of it."""
    (tensor,) = explanation.tensors
    return [{r.axis: r.outcome for r in d.reasons} for d in tensor.dimensions]


def without_figures(text):
    """A text with its seconds, bytes and percentages, which the cost model may change, as #."""
    text = re.sub(r"[-+]?[\d,.]+ (µs|ms|s|B|KiB|MiB|GiB)\b", "#", text)
    text = re.sub(r"[-+][\d.]+%", "#", text)
    return "\n".join(re.sub(r"  +", "  ", line).rstrip() for line in text.splitlines())


def test_data_parallel_weights_are_whole_and_their_gradient_is_all_reduced(data):
    a = data.explain("params.a")
    assert outcomes(a) == [{"data": "unnamed", "model": "unnamed"}] * 2
    assert (a.tensors[0].spec, a.tensors[0].device_bytes, a.tensors[0].bytes) == (P(), 16 * MIB, 16 * MIB)
    (moved,) = a.collectives
    # A ring sends 3/4 of 16 MiB twice: once to add up, once to hand round.
    assert (moved.kind, moved.axes, moved.of, moved.bytes, moved.times) == (
        "all-reduce",
        ("data",),
        "its update",
        24 * MIB,
        1,
    )
    assert moved.source.backward
    assert not data.explain("x").collectives


def test_zero3_gathers_a_weight_and_scatters_its_gradient(zero3):
    a = zero3.explain("params.a")
    assert outcomes(a) == [{"data": "split", "model": "unnamed"}, {"data": "unnamed", "model": "unnamed"}]
    split = a.tensors[0].dimensions[0].reasons[0]
    assert (split.decision, split.place) == (sw.Decision("data", "params.a[0]"), 2)
    assert split.text == "2nd of 3 decisions"
    assert (a.tensors[0].spec, a.tensors[0].device_bytes) == (P("data"), 4 * MIB)
    assert {(m.kind, m.of, m.bytes) for m in a.collectives} == {
        ("all-gather", "itself", 6 * MIB),  # in bf16, as a TPU's products take it
        ("reduce-scatter", "its update", 12 * MIB),
    }


def test_a_decision_that_came_too_late(zero3):
    x = zero3.explain("x")
    assert outcomes(x) == [{"data": "split", "model": "unnamed"}, {"data": "too late", "model": "unnamed"}]
    first, second = (d.reasons[0] for d in x.tensors[0].dimensions)
    assert first.text == "1st of 3 decisions; without it [1] by params.a[0]"
    assert second.text == "[0] has it by x[0], 1st of 3 decisions; this is 2nd"


def test_megatron_splits_a_weight_that_no_collective_moves(megatron):
    a = megatron.explain("params.a")
    assert outcomes(a) == [{"data": "unnamed", "model": "unnamed"}, {"data": "unnamed", "model": "split"}]
    assert [m.of for m in a.collectives] == ["its update"]  # over data, of the half that each device has
    assert a.collectives[0].bytes == 12 * MIB


def square(s):
    return jnp.tanh(s @ s)


@pytest.mark.parametrize(
    ("fn", "args", "decisions", "path", "expected"),
    [
        (square, [f32(64, 64)], [("data", "s[0]")], "s", [{"data": "split"}, {"data": "other side"}]),
        (lambda x: x * 2, [f32(6, 8)], [("data", "x[0]")], "x", [{"data": "indivisible"}, {"data": "unnamed"}]),
        (
            lambda x: x * 2,
            [f32(8, 8)],
            [("data", "x[0]"), sw.Whole("data", "x")],
            "x",
            [{"data": "kept whole"}, {"data": "kept whole"}],
        ),
        (
            lambda x, w: x @ w,
            [f32(64, 32), f32(32, 16)],
            [sw.Decision("data", "x[1]", unless="x[0]"), ("data", "x[0]")],
            "x",
            [{"data": "split"}, {"data": "passed by"}],
        ),
        (lambda x: x + 1, [f32(1, 8)], [("data", "x[1]")], "x", [{}, {"data": "split"}]),
    ],
)
def test_why_a_dimension_is_whole(fn, args, decisions, path, expected):
    assert outcomes(planned(decisions, fn, args, {"data": 4}).explain(path)) == expected


def test_words_for_what_cannot_be_divided():
    plan = planned([("a", "x[0]"), ("b", "x[0]")], lambda x: x * 2, [f32(8, 6)], {"a": 4, "b": 4})
    (reasons,) = (d.reasons for d in plan.explain("x").tensors[0].dimensions[:1])
    assert [r.text for r in reasons] == ["the only decision", "4 devices do not divide 8, which is in 4 parts"]


def some_decisions(analysis, mesh, random):
    """Decisions about random groups, with sides, exceptions and arguments that stay whole."""
    names = [d.name for d in analysis.descriptions]
    out = []
    for axis in mesh:
        for g in random.sample(range(len(names)), min(3, len(names))):
            sides = tuple(random.randrange(2) for _ in analysis.groups[g].conflicts)
            unless = random.choice([*names, *[""] * len(names)])
            out.append(sw.Decision(axis, names[g], sides, unless if unless != names[g] else ""))
        if random.random() < 0.3:
            out.append(sw.Whole(axis, random.choice(analysis.program.arguments).path))
    return out


@pytest.mark.parametrize("name", SMALL)
def test_reasons_agree_with_the_shardings(name):
    fn, args, _ = SMALL[name]
    traced = Traced.of(fn, args, (), "tpu", None, None)
    random, device = Random(name), find_device("tpu-v5e")
    for mesh in ({"a": 2, "b": 3}, {"a": 4, "b": 4, "c": 2}):
        shape = MeshShape.of(mesh)
        plan = Problem.of(traced, device, 2**34, (shape,)).plan_of(some_decisions(traced.analysis, mesh, random))
        for argument in plan.analysis.program.arguments:
            axes = [d.axes for d in dimension_reasons(plan, argument)]
            sharding = plan.partitioned.values[argument.value]
            assert axes == [tuple(shape.names[a] for a in found) for found in sharding]


@pytest.mark.parametrize("path", ["params.a", "x", "params"])
@pytest.mark.parametrize("plan", ["data", "zero3", "megatron"])
def test_prices_are_those_of_the_decisions(plan, path, request):
    explained = request.getfixturevalue(plan).explain(path)
    for alternative in explained.alternatives:
        other = priced(alternative.decisions)
        assert alternative.step_seconds == pytest.approx(other.estimate.step_seconds, rel=1e-9)
        assert (alternative.peak_bytes, alternative.fits) == (other.estimate.peak_bytes, other.fits)
        found = next(a for a in other.analysis.program.arguments if a.path == explained.tensors[0].paths[0])
        specs = {"x": other.in_specs[1], "params.a": other.in_specs[0]["a"], "params.b": other.in_specs[0]["b"]}
        assert alternative.spec == specs[found.path]


def test_every_legal_place_is_among_the_alternatives(megatron):
    found = {(a.axis, a.dimension) for a in megatron.explain("params.a").alternatives if a.dimension is not None}
    assert found == {("data", 0), ("data", 1), ("model", 0)}  # [1] is on model already
    kept = {a.change: a.spec for a in megatron.explain("params.a").alternatives if a.dimension is None}
    assert kept == {
        "the plan": P(None, "model"),
        "params.a whole on model": P(),
        "model without params.a[1]": P(),
    }
    changes = [a.change for a in megatron.explain("params.a").alternatives]
    assert "[0] on data, after x[0]" in changes
    assert "[0] on data, first" in changes


def test_alternatives_are_in_order_and_a_better_one_is_named(data):
    explained = data.explain("params.a")
    fitting = [a.step_seconds for a in explained.alternatives if a.fits]
    assert fitting == sorted(fitting)
    ours = next(a for a in explained.alternatives if a.ours)
    assert ours.step_seconds == data.estimate.step_seconds
    # An unused axis of two devices is worth using: to split the hidden dimension halves the work.
    assert (explained.better.axis, explained.better.spec) == ("model", P(None, "model"))
    assert f"better than the plan: {explained.better.change} (" in str(explained)


def test_what_does_not_fit_is_never_better():
    tight = planned(ZERO3, memory=planned(ZERO3).estimate.peak_bytes)
    explained = tight.explain("x")
    assert {a.fits for a in explained.alternatives} == {True, False}
    assert [a.fits for a in explained.alternatives] == sorted((a.fits for a in explained.alternatives), reverse=True)
    over = planned(DATA, memory=64 * MIB)
    assert not over.fits
    better = over.explain("x").better
    assert better.fits
    assert better.peak_bytes <= 64 * MIB


def test_what_is_kept_whole_can_be_split_again():
    plan = planned([*ZERO3, sw.Whole("data", "params.a")])
    explained = plan.explain("params.a")
    assert outcomes(explained)[0]["data"] == "kept whole"
    freed = [a for a in explained.alternatives if "not kept whole" in a.change]
    assert {a.spec for a in freed} == {P("data"), P(None, "data")}
    for alternative in freed:
        assert alternative.step_seconds == pytest.approx(priced(alternative.decisions).estimate.step_seconds, rel=1e-9)


def test_a_resolved_conflict_and_the_price_of_the_other_side(attention):
    (choice,) = attention.explain("x").conflicts
    assert (choice.dimension, choice.axes, choice.side) == ("x[0]", ("rows",), 0)
    assert [side.role for side in choice.sides] == ["operand 0", "operand 1"]
    fn, args, _ = SMALL["self-attention"]
    other = planned([("rows", "x[0]", (1,))], fn, args, {"rows": 8})
    assert choice.other.step_seconds == pytest.approx(other.estimate.step_seconds, rel=1e-9)
    assert choice.other.difference_seconds == pytest.approx(
        other.estimate.step_seconds - attention.estimate.step_seconds, rel=1e-6
    )
    assert choice.other.decisions == (sw.Decision("rows", "x[0]", (1,)),)
    # Every device gathers the keys and the values of all rows: 7/8 of 4 MiB, each.
    assert [(m.kind, m.of, m.bytes) for m in attention.explain("x").collectives] == [
        ("all-gather", "itself", 3.5 * MIB)
    ] * 2


def test_a_conflict_that_nothing_splits():
    fn, args, _ = SMALL["self-attention"]
    plan = planned([], fn, args, {"rows": 8})
    (choice,) = plan.explain("x").conflicts
    assert (choice.axes, choice.other) == ((), None)
    assert "no decision splits it, so there is nothing to resolve" in str(plan.explain("x"))


def test_an_argument_in_words(zero3):
    assert without_figures(str(zero3.explain("x"))) == without_figures(
        """\
x: f32[8192,1024], P("data"), 8.0 MiB of 32.0 MiB on each device

dimension  size  sharded with  axis
[0]  8,192  x[0]  data  split: 1st of 3 decisions; without it [1] by params.a[0]
  model  whole: no decision names it
[1]  1,024  params.a[0]  data  whole: [0] has it by x[0], 1st of 3 decisions; this is 2nd
  model  whole: no decision names it

alternative  spec  step  peak  fits
[0] on model  P(("data", "model"))  773 µs  -60.1 µs  -7.2%  39.0 MiB  yes
[1] on model  P("data", "model")  817 µs  -15.9 µs  -1.9%  77.0 MiB  yes
the plan  P("data")  833 µs  83.0 MiB  yes
x whole on data  P()  833 µs  same  107.0 MiB  yes
[1] on data, first  P(None, "data")  953 µs  +119 µs  +14%  87.0 MiB  yes
data without x[0]  P(None, "data")  1.74 ms  +903 µs  +108%  215.0 MiB  yes
By the estimate this would be better than the plan: [0] on model (60.1 µs less a step).

No collective moves it or its update."""
    )


def line_of(text):
    """The number of the line of this file's step that has this text."""
    code = step.__code__
    with open(__file__) as file:
        lines = file.read().splitlines()
    return next(k for k in range(code.co_firstlineno, len(lines)) if text in lines[k - 1])


def test_a_line_in_words(megatron):
    number = line_of("hidden = ")
    text = without_figures(str(megatron.explain(f"test_explain.py:{number}")))
    at = f"test_explain.py:{number} (loss)"
    head, rest = text.split("\n", 1)
    assert head.startswith(f"test_explain.py:{number}: 6 kinds of ops, # of kernels + # of collectives, ")
    assert rest == without_figures(
        f"""\

op  times  result  spec  runs  pass
dot_general  1  f32[8192,4096]  P("data", "model")  data on x[0]; model on params.a[1]  forward
maximum  1  f32[8192,4096]  P("data", "model")  data on x[0]; model on params.a[1]  forward
compare  1  i1[8192,4096]  P("data", "model")  data on x[0]; model on params.a[1]  forward
dot_general  1  f32[4096,1024]  P("model")  data on x[0] (partial sums); model on params.a[1]  backward
select  1  f32[8192,4096]  P("data", "model")  data on x[0]; model on params.a[1]  backward
transpose  1  f32[1024,4096]  P(None, "model")  model on params.a[1]  backward

kernels  tensor  times  seconds  bound by  at
dot_general  f32[4096,1024]  1  97.9 µs  matrix  {at}, backward
dot_general  f32[8192,4096]  1  78.6 µs  matrix  {at}

collectives, 283 µs  axes  tensor  bytes  times  seconds  at
all-reduce  data  f32[4096,1024]  12.0 MiB  1  283 µs  {at}, backward"""
    )


def test_lines_by_every_name_that_they_are_printed_by(megatron):
    number = line_of("hidden @")
    whole = megatron.explain(f"test_explain.py:{number}")
    assert megatron.explain(f"test_explain.py:{number} (loss)").ops == whole.ops
    assert megatron.explain(f"{__file__}:{number}").ops == whole.ops
    backward = megatron.explain(f"test_explain.py:{number} (loss), backward").ops
    assert backward == tuple(op for op in whole.ops if op.source.backward)
    function = megatron.explain("loss")
    assert set(whole.ops) < set(function.ops)
    assert function.compute_seconds == pytest.approx(megatron.estimate.compute_seconds, rel=0.05)
    assert function.comm_seconds == pytest.approx(megatron.estimate.comm_seconds)


def test_the_op_that_sums_over_a_split_dimension_says_so(megatron):
    (forward,) = [op for op in megatron.explain("loss").ops if op.kind == "dot_general" and "256" in op.results[0]][:1]
    assert [(s.axes, s.dimension, s.partial) for s in forward.splits] == [
        (("data",), "x[0]", False),
        (("model",), "params.a[1]", True),
    ]
    assert forward.specs == (P("data"),)


def test_conflicts_of_a_line(attention):
    (choice,) = attention.explain("self_attention").conflicts
    assert choice == attention.explain("x").conflicts[0]


class Moments(NamedTuple):
    m: jax.Array
    v: jax.Array


def test_arguments_that_are_alike_are_explained_together():
    def update(layers, moments, x):
        for w in layers:
            x = jnp.tanh(x @ w)
        grads = [w * x.mean() for w in layers]
        return [w - g for w, g in zip(layers, grads, strict=True)], Moments(moments.m + 1, moments.v * 2)

    args = [f32(64, 64)] * 3, Moments(f32(8), f32(8)), f32(16, 64)
    plan = planned([("data", "x[0]")], update, args, {"data": 4})
    explained = plan.explain("moments")
    assert [t.paths for t in explained.tensors] == [("moments.m",), ("moments.v",)]
    assert "moments: 2 arguments of 2 kinds" in str(explained)
    assert sum(len(t.paths) for t in plan.explain("layers.*").tensors) == 3


def test_arguments_that_are_not_used():
    plan = planned([("data", "x[0]")], lambda x, _: x * 2, [f32(8, 4), f32(3)], {"data": 2})
    explained = plan.explain("_")
    assert (explained.tensors[0].unused, explained.tensors[0].spec) == (True, P())
    assert "The result does not depend on it." in str(explained)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "say what to explain: an argument such as 'params.a', or a line such as 'model.py:12'"),
        (None, "say what to explain"),
        ("params.q", "there is no argument, source line or function 'params.q'; did you mean params.b or params.a"),
        ("test_explain.py:1", r"'test_explain.py:1'; the nearest lines that compute something are test_explain.py:\d+"),
        ("los", "did you mean loss"),
    ],
)
def test_what_is_not_there(data, path, message):
    with pytest.raises(sw.PlanError, match=message):
        data.explain(path)


def test_explanations_for_machines(zero3, attention):
    for explained in (
        zero3.explain("params.a"),
        zero3.explain("params"),
        zero3.explain("loss"),
        attention.explain("x"),
    ):
        again = json.loads(json.dumps(explained.to_dict()))
        assert again["about"] == explained.about
        assert len(again["alternatives"]) == len(explained.alternatives)
        assert max(map(len, str(explained).splitlines())) <= 120
    first = zero3.explain("params.a").to_dict()
    assert first["tensors"][0]["spec"] == ["data"]
    assert first["better"] == zero3.explain("params.a").better.change


def test_a_plan_that_was_searched_for():
    fn, args, donate = SMALL["momentum"]
    options = {"mesh": MESH, "device": "tpu-v5e", "donate": donate}
    plan = sw.partition(fn, *args, simulations=8, **options)
    before = plan.estimate_cost
    explained = plan.explain("state.w")
    assert plan.estimate_cost == before
    assert explained.better is None
    assert len(explained.alternatives) > 4
    for alternative in explained.alternatives:
        other = sw.evaluate(fn, *args, decisions=alternative.decisions, **options)
        assert alternative.step_seconds == pytest.approx(other.estimate.step_seconds, rel=1e-6)
        assert alternative.peak_bytes == other.estimate.peak_bytes
