"""What fits at the edge: margins of the estimate, the compiler asked between them, and what an answer rests on."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from click.testing import CliRunner

import shardwright as sw
from programs import f32
from shardwright import choose
from shardwright.choose import Candidate, settle, target_of, whom_to_ask
from shardwright.cli import main
from shardwright.compiler.invoking import RESERVED
from shardwright.compiler.margins import FORWARD, KINDS, LOOPED, UNROLLED, Margin, margins
from shardwright.devices import PRESETS
from shardwright.devices.device import PLATFORMS
from shardwright.errors import CompilerMissingError
from shardwright.fit import judged
from shardwright.models import build
from shardwright.plan.verdicts import CompilerVerdict
from shardwright.price.estimate import kind_of, margin_of
from shardwright.verify import compile as compiling
from small import SMALL

MIB, GIB = 2**20, 2**30
MESH, DEVICE = {"data": 4}, "tpu-v5e"
needs_tpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the TPU compiler")


def step(weights, x):
    def loss(weights):
        return jnp.mean(jnp.square(jnp.tanh(x @ weights["up"]) @ weights["down"]))

    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))


ARGUMENTS = ({"up": f32(512, 2048), "down": f32(2048, 512)}, f32(65536, 512))


@pytest.fixture
def no_compiler(monkeypatch):
    """As where neither libtpu nor a CUDA plugin is installed."""
    monkeypatch.setattr(compiling.importlib.util, "find_spec", lambda _: None)


@pytest.fixture
def compiler(monkeypatch):
    """A compiler whose figure is the estimate times a factor; it notes what it was asked about."""
    asked: list[sw.Plan] = []

    def use(factor: float, crash: str = "") -> list[sw.Plan]:
        def verified(plan, on, **_):
            asked.append(plan)
            if crash:
                return CompilerVerdict.of(on, {"crash": crash})
            needed = int(factor * plan.estimate_cost.peak_bytes)
            figures = {
                "fits": needed <= plan.memory_bytes,
                "peak_bytes": needed,
                "limit_bytes": plan.device.usable_bytes,
            }
            return CompilerVerdict.of(on, {**figures, "compile_seconds": 1.0}, plan.estimate)

        monkeypatch.setattr(choose, "verify_compiled", verified)
        monkeypatch.setattr(judged, "verify_compiled", verified)
        monkeypatch.setattr(choose, "compiler_installed", lambda _: True)
        return asked

    return use


def planned(memory: int, **options) -> sw.Plan:
    return sw.partition(step, *ARGUMENTS, mesh=MESH, device=DEVICE, memory=memory, donate=0, **options)


@pytest.fixture(scope="module")
def smallest() -> sw.Plan:
    """The plan that needs least, by the estimate."""
    return sw.pareto(step, *ARGUMENTS, mesh=MESH, device=DEVICE, donate=0, ask_compiler=False).smallest


# Margins are data.


def test_every_platform_and_kind_has_a_margin():
    assert set(margins()) == set(PLATFORMS)
    for platform in PLATFORMS:
        assert set(margins()[platform]) == set(KINDS)
        for margin in margins()[platform].values():
            assert 0 < margin.low <= 1 <= margin.high


def test_a_margin_leaves_arguments_out():
    margin = Margin(0.5, 1.5, 10, 3)
    assert (margin.least_bytes(100, 60), margin.most_bytes(100, 60)) == (80, 120)
    assert [margin.fits(100, 60, limit) for limit in (79, 80, 119, 120)] == [False, None, None, True]


def test_kinds_are_told_from_the_program():
    fn, args, _ = build("gpt", preset="tiny")
    assert kind_of(sw.analyse(fn, *args).program) == LOOPED
    fn, args, _ = build("mlp", preset="tiny")
    assert kind_of(sw.analyse(fn, *args).program) == UNROLLED
    fn, args, _ = build("itx", preset="tiny")
    assert kind_of(sw.analyse(fn, *args).program) == FORWARD


# What the plan says.


@pytest.mark.usefixtures("no_compiler")
def test_fits_has_three_answers(smallest):
    least, most = smallest.bytes_range
    assert least < smallest.estimate.peak_bytes < most
    at = {limit: replace(smallest, memory_bytes=limit).fits for limit in (least - 1, least, most - 1, most)}
    assert at == {least - 1: False, least: None, most - 1: None, most: True}


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_the_plan_says_that_nobody_knows(smallest):
    plan = planned(smallest.estimate.peak_bytes - 1)
    assert plan.fits is None and plan.fits_by == "estimate" and plan.verdict is None
    text = str(plan)
    assert "May fit: " in text
    assert "Too close to the limit to tell" in text and "plan.verify('tpu:v5e:2x2')" in " ".join(text.split())
    told = json.loads(json.dumps(plan.to_dict()))
    assert told["fits"] is None and told["fits_by"] == "estimate" and told["unsure"].startswith("Too close")


@pytest.mark.usefixtures("no_compiler")
def test_infeasible_is_for_what_is_surely_too_large(smallest):
    least, _ = smallest.bytes_range
    with pytest.raises(sw.InfeasibleError, match="no plan fits"):
        planned(int(0.98 * least))
    assert planned(int(1.02 * least)).fits is None


def test_a_sure_plan_that_is_as_fast_is_taken_unasked(compiler):
    asked = compiler(1.0)
    plan = planned(15 * GIB)
    assert plan.fits is True and plan.fits_by == "estimate" and not asked


# The compiler decides between the margins.


def test_the_compiler_takes_what_the_estimate_refuses(compiler, smallest):
    limit = int(0.97 * smallest.estimate.peak_bytes)
    asked = compiler(0.9)
    plan = planned(limit)
    assert plan.fits is True and plan.fits_by == "compiler"
    assert plan.estimate.peak_bytes > limit
    assert 1 <= len(asked) <= choose.MOST_ASKED
    assert "Fits by the compiler: " in str(plan)


def test_the_compiler_refuses_what_the_estimate_takes(compiler, smallest):
    limit = int(1.02 * smallest.estimate.peak_bytes)
    asked = compiler(1.1)
    with pytest.raises(sw.InfeasibleError, match="by the compiler for tpu:v5e:2x2") as caught:
        planned(limit)
    assert 1 <= len(asked) <= choose.MOST_ASKED
    assert caught.value.needed_bytes > limit
    assert caught.value.plan.fits is False and caught.value.plan.fits_by == "compiler"


def test_a_smaller_plan_is_asked_about_where_the_best_is_refused(compiler):
    fn, args, donate = SMALL["sgd"]

    def sgd(**options) -> sw.Plan:
        return sw.partition(fn, *args, mesh={"data": 4, "model": 2}, device=DEVICE, donate=donate, **options)

    limit = sgd().estimate.peak_bytes  # the fastest would just fit
    asked = compiler(1.05)
    plan = sgd(memory=limit)
    assert plan.fits is True and plan.estimate.peak_bytes < limit
    assert 1 <= len(asked) <= choose.MOST_ASKED
    assert asked[0].estimate.peak_bytes == limit


def test_a_compiler_that_crashes_gave_no_answer(compiler, smallest):
    compiler(1.0, crash="the compiler gave up: it was tired")
    plan = planned(int(0.97 * smallest.estimate.peak_bytes))
    assert plan.fits is None
    assert "gave no answer: the compiler gave up: it was tired" in " ".join(str(plan).split())


@pytest.mark.usefixtures("no_compiler")
def test_who_is_asked(monkeypatch):
    device = PRESETS[DEVICE]
    assert whom_to_ask(device, 4, None) is None
    with pytest.raises(CompilerMissingError):
        whom_to_ask(device, 4, True)
    monkeypatch.setattr(choose, "compiler_installed", lambda _: True)
    assert whom_to_ask(device, 4, None) == "tpu:v5e:2x2"
    assert whom_to_ask(device, 4, False) is None
    assert whom_to_ask(device, 3, None) is None
    with pytest.raises(sw.PlanError, match="no compiler is known for 3 × tpu-v5e"):
        whom_to_ask(device, 3, True)


@pytest.mark.parametrize(
    ("name", "devices", "expected"),
    [
        ("tpu-v5e", 8, "tpu:v5e:2x4"),
        ("tpu-v5e", 1, "tpu:v5e:1x1"),
        ("tpu-v5p", 16, "tpu:v5p:2x2x4"),
        ("tpu-v5e", 12, None),
        ("a100-80", 4, "gpu:a100-80:4"),
        ("a100-80", 16, "gpu:a100-80:2x8"),
        ("a100-80", 12, None),
        ("cpu", 5, "cpu"),
    ],
)
def test_the_target_of_devices(name, devices, expected):
    found = target_of(PRESETS[name], devices)
    assert (found.name if found is not None else None) == expected


def test_a_device_of_ones_own_has_no_compiler():
    mine = sw.Device("mine", "tpu", {"bf16": 1e14}, 16 * GIB, 1e12)
    assert target_of(mine, 4) is None


def test_what_is_surely_right_is_not_asked_about():
    never = Candidate(1.0, 100, 0, lambda: pytest.fail("made"))
    sure = Candidate(1.005, 50, 0, lambda: "sure")
    assert settle([never, sure], Margin(0.5, 1.5, 0, 0), 110, "tpu:v5e:2x2", False).plan == "sure"


# Fronts and sizes say what they rest on.


def test_a_front_asks_about_the_plans_that_matter(compiler):
    fn, args, donate = SMALL["sgd"]

    def sgd(**options) -> sw.Front:
        return sw.pareto(fn, *args, mesh={"data": 4, "model": 2}, device=DEVICE, donate=donate, **options)

    asked = compiler(1.05)
    limit = sgd().fastest.estimate.peak_bytes
    assert not asked
    front = sgd(memory=limit)
    assert 1 <= len(asked) <= choose.MOST_ASKED
    assert front.fastest.fits is False and front.fastest.fits_by == "compiler"
    assert front.fitting is not None and front.fitting.fits
    assert "compiler" in {row["fits_by"] for row in front.to_dict()["plans"]}
    assert "by the compiler for tpu:v5e:2x4" in str(front)
    told = sgd(memory=limit, ask_compiler=False)
    assert told.fastest.fits is None and "may fit" in str(told)


def fitted(**options) -> sw.Fit:
    return sw.fit(
        step,
        *ARGUMENTS,
        mesh=MESH,
        device=DEVICE,
        donate=0,
        memory=256 * MIB,
        dimension="x[0]",
        most_devices=0,
        **options,
    )


@pytest.mark.usefixtures("no_compiler")
def test_the_largest_size_surely_fits_where_nobody_can_be_asked():
    found = fitted()
    assert found.plan.fits is True and found.plan.fits_by == "estimate"
    assert found.plan.bytes_range[1] <= 256 * MIB
    assert "by the estimate" in str(found) and "By the estimate it would be" in str(found)
    assert found.to_dict()["size_by"] == "estimate"
    assert any(tried.fits is None and tried.size > found.size for tried in found.tried)


def test_the_largest_size_by_the_compiler(compiler):
    asked = compiler(1.1)
    found = fitted()
    assert found.plan.fits is True and found.plan.fits_by == "compiler"
    assert found.to_dict()["size_by"] == "compiler"
    assert 1 <= len(asked) <= choose.MOST_ASKED
    assert 1.1 * found.plan.estimate.peak_bytes <= 256 * MIB


@pytest.mark.usefixtures("no_compiler")
def test_the_announced_batch_of_the_mlp_is_one_that_fits():
    """By the estimate alone it was 540,672, for which the TPU compiler needs 17.13 of 15.75 GiB."""
    fn, args, options = build("mlp", layers=4)
    found = sw.fit(fn, *args, mesh={"data": 4, "model": 2}, device=DEVICE, most_devices=0, **options)
    assert found.size < 503272  # where it needs 17.07
    assert found.plan.bytes_range[1] <= found.limit_bytes
    margin = margin_of(found.plan.analysis.program, "tpu")
    assert margin.fits(14.56 * GIB, 4.22 * GIB, 15.75 * GIB) is None
    assert margin.fits(15.56 * GIB, 4.5 * GIB, 15.75 * GIB) is None


# The limit that was asked for.


@needs_tpu
def test_verify_judges_by_the_limit_that_was_asked_for():
    plan = sw.evaluate(step, *ARGUMENTS, mesh=MESH, device=DEVICE, decisions="data_parallel:data", donate=0)
    verdict = plan.verify("tpu:v5e:2x2")
    assert verdict.fits and verdict.peak_bytes > 40 * MIB
    tight = replace(plan, memory_bytes=40 * MIB)
    refused = tight.verify("tpu:v5e:2x2")
    assert refused.fits is False and not refused.ok
    assert "40.00 MiB may be taken of a device's 15.75 GiB" in refused.message
    assert plan.compiler_options == {}
    assert tight.compiler_options == {RESERVED.effect: str(PRESETS[DEVICE].usable_bytes - 40 * MIB)}


@needs_tpu
@pytest.mark.slow
def test_the_real_compiler_decides(smallest):
    plan = planned(int(0.95 * smallest.estimate.peak_bytes))
    assert plan.fits is True and plan.fits_by == "compiler"
    assert plan.verdict.peak_bytes <= plan.memory_bytes < plan.estimate.peak_bytes


# The command line.


def command(*more: str):
    return CliRunner().invoke(
        main, ["plan", "mlp", "--preset", "tiny", "--mesh", "data=2,model=2", "--device", DEVICE, *more]
    )


@pytest.mark.usefixtures("no_compiler")
def test_exit_codes_and_json():
    fn, args, options = build("mlp", preset="tiny")
    front = sw.pareto(fn, *args, mesh={"data": 2, "model": 2}, device=DEVICE, ask_compiler=False, **options)
    limit = str(front.smallest.estimate.peak_bytes - 1)
    shown = command("--memory", limit)
    assert shown.exit_code == 0 and "Too close to the limit to tell" in shown.output
    told = command("--memory", limit, "--json")
    assert told.exit_code == 0 and json.loads(told.stdout)["fits"] is None
    assert command("--memory", str(int(0.9 * front.smallest.bytes_range[0]))).exit_code == 3
    asked = command("--memory", limit, "--ask-compiler")
    assert asked.exit_code == 2 and "pip install 'shardwright[tpu]'" in asked.output
    drawn = command("--memory", limit, "--pareto")
    assert drawn.exit_code == 0 and "may fit" in drawn.output
