"""Calibration: the data files, the formulas that their constants belong to, and the command that writes them."""

import dataclasses
import itertools
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwright as sw
from benchmarks.calibrate.attributed import COPY, ELEMENTWISE, PRODUCT, REDUCTION, attributed
from benchmarks.calibrate.classes import by_class, compared
from benchmarks.calibrate.collectives import collective_of, designed_collectives
from benchmarks.calibrate.fit import STAGES, fitted
from benchmarks.calibrate.kept import compile_missing, read_text
from benchmarks.calibrate.page import page
from benchmarks.calibrate.programs import designed
from benchmarks.calibrate.rows import Row, read_rows, with_costs
from benchmarks.calibrate.schedule import latencies
from shardwright.devices import PRESETS, KernelCosts
from shardwright.devices.calibration import calibration
from shardwright.price.compute import Work, efficiency, kernel_seconds
from shardwright.price.kernels import spread_values
from shardwright.problem import Problem
from shardwright.verify.hlo import parse_hlo

CALIBRATED = [name for name in PRESETS if calibration(name)]
V5E = PRESETS["tpu-v5e"]


def array(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


# The data files.


def test_v5e_is_calibrated():
    assert "tpu-v5e" in CALIBRATED


@pytest.mark.parametrize("name", CALIBRATED)
def test_a_data_file_is_well_formed(name):
    found = calibration(name)
    assert found.kernel_costs == PRESETS[name].kernel_costs
    assert set(found.told["kernel_costs"]) == {field.name for field in dataclasses.fields(KernelCosts)}
    assert all(0 < part <= 1 for part in found.rates.values())
    assert PRESETS[name].flops("f32") == pytest.approx(found.rates["f32"] * PRESETS[name].flops("bf16"))
    for errors in (found.told["errors"]["fitted"], found.told["errors"]["held_out"]):
        assert errors["all"]["programs"] == sum(row["programs"] for key, row in errors.items() if key != "all")
        assert all(row["median_error"] <= row["p90_error"] for row in errors.values())
    assert {row["kind"] for row in found.told["links"]} >= {"all-gather", "all-reduce", "collective-permute"}


def test_devices_without_a_file_have_the_defaults():
    for name in set(PRESETS) - set(CALIBRATED):
        assert PRESETS[name].kernel_costs == KernelCosts()


def test_the_page_is_made_of_the_files():
    written = Path(__file__).parents[1] / "docs" / "benchmarks" / "calibration.md"
    assert written.read_text() == page([calibration(name).told for name in sorted(CALIBRATED)])


# Formulas.


def device(**costs):
    return dataclasses.replace(V5E, kernel_costs=dataclasses.replace(KernelCosts(), **costs))


parts = st.floats(1e-9, 1e-2) | st.just(0.0)


@given(parts, parts, parts, st.floats(1.0, 16.0))
def test_a_product_takes_between_the_longest_and_the_sum(matrix, vector, memory, sharpness):
    on = device(sharpness=sharpness, contraction_memory_efficiency=1.0, memory_efficiency=1.0)
    work = Work(matrix, vector * on.vector_ops_per_second, memory * on.memory_bytes_per_second)
    seconds = kernel_seconds(work, on) - on.kernel_costs.launch_seconds
    assert seconds >= max(matrix, vector, memory) * (1 - 1e-9)
    assert seconds <= (matrix + vector + memory) * (1 + 1e-9) + 1e-15


@given(parts, parts, parts, st.sampled_from([0.0, 1.0, 4.0]))
def test_more_work_takes_no_less(matrix, vector, memory, sharpness):
    on = device(sharpness=sharpness)
    work = Work(matrix, vector * on.vector_ops_per_second, memory * on.memory_bytes_per_second)
    for k in range(3):
        if matrix or k:  # the first bit of a product changes the formula
            more = work._replace(**{work._fields[k]: work[k] * 1.1 + (1e-9 if matrix else 0.0)})
            assert kernel_seconds(more, on) >= kernel_seconds(work, on) * (1 - 1e-9)


def test_without_sharpness_the_longest_counts():
    on = device(contraction_memory_efficiency=1.0)
    assert kernel_seconds(Work(3.0, 0.0, on.memory_bytes_per_second), on) == 3.0 + on.kernel_costs.launch_seconds


def test_sharpness_below_one_is_refused():
    with pytest.raises(sw.ShardwrightError, match=r"sharpness=0\.5; give a number from 1 on, or 0"):
        KernelCosts(sharpness=0.5)


def test_holding_another_block_matters_to_few_rows():
    assert efficiency(8, 4096, 4096, 128, 8, 64.0) == pytest.approx(8 / 72)  # else all of its 8 rows
    assert efficiency(8, 4096, 4096, 128, 8) == 1.0
    large = [efficiency(rows, 4096, 4096, 128, 8, 64.0) for rows in (64, 512, 4096)]
    assert large == sorted(large) and large[-1] > 0.98


def costs_of(fn, *args, on="tpu-v5e"):
    return Problem(fn, *args, mesh={"x": 1}, device=on).costs


def kernels_of(fn, *args, on="tpu-v5e"):
    """The kinds of ops that reduce or contract, kernel by kernel."""
    classes = costs_of(fn, *args, on=on).classes
    kinds = [[classes.program.ops[o].kind for o in ops] for ops in classes.ops_of_kernel.values()]
    return sorted([kind for kind in found if kind in ("dot_general", "reduce")] for found in kinds)


def scores(q, k, mask=False):
    x = jnp.einsum("btd,bsd->bts", q, k).astype(jnp.float32)
    return jax.nn.softmax(jnp.where(jnp.tril(jnp.ones(x.shape[1:], bool)), x, -1e30) if mask else x)


def test_reductions_run_with_what_makes_what_they_read():
    x, q = array(512, 2048), array(8, 256, 64)
    narrow = array(8, 256, 64, dtype=jnp.bfloat16)
    assert kernels_of(lambda x: (x.sum(-1), (x * x).sum(-1)), x) == [["reduce", "reduce"]]
    assert kernels_of(lambda x: (x.sum(-1), (x * x).sum(-1)), x, on="h100") == [["reduce"], ["reduce"]]
    assert ["dot_general", "reduce"] in kernels_of(scores, q, q)  # the largest, not the sum of exponentials
    assert ["dot_general", "reduce", "reduce"] in kernels_of(lambda q, k: scores(q, k, True), narrow, narrow)
    assert kernels_of(jax.nn.softmax, x) == [["reduce", "reduce"]]
    assert kernels_of(jax.nn.softmax, array(512, 4096)) == [["reduce"], ["reduce"]] or [] in kernels_of(
        jax.nn.softmax, array(512, 4096)
    )


def test_a_softmax_is_cut_as_the_compiler_cuts_it():
    wide, narrow = array(8, 512, 512), array(8, 512, 512, dtype=jnp.bfloat16)
    back = kernels_of(lambda x, g: jax.vjp(jax.nn.softmax, x)[1](g), wide, wide)
    assert sum("reduce" in found for found in back) > 1  # its derivative reads another value as large
    assert ["reduce"] in kernels_of(lambda x: jax.nn.softmax(x.astype(jnp.float32)), narrow)  # the largest, unconverted
    assert kernels_of(lambda x: jax.nn.logsumexp(x, -1), wide).count(["reduce"]) == 2
    keys = array(2, 2048, 64, dtype=jnp.bfloat16)
    assert ["reduce", "reduce"] in kernels_of(lambda q, k: scores(q, k, True), keys, keys)  # too long for the product


def test_a_softmax_reads_its_rows_twice():
    def read(fn):
        model = costs_of(fn, array(8, 512, 512))
        view = model.view(((),))
        return sum(model.kernels.of(k, view).work.memory_bytes for k in range(len(model.classes.kernel_classes.keys)))

    size = 4.0 * 8 * 512 * 512
    assert read(jax.nn.softmax) / size == pytest.approx(3, rel=0.02)
    assert read(lambda x: jax.nn.softmax(jnp.where(x > 0, x, -1.0))) / size == pytest.approx(2, rel=0.02)


def test_each_stored_result_counts():
    def slots(fn):
        model = costs_of(fn, array(512, 1024), array(512, 1024))
        return sum(
            model.kernels.of(k, model.view(((),))).work.vector_ops
            for k in range(len(model.classes.kernel_classes.keys))
        )

    one, two = slots(lambda x, y: x * y + x), slots(lambda x, y: (x * y + x, (x * y + x) * y - 1))
    assert two - one >= V5E.kernel_costs.entry_slots * 512 * 1024


def test_batches_of_products_compute_what_they_share():
    def gradients(q, k, v, g):
        def attention(q, k, v):
            return jax.nn.softmax(q @ k.swapaxes(1, 2)) @ v

        return jax.vjp(attention, q, k, v)[1](g)

    classes = costs_of(gradients, *[array(8, 256, 64)] * 4).classes
    large = [
        [classes.program.ops[o].kind for o in ops]
        for ops in classes.ops_of_kernel.values()
        if any(classes.program.values[v].shape == (8, 256, 256) for v in classes.program.ops[ops[-1]].results)
    ]
    assert all("dot_general" in kinds or "reduce" in kinds for kinds in large)


def test_what_waits_for_partial_sums_is_a_kernel_of_its_own():
    def layer(x, w, r):
        return jnp.tanh(x @ w) + r

    args = array(1024, 16384), array(16384, 1024), array(1024, 1024)
    problem = Problem(layer, *args, mesh={"x": 4}, device="tpu-v5e")
    model = problem.costs

    def rest(*decisions):
        view = model.view(problem.plan_of([list(decisions)]).partitioned.state.lists)
        return sum(any(model.kernels.of(k, view).rest) for k in range(len(model.classes.kernel_classes.keys)))

    assert rest(("x", "x[1]")) == 1
    assert rest(("x", "x[0]")) == 0


def test_a_stack_that_is_converted_before_a_loop_takes_time():
    def net(x, w):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w.astype(jnp.bfloat16)), None), x, w)[0]

    x = array(256, 512, dtype=jnp.bfloat16)
    plan = sw.evaluate(net, x, array(6, 512, 512), mesh={"x": 1}, device="tpu-v5e", decisions=[])
    [kernel] = [k for k in plan.estimate.kernels if k.kind == "convert"]
    assert kernel.times == 1
    assert sum(k.seconds for k in plan.estimate.kernels) == pytest.approx(plan.estimate.compute_seconds)


