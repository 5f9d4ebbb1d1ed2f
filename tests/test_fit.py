"""What fits: answers that can be worked out by hand, and a compiler that has the last word."""

from __future__ import annotations

import json

import jax.numpy as jnp
import pytest
from click.testing import CliRunner

import shardwright as sw
from programs import f32
from shardwright.cli import main
from shardwright.fit import judged
from shardwright.fit.dimension import find_dimension
from shardwright.fit.fit import meshes_of
from shardwright.fit.found import COMPILED
from shardwright.fit.largest import largest
from shardwright.plan.verdicts import CompilerVerdict
from shardwright.request import MeshShape

pytestmark = pytest.mark.usefixtures("exact_estimates")
DEVICE, MESH = "a100-80", {"data": 4}
LIMIT = 96 * 200 + 8192
"""For ``step`` with its batch over four devices, each holds 64 B of x and 32 B of the result for every row of the batch
(f32 rows of 64 and of 32, a quarter of them), and all of w: 64 · 32 · 4 = 8192 B. So 200 rows fit, and not one more."""


def step(w, x):
    return x @ w


def arguments(batch: int):
    return f32(64, 32), f32(batch, 64)


def fixed(w, x):
    return jnp.reshape(x, (16, 8, 64)).sum(1) @ w


def paired(w, x):
    """Takes batches that are multiples of 48 alone."""
    return jnp.reshape(x, (3, -1, 16, 64)).sum(1) @ w


@pytest.fixture(scope="module")
def found(exact_estimates) -> sw.Fit:  # noqa: ARG001
    return sw.fit(step, *arguments(64), mesh=MESH, device=DEVICE, memory=LIMIT)


def asked(threshold: int, given: int, step: int, taken=lambda _: True) -> tuple[int | None, list[int]]:
    sizes: list[int] = []

    def ask(size: int) -> bool | None:
        sizes.append(size)
        return size <= threshold if taken(size) else None

    return largest(ask, given, step), sizes


# By hand.


def test_the_largest_batch(found):
    assert found.batch == found.size == 200
    assert found.plan.args[1].shape == (200, 64)
    assert found.plan.estimate_cost.peak_bytes == LIMIT
    assert found.plan.fits
    tried = {t.size: t for t in found.tried if t.question == "size"}
    assert (tried[64].fits, tried[200].fits, tried[204].fits) == (True, True, False)
    assert tried[204].needed_bytes == LIMIT + 4 * 96


def test_the_fewest_devices(found):
    """One device holds 64 · 64 · 4 + 8192 + 64 · 32 · 4 = 32768 B, which is more; two hold 20480 B."""
    tried = {t.devices: t.needed_bytes for t in found.tried if t.question == "devices"}
    assert tried[1] == 32768
    assert found.devices == 2
    assert found.devices_plan.mesh == {"data": 2}
    assert found.devices_plan.args[1].shape == (64, 64)
    assert found.devices_plan.fits


def test_it_is_printed(found):
    lines = str(found).splitlines()
    assert lines[0] == "step on 4 × a100-80 (data 4), 26.75 KiB each"
    assert lines[1].startswith("Largest x[0] that fits: 200 (64 as given), by the estimate. A step takes ")
    assert lines[2].startswith("Fewest devices for x[0] = 64: 2 (data 2), by the estimate. A step takes ")
    assert any(line.split()[:3] == ["204", "4", "27.1"] for line in lines)


def test_for_machines(found):
    told = json.loads(json.dumps(found.to_dict()))
    assert (told["size"], told["devices"], told["dimension"], told["limit_bytes"]) == (200, 2, "x[0]", LIMIT)
    assert told["plan"]["fits"] is True
    assert {"size": 204, "fits": False}.items() <= next(t for t in told["tried"] if t["size"] == 204).items()


def test_a_batch_that_is_too_large_is_made_smaller():
    found = sw.fit(step, *arguments(1024), mesh=MESH, device=DEVICE, memory=LIMIT, most_devices=0)
    assert found.size == 200
    assert found.devices is None
    assert not any(t.question == "devices" for t in found.tried)


