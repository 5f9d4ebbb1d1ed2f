"""Plans compiled ahead of time by the real compilers, each in a process of its own."""

import gzip
import importlib.util
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax import export
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardwright as sw
from programs import f32
from shardwright.cli.verify_command import verdict_dict
from shardwright.errors import CompilerMissingError
from shardwright.request.targets import parse_target
from shardwright.verify import CompiledCollective, CompilerVerdict, compile, compile_exported
from shardwright.verify.figures import memory_figures

needs_tpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="the TPU compiler is not installed (shardwright[tpu])"
)
needs_gpu = pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda12_plugin") is None, reason="the GPU compiler is not installed (shardwright[gpu])"
)
WIDTH = 256
PARAMETER_BYTES = 2 * WIDTH * WIDTH * 4
GIB = 2**30


def train_step(weights, x):
    def loss(weights):
        return jnp.mean(jnp.square(jnp.tanh(x @ weights["up"]) @ weights["down"]))

    value, gradients = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value


def planned(mesh=None, decisions=(("data", "x[0]"),), rows=4096, **options):
    weights = {"up": f32(WIDTH, WIDTH), "down": f32(WIDTH, WIDTH)}
    return sw.evaluate(
        train_step,
        weights,
        f32(rows, WIDTH),
        mesh=mesh or {"data": 4},
        decisions=list(decisions),
        donate=(0,),
        **options,
    )


def exported(fn, args, mesh, in_specs, out_specs, platform="cpu"):
    abstract = AbstractMesh(tuple(mesh.values()), tuple(mesh), axis_types=(AxisType.Auto,) * len(mesh))
    shardings = [
        jax.tree.map(lambda s: NamedSharding(abstract, s), tree, is_leaf=lambda s: isinstance(s, P))
        for tree in (in_specs, out_specs)
    ]
    jitted = jax.jit(fn, in_shardings=shardings[0], out_shardings=shardings[1])
    return export.export(jitted, platforms=[platform])(*args)


def child(monkeypatch, tmp_path, code):
    script = tmp_path / "child.py"
    script.write_text(code)
    monkeypatch.setattr(compile, "_STARTED", (str(script),))


# Real compilers


def check_data_parallel(found, devices):
    """What data parallelism of this step comes to, whatever it was compiled for."""
    assert found, found.message
    memory = found.figures["memory"]
    assert memory["argument_bytes"] >= PARAMETER_BYTES + 4096 * WIDTH * 4 // devices
    assert memory["alias_bytes"] >= PARAMETER_BYTES
    used = ("argument_bytes", "output_bytes", "temp_bytes", "generated_code_bytes")
    summed = sum(memory[name] for name in used) - memory["alias_bytes"]
    assert found.peak_bytes == (min(memory["peak_bytes"], summed) if found.on.startswith("tpu") else summed)
    assert set(found.counts) == {"all-reduce"}
    gradients = 2 * (devices - 1) / devices * PARAMETER_BYTES
    assert gradients <= found.bytes["all-reduce"] <= 1.01 * gradients
    assert all(c.axes == ("data",) for c in found.collectives)
    assert sum(c.total_bytes for c in found.collectives) == found.bytes["all-reduce"]
    assert any("train_step" in c.source or "loss" in c.source for c in found.collectives)
    assert found.involuntary == ()


@needs_tpu
def test_data_parallelism_on_a_tpu(tmp_path):
    found = planned().verify("tpu:v5e:2x2", keep=tmp_path / "hlo.txt.gz")
    check_data_parallel(found, 4)
    assert found.fits is True
    assert found.peak_bytes < found.limit_bytes < 16 * GIB
    assert found.compute_seconds > 0
    assert found.comm_seconds == sum(c.seconds * c.times for c in found.collectives)
    assert found.serial_seconds == found.compute_seconds + found.comm_seconds
    # Nothing runs beside a sum of gradients, so that the replay has all of them to wait for.
    assert not any(c.overlapped for c in found.collectives if c.kind == "all-reduce")
    assert found.exposed_seconds == pytest.approx(found.comm_seconds)
    assert found.step_seconds == pytest.approx(found.serial_seconds)
    assert not found.figures["unknown_loops"]
    with gzip.open(tmp_path / "hlo.txt.gz", "rt") as file:
        assert file.read().startswith("HloModule")


