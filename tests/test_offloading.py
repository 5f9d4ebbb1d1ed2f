"""Values in the host's memory: where they are, what they cost, and that plans keep them there."""

from __future__ import annotations

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AbstractMesh, AxisType, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import shardwright as sw
from shardwright.compiler.offloading import PIPELINED, exposed_seconds
from shardwright.devices import PRESETS
from shardwright.frontend.stablehlo import read_stablehlo
from shardwright.request.targets import parse_target
from shardwright.verify.figures import memory_figures
from shardwright.verify.hlo import parse_hlo
from shardwright.verify.replay import replay
from shardwright.verify.replay_steps import Prices

HOST, DEVICE = jax.memory.Space.Host, jax.memory.Space.Device
LAYERS, BATCH, WIDTH, HIDDEN = 4, 64, 256, 512
MESH = {"data": 2, "model": 2}


def shape(*sizes, on_host=False):
    sharding = SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host") if on_host else None
    return jax.ShapeDtypeStruct(sizes, jnp.float32, sharding=sharding)


@functools.cache
def policy(names):
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=list(names),
        offload_src="device",
        offload_dst="pinned_host",
    )


def layer(x, w):
    x = checkpoint_name(x, "input")
    return jnp.tanh(x @ w) @ w.T


def make_loss(names=("input",)):
    def loss(weights, x):
        remat = jax.checkpoint(layer, policy=policy(names)) if names else jax.checkpoint(layer)
        return jnp.sum(jax.lax.scan(lambda x, w: (remat(x, w), None), x, weights)[0] ** 2)

    return loss


def make_step(names=("input",), moments="moved"):
    def step(weights, m, x):
        grads = jax.grad(make_loss(names))(weights, x)
        if moments == "by layer":
            return jax.lax.fori_loop(0, weights.shape[0], functools.partial(update_layer, grads), (weights, m))
        if moments == "barred":
            m, grads = jax.lax.optimization_barrier((m, grads))
        if moments:
            m = jax.device_put(m, DEVICE)
        m = 0.9 * m + grads
        return weights - 0.1 * m, jax.device_put(m, HOST) if moments else m

    return step


def update_layer(grads, i, state):
    """One layer's weights and state, in place."""
    w, m, g = (jax.lax.dynamic_index_in_dim(x, i, 0, keepdims=False) for x in (*state, grads))
    m = 0.9 * jax.device_put(m, DEVICE) + g
    new = (w - 0.1 * m, jax.device_put(m, HOST))
    return tuple(jax.lax.dynamic_update_index_in_dim(x, y, i, 0) for x, y in zip(state, new, strict=True))


def arguments(on_host=True):
    stack = (LAYERS, WIDTH, HIDDEN)
    return shape(*stack), shape(*stack, on_host=on_host), shape(BATCH, WIDTH)


def plan_of(names=("input",), moments="moved", **options):
    given = {"mesh": MESH, "device": "tpu-v5e", "decisions": ["fsdp:data"], "donate": (0, 1), **options}
    return sw.evaluate(make_step(names, moments), *arguments(bool(moments)), **given)


def test_what_follows_from_a_move_is_on_the_host():
    program = plan_of(("input",), "").analysis.program
    on_host = {str(program.values[v]) for v in program.on_host}
    assert on_host == {f"f32[{BATCH},{WIDTH}]", f"f32[1,{BATCH},{WIDTH}]", f"f32[{LAYERS},{BATCH},{WIDTH}]"}
    loops = [op for op in program.ops if op.kind == "while"]
    stacks = [v for op in loops for v in op.results if v in program.on_host]
    assert len(stacks) == 2  # of the forward loop, and as the backward loop carries it on
    assert not any(program.free[v] for v in program.on_host)


def test_a_program_without_moves_has_nothing_there():
    plan = plan_of((), "")
    assert plan.analysis.program.on_host == frozenset()
    assert plan.estimate.host_bytes == plan.estimate.transfer_seconds == 0
    assert "host" not in str(plan)
    assert "host_bytes" not in plan.to_dict()
    assert not any("host" in f.name for f in sw.diff(plan, plan).figures)