def test_another_dimension():
    """The rows of w grow with the columns of x: 16 · 4 and 32 · 4 B for each, beside 16 · 32 · 4 B of the result."""
    options = {"mesh": MESH, "device": DEVICE, "most_devices": 0, "dimension": "x[1]"}
    found = sw.fit(step, *arguments(64), memory=192 * 100 + 2048, **options)
    assert (found.dimension, found.plan.args[0].shape[0], found.plan.args[1].shape[1]) == (
        "w[0]",
        found.size,
        found.size,
    )
    assert found.size >= 100
    assert all(t.needed_bytes > found.limit_bytes for t in found.tried if t.fits is False)


def test_several_dimensions_keep_their_ratio():
    problem = sw.Problem(step, *arguments(96), mesh={"a": 2}, device="a100-80")
    both = find_dimension(problem, ["x[0]", "w[1]"])
    assert both.places == {"x[0]": 96, "w[1]": 32}
    assert both.scaled(48) == {"x[0]": 48, "w[1]": 16}
    assert both.scaled(97) is None
    w, x = problem.traced.resized({"x[0]": 48, "w[1]": 16})
    assert (w.shape, x.shape) == ((64, 16), (48, 64))


# Few questions.


@pytest.mark.parametrize(("threshold", "given", "step"), [(200, 64, 4), (200, 1024, 4), (16, 16, 16), (31, 20, 1)])
def test_the_largest_of_sizes(threshold, given, step):
    answer, sizes = asked(threshold, given, step)
    assert answer == threshold
    assert len(sizes) == len(set(sizes)) < 14


def test_a_step_that_is_too_coarse_is_halved():
    assert asked(20, 32, 16)[0] == 20
    assert asked(300, 32, 16)[0] == 288
    assert asked(0, 32, 16)[0] is None


def test_sizes_that_are_not_there_are_passed_by():
    answer, sizes = asked(500, 48, 16, taken=lambda size: size % 48 == 0)
    assert answer == 480
    assert len(sizes) < 40


def test_a_size_without_end():
    assert asked(10**12, 1, 1)[0] == 2**20


def test_meshes_of_other_sizes():
    given = MeshShape(("data", "model"), (4, 4))
    assert [m.sizes for m in meshes_of(given, 8)] == [(2, 4), (8, 1)]
    assert [m.sizes for m in meshes_of(given, 2)] == [(1, 2), (2, 1)]
    assert [m.sizes for m in meshes_of(given, 64)] == [(16, 4), (64, 1)]
    assert [m.sizes for m in meshes_of(MeshShape(("data",), (4,)), 6)] == [(6,)]


# What cannot be answered.


def test_a_dimension_that_is_not_there():
    with pytest.raises(sw.PinError, match=r"there is no dimension 'y\[0\]'"):
        sw.fit(step, *arguments(64), mesh=MESH, device=DEVICE, dimension="y[0]")


def test_a_batch_that_is_not_found():
    with pytest.raises(
        sw.PinError, match="no batch was found: no argument takes part in a contraction; say dimension="
    ):
        sw.fit(jnp.sin, f32(64), mesh=MESH, device=DEVICE)
    named = sw.fit(jnp.sin, f32(64), mesh=MESH, device=DEVICE, dimension="x[0]", memory=2048, most_devices=0)
    assert named.size == 1024  # a quarter of 4 B in, and as much out


def test_what_never_fits():
    with pytest.raises(sw.InfeasibleError, match=r"nothing fits: no size of x\[0\] fits the mesh of 4 devices") as told:
        sw.fit(step, *arguments(64), mesh=MESH, device=DEVICE, memory=600, most_devices=8)
    assert told.value.needed_bytes > told.value.limit_bytes == 600
    assert told.value.plan.estimate_cost.peak_bytes == told.value.needed_bytes


def test_a_function_that_takes_no_other_size():
    found = sw.fit(fixed, *arguments(128), mesh=MESH, device=DEVICE, memory="1MiB", most_devices=1)
    assert found.size == 128
    assert found.notes[0].startswith("The function takes no other size of x[0]: skipped: tracing fixed failed with ")
    assert found.notes[0] in " ".join(str(found).split())