@needs_tpu
def test_collectives_lie_along_the_axes_of_the_plan():
    decisions = [("data", "x[0]"), ("model", "weights.up[1]")]
    found = planned({"data": 4, "model": 2}, decisions).verify("tpu:v3:2x2")
    assert found, found.message
    axes = {c.axes for c in found.collectives if c.total_bytes > 1000}
    assert axes == {("data",), ("model",)}


def scanned_step(weights, x):
    def loss(weights):
        h, _ = jax.lax.scan(lambda h, w: (h + jnp.tanh(h @ w["up"]) @ w["down"], None), x, weights)
        return jnp.mean(jnp.square(h))

    value, gradients = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value


@needs_tpu
def test_the_estimate_is_near_the_tpu_compiler():
    # Six layers of real proportions: 0.4 GB of weights and 0.5 GB of residuals.
    weights = {"up": f32(6, 2048, 4096), "down": f32(6, 4096, 2048)}
    plan = sw.evaluate(
        scanned_step,
        weights,
        f32(8192, 2048),
        mesh={"data": 2, "model": 2},
        device="tpu-v5e",
        decisions=["data_parallel:data", "megatron:model"],
        donate=(0,),
    )
    found = plan.verify("tpu:v5e:2x2")
    assert found.fits and plan.fits
    assert found.ratios["peak_bytes"] == pytest.approx(1, abs=0.25)
    assert found.ratios["step_seconds"] == pytest.approx(1, abs=0.4)
    assert found.ratios["comm_seconds"] == pytest.approx(1, abs=0.1)
    planned = {kind: sum(c.total_bytes for c in plan.collectives if c.kind == kind) for kind in found.bytes}
    assert found.bytes["all-reduce"] == pytest.approx(planned["all-reduce"], rel=0.01)
    assert found.bytes["all-gather"] == pytest.approx(planned["all-gather"] / 2, rel=0.01)  # the products' bf16
    assert "estimated" in str(found)
    hidden = sum(c.hidden_seconds * c.times for c in found.collectives)
    assert found.step_seconds == pytest.approx(found.serial_seconds - hidden)
    assert found.step_seconds == pytest.approx(found.compute_seconds + found.exposed_seconds)


@needs_tpu
def test_the_estimate_knows_when_a_program_does_not_fit():
    # 8 layers of 1 GiB of weights on each device, their gradients, and residuals.
    weights = {"up": f32(8, 8192, 16384), "down": f32(8, 16384, 8192)}
    plan = sw.evaluate(
        scanned_step, weights, f32(8192, 8192), mesh={"data": 4}, device="tpu-v5e", decisions="data_parallel:data"
    )
    found = plan.verify("tpu:v5e:2x2")
    assert found.fits is False and not plan.fits
    assert found.peak_bytes > found.limit_bytes
    assert found.ratios["peak_bytes"] == pytest.approx(1, abs=0.25)


@needs_tpu
def test_a_program_that_does_not_fit_a_tpu():
    found = planned(rows=2**26).verify("tpu:v5e:2x2")
    assert not found
    assert found.fits is False
    assert found.peak_bytes > found.limit_bytes == round(15.75 * GIB)
    assert "needs" in found.message and "15.75 GiB" in found.message


@needs_tpu
def test_a_topology_that_the_compiler_does_not_know():
    with pytest.raises(sw.PlanError, match="tpu:v5e:1x8"):
        planned({"data": 8}).verify("tpu:v5e:1x8")


@needs_tpu
def test_a_resharding_that_gathers_everything_is_reported():
    found = compile_exported(resharding("tpu"), {"x": 4, "y": 2}, "tpu:v5e:2x4")
    check_resharding(CompilerVerdict.of("tpu:v5e:2x4", found))


def resharding(platform):
    def f(a, b):
        return jax.lax.with_sharding_constraint(jnp.sin(a + a), P(None, ("x", "y"), None)) + b

    mesh = {"x": 4, "y": 2}
    specs = P("y", None, "x"), P(None, ("x", "y"), None)
    with jax.sharding.use_abstract_mesh(AbstractMesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)):
        return exported(f, (f32(32, 64, 64), f32(32, 64, 64)), mesh, specs, specs[1], platform)


def check_resharding(found):
    (warning,) = found.involuntary
    assert (warning.shape, warning.bytes) == ("f32[32,64,64]", 32 * 64 * 64 * 4)
    assert warning.source.file == __file__
    assert "1 tensor is gathered whole to be resharded, the largest f32[32,64,64] at test_compile.py" in found.message