@pytest.mark.parametrize(
    "sharding",
    [
        SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host"),
        NamedSharding(
            AbstractMesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2), P(), memory_kind="pinned_host"
        ),
    ],
    ids=["one device", "a mesh"],
)
def test_an_arguments_memory_is_known_by_its_sharding(sharding):
    weights, _, x = arguments()
    m = jax.ShapeDtypeStruct(weights.shape, weights.dtype, sharding=sharding)
    plan = sw.evaluate(make_step(()), weights, m, x, mesh=MESH, device="tpu-v5e")
    assert plan.argument_kinds == (None, "pinned_host", None)
    assert plan.in_specs[1] == P()


def test_arrays_and_jitted_functions_tell_it_too():
    m = jax.device_put(jnp.zeros((LAYERS, WIDTH, HIDDEN)), HOST)
    weights, _, x = arguments()
    options = {"mesh": MESH, "device": "tpu-v5e"}
    assert sw.evaluate(make_step(()), weights, m, x, **options).argument_kinds == (None, "pinned_host", None)
    mesh = AbstractMesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    host = NamedSharding(mesh, P(None, "data"), memory_kind="pinned_host")
    jitted = jax.jit(make_step(()), in_shardings=(None, host, None))
    assert sw.evaluate(jitted, weights, weights, x, **options).argument_kinds == (None, "pinned_host", None)


def test_what_only_out_shardings_put_on_the_host_is_refused():
    mesh = AbstractMesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    host = NamedSharding(mesh, P(), memory_kind="pinned_host")
    jitted = jax.jit(make_step((), ""), out_shardings=(None, host))
    with pytest.raises(sw.TraceError, match=r"out_shardings that put result\.1 on the host"):
        sw.evaluate(jitted, *arguments(on_host=False), mesh=MESH, device="tpu-v5e")
    moved = jax.jit(make_step((), "moved"), out_shardings=(None, host))
    assert sw.evaluate(moved, *arguments(), mesh=MESH, device="tpu-v5e").analysis.program.result_kinds[1]


def test_types_say_where_arguments_lie():
    """A loop that carries a value on the host is no program for JAX unless that begins there."""

    def step(m, xs):
        def body(m, x):
            return jax.device_put(jax.device_put(m, DEVICE) + x, HOST), None

        return jax.lax.scan(body, m, xs)[0]

    plan = sw.evaluate(step, shape(8, 8, on_host=True), shape(4, 8, 8), mesh=MESH, device="tpu-v5e")
    assert plan.analysis.program.result_kinds == ("pinned_host",)
    assert [t.times for t in plan.estimate.transfers] == [4, 4]


def test_an_offloaded_stack_takes_bytes_of_the_host_alone():
    kept, offloaded = plan_of((), "").estimate, plan_of(("input",), "").estimate
    stack = LAYERS * BATCH * WIDTH * 4 // 2
    assert offloaded.host_bytes == stack
    assert kept.peak_bytes - stack < offloaded.peak_bytes < kept.peak_bytes
    assert {(t.to, t.bytes, t.times) for t in offloaded.transfers} == {
        ("host", stack / LAYERS, LAYERS),
        ("device", stack / LAYERS, LAYERS),
    }
    assert offloaded.transfer_seconds == pytest.approx(2 * stack / PRESETS["tpu-v5e"].host_bytes_per_second)


def test_state_on_the_host_is_an_argument_there():
    here, there = plan_of((), ""), plan_of((), "moved")
    size = LAYERS * WIDTH * HIDDEN * 4 // 2
    assert there.estimate.host_bytes == size  # the result takes the donated argument's place
    assert here.estimate.argument_bytes - there.estimate.argument_bytes == size
    not_donated = plan_of((), "moved", donate=())
    assert not_donated.estimate.host_bytes == 2 * size
    assert [a.name for a in there.estimate.alive_on_host] == ["m"]


