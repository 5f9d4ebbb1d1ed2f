"""What compute hides of communication: small programs whose seconds are worked out by hand."""

from dataclasses import replace
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwright as sw
from shardwright._amounts import human_seconds
from shardwright.compiler.overlapping import LOOPED_BESIDE, PERMUTED_EARLY, STARTED_EARLY, started_early
from shardwright.devices import find_device
from shardwright.price import CostModel, Places
from shardwright.price.overlap import picoseconds, roll_up
from shardwright.request import MeshShape

MESH = {"x": 4}
ROWS, WIDTH = 4096, 2048


def array(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


WEIGHT = array(WIDTH, WIDTH)


def three(params, x):
    for w in params:
        x = jnp.tanh(x @ w)
    return x


def fsdp(fn, *args, device="tpu-v5e"):
    """Rows on the axis, then the weights: each is stored split, and gathered where it is used."""
    pins = ["fsdp:x"]
    return sw.partition(fn, *args, mesh=MESH, device=device, pin=pins, seconds=0, ask_compiler=False)


def gathers(plan):
    return [c for c in plan.estimate.collectives if c.kind == "all-gather"]


def model_of(fn, *args, device="tpu-v5e"):
    return CostModel(Places(sw.analyse(fn, *args)), MeshShape(tuple(MESH), tuple(MESH.values())), find_device(device))


def dots(program):
    return [o for o, op in enumerate(program.ops) if op.kind == "dot_general"]


def column_of(model, operand, dot):
    """Whether what a product has for an operand can be gathered beside anything."""
    program = model.classes.program
    op = dots(program)[dot]
    return model.overlap.of_gathers([(program.ops[op].operands[operand], [op])])


def decided(*weights):
    return [("x", "x[0]"), *(("x", f"params.{k}[0]") for k in weights)]


def test_a_weight_is_gathered_beside_the_product_before():
    plan = sw.evaluate(three, [WEIGHT] * 3, array(ROWS, WIDTH), mesh=MESH, device="tpu-v5e", decisions=decided(0, 1, 2))
    first, second, third = gathers(plan)
    product = next(k.seconds for k in plan.estimate.kernels if k.kind == "dot_general") / 3
    assert first.hidden_seconds == 0
    for gather in (second, third):
        assert 0 < product < gather.seconds
        assert gather.hidden_seconds == pytest.approx(product, rel=1e-6)
        assert gather.exposed_seconds == pytest.approx(gather.seconds - product, rel=1e-6)
    estimate = plan.estimate
    assert estimate.hidden_seconds == pytest.approx(2 * product, rel=1e-6)
    assert estimate.exposed_seconds == pytest.approx(estimate.comm_seconds - 2 * product, rel=1e-6)
    assert estimate.step_seconds == pytest.approx(estimate.compute_seconds + estimate.exposed_seconds)


def test_what_is_gathered_has_its_memory_from_its_start():
    """So at each product but the last its own weight is there and the next one; not where nothing starts early."""

    def gathered(platform, decisions):
        device = replace(find_device("tpu-v5e"), platform=platform)
        plan = sw.evaluate(three, [WEIGHT] * 3, array(ROWS, WIDTH), mesh=MESH, device=device, decisions=decisions)
        return sum(a.bytes for a in plan.estimate.alive if a.what == "resharded copy")

    one = 2 * WIDTH * WIDTH
    assert gathered("tpu", decided(0, 1, 2)) == 2 * one
    assert gathered("tpu", decided(0)) == one
    assert gathered("gpu", decided(0, 1, 2)) == one


def test_no_more_is_hidden_than_there_is():
    rows = 16 * ROWS
    plan = sw.evaluate(three, [WEIGHT] * 3, array(rows, WIDTH), mesh=MESH, device="tpu-v5e", decisions=decided(0, 1, 2))
    first, second, third = gathers(plan)
    assert (first.hidden_seconds, second.exposed_seconds, third.exposed_seconds) == pytest.approx((0, 0, 0), abs=1e-11)


def test_a_gather_starts_where_the_last_one_ended():
    # Only the third weight is split: it is gathered beside both products ahead of it.
    weights = [array(2048, 1920), array(1920, 2176), array(2176, 2048)]
    decisions = [("x", "x[0]"), ("x", "params.2[1]")]
    plan = sw.evaluate(three, weights, array(ROWS // 2, 2048), mesh=MESH, device="tpu-v5e", decisions=decisions)
    (gather,) = gathers(plan)
    products = {k.tensor: k.seconds for k in plan.estimate.kernels if k.kind == "dot_general"}
    beside = products["bf16[2048,1920]"] + products["bf16[2048,2176]"]
    assert max(products.values()) < beside < gather.seconds
    assert gather.hidden_seconds == pytest.approx(beside, rel=1e-6)


def test_the_first_of_a_loops_body_is_waited_for():
    def scanned(stack, x):
        def layer(x, w):
            return jnp.tanh(jnp.tanh(x @ w[0]) @ w[1]), None

        return jax.lax.scan(layer, x, stack)[0]

    plan = sw.evaluate(
        scanned,
        (array(8, WIDTH, WIDTH), array(8, WIDTH, WIDTH)),
        array(ROWS, WIDTH),
        mesh=MESH,
        device="tpu-v5e",
        decisions=[("x", "x[0]"), ("x", "stack.0[1]"), ("x", "stack.1[1]")],
    )
    first, second = gathers(plan)
    assert first.times == second.times == 8
    assert first.hidden_seconds == 0 < second.hidden_seconds


def test_what_was_just_made_is_waited_for():
    def fn(x, a, b, c):
        h = jnp.tanh(x @ a)
        return h @ b, h @ c

    model = model_of(fn, array(ROWS, WIDTH), WEIGHT, WEIGHT, WEIGHT)
    assert column_of(model, 1, 0) is None  # the first weight
    assert column_of(model, 0, 1) is None  # what the first product made
    assert column_of(model, 1, 1) is not None  # the second weight, beside the first product
    assert column_of(model, 0, 2) is not None  # the first product's result, beside the second one


def test_a_slice_or_a_conversion_is_there_when_its_argument_is():
    def fn(x, a, stack):
        return (x @ a) @ stack[1].astype(jnp.bfloat16)

    stack = jax.ShapeDtypeStruct((3, WIDTH, WIDTH), jnp.float32)
    assert column_of(model_of(fn, array(ROWS, WIDTH), WEIGHT, stack), 1, 1) is not None

    def scaled(x, a, b):
        return (x @ a) @ (b / jnp.sum(b * b))  # there is a sum to wait for, but it waits for no product

    assert column_of(model_of(scaled, array(ROWS, WIDTH), WEIGHT, WEIGHT), 1, 1) is None


def test_nothing_is_started_ahead_of_a_loop():
    def fn(x, a, b):
        x = jax.lax.fori_loop(0, 3, lambda _, x: jnp.tanh(x), x @ a)
        return x @ b

    assert column_of(model_of(fn, array(ROWS, WIDTH), WEIGHT, WEIGHT), 1, 1) is None


def test_sums_are_scattered_beside_their_product():
    def fn(x, y):
        return x.T @ y

    args = array(65536, WIDTH), array(65536, WIDTH)
    decisions = [("x", "x[0]"), ("x", "x[1]")]
    plan = sw.evaluate(fn, *args, mesh=MESH, device="tpu-v5e", decisions=decisions)
    (scattered,) = [c for c in plan.estimate.collectives if c.kind == "reduce-scatter"]
    # 65,536 / 4 rows take longer than scattering 2,048 x 2,048 sums: all of it is hidden.
    assert scattered.hidden_seconds == pytest.approx(scattered.seconds)
    assert plan.estimate.exposed_seconds == pytest.approx(0, abs=1e-12)
    few = sw.evaluate(fn, array(16384, 8192), array(16384, 8192), mesh=MESH, device="tpu-v5e", decisions=decisions)
    (scattered,) = [c for c in few.estimate.collectives if c.kind == "reduce-scatter"]
    assert 0 < scattered.hidden_seconds <= scattered.seconds


def test_products_of_many_at_once_are_no_loops():
    mesh = {"x": 4, "y": 4}

    def fn(x, y):
        return jnp.einsum("...kd,...kf->...df", x, y)

    found = {}
    for batch in ((), (16,)):
        args = array(*batch, 65536, 1024), array(*batch, 65536, 4096)
        last = len(batch)
        decisions = [(axis, f"x[{last + d}]") for d in (0, 1) for axis in mesh]
        plan = sw.evaluate(fn, *args, mesh=mesh, device="tpu-v5e", decisions=decisions)
        (found[batch],) = [c for c in plan.estimate.collectives if c.kind == "reduce-scatter"]
    one, many = found[()], found[16,]
    assert one.hidden_seconds == pytest.approx(one.seconds)
    assert many.hidden_seconds == 0
    # They are reduced whole: as many bytes as an all-reduce sends.
    assert many.bytes == pytest.approx(2 * 16 * one.bytes)


@pytest.mark.parametrize("device", ["a100-80", "cpu"])
def test_elsewhere_all_is_waited_for(device):
    model = model_of(three, [WEIGHT] * 3, array(ROWS, WIDTH), device=device)
    assert not started_early(model.device.compiler)
    assert model.overlap is None
    plan = sw.evaluate(three, [WEIGHT] * 3, array(ROWS, WIDTH), mesh=MESH, device=device, decisions=decided(0, 1, 2))
    assert plan.estimate.hidden_seconds == 0
    assert plan.estimate.exposed_seconds == plan.estimate.comm_seconds > 0
    assert "hidden" not in str(plan)


@pytest.mark.parametrize("device", ["tpu-v3", "tpu-v4", "tpu-v6e"])
def test_other_generations_wait_for_what_they_gather(device):
    compiler = find_device(device).compiler
    assert not compiler[STARTED_EARLY] and started_early(compiler) == compiler[PERMUTED_EARLY]
    assert bool(compiler[PERMUTED_EARLY]) == compiler[LOOPED_BESIDE] == (device != "tpu-v3")
    weights, x = [WEIGHT] * 3, array(ROWS, WIDTH)
    waiting, hiding = (gathers(fsdp(three, weights, x, device=name)) for name in (device, "tpu-v5e"))
    assert len(waiting) == len(hiding) > 0
    assert not any(c.hidden_seconds for c in waiting) and any(c.hidden_seconds for c in hiding)


def test_layers_are_rolled_up():
    assert roll_up([7, 1, 2, 1, 2, 1, 2, 1, 2, 9]) == [0, 1, 2, 3, 4, 3, 4, 3, 4, 9]
    assert roll_up([1, 2, 1, 2]) == [0, 1, 2, 3]
    # The longest stretch counts, not the shortest period.
    assert roll_up([1, 1, 1, 2] * 3) == [0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7]


@given(st.lists(st.integers(0, 3), max_size=60))
def test_what_is_rolled_up_stands_for_its_like(kinds):
    found = roll_up(kinds)
    assert [kinds[k] for k in found] == kinds
    assert all(found[k] == k for k in found)
    assert all(k <= n for n, k in enumerate(found))


def test_depth_does_not_count():
    def deep(params, x):
        for w in params:
            x = jnp.tanh(x @ w)
        return jnp.sum(x)

    costs = {}
    for layers in (8, 40):
        args = [WEIGHT] * layers, array(ROWS, WIDTH)
        model = model_of(deep, *args)
        assert model.overlap.size == 6  # those at the ends may be of other classes
        assert model.overlap.times.sum() == layers
        costs[layers] = fsdp(deep, *args).estimate_cost
    a, b = costs[8], costs[40]
    assert b.hidden_seconds / 39 == pytest.approx(a.hidden_seconds / 7, rel=1e-6)
    assert a.hidden_seconds > 0


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=9, max_size=9))
def test_the_formula(lanes):
    """Against a walk from slot to slot, on a program with a loop between two stretches."""
    overlap = WITH_A_LOOP.overlap
    assert overlap.size == 9
    lane = np.zeros(overlap.lane_size, np.int64)
    lane[1 : overlap.size + 1] = [c for c, _ in lanes]
    lane[overlap.size + 1 :] = [g for _, g in lanes]
    hidden, last, before_last = 0, 0, 0
    for slot, (_, gathered) in enumerate(lanes):
        if gathered:

            def beside(start, slot=slot):
                return sum(lanes[k][0] for k in range(max(int(overlap._from[slot]), start), slot))

            room = max(beside(last), beside(before_last) - (lanes[last][1] if last != slot else 0))
            hidden += min(gathered, room) * int(overlap.times[slot])
            before_last, last = last, slot
    assert overlap.hidden_seconds(lane) == pytest.approx(hidden * 1e-12)
    parts = overlap.hidden_parts(lane)
    assert sorted(parts) == [slot for slot, (_, g) in enumerate(lanes) if g]
    total = sum(parts[s] * lanes[s][1] * int(overlap.times[s]) for s in parts)
    assert total == pytest.approx(hidden)


def _with_a_loop(params, x):
    a, b, c, d, e, f, *more = params
    x = x @ a @ b @ c
    x = jax.lax.fori_loop(0, 5, lambda _, x: jnp.tanh(x @ d) @ e, x)
    return x @ f @ more[0] @ more[1] @ more[2]


SIZES = [256, 384, 512, 640, 768, 640, 512, 384, 256, 128]
WEIGHTS = [array(*pair) for pair in pairwise(SIZES)]
WITH_A_LOOP = model_of(_with_a_loop, WEIGHTS, array(64, 256))


def test_a_sum_does_not_depend_on_the_way_to_it():
    """A state is worth the same wherever a search came from, to the last bit."""
    from benchmarks.evaluate import walk

    analysis = sw.analyse(three, [WEIGHT] * 3, array(ROWS, WIDTH))
    mesh = MeshShape(("data", "model"), (4, 4))
    model = CostModel(Places(analysis), mesh, find_device("tpu-v5e"))
    hidden = 0
    for state in walk(analysis, 200, seed=0):
        cost = model.evaluate(state)
        assert cost == model.price(model.view(state.lists))
        assert 0 <= cost.hidden_seconds <= cost.comm_seconds
        hidden += cost.hidden_seconds > 0
    assert hidden


def test_what_is_hidden_is_shared_out():
    plan = fsdp(three, [WEIGHT] * 3, array(ROWS, WIDTH))
    estimate = plan.estimate
    assert sum(c.hidden_seconds for c in estimate.collectives) == pytest.approx(estimate.hidden_seconds)
    assert all(0 <= c.hidden_seconds <= c.seconds for c in estimate.collectives)
    words = plan.to_dict()
    assert f"{human_seconds(estimate.exposed_seconds)} of {human_seconds(estimate.comm_seconds)} comm" in str(plan)
    assert "hidden" in str(estimate)
    assert words["hidden_seconds"] == estimate.hidden_seconds
    assert words["exposed_seconds"] == words["comm_seconds"] - words["hidden_seconds"]
    assert words["step_seconds"] == words["compute_seconds"] + words["exposed_seconds"]
    assert sum(c["hidden_seconds"] for c in words["collectives"]) == pytest.approx(words["hidden_seconds"])


def test_seconds_are_whole_picoseconds():
    assert picoseconds(1.5e-6) == 1_500_000
    assert isinstance(picoseconds(1.5e-6), int)