def test_what_is_computed_again_is_read_again():
    def norm(x):
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True))

    size = 4.0 * 512 * 2048

    def read(on):
        model = costs_of(norm, array(512, 2048), on=on)
        view = model.view(((),))
        works = [model.kernels.of(k, view).work for k in range(len(model.classes.kernel_classes.keys))]
        return sum(work.memory_bytes for work in works) / size

    assert read("tpu-v5e") == pytest.approx(4, rel=0.01)  # mean, variance and result read it, and the result is written
    assert read("h100") < 3.5


def test_a_convolution_of_single_channels_is_the_vector_units():
    def depthwise(x, w):
        names = ("NWC", "WIO", "NWC")
        return jax.lax.conv_general_dilated(x, w, (1,), "SAME", dimension_numbers=names, feature_group_count=x.shape[2])

    def back(x, w, d):
        return jax.vjp(depthwise, x, w)[1](d)

    x, w = array(16, 512, 256), array(32, 1, 256)
    plan = sw.evaluate(depthwise, x, w, mesh={"x": 2}, device="tpu-v5e", decisions=[("x", "x[0]")])
    [kernel] = [k for k in plan.estimate.kernels if k.kind == "convolution"]
    assert kernel.bound == "vector"
    # 140,455 cycles for all of it by the compiler, of which a device has half.
    assert 1.5e9 * kernel.seconds == pytest.approx(140_455 / 2, rel=0.1)
    found = sw.evaluate(back, x, w, x, mesh={"x": 2}, device="tpu-v5e").estimate.kernels
    assert all(k.bound == "vector" for k in found if k.kind == "convolution")
    mixing = sw.evaluate(
        lambda x, w: jax.lax.conv_general_dilated(x, w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")),
        x,
        array(32, 256, 256),
        mesh={"x": 2},
        device="tpu-v5e",
    )
    assert mixing.estimate.kernels[0].bound == "matrix"


def test_what_is_repeated_is_made_where_it_is_needed():
    def step(x, b):
        mask = jnp.broadcast_to(b, x.shape)
        return jax.lax.scan(lambda x, _: (jnp.tanh(x) + mask, None), x, None, length=3)[0]

    program = costs_of(step, array(256, 512), array(512)).classes.program
    spread = spread_values(program)
    loop = next(op for op in program.ops if op.kind == "while")
    carried = [spread[v] for v in program.regions[loop.regions[-1]].parameters]
    shapes = [program.values[v].shape for v in program.regions[loop.regions[-1]].parameters]
    assert [told for told, shape in zip(carried, shapes, strict=True) if shape == (256, 512)].count(True) == 1


# Designed programs, texts, schedules.


def test_designed_programs_are_distinct_and_a_third_is_held_out():
    programs = designed()
    assert len({program.key for program in programs}) == len(programs)
    held = sum(program.held_out for program in programs)
    assert 0.25 < held / len(programs) < 0.4
    groups = {program.group for program in programs}
    assert {group for _, of in STAGES for group in of} <= groups


def test_collectives_are_found_by_their_keys():
    for each in designed_collectives({"v5e:4x4": ((4, 4),)}):
        assert collective_of(each.key) == each


TEXT = """
HloModule jit_f, is_scheduled=true, num_partitions=1

%fused (p0: f32[8,128]) -> f32[8,128] {
  %p0 = f32[8,128]{1,0} parameter(0)
  %c = f32[8,128]{1,0} convolution(%p0, %p0), metadata={op_name="jit(f)/dot_general" source_file="m.py" source_line=3}
  ROOT %t = f32[8,128]{1,0} tanh(%c)
}

%sums (p1: f32[8,128]) -> f32[8] {
  %p1 = f32[8,128]{1,0} parameter(0)
  ROOT %r = f32[8]{0} reduce(%p1), dimensions={1}
}

ENTRY %main (a: f32[8,128]) -> f32[8] {
  %a = f32[8,128]{1,0} parameter(0)
  %k = f32[8,128]{1,0} copy(%a), backend_config={"window_config":{"estimated_cycles":"300"}}
  %f = f32[8,128]{1,0} fusion(%k), kind=kOutput, calls=%fused, backend_config={"w":{"estimated_cycles":"3000"}}
  %n = f32[8,128]{1,0} negate(%f), backend_config={"window_config":{"estimated_cycles":"700"}}
  ROOT %s = f32[8]{0} fusion(%n), kind=kLoop, calls=%sums, backend_config={"window_config":{"estimated_cycles":"1500"}}
}
"""


def test_cycles_go_to_the_heaviest_op_of_a_kernel():
    found = attributed(parse_hlo(TEXT), 1e9, 1e12)
    assert [(each.group, round(each.seconds * 1e9), each.alone) for each in found] == [
        (COPY, 300, True),
        (PRODUCT, 3000, False),
        (ELEMENTWISE, 700, True),
        (REDUCTION, 1500, False),
    ]
    assert found[1].source.line == 3


def test_a_plan_is_set_beside_its_text_by_class():
    plan = sw.evaluate(
        lambda x: jnp.tanh(x @ x).sum(-1), array(128, 128), mesh={"x": 1}, device="tpu-v5e", decisions=[]
    )
    shares = by_class(compared(plan.estimate, TEXT, plan.device))
    assert shares[PRODUCT].compiled_seconds == pytest.approx(3000 / V5E.clock_hertz)
    assert shares[PRODUCT].estimated_seconds == pytest.approx(plan.estimate.compute_seconds)
    assert shares[COPY].estimated_seconds == 0


SCHEDULE = """
hlo_module {
  computations {
    instructions { id: 1
      name: "start"
      opcode: "all-gather-start"
      channel_id: 7
    }
    instructions { id: 2
      name: "done"
      opcode: "all-gather-done"
      operand_ids: 1
    }
    instructions { id: 3
      name: "sum"
      opcode: "all-reduce"
      channel_id: 8
    }
  }
}
computation_schedules {
  instructions { id: 1
    start_timestamp_cycles: 0
    end_timestamp_cycles: 1
  }
  instructions { id: 3
    start_timestamp_cycles: 1
    end_timestamp_cycles: 41
  }
  instructions { id: 2
    start_timestamp_cycles: 101
    end_timestamp_cycles: 102
  }
}
""".replace("instructions { id", "instructions {\n id")


def test_latencies_are_read_from_a_schedule():
    found = {each.kind: each for each in latencies(SCHEDULE.splitlines())}
    assert (found["all-gather"].cycles, found["all-gather"].channel, found["all-gather"].waited) == (100, "7", True)
    assert (found["all-reduce"].cycles, found["all-reduce"].channel) == (40, "8")


def test_the_fit_finds_the_costs_that_made_the_figures():
    true = dataclasses.replace(V5E.kernel_costs, entry_slots=30.0, read_slots=12.0)
    made = with_costs(V5E, true, {"f32": 0.9})
    rows = []
    for program in designed():
        if program.group == "elementwise, cheap" and not program.held_out:
            row = Row(program, Problem(program.fn, *program.args, mesh={"x": 1}, device=V5E), 1.0)
            rows.append(dataclasses.replace(row, compiled_seconds=row.ratio(made)))
    start = dataclasses.replace(V5E.kernel_costs, entry_slots=40.0, read_slots=9.0)
    costs, _ = fitted(rows[:8], V5E, start, {"f32": 0.9}, print)
    found = with_costs(V5E, costs, {"f32": 0.9})
    for row in itertools.islice(rows, 8):
        assert row.ratio(found) == pytest.approx(1.0, rel=0.03)


@pytest.mark.slow
def test_a_designed_program_is_compiled_and_its_price_is_near(tmp_path):
    pytest.importorskip("libtpu")
    programs = [p for p in designed() if p.key == "elementwise, cheap/multiply add 64x512x768 f32"]
    compile_missing("benchmarks.calibrate.child", "v5e:2x2", tmp_path, [p.key for p in programs], print)
    assert "estimated_cycles" in (read_text(tmp_path, programs[0].key) or "")
    (row,) = read_rows(programs, tmp_path, V5E)
    assert abs(math.log(row.ratio(V5E))) < math.log(1.1)