def test_state_is_moved_before_the_last_loop_unless_a_loop_moves_it():
    """A barrier, which the compiler drops, delays nothing; a loop of its own has one layer on the device at a time."""
    whole, barred, by_layer = (plan_of((), moments).estimate for moments in ("moved", "barred", "by layer"))
    assert whole.peak_bytes == barred.peak_bytes == plan_of((), "").estimate.peak_bytes
    assert by_layer.peak_bytes < whole.peak_bytes
    assert by_layer.host_bytes == whole.host_bytes  # written in place


def test_a_move_to_where_a_value_lies_is_none():
    def step(x):
        return jax.device_put(jax.device_put(jax.device_put(x, DEVICE) * 2, HOST), HOST)

    estimate = sw.evaluate(step, shape(256, 256), mesh=MESH, device="tpu-v5e").estimate
    assert [(t.to, t.times) for t in estimate.transfers] == [("host", 1)]
    assert estimate.host_bytes == 256 * 256 * 4


def test_moves_are_hidden_behind_the_compute_beside_them():
    assert PIPELINED.effect == "body"
    assert exposed_seconds(3.0, 2.0, 1.0, True) == 2.0
    assert exposed_seconds(3.0, 2.0, 1.0, False) == 4.0
    assert exposed_seconds(3.0, 2.0, 9.0, False) == 0.0
    slow = dataclasses.replace(PRESETS["tpu-v5e"], name="slow", host_bytes_per_second=1e6)
    estimate = plan_of(device=slow).estimate
    assert 0 < estimate.exposed_transfer_seconds < estimate.transfer_seconds
    assert estimate.step_seconds == pytest.approx(
        estimate.compute_seconds + estimate.comm_seconds - estimate.hidden_seconds + estimate.exposed_transfer_seconds
    )
    fast = dataclasses.replace(PRESETS["tpu-v5e"], name="fast", host_bytes_per_second=1e15)
    assert plan_of(device=fast).estimate.exposed_transfer_seconds == 0


def test_a_device_must_tell_the_rate_of_its_link():
    unknown = dataclasses.replace(PRESETS["tpu-v5e"], name="mine", host_bytes_per_second=0.0)
    assert plan_of((), "", device=unknown).estimate.peak_bytes > 0
    with pytest.raises(sw.DeviceError, match="'mine' has no host_bytes_per_second"):
        plan_of(device=unknown).estimate  # noqa: B018


def test_the_hosts_memory_is_a_limit():
    small = dataclasses.replace(PRESETS["tpu-v5e"], name="small", host_memory_bytes="256KiB")
    plan = plan_of(device=small)
    assert plan.fits is False
    assert not plan.estimate.fits
    assert str(plan).splitlines()[1].startswith("Does not fit on the host by")
    with pytest.raises(sw.InfeasibleError, match=r"keeps .* on the host for each device, .* more than the 256.0 KiB"):
        sw.partition(
            make_step(), *arguments(), mesh=MESH, device=small, donate=(0, 1), seconds=5, simulations=5, progress=False
        )
    no_limit = dataclasses.replace(small, name="unlimited", host_memory_bytes=0)
    assert plan_of(device=no_limit).fits
    assert plan_of(device=no_limit).estimate.host_limit_bytes is None


