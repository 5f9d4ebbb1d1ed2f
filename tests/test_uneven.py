"""Dimensions that axes do not divide: when they are padded, what that costs, and what explanations say of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardwright as sw
from programs import f32
from shardwright.devices import find_device
from shardwright.models import build
from shardwright.price.compute import efficiency, matrix_seconds
from shardwright.price.uneven import moved_padding, paddable, padded_size, padding, splits
from shardwright.request import MeshShape
from shardwright.traced import Traced
from test_explain import step, without_figures

MESH = MeshShape(("x", "y"), (8, 2))
ON_8 = {"x": 8}


@pytest.mark.parametrize(
    ("size", "parts", "exact", "padded"),
    [
        (48, 8, True, True),
        (50_257, 8, False, True),  # 7 more
        (12, 8, False, True),  # 16 is a third more
        (10, 8, False, False),  # 16 is more than half as much again
        (9, 6, False, True),  # 12 is a third more
        (11, 4, False, True),
        (8, 16, False, False),  # some devices would have nothing
        (7, 8, False, False),
    ],
)
def test_what_can_be_split(size, parts, exact, padded):
    assert splits(size, parts, padded=False) is exact
    assert splits(size, parts, padded=True) is padded


def test_padded_sizes():
    assert [padded_size(*pair) for pair in ((48, 8), (50_257, 8), (12, 8), (501, 8), (1, 4))] == [
        48,
        50_264,
        16,
        504,
        4,
    ]


def test_a_tensor_is_larger_by_what_each_dimension_is_padded_with():
    assert padding((64, 501), ((), ()), MESH) == 1
    assert padding((64, 501), ((0,), ()), MESH) == 1
    assert padding((64, 501), ((), (0,)), MESH) == 504 / 501
    assert padding((64, 501), ((), (0, 1)), MESH) == 512 / 501
    assert padding((3, 501), ((1,), (0,)), MESH) == pytest.approx(4 / 3 * 504 / 501)


def analysed(fn, *args):
    return Traced.of(fn, args, (), "tpu", None, None).analysis.program


def only(program, kind):
    (op,) = [op for op in program.ops if op.kind == kind]
    return op


def test_factors_of_a_product_may_be_padded():
    op = only(analysed(lambda x, w: x @ w, f32(64, 32), f32(32, 501)), "dot_general")
    assert paddable(op) == {0, 1, 2}


def test_a_dimension_that_is_made_of_two_may_not_be_padded():
    op = only(analysed(lambda x: x.reshape(4, 501, 3), f32(4, 1503)), "reshape")
    mixed = {f for dims in op.rule.tensors for factors in dims if len(factors) > 1 for f in factors}
    assert len(mixed) == 2
    assert paddable(op) == set(range(len(op.rule.sizes))) - mixed


@pytest.mark.parametrize("fn", [lambda x: jnp.sort(x, axis=0), lambda x: jnp.cumsum(x, axis=0)])
def test_what_neighbours_exchange_is_not_padded(fn):
    program = analysed(fn, f32(501, 16))
    op = next(op for op in program.ops if op.kind in ("sort", "reduce_window"))
    assert paddable(op) == frozenset()


def test_what_moves_is_padded_as_before_or_after():
    value = analysed(lambda x: x + 1, f32(64, 501)).values[0]
    assert value.bytes == 64 * 501 * 4
    assert value.bytes * moved_padding(value.shape, ((), (0,)), ((), ()), MESH) == pytest.approx(64 * 504 * 4)
    assert value.bytes * moved_padding(value.shape, ((), (0,)), ((), (0, 1)), MESH) == pytest.approx(64 * 512 * 4)
    assert value.bytes * moved_padding(value.shape, ((0,), ()), ((), ()), MESH) == 64 * 501 * 4


# A hidden layer of 501 columns: a result of its own inside of the program, but for the weights and the sum.


def hidden(x, w, v):
    return jax.nn.relu(x @ w) @ v


SIZES = f32(64, 32), f32(32, 501), f32(501, 16)


@pytest.fixture(scope="module")
def columns():
    return sw.evaluate(hidden, *SIZES, mesh=ON_8, device="tpu-v5e", decisions=[("x", "w[1]")])


def test_inside_is_padded_and_arguments_are_whole(columns):
    program, partitioned = columns.analysis.program, columns.partitioned
    assert columns.in_specs == (P(), P(), P())
    padded = {str(program.values[v]) for v in partitioned.padded}
    assert padded == {"f32[64,501]"}
    assert not partitioned.padded & {*program.regions[0].parameters, *program.regions[0].results}


def test_a_device_computes_63_columns_and_gathers_504(columns):
    device, program = find_device("tpu-v5e"), columns.analysis.program
    first, second = (o for o, op in enumerate(program.ops) if op.kind == "dot_general")
    assignment = columns.partitioned.assignments[first]
    assert program.ops[first].rule.sizes[assignment.factors[0]] == 501
    seconds = matrix_seconds(program.ops[first], "f32", assignment.factors, columns.partitioned.mesh, device)
    costs = device.kernel_costs
    flops = 2 * 64 * 32 * 63 / efficiency(64, 63, 32, device.matrix_unit, costs.streamed_rows, costs.held_rows)
    assert seconds == pytest.approx(flops / device.flops("f32") / device.kernel_costs.matrix_efficiency)
    (gathered,) = columns.collectives
    assert (gathered.kind, gathered.op, gathered.where) == ("all-gather", second, "use")
    assert gathered.bytes == pytest.approx(64 * 504 * 4 * 7 / 8)


def test_partial_sums_are_scattered_to_504_columns():
    plan = sw.evaluate(hidden, *SIZES, mesh=ON_8, device="tpu-v5e", decisions=[("x", "w[0]"), ("x", "w[1]")])
    assert plan.in_specs == (P(None, "x"), P("x"), P())
    scattered = plan.collectives[0]
    assert (scattered.kind, scattered.where) == ("reduce-scatter", "result")
    assert scattered.bytes == pytest.approx(64 * 504 * 4 * 7 / 8)


def test_a_padded_kernel_takes_as_long_as_one_of_the_next_size(columns):
    sizes = f32(64, 32), f32(32, 504), f32(504, 16)
    larger = sw.evaluate(hidden, *sizes, mesh=ON_8, device="tpu-v5e", decisions=[("x", "w[1]")])
    assert larger.in_specs == (P(), P(None, "x"), P("x"))
    padded = next(k for k in columns.estimate.kernels if k.tensor == "f32[64,501]")
    assert padded.seconds == pytest.approx(
        next(k for k in larger.estimate.kernels if k.tensor == "f32[64,504]").seconds
    )


def test_a_padded_program_computes_the_same(columns):
    random = np.random.default_rng(0)
    args = [random.normal(size=a.shape).astype(a.dtype) for a in SIZES]
    np.testing.assert_allclose(columns.jit()(*args), hidden(*args), rtol=1e-4, atol=1e-4)


# A small GPT with a vocabulary and heads that 4 devices do not divide.

GPT = {"preset": "tiny", "vocabulary": 251, "heads": 6, "kv_heads": 6}
HEADS, WORDS = "state.params.layers.wq[2]", "state.params.embed[0]"


def gpt(decisions, **sizes):
    fn, args, options = build("gpt", **{**GPT, **sizes})
    return sw.evaluate(fn, *args, mesh={"x": 4}, device="tpu-v5e", decisions=decisions, **options)


@pytest.fixture(scope="module", params=[HEADS, WORDS])
def small(request):
    return gpt([sw.Decision("x", request.param)])


@pytest.mark.slow
def test_the_compiler_moves_the_same_bytes_and_computes_the_same(small):
    assert small.partitioned.padded
    verdict = small.verify("cpu")
    ours = sum(c.total_bytes for c in small.collectives)
    assert sum(c.total_bytes for c in verdict.collectives) == pytest.approx(ours)
    assert small.verify("run").ok


def test_what_a_larger_size_would_give_is_what_it_gives(small):
    (decision,) = small.decisions
    words = decision.dimension == WORDS
    path = decision.dimension.partition("[")[0]
    (found,) = small.explain(path).uneven
    assert (found.axes, found.devices, found.change, found.decisions) == (("x",), 4, "", small.decisions)
    assert (found.dimension, found.size, found.better_size) == ((0, 251, 252) if words else (2, 6, 8))
    assert found.padded_size == found.better_size
    assert found.device_bytes == (63 * 32 * 4 if words else 2 * 32 * 2 * 24 * 4)
    larger = gpt(found.decisions, **({"vocabulary": 252} if words else {"heads": 8, "kv_heads": 8}))
    cost = larger.estimate_cost
    assert found.step_seconds == pytest.approx(cost.step_seconds, rel=0.02)
    assert found.peak_bytes == pytest.approx(cost.peak_bytes, rel=0.02)
    assert small.estimate_cost.peak_bytes > 1.003 * found.peak_bytes


def test_layers_that_a_loop_walks_along_are_not_better_for_being_more():
    explanation = gpt([("x", "state.params.layers.wk[0]")], layers=6, heads=8, kv_heads=8).explain(
        "state.params.layers.wk"
    )
    assert [r.outcome for r in explanation.tensors[0].dimensions[0].reasons] == ["indivisible"]
    assert not explanation.uneven


# The same for a step without loops, in words.


def odd(width=4099, rows=64):
    return {"a": f32(1024, width), "b": f32(width, 256)}, f32(rows, 1024), f32(rows, 256)


def planned(decisions, mesh, args):
    return sw.evaluate(step, *args, mesh=mesh, device="tpu-v5e", decisions=decisions)


def test_a_decision_that_cannot_take_a_dimension():
    plan = planned([("data", "x[0]"), ("model", "params.a[1]")], {"data": 4, "model": 2}, odd())
    assert without_figures(str(plan.explain("params.a"))).startswith("""\