@needs_gpu
@pytest.mark.parametrize("name", ["p100", "v100", "a100-40", "a100-80", "h100", "b200"])
def test_data_parallelism_on_gpus(name):
    found = planned({"data": 8}).verify(f"gpu:{name}:8")
    check_data_parallel(found, 8)
    assert found.fits is True
    assert found.comm_seconds > 0
    assert found.step_seconds is None


@needs_gpu
def test_two_nodes_of_gpus():
    found = planned({"data": 16}).verify("gpu:a100-80:2x8")
    check_data_parallel(found, 16)


def test_data_parallelism_on_cpus():
    found = planned().verify("cpu")
    check_data_parallel(found, 4)
    assert found.fits is True  # of what the host is taken to have
    assert (found.step_seconds, found.compute_seconds, found.comm_seconds) == (None, None, None)
    assert found.compile_seconds > 0


def test_a_resharding_that_gathers_everything_is_reported_on_cpu():
    found = compile_exported(resharding("cpu"), {"x": 4, "y": 2}, "cpu")
    check_resharding(CompilerVerdict.of("cpu", found))


def test_loops_of_the_program_are_multiplied():
    def f(x, ws):
        return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)[0]

    program = exported(f, (f32(8, 64), f32(5, 64, 64)), {"m": 4}, (P(), P(None, "m", None)), P())
    found = compile_exported(program, {"m": 4}, "cpu")
    assert sum(c.times for c in found["collectives"]) >= 5
    assert not found["unknown_loops"]


def test_types_of_the_user_need_not_be_known_to_the_process():
    @jax.tree_util.register_pytree_node_class
    class State:
        def __init__(self, w):
            self.w = w

        def tree_flatten(self):
            return (self.w,), None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls(*children)

    def f(x, state):
        return State(state.w + x.sum()), x

    program = exported(f, (f32(8), State(f32(1024))), {"m": 2}, (P(), State(P("m"))), (State(P("m")), P()))
    found = compile_exported(program, {"m": 2}, "cpu", donate=(1,))
    assert found["memory"]["alias_bytes"] == 4 * 1024 // 2


# What can go wrong


def test_a_crash_is_a_verdict(monkeypatch, tmp_path):
    child(
        monkeypatch,
        tmp_path,
        "import os, signal, sys; print('F1 a.cc:1] Check failed: boom', file=sys.stderr, flush=True); "
        "os.kill(os.getpid(), signal.SIGSEGV)",
    )
    found = planned().verify("cpu")
    assert not found
    assert found.fits is None
    assert found.message == "the compiler's process was ended by SIGSEGV: F1 a.cc:1] Check failed: boom"


def test_a_compiler_that_does_not_end_is_a_verdict(monkeypatch, tmp_path):
    child(monkeypatch, tmp_path, "import time; time.sleep(60)")
    found = planned().verify("cpu", timeout_seconds=1)
    assert not found
    assert found.message == "the compiler did not end within 1 seconds"


def test_an_error_of_the_compiler_is_a_verdict(monkeypatch, tmp_path):
    child(
        monkeypatch,
        tmp_path,
        "import json, sys; json.dump({'error': 'INTERNAL: a bug\\nmore', 'error_type': 'JaxRuntimeError'}, "
        "open(sys.argv[1] + '/result.json', 'w'))",
    )
    found = planned().verify("cpu")
    assert not found
    assert found.message == "the compiler gave up: INTERNAL: a bug"


@pytest.mark.parametrize(("target", "extra"), [("tpu:v5e:2x2", "tpu"), ("gpu:a100-80:4", "gpu")])
def test_a_missing_compiler_is_one_sentence(monkeypatch, target, extra):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(CompilerMissingError, match=rf"pip install 'shardwright\[{extra}\]'"):
        planned().verify(target)


@pytest.mark.parametrize(
    ("target", "devices"), [("tpu:v5e:4x4", 16), ("tpu:v3:2x2", 8), ("tpu:v4:2x2x2", 8), ("gpu:a100-80:2x8", 16)]
)
def test_a_mesh_of_another_size_is_one_sentence(target, devices):
    with pytest.raises(sw.MeshError, match=f"{target} has {devices} devices, but the plan's mesh has 4"):
        planned().verify(target)


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("tpu:v9:2x2", "names no TPU to compile for; there are v3, v4"),
        ("gpu:a100:8", "names no GPU to compile for; there are p100, v100, a100-40"),
        ("tpu:v5e", "does not say how many devices there are; write it as in tpu:v5e:4x4"),
        ("tpu:v5e:0x4", "does not say how many devices"),
        ("tpu:v5e:2x2x2x2", "slices of TPU v5e have 2 dimensions, as in tpu:v5e:2x2, or tpu:v5e:2x2x2 for two slices"),
        ("tpu:v5p:4x4", "slices of TPU v5p have 3 dimensions, as in tpu:v5p:2x2x1"),
        ("tpu:v5e:64x64", "a slice of TPU v5e has at most 256 chips"),
        ("gpu:h100:1x2x8", "GPUs are counted by nodes and GPUs in each, as in gpu:h100:2x8"),
        ("moon", "not on 'moon'"),
    ],
)
def test_targets_that_make_no_sense(target, sentence):
    with pytest.raises(sw.PlanError, match=sentence):
        planned().verify(target)


