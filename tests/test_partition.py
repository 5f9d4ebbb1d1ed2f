"""``sw.partition``: from a function to a plan that fits, with what the user has decided, and errors that help."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardwright as sw
from programs import f32
from shardwright import _progress
from shardwright.choose import by_compiler, by_shardy, close_to_best
from shardwright.errors import CompilerMissingError
from shardwright.frontend.trace import lower, read
from shardwright.models import build
from shardwright.plan.verdicts import CompilerVerdict
from shardwright.request import Budget
from shardwright.verify.explicit import explicit_collectives
from shardwright.verify.shardy import shardy_collectives

MESH = {"data": 4, "model": 2}


def train_step(state, batch):
    def loss(params):
        hidden = jax.nn.relu(batch["x"] @ params["w1"])
        return jnp.mean((hidden @ params["w2"] - batch["y"]) ** 2)

    grads = jax.grad(loss)(state["params"])
    m = jax.tree.map(lambda m, g: 0.9 * m + g, state["m"], grads)
    return {"params": jax.tree.map(lambda p, m: p - 0.1 * m, state["params"], m), "m": m}


PARAMS = {"w1": f32(1024, 4096), "w2": f32(4096, 512)}
STATE = {"params": PARAMS, "m": PARAMS}
BATCH = {"x": f32(256, 1024), "y": f32(256, 512)}


def planned(**options):
    return sw.partition(train_step, STATE, BATCH, **{"mesh": MESH, "device": "tpu-v5e", "donate": 0, **options})


@pytest.fixture(scope="module")
def plan():
    return planned()


def test_a_plan_with_its_search(plan):
    assert plan.fits
    assert plan.mesh == MESH
    assert plan.search.evaluations > 10
    assert plan.search.simulations > 0
    assert plan.search.seconds > 0
    assert plan.search.history[-1].step_seconds == pytest.approx(plan.estimate.step_seconds)
    assert plan.donate == (0,)


def test_it_is_no_worse_than_any_tactic(plan):
    for decisions in (
        ["data_parallel:data"],
        ["fsdp:data", "megatron:model"],
        ["fsdp:data", "fsdp:model"],
        ["zero1:data"],
    ):
        by_hand = sw.evaluate(train_step, STATE, BATCH, mesh=MESH, device="tpu-v5e", donate=0, decisions=decisions)
        assert plan.estimate.step_seconds <= by_hand.estimate.step_seconds * (1 + 1e-9)


def test_its_decisions_make_the_same_plan_by_hand(plan, tmp_path):
    again = sw.evaluate(train_step, STATE, BATCH, mesh=MESH, device="tpu-v5e", donate=0, decisions=list(plan.decisions))
    assert again.in_specs == plan.in_specs
    assert again.estimate.step_seconds == pytest.approx(plan.estimate.step_seconds, rel=1e-9)
    assert again.estimate.peak_bytes == plan.estimate.peak_bytes
    plan.save(tmp_path / "plan.json")
    loaded = sw.load(tmp_path / "plan.json", train_step, STATE, BATCH)
    assert loaded.decisions == plan.decisions
    assert loaded.in_specs == plan.in_specs


def test_it_runs(plan):
    assert plan.verify("run").ok


@pytest.mark.parametrize(
    ("model", "sizes"),
    [("gpt", {}), pytest.param("moe", {"layers": 2, "batch": 16}, marks=pytest.mark.slow), ("itx", {})],
)
def test_plans_of_built_in_models_run(model, sizes):
    fn, args, options = build(model, preset="tiny", **sizes)
    slow = sw.Device("slow", "gpu", {"f32": 2e10}, 2**36, 1e10, links=(sw.Link("wire", 1e9, 0.0),))
    plan = sw.partition(fn, *args, mesh={"data": 2, "model": 2}, device=slow, platform="cpu", **options)
    assert plan.collectives
    verdict = plan.verify("run")
    assert verdict.ok, verdict


def test_plans_are_the_same_in_every_process():
    code = (
        "import shardwright as sw; from shardwright.models import build\n"
        "fn, args, options = build('gpt', preset='tiny')\n"
        "plan = sw.partition(fn, *args, mesh={'data': 2, 'model': 4}, device='tpu-v5e', seed=1, **options)\n"
        "print(plan.search.evaluations, [str(d) for d in plan.decisions])"
    )
    said = set()
    for seed in ("0", "12345"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "JAX_PLATFORMS": "cpu"}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        said.add(done.stdout)
    assert len(said) == 1


def test_what_is_pinned_stays_and_the_rest_is_searched():
    plan = planned(pin={"batch.x": P("data")})
    assert plan.in_specs[1]["x"] == P("data")
    assert len(plan.decisions) > 2
    tactic = planned(pin="megatron:model")
    assert "model" in tactic.in_specs[0]["params"]["w1"][1]
    both = planned(pin=["data_parallel:data", {"state.params.w1": P(None, "model")}])
    assert both.in_specs[0]["params"]["w1"] == P(None, "model")


def test_arrays_without_elements_stay_whole():
    def fn(w, x, nothing):
        return x @ w, nothing * 2 + jnp.sin(nothing)

    plan = sw.partition(fn, f32(64, 64), f32(64, 64), f32(0, 63), mesh={"data": 4}, device="tpu-v5e")
    assert plan.in_specs[2] == P()


def test_no_seconds_mean_the_pins_alone():
    plan = planned(pin="data_parallel:data", seconds=0)
    assert [str(d) for d in plan.decisions] == ["data: batch.x[0]"]
    assert plan.search.evaluations == 1


def test_what_is_replicated_stays_whole():
    plan = planned(replicate=["model", "state.params"])
    assert all("model" not in str(spec) for spec in jax.tree.leaves(plan.in_specs))
    assert jax.tree.leaves(plan.in_specs[0]["params"]) == [P(), P()]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"pin": {"batch.x": P("data")}, "replicate": "batch"}, ["'batch.x'", "replicate='batch'"]),
        ({"pin": "fsdp:data", "replicate": "data"}, ["'fsdp:data'", "'data'", "replicate="]),
        ({"pin": {"batch.x": P("data"), "batch.*": P("model")}}, ["'batch.x': P('data',)", "'batch.*': P('model',)"]),
        ({"replicate": "batch.z"}, ["'batch.z'", "batch.x"]),
        ({"pin": [("data", "batch.x[1]"), {"state.params.w1": P(None, "data")}]}, ["'state.params.w1'", "batch.x[1]"]),
    ],
)
def test_contradictions_name_both_sides(options, names):
    with pytest.raises(sw.PinError) as error:
        planned(**options)
    for name in names:
        assert name in str(error.value)
    assert "\n" not in str(error.value)


def test_nothing_fits(exact_estimates):  # noqa: ARG001
    with pytest.raises(sw.InfeasibleError) as caught:
        sw.partition(train_step, STATE, BATCH, mesh={"data": 2}, device="tpu-v5e", memory="12MiB")
    error = caught.value
    assert error.limit_bytes == 12 * 2**20
    assert error.needed_bytes > error.limit_bytes
    assert error.plan.estimate.peak_bytes == error.needed_bytes
    assert not error.plan.fits
    text = str(error)
    assert "the smallest that was found needs" in text
    assert "at its peak it holds" in text
    assert "donate=(0,)" in text
    assert "the mesh {'data':" in text
    assert any("a batch of" in sentence for sentence in error.advice)


def test_advice_about_memory_is_right(exact_estimates):  # noqa: ARG001
    """What it says of donation is what a plan with donation needs."""
    with pytest.raises(sw.InfeasibleError) as caught:
        sw.partition(train_step, STATE, BATCH, mesh={"data": 2}, device="tpu-v5e", memory="30MiB")
    advised = next(s for s in caught.value.advice if s.startswith("donate="))
    assert "(fits)" in advised
    plan = sw.partition(train_step, STATE, BATCH, mesh={"data": 2}, device="tpu-v5e", memory="30MiB", donate=0)
    assert plan.fits


def test_activations_kept_for_the_backward_pass_are_named():
    def deep(params, x):
        def loss(params):
            h = x
            for up, down in params:
                h = h + jnp.tanh(h @ up) @ down
            return (h**2).sum()

        return jax.grad(loss)(params)

    params = [(f32(128, 512), f32(512, 128))] * 8
    with pytest.raises(sw.InfeasibleError) as caught:
        sw.partition(deep, params, f32(8192, 128), mesh={"data": 2}, device="tpu-v5e", memory="15MiB")
    advised = next(s for s in caught.value.advice if s.startswith("jax.checkpoint around test_partition.py:"))
    assert "on each device (still too much; −" in advised


def test_what_needs_as_much_is_no_advice(exact_estimates):  # noqa: ARG001
    """Neither a smaller batch nor more devices change what is pinned whole; donation saves a copy of it."""
    state, x = {"w": f32(1024, 1024)}, f32(8, 1024)

    def step(state, x):
        return {"w": state["w"] - (x.T @ x)}, x

    with pytest.raises(sw.InfeasibleError) as caught:
        sw.partition(step, state, x, mesh={"data": 2}, device="tpu-v5e", memory="1MiB", replicate="data")
    assert [sentence.split("=")[0] for sentence in caught.value.advice] == ["donate"]


def test_a_decision_with_an_exception(tmp_path):
    exception = sw.Decision("data", "batch.x[0]", unless="state.params.w1[1]")
    assert str(exception) == "data: batch.x[0], but not beside state.params.w1[1]"
    plan = sw.evaluate(train_step, STATE, BATCH, mesh=MESH, device="tpu-v5e", decisions=[exception])
    program = plan.analysis.program
    hidden = [v for v, value in enumerate(program.values) if value.shape == (256, 4096) and not program.free[v]]
    assert hidden
    assert {plan.partitioned.values[v] for v in hidden} == {((), ())}
    assert plan.in_specs[1]["x"] == P("data")
    plan.save(tmp_path / "plan.json")
    assert sw.load(tmp_path / "plan.json", train_step, STATE, BATCH).decisions == (exception,)


def test_a_bar_only_where_it_is_wanted(capfd):
    planned(progress=False)
    assert capfd.readouterr().err == ""
    planned(progress=True)
    assert "searching" in capfd.readouterr().err


def test_the_bar_tells_how_it_stands():
    class Scores:
        best = type("Found", (), {"cost": type("Cost", (), {"step_seconds": 0.25, "peak_bytes": 2**30})})
        evaluations, seconds = 3000, 2.0

    assert _progress.standing(Scores, 2**31) == "best 250 ms, 1.0 GiB of 2.0 GiB; 3,000 states, 1,500 a second"
    assert "does not fit yet" in _progress.standing(Scores, 2**29)


# Ranking again.


@pytest.mark.parametrize(
    ("model", "decisions"),
    [
        ("gpt", ["fsdp:data", "megatron:model"]),
        ("gpt", ["data_parallel:data", "megatron_sequence:model"]),
        ("moe", ["fsdp:data", "expert_parallel:model"]),
        ("itx", ["fsdp:data", "megatron:model"]),
        ("unet", ["data_parallel:data", "spatial:model"]),
    ],
)
def test_explicit_collectives_are_those_of_the_annotated_program(model, decisions):
    fn, args, options = build(model, preset="tiny")
    plan = sw.evaluate(fn, *args, mesh=MESH, device="tpu-v5e", decisions=decisions, **options)
    module = read(fn, lower(fn, args, "tpu"))
    before = str(module.module)
    explicit = sum(c.total_bytes for c in explicit_collectives(module, plan.partitioned))
    assert str(module.module) == before
    annotated = sum(c.total_bytes for c in shardy_collectives(plan))
    assert explicit == pytest.approx(annotated, rel=0.05)


def test_shardy_decides_between_plans_that_are_close(plan, monkeypatch):
    other = planned(pin="fsdp:data", seconds=0)
    told = {id(plan): 1.0, id(other): 0.5}
    monkeypatch.setattr("shardwright.choose.shardy_seconds", lambda _, plan: told[id(plan)])
    assert by_shardy(None, [plan, other], plan) is other
    told = {id(plan): 1.0, id(other): 1.0 - 1e-4}
    assert by_shardy(None, [plan, other], plan) is plan
    states = [plan.partitioned.state, other.partitioned.state]
    assert close_to_best(plan.costs, states) == states[:1]


def test_reading_and_pricing_are_part_of_the_seconds(monkeypatch):
    now = itertools.count()  # each look at the clock is a second later
    module = sys.modules["shardwright.partition"]  # the package has a function of this name
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(now)))
    given = []
    monkeypatch.setattr(module, "search_meshes", lambda problem, budget, **_: given.append((problem, budget)) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        planned(seconds=10)
    ((problem, budget),) = given
    assert budget.seconds == 10 - (1 - problem.traced.tracing_seconds)
    assert Budget(10).less(9) == Budget(2.5)
    assert Budget(10).less(9).less(9) == Budget(2.5)  # a quarter of what was given, not of what is left
    assert Budget().less(9) == Budget() and Budget(0).less(9) == Budget(0)


def test_the_compiler_decides_between_plans(plan, monkeypatch):
    others = [planned(pin=pin, seconds=0) for pin in ("fsdp:data", "data_parallel:data")]
    figures = {
        id(plan): {"compile_seconds": 1.0, "fits": True, "step_seconds": 3.0},
        id(others[0]): {"compile_seconds": 1.0, "fits": True, "step_seconds": 2.0},
        id(others[1]): {"fits": False, "peak_bytes": 10, "limit_bytes": 5},
    }
    monkeypatch.setattr(
        "shardwright.choose.verify_compiled", lambda plan, on: CompilerVerdict.of(on, figures[id(plan)])
    )
    best = by_compiler([plan, *others], "tpu:v5e:2x4", False)
    assert best.decisions == others[0].decisions
    assert [p.verdict.step_seconds for p in best.alternatives] == [3.0, None]
    assert not best.alternatives[1].verdict.ok
    figures[id(plan)] = figures[id(others[0])] = figures[id(others[1])]
    with pytest.raises(sw.PlanError, match="takes none of the best 3 plans"):
        by_compiler([plan, *others], "tpu:v5e:2x4", False)


@pytest.mark.slow
def test_the_tpu_compiler_ranks_plans_for_real():
    try:
        plan = planned(rerank="tpu:v5e:2x4")
    except CompilerMissingError as error:
        pytest.skip(str(error))
    assert plan.verdict.ok
    assert plan.verdict.on == "tpu:v5e:2x4"
    assert plan.alternatives
    steps = [plan.verdict.step_seconds, *(p.verdict.step_seconds for p in plan.alternatives if p.verdict.ok)]
    assert steps == sorted(steps)


def test_a_source_line_of_ours_is_never_the_users(plan):
    here = Path(__file__).name
    assert {c.source.file.rsplit("/", 1)[-1] for c in plan.collectives} <= {here, ""}