params.a: f32[1024,4099], P(), # of # on each device

dimension  size  sharded with  axis
[0]  1,024  params.a[0]  data, model  whole: no decision names it
[1]  4,099  params.a[1]  data  whole: no decision names it, and 4 devices do not divide 4,099
  model  whole: 2 devices do not divide 4,099

2 devices do not divide 4,099: [1] is whole on model, though padded to 4,100 inside of the program. With 4,100 (1 more)
each device would hold # of it in place of #, and a step would take # in place of # with 20.5
MiB in place of #.
""")


@pytest.mark.parametrize(
    ("mesh", "decisions", "change"),
    [
        ({"x": 8}, [("x", "params.a[0]"), ("x", "params.b[1]"), ("x", "x[0]")], "params.a[1] first on x"),
        ({"x": 4}, [("x", "x[0]")], "params.a[1] last on x"),
    ],
)
def test_a_dimension_that_no_decision_names(mesh, decisions, change):
    plan = planned(decisions, mesh, odd())
    explanation = plan.explain("params.a")
    (found,) = explanation.uneven
    assert (found.dimension, found.change, found.padded_size) == (1, change, 0)
    assert found.step_seconds < explanation.step_seconds
    assert f"With {found.better_size:,} ({found.better_size - 4099} more), and {change}, each" in str(explanation)
    larger = planned(found.decisions, mesh, odd(found.better_size)).estimate_cost
    assert found.step_seconds == pytest.approx(larger.step_seconds, rel=0.02)
    assert found.peak_bytes == pytest.approx(larger.peak_bytes, rel=0.02)


def test_a_size_that_would_not_help_is_not_spoken_of():
    """Data parallelism with a large batch: to store the weights in parts would cost gathers."""
    plan = planned([("x", "x[0]")], {"x": 4}, odd(11, rows=2**20))
    assert not plan.explain("params.a").uneven


def test_a_size_that_would_have_to_grow_much_is_not_spoken_of():
    plan = planned(
        [("x", "params.b[1]")], {"x": 8}, ({"a": f32(1024, 512), "b": f32(512, 10)}, f32(64, 1024), f32(64, 10))
    )
    b = plan.explain("params.b")
    assert [r.outcome for r in b.tensors[0].dimensions[1].reasons] == ["indivisible"]
    assert not b.uneven


def test_two_axes_that_do_not_divide_a_dimension():
    plan = planned([("data", "params.a[1]"), ("model", "params.a[1]")], {"data": 4, "model": 2}, odd())
    (found,) = plan.explain("params.a").uneven
    assert (found.axes, found.devices, found.better_size) == (("data", "model"), 8, 4104)
    plan = planned([("data", "params.a[1]"), ("model", "params.a[1]")], {"data": 4, "model": 2}, odd(4100))
    (found,) = plan.explain("params.a").uneven
    assert (found.axes, found.devices, found.better_size) == (("model",), 8, 4104)
    assert plan.explain("params.a").tensors[0].spec == P(None, "data")


def test_lines_say_what_is_padded():
    plan = planned([("x", "params.a[1]")], {"x": 4}, odd(4099))
    line = next(op.source for op in plan.analysis.program.ops if op.kind == "maximum")
    text = str(plan.explain(f"{line.file.rsplit('/', 1)[-1]}:{line.line}"))
    assert "Padded, as the devices do not divide it: f32[64,4099] in [1] from 4,099 to 4,100" in text
    assert "Padded" not in str(planned([("x", "x[0]")], {"x": 4}, odd(4099)).explain("loss"))


def test_explanations_in_json():
    found = planned([("x", "params.a[1]")], {"x": 4}, odd()).explain("params.a").to_dict()["uneven"]
    assert [(u["size"], u["better_size"], u["axes"]) for u in found] == [(4099, 4100, ["x"])]


def test_of_a_large_program_the_step_is_not_priced(monkeypatch):
    monkeypatch.setattr("shardwright.explain.uneven_sizes.MOST_OPS", 1)
    explanation = planned([("x", "params.a[1]")], {"x": 4}, odd()).explain("params.a")
    (found,) = explanation.uneven
    assert (found.step_seconds, found.peak_bytes, found.device_bytes) == (None, None, 1024 * 1025 * 4)
    text = " ".join(str(explanation).split())
    assert "With 4,100 (1 more) each device would hold 4.0 MiB of it in place of 16.0 MiB. alternative" in text
    assert not planned([("x", "x[0]")], {"x": 4}, odd()).explain("params.a").uneven


def test_a_size_that_reshapes_change_too_is_not_priced():
    """The heads of a merged dimension: 6 of 32 make 192, which 4 devices do divide."""

    def merged(x, w):
        return jnp.tanh((x @ w).reshape(64, 6, 32)).sum(0)

    plan = sw.evaluate(merged, f32(64, 16), f32(16, 192), mesh={"x": 4}, device="tpu-v5e", decisions=[("x", "w[1]")])
    assert plan.in_specs[1] == P(None, "x")
    assert not plan.explain("w").uneven


def test_what_is_empty_is_not_split():
    """jaxlib 0.10.2 hands an empty result out whole, whatever sharding is asked for, and JAX cannot put it together."""
    plan = sw.evaluate(jnp.tanh, f32(0, 4), mesh={"x": 2}, decisions=[("x", "x[1]")])
    assert plan.out_specs == P()
    assert np.asarray(plan.jit()(np.zeros((0, 4), np.float32))).shape == (0, 4)