@pytest.mark.parametrize(
    ("target", "topology", "devices"),
    [
        ("tpu:v5e:4x4", "v5e:4x4", 16),
        ("tpu:v3:2x2", "v3:2x2", 8),
        ("tpu:v5e:2x4x4", "v5e:4x4", 32),
        ("tpu:v5p:2x2x2x1", "v5p:2x2x1", 8),
        ("tpu:7x:2x2x1", "tpu7x:2x2x1", 8),
        ("gpu:a100-80:8", "1x1x8", 8),
        ("gpu:a100-80:2x8", "1x2x8", 16),
        ("cpu", "", None),
    ],
)
def test_targets(target, topology, devices):
    found = parse_target(target)
    assert (found.topology, found.devices) == (topology, devices)


# The verdict


def figures(**more):
    return {
        "compile_seconds": 1.0,
        "fits": True,
        "peak_bytes": 8 * GIB,
        "limit_bytes": 16 * GIB,
        "step_seconds": 0.3,
        "compute_seconds": 0.2,
        "comm_seconds": 0.1,
        "counts": {"all-reduce": 12},
        "bytes": {"all-reduce": 5e6},
        **more,
    }


def test_the_estimate_stands_beside_the_compiler():
    estimate = SimpleNamespace(peak_bytes=6 * GIB, step_seconds=0.33, compute_seconds=0.2, comm_seconds=None)
    found = CompilerVerdict.of("tpu:v5e:4x4", figures(), estimate)
    assert found.ratios["peak_bytes"] == 0.75
    assert math.isclose(found.ratios["step_seconds"], 1.1)
    assert found.ratios["comm_seconds"] is None
    assert str(found).splitlines() == [
        "tpu:v5e:4x4: ok: it compiles and takes 8.00 GiB of a device's 16.00 GiB",
        "  memory            8.00 GiB  estimated 6.00 GiB  (0.75 of it)",
        "  step             300.00 ms  estimated 330.00 ms  (1.10 of it)",
        "  compute          200.00 ms  estimated 200.00 ms  (1.00 of it)",
        "  communication    100.00 ms",
        "  all-reduce              12 times         5.0 MB from each device",
    ]


def test_a_replay_is_told_by_kind():
    collective = CompiledCollective("all-reduce", ("x",), 1e6, 12, 0.008, "m.py:1", True, 0.002, (("m.py:2", 0.002),))
    replayed = {
        "serial_seconds": 0.3,
        "step_seconds": 0.276,
        "exposed_seconds": 0.076,
        "collectives": (collective,),
    }
    found = CompilerVerdict.of("tpu:v5e:4x4", figures(**replayed))
    assert (found.serial_seconds, found.step_seconds, found.exposed_seconds) == (0.3, 0.276, 0.076)
    assert str(found).splitlines()[-2:] == [
        "  serial step      300.00 ms  if nothing ran beside anything else",
        "  all-reduce              12 times         5.0 MB from each device, 24.00 ms of 96.00 ms hidden",
    ]
    assert verdict_dict(found)["step_seconds"] == 0.276
    assert verdict_dict(found)["collectives"][0]["behind"] == (("m.py:2", 0.002),)


def test_without_an_estimate_there_are_no_ratios():
    found = CompilerVerdict.of("cpu", figures(step_seconds=None))
    assert (found.estimate, found.ratios) == ({}, {})
    assert "step" not in str(found)


def test_gpus_are_asked_whether_it_fits():
    memory = {f"{name}_bytes": 0 for name in ("argument", "output", "alias", "temp", "generated_code")}
    target = parse_target("gpu:a100-40:8")
    assert memory_figures({**memory, "temp_bytes": 50 * GIB}, target)["fits"] is False
    assert memory_figures({**memory, "temp_bytes": 5 * GIB}, target)["fits"] is True