def test_the_search_splits_what_the_host_has_no_room_for():
    """Whole, the state takes twice what a device has on its host; the search has to split it."""
    size = LAYERS * WIDTH * HIDDEN * 4
    device = dataclasses.replace(PRESETS["tpu-v5e"], name="half", host_memory_bytes=size // 2)

    def step(m, x):
        m = jax.device_put(m, DEVICE) * 0.5
        return jax.device_put(m, HOST), x * 2

    given = (shape(LAYERS, WIDTH, HIDDEN, on_host=True), shape(8, 8))
    plan = sw.partition(step, *given, mesh=MESH, device=device, donate=0, progress=False)
    assert plan.fits
    assert plan.estimate.host_bytes <= size // 2


def test_what_a_plan_says(tmp_path):
    plan = plan_of()
    text = str(plan)
    assert (
        "Each device keeps 1.1 MiB on the host of the 44.7 GiB that it has there and moves 1.1 MiB to the host" in text
    )
    assert "transfers; " in text
    assert "f32[4,256,512], on the host" in text
    found = plan.to_dict()
    assert found["in_memory_kinds"] == {"m": "pinned_host"}
    assert found["out_memory_kinds"] == {"result.1": "pinned_host"}
    assert found["host_bytes"] == plan.estimate.host_bytes
    json.dumps(found)
    assert {"transfers not hidden", "on the host"} <= {f.name for f in sw.diff(plan, plan).figures}
    assert "on the host for each device" in str(plan.explain("m"))
    assert "transfers" in str(sw.compare(plan))
    row = sw.compare(plan).to_dict()["rows"][0]
    parts = ("compute_seconds", "comm_seconds", "exposed_transfer_seconds")
    assert row["step_seconds"] == pytest.approx(sum(row[name] for name in parts) - row["hidden_seconds"])
    assert "keeps 1.1 MiB on the host" in str(plan.estimate)
    plan.report(tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text()
    assert "Transfers between host and device" in page
    plan.save(tmp_path / "plan.json")
    again = sw.load(tmp_path / "plan.json", make_step(), *arguments())
    assert again.estimate.host_bytes == plan.estimate.host_bytes


def test_python_to_paste_keeps_the_memory():
    plan = plan_of()
    written = plan.to_python(constraints=False)
    assert 'in_kinds = 1 * ["device"] + 1 * ["pinned_host"] + 1 * ["device"]' in written
    assert 'out_kinds = 1 * ["device"] + 1 * ["pinned_host"]' in written
    assert "in_shardings=in_memory(in_specs, in_kinds)," in written
    lines = [line for line in written.splitlines() if not line.startswith("mesh =")]
    scope = {"step": make_step(), "mesh": AbstractMesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)}
    exec("\n".join(lines), scope)
    lowered = scope["step"].trace(*arguments(on_host=False)).lower(lowering_platforms=("tpu",)).as_text()
    assert lowered.count('mhlo.memory_kind = "pinned_host"') == 2


@pytest.mark.parametrize("constraints", ["keep", "drop"])
def test_a_module_says_where_its_arguments_lie(tmp_path, constraints):
    plan = plan_of(constraints=constraints)
    plan.to_stablehlo(tmp_path / "planned.mlir")
    head = next(line for line in (tmp_path / "planned.mlir").read_text().splitlines() if "@main" in line)
    assert head.count('mhlo.memory_kind = "pinned_host"') == 2
    if constraints == "keep":
        file = tmp_path / "step.mlir"
        plain = jax.jit(make_step()).trace(*arguments()).lower(lowering_platforms=("tpu",)).as_text()
        file.write_text(plain.replace(", sdy.sharding = #sdy.sharding<@empty_mesh, [{}, {}, {}]>", ""))
        fn = read_stablehlo(file)
        again = sw.evaluate(fn, *fn.args, mesh=MESH, device="tpu-v5e")
        assert again.argument_kinds == (None, "pinned_host", None)
        assert again.analysis.program.result_kinds == (None, "pinned_host")


def test_a_plan_runs_and_leaves_state_where_it_was():
    plan = sw.evaluate(
        make_step(), *arguments(), mesh={"data": 1}, device="cpu", decisions=["fsdp:data"], donate=(0, 1)
    )
    mesh = plan.make_mesh(jax.devices()[:1])
    values = [jnp.ones(a.shape) * 0.01 for a in arguments()]
    expected = make_step()(values[0], jax.device_put(values[1], HOST), values[2])
    placed = [plan.place(value, mesh, k) for k, value in enumerate(values)]
    assert [x.sharding.memory_kind for x in placed] == ["device", "pinned_host", "device"]
    result = plan.jit(mesh)(*placed)
    assert [x.sharding.memory_kind for x in result] == ["device", "pinned_host"]
    for a, b in zip(result, expected, strict=True):
        assert jnp.allclose(jax.device_put(a, DEVICE), jax.device_put(b, DEVICE), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("constraints", ["keep", "drop"])
def test_a_plan_runs_on_several_devices(constraints):
    verdict = plan_of(device="cpu", constraints=constraints).verify("run")
    assert verdict.ok, verdict


def test_what_lies_on_the_host_is_no_part_of_a_devices_peak():
    memory = dict.fromkeys(("output_bytes", "generated_code_bytes", "alias_bytes", "host_alias_bytes"), 0)
    memory |= {"argument_bytes": 10, "temp_bytes": 50, "host_argument_bytes": 7, "host_output_bytes": 0}
    memory |= {"host_temp_bytes": 5, "host_generated_code_bytes": 0, "peak_bytes": 47}
    found = memory_figures(memory, parse_target("tpu:v5e:2x2"))
    assert (found["peak_bytes"], found["host_bytes"]) == (40, 12)


SCHEDULE = """\
HloModule jit_step, is_scheduled=true

ENTRY %main (p: f32[1000000]) -> f32[1000000] {
  %p = f32[1000000]{0:T(1024)S(5)} parameter(0)
  %copy-start = (f32[1000000]{0:T(1024)}, f32[1000000]{0:T(1024)S(5)}, u32[]{:S(2)}) copy-start(%p)
  %a = f32[8]{0} fusion(), kind=kLoop, calls=%f, backend_config={"estimated_cycles":"1000000"}
  %copy-done = f32[1000000]{0:T(1024)} copy-done(%copy-start)
  %copy-start.1 = (f32[1000000]{0:T(1024)S(5)}, f32[1000000]{0:T(1024)}, u32[]{:S(2)}) copy-start(%copy-done)
  ROOT %copy-done.1 = f32[1000000]{0:T(1024)S(5)} copy-done(%copy-start.1)
}
"""


def test_a_schedule_is_replayed():
    """A move of 4 MB at 1 GB/s takes 4 ms; of the first, 1 ms is hidden, and of the second nothing."""
    found = replay(parse_hlo(SCHEDULE), Prices(lambda cost: cost.cycles / 1e9, lambda _: ((), 0.0), 1e9))
    assert {name: share.seconds for name, share in found.shares.items()} == {"copy-start": 4e-3, "copy-start.1": 4e-3}
    assert found.transfer_seconds == pytest.approx(8e-3)
    assert found.exposed_transfer_seconds == found.exposed_seconds == pytest.approx(7e-3)
    assert found.shares["copy-start"].exposed_seconds == pytest.approx(3e-3)


@pytest.mark.slow
def test_the_tpu_compiler_keeps_it_on_the_host():
    """Large enough not to lie in the chip's own memory, and small enough to be compiled in seconds."""
    pytest.importorskip("libtpu")
    sizes = {LAYERS: 16, BATCH: 4096, WIDTH: 4096, HIDDEN: 8192}
    weights, m, x = (
        jax.ShapeDtypeStruct(tuple(sizes[size] for size in a.shape), a.dtype, sharding=a.sharding) for a in arguments()
    )
    plan = sw.evaluate(
        make_step(("input",), "by layer"),
        *(weights, m, x),
        mesh={"data": 4},
        device="tpu-v5e",
        decisions=["fsdp:data"],
        donate=(0, 1),
    )
    verdict = plan.verify("tpu:v5e:2x2")
    assert verdict.ok, verdict
    assert verdict.ratios["host_bytes"] == pytest.approx(1, rel=0.01)
    assert verdict.ratios["peak_bytes"] == pytest.approx(1, rel=0.15)
    assert verdict.ratios["transfer_seconds"] == pytest.approx(1, rel=0.1)
