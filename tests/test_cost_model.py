"""The fast way to price a state gives what the slow one gives, and plans have estimates that add up."""

from __future__ import annotations

import importlib.util
import operator
import random
import re

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwright as sw
import shardwright.price
from grammar import program
from shardwright.analysis.present import total_flops
from shardwright.devices import find_device
from shardwright.models import build
from shardwright.price import CostModel, DevicePrices, Places, partition_program
from shardwright.price.class_prices import Projections
from shardwright.price.shortcuts import with_shortcuts
from shardwright.request import MeshShape
from shardwright.space.state import Entry, State

MESH = MeshShape(("a", "b"), (4, 2))


def random_state(analysis: sw.Analysis, choose: random.Random) -> State:
    lists = []
    for _ in MESH.sizes:
        groups = choose.sample(range(len(analysis.groups)), min(len(analysis.groups), choose.randint(0, 3)))
        lists.append(tuple(Entry(g, tuple(choose.randrange(2) for _ in analysis.groups[g].conflicts)) for g in groups))
    return State(tuple(lists))


def check(analysis: sw.Analysis, seed: int, steps: int, device: str = "tpu-v5e") -> None:
    choose = random.Random(seed)
    places = Places(analysis)
    walked = CostModel(places, MESH, find_device(device))
    for _ in range(steps):
        state = random_state(analysis, choose)
        fresh = CostModel(places, MESH, find_device(device)).evaluate(state)
        found = walked.evaluate(state)
        assert found.peak_bytes == fresh.peak_bytes
        assert found.compute_seconds == pytest.approx(fresh.compute_seconds, rel=1e-12)
        assert found.comm_seconds == pytest.approx(fresh.comm_seconds, rel=1e-12, abs=1e-18)
        partitioned = partition_program(places, MESH, state, DevicePrices.of(find_device(device), MESH))
        computed = with_shortcuts(analysis.program).ops  # a slice that is cut short moves nothing
        moved = [c for c in partitioned.collectives if computed[c.op].kind == analysis.program.ops[c.op].kind]
        assert bool(moved) == (found.comm_seconds > 0)
        by_class = walked.partitioned(state)
        assert by_class.values == partitioned.values
        assert by_class.assignments == partitioned.assignments


@pytest.mark.parametrize("model", ["gpt", "moe", "gns", "itx"])
def test_a_walk_ends_where_a_leap_does(model):
    fn, args, options = build(model, preset="tiny")
    check(sw.analyse(fn, *args, **options), seed=1, steps=6)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1_000_000), st.integers(0, 1000))
def test_a_walk_ends_where_a_leap_does_on_random_programs(case, seed):
    drawn = program(case)
    check(sw.analyse(drawn, *drawn.structs), seed, steps=3, device="a100-80")


def test_projections_keep_order_and_axes():
    a, b, c = Entry(0, ()), Entry(1, (1,)), Entry(2, ())
    outer, middle = Projections([frozenset({0, 2}), frozenset({1})]).view(((a, b, c), (c, a))).seen
    assert outer[0] != outer[1] and middle[0] != middle[1]  # a, c and c, a; b and nothing
    views = Projections([frozenset({0, 2})])

    def seen(lists):
        return views.view(lists).seen

    assert seen(((a, b, c), (c, a))) == seen(((a, c), (c, b, a)))
    assert seen(((a, b, c), (c, a))) != seen(((c, a), (a, c)))
    before = seen(((a,), (b,)))
    views.forget()
    assert seen(((a, b), ())) == before


def test_only_families_with_the_group_are_priced_again():
    fn, args, options = build("gpt", preset="tiny")
    analysis = sw.analyse(fn, *args, **options)
    model = CostModel(Places(analysis), MESH, find_device("tpu-v5e"))
    before = [len(family.known) for family in model.families]
    model.evaluate(State(((Entry(0, (0,) * len(analysis.groups[0].conflicts)),), ())))
    touched = [len(family.known) > n for family, n in zip(model.families, before, strict=True)]
    assert touched == [0 in family.groups for family in model.families]
    assert not all(touched)


def test_depth_costs_classes_nothing():
    sizes = {"preset": "tiny", "scan": False}
    counts = []
    for layers in (4, 8):
        fn, args, options = build("gpt", layers=layers, **sizes)
        model = CostModel(Places(sw.analyse(fn, *args, **options)), MESH, find_device("tpu-v5e"))
        counts.append((len(model.families), len(model.classes.ops.keys), len(model.classes.kernel_classes.keys)))
    assert counts[0] == counts[1]