def test_a_function_that_takes_some_sizes():
    found = sw.fit(paired, *arguments(96), mesh=MESH, device=DEVICE, memory="64KiB", most_devices=0)
    assert found.size % 48 == 0
    assert found.size > 96
    assert found.plan.fits
    assert {t.fits for t in found.tried} == {True, False, None}


# The compiler's word.


@pytest.mark.parametrize("largest_taken", [160, 200, 236, 280])
def test_the_compiler_has_the_last_word(monkeypatch, largest_taken):
    def verify_compiled(plan, on):
        size, needed = plan.args[1].shape[0], int(plan.estimate_cost.peak_bytes * LIMIT / (96 * largest_taken + 8192))
        figures = {"fits": size <= largest_taken, "peak_bytes": needed, "limit_bytes": LIMIT, "compile_seconds": 1.0}
        return CompilerVerdict.of(on, figures)

    monkeypatch.setattr(judged, "verify_compiled", verify_compiled)
    given = {"mesh": MESH, "device": DEVICE, "memory": LIMIT, "most_devices": 0, "verify": "gpu:a100-80:4"}
    found = sw.fit(step, *arguments(64), **given)
    assert found.size == largest_taken
    assert found.verdict.ok
    assert found.plan.verdict is found.verdict
    compiled = [t for t in found.tried if t.question == COMPILED]
    assert {t.size: t.fits for t in compiled}.items() >= {largest_taken: True, largest_taken + 4: False}.items()
    assert len(compiled) <= judged.MOST_COMPILED
    assert found.notes == (() if largest_taken == 200 else ("By the estimate it would be 200.",))
    assert "the compiler for gpu:a100-80:4 takes it" in str(found)


def test_a_compiler_that_takes_nothing(monkeypatch):
    refused = CompilerVerdict.of("gpu:a100-80:4", {"crash": "the compiler gave up"})
    monkeypatch.setattr(judged, "verify_compiled", lambda *_: refused)
    given = {"mesh": MESH, "device": DEVICE, "memory": LIMIT, "most_devices": 4, "verify": "gpu:a100-80:4"}
    found = sw.fit(step, *arguments(64), **given)
    assert (found.size, found.plan, found.verdict) == (None, None, None)
    assert found.devices == 2
    assert "No size of x[0] fits." in str(found)


def test_a_target_of_another_size():
    with pytest.raises(sw.MeshError, match="8 devices"):
        sw.fit(step, *arguments(64), mesh=MESH, device=DEVICE, verify="gpu:a100-80:8")


# The command line.


def run(*arguments: str):
    given = ["fit", "mlp", "--preset", "tiny", "--mesh", "x=4", "--device", "tpu-v5e", *arguments]
    return CliRunner().invoke(main, [*given, "--simulations", "1"])


def test_on_the_command_line(tmp_path):
    saved = tmp_path / "plan.json"
    done = run("--memory", "260KiB", "--most-devices", "1", "--json", "--save", str(saved))
    told = json.loads(done.stdout)
    assert done.exit_code == 0
    assert told["size"] > 32 == told["given_size"]
    assert told["dimension"] == "batch.inputs[0]"
    assert saved.exists()


def test_on_the_command_line_where_nothing_fits_or_something_is_wrong():
    nothing = run("--memory", "1KiB", "--most-devices", "2")
    assert nothing.exit_code == 3
    assert nothing.stderr.startswith("shardwright: nothing fits: no size of batch.inputs[0] fits the mesh of 4 devices")
    assert run("--dimension", "batch.none[0]").exit_code == 2
    assert run("--rerank", "cpu").exit_code == 2


def test_a_mesh_whose_shape_is_open():
    found = sw.fit(step, *arguments(64), mesh=4, device=DEVICE, memory=LIMIT)
    assert (found.size, found.devices) == (200, 2)
    assert found.plan.partitioned.mesh.devices == 4
    assert found.devices_plan.partitioned.mesh.devices == 2