def step(params, batch):
    def loss(params):
        return jnp.mean((jax.nn.relu(batch["x"] @ params["w1"]) @ params["w2"] - batch["y"]) ** 2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


PARAMS = {"w1": f32(1024, 4096), "w2": f32(4096, 512)}
BATCH = {"x": f32(256, 1024), "y": f32(256, 512)}


def evaluate(**options):
    given = {"mesh": {"data": 4, "model": 2}, "device": "tpu-v5e", "decisions": ["fsdp:data", "megatron:model"]}
    return sw.evaluate(step, PARAMS, BATCH, **{**given, **options})


class TestEstimate:
    def test_its_parts_add_up(self):
        estimate = evaluate().estimate
        assert sum(k.seconds for k in estimate.kernels) == pytest.approx(estimate.compute_seconds)
        assert sum(c.seconds for c in estimate.collectives) == pytest.approx(estimate.comm_seconds)
        assert sum(estimate.comm_by_kind.values()) == pytest.approx(estimate.comm_seconds)
        assert sum(estimate.comm_by_axis.values()) == pytest.approx(estimate.comm_seconds)
        assert sum(a.bytes for a in estimate.alive) == estimate.peak_bytes
        assert estimate.step_seconds == estimate.compute_seconds + estimate.comm_seconds
        assert len(estimate.costliest_kernels) <= 10 and len(estimate.costliest_collectives) <= 10

    def test_it_names_source_lines(self):
        estimate = evaluate().estimate
        assert all(k.source.file.endswith("test_cost_model.py") for k in estimate.costliest_kernels)
        assert {a.name for a in estimate.alive} >= {"params.w1", "batch.x"}

    def test_it_prints(self):
        text = str(evaluate().estimate)
        assert text.startswith("fits: ")
        for word in ("costliest ops", "costliest collectives", "alive at the peak", "communication by axis"):
            assert word in text

    def test_memory_sets_the_limit(self):
        plan = evaluate(memory="1MiB")
        assert plan.estimate.limit_bytes == 2**20 and not plan.fits
        assert str(plan.estimate).startswith("does not fit: ")
        assert evaluate().fits

    def test_a_faster_link_is_faster(self):
        slow, fast = (evaluate(device=name).estimate for name in ("tpu-v5e", "tpu-v5p"))
        assert fast.comm_seconds < slow.comm_seconds

    def test_a_device_of_ones_own_survives_a_file(self, tmp_path):
        mine = sw.Device(
            name="mine",
            platform="tpu",
            flops_per_second={"bf16": 1e14},
            memory_bytes="8GiB",
            memory_bytes_per_second=1e11,
            links=(sw.Link("wire", 1e9, 1e-6),),
            tile=(8, 128),
        )
        plan = evaluate(device=mine, memory=10**9)
        plan.save(tmp_path / "plan.json")
        again = sw.load(tmp_path / "plan.json", step, PARAMS, BATCH)
        assert again.device == mine and again.memory_bytes == 10**9
        assert again.estimate.step_seconds == plan.estimate.step_seconds

    def test_an_unknown_device_is_one_sentence(self):
        with pytest.raises(sw.DeviceError, match=r"did you mean .*tpu-v5e"):
            evaluate(device="tpu-v5")


def test_the_part_of_the_peak_is_that_of_the_types_in_use():
    peaks = {"bf16": 1e12, "i8": 2e12}
    device = sw.Device("own", "cpu", peaks, memory_bytes=2**30, memory_bytes_per_second=1e12)

    def fraction(dtype):
        given = jax.ShapeDtypeStruct((2048, 2048), dtype)
        plan = sw.evaluate(lambda x, y: x @ y, given, given, mesh={"x": 1}, device=device)
        return plan.estimate.peak_fraction

    assert fraction(jnp.int8) == pytest.approx(fraction(jnp.bfloat16), rel=0.02)
    assert 0.9 < fraction(jnp.int8) < 1


def test_flops_that_64_bits_cannot_count():
    def fn(ws, x):
        return jax.lax.scan(lambda x, w: (x @ w, None), x, ws)[0]

    args = f32(64, 2**12, 2**12), f32(2**32, 2**12)
    plan = sw.evaluate(fn, *args, mesh={"x": 4}, device="tpu-v5e", decisions=[("x", "x[0]")])
    assert total_flops(plan.analysis) == 2**63
    assert 0.5 < plan.estimate.peak_fraction < 1


def test_the_page_of_formulas_names_functions_that_exist():
    names = re.findall(r"``(\w+)((?:\.\w+)+)``", shardwright.price.__doc__)
    assert len(names) >= 15
    for module, path in names:
        package = next(p for p in ("price", "compiler") if importlib.util.find_spec(f"shardwright.{p}.{module}"))
        operator.attrgetter(path[1:])(importlib.import_module(f"shardwright.{package}.{module}"))
