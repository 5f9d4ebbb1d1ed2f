"""Meshes whose shape is chosen: which shapes there are, that the best one is found, and what a plan says of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardwright as sw
from programs import f32
from shardwright.devices import axis_parts, find_device
from shardwright.models import build
from shardwright.request import Pins
from shardwright.request.mesh import find_machine, shapes
from small import SMALL, bf16

pytestmark = pytest.mark.usefixtures("exact_estimates")
V5E = find_device("tpu-v5e")
CLOSE = 1.001
"""A search may end a thousandth above the best."""


def meshes(found):
    return [dict(zip(shape.names, shape.sizes, strict=True)) for shape in found]


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (1, [(1,)]),
        (2, [(2,)]),
        (7, [(7,)]),
        (8, [(8,), (2, 4)]),  # of 2x4 chips; an axis of two has one link in (4, 2) as well
        (12, [(12,), (3, 4), (2, 6)]),  # no slice has 12 chips: lines, in whichever order
        (16, [(16,), (4, 4), (2, 8), (8, 2)]),  # of 4x4 chips; the last axis has a dimension of its own
    ],
)
def test_shapes_of_a_torus(devices, expected):
    found = shapes(V5E, devices)
    assert [shape.sizes for shape in found] == expected
    assert all(shape.names == ("x", "y", "z")[: len(shape.sizes)] for shape in found)


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("gpu:a100-80:8", [(8,), (2, 4)]),  # one switch: the order does not matter
        ("gpu:a100-80:2x4", [(8,), (2, 4), (4, 2), (2, 2, 2)]),
        ("gpu:a100-80:2x8", [(16,), (4, 4), (2, 8), (8, 2), (2, 2, 4)]),  # x runs between nodes, y and z within
        ("tpu:v5e:4x4", [(16,), (4, 4), (2, 8), (8, 2)]),
        ("tpu:v5e:2x2x2", [(8,), (2, 4), (4, 2), (2, 2, 2)]),  # two slices
    ],
)
def test_shapes_by_where_the_devices_are(place, expected):
    assert [shape.sizes for shape in find_machine(place, None).shapes] == expected


def test_nodes_have_as_many_devices_as_was_said():
    parts = [
        [(p.size, p.link.link) for p in axis] for axis in axis_parts(find_machine("gpu:a100-80:4x2", None).device, (8,))
    ]
    assert parts == [[(2, "NVLink"), (4, "network")]]
    own = sw.Device("own", "gpu", 1e14, "40GiB", 1e12, links=find_device("a100-80").links)
    assert find_machine("gpu:a100-80:4x2", own).device.name == "own"
    assert find_machine("gpu:a100-80:4x2", own).device.links[0].devices == 2


def test_axes_that_pins_name():
    assert meshes(shapes(V5E, 8, ["model"])) == [{"model": 8}, {"model": 2, "x": 4}, {"x": 2, "model": 4}]
    assert meshes(shapes(V5E, 8, ["data", "model"])) == [{"data": 2, "model": 4}, {"model": 2, "data": 4}]
    assert meshes(shapes(V5E, 8, ["y"])) == [{"y": 8}, {"y": 2, "x": 4}, {"x": 2, "y": 4}]
    pins = ["fsdp:data", sw.Decision("model", "x[0]"), {"w": P(None, ("data", "z"))}]
    assert {frozenset(shape.names) for shape in find_machine(8, "tpu-v5e", Pins.of(pins)).shapes} == {
        frozenset({"data", "model", "z"})
    }


def test_a_given_mesh_is_the_only_shape():
    assert meshes(find_machine({"a": 2, "b": 3}, "cpu").shapes) == [{"a": 2, "b": 3}]


@pytest.mark.parametrize(
    ("mesh", "device", "pin", "message"),
    [
        (0, "tpu-v5e", None, "a mesh cannot have 0 devices; give a number from 1 to 1048576."),
        (-4, "tpu-v5e", None, "a mesh cannot have -4 devices"),
        (2**21, "tpu-v5e", None, "a mesh cannot have 2097152 devices"),
        (True, "tpu-v5e", None, "a mesh is a dict such as"),
        (2.5, "tpu-v5e", None, "a mesh is a dict such as"),
        ("moon", None, None, "'moon' is no mesh; write its axes"),
        ("cpu", None, None, "'cpu' is no mesh"),
        ("tpu:v9:4x4", None, None, "'tpu:v9:4x4' names no TPU"),
        ("tpu:v5e", None, None, "'tpu:v5e' does not say how many devices there are"),
        (
            "tpu:v5e:4x4",
            "a100-80",
            None,
            "the mesh tpu:v5e:4x4 is made of tpu-v5e, but the device is a100-80; drop one.",
        ),
        ("gpu:a100-80:2x8", "h100", None, "made of a100-80, but the device is h100"),
        (7, "tpu-v5e", ["fsdp:a", "megatron:b"], "7 devices make no mesh with the axes a and b, which pins name."),
        (16, "tpu-v5e", [f"fsdp:{a}" for a in "abcd"], "pins name 4 axes (a, b, c, d); write the mesh with these"),
    ],
)
def test_mistakes(mesh, device, pin, message):
    with pytest.raises(sw.MeshError) as raised:
        find_machine(mesh, device, Pins.of(pin))
    assert message in str(raised.value)


# Plans.


def program(name):
    fn, args, donate = SMALL[name]
    return fn, args, {"donate": donate}


@pytest.fixture(
    scope="module",
    params=[("momentum", 8, "tpu-v5e"), ("sgd", "gpu:a100-80:2x4", None), ("chain", "gpu:a100-80:2x4", None)],
    ids=lambda p: p[0],
)
def chosen(request):
    name, mesh, device = request.param
    fn, args, options = program(name)
    return name, mesh, device, sw.partition(fn, *args, mesh=mesh, device=device, **options)


def test_the_chosen_mesh_is_as_good_as_any(chosen):
    name, mesh, device, plan = chosen
    fn, args, options = program(name)
    machine = find_machine(mesh, device)
    for shape in meshes(machine.shapes):
        searched = sw.partition(fn, *args, mesh=shape, device=machine.device, **options)
        assert plan.estimate.step_seconds <= CLOSE * searched.estimate.step_seconds, shape


def test_a_plan_tells_of_all_meshes(chosen):
    _, mesh, device, plan = chosen
    assert plan.meshes[0].mesh == plan.mesh
    assert plan.meshes[0].effort == "searched"
    known = meshes(find_machine(mesh, device).shapes)
    assert [shape for shape in known if shape not in [row.mesh for row in plan.meshes]] == []
    assert all(row.mesh in known or len(row.mesh) == 3 for row in plan.meshes)
    seconds = [row.step_seconds for row in plan.meshes[1:]]
    assert seconds == sorted(seconds)
    assert plan.meshes[0].step_seconds == pytest.approx(plan.estimate.step_seconds, rel=0.02)
    table = str(plan).partition("how well it was searched\n")[2].splitlines()
    assert table[0].startswith(" × ".join(f"{axis} {size}" for axis, size in plan.mesh.items()))
    assert [row["mesh"] for row in plan.to_dict()["meshes"]] == [row.mesh for row in plan.meshes]


def test_the_same_mesh_and_plan_again():
    fn, args, options = program("covariance")
    plan, again = (sw.partition(fn, *args, mesh="gpu:a100-80:2x4", **options) for _ in range(2))
    assert (again.mesh, again.decisions, again.meshes) == (plan.mesh, plan.decisions, plan.meshes)


def test_a_mesh_that_was_given_has_no_others():
    fn, args, options = program("product")
    assert sw.partition(fn, *args, mesh={"x": 8}, device="tpu-v5e", **options).meshes == ()
    assert sw.partition(fn, *args, mesh=7, device="tpu-v5e", **options).mesh == {"x": 7}


def test_axes_of_pins_are_in_the_mesh():
    fn, args, options = build("gpt", preset="tiny")
    plan = sw.partition(fn, *args, mesh=8, device="tpu-v5e", pin="megatron:model", seconds=0, **options)
    assert "model" in plan.mesh
    assert {row.effort for row in plan.meshes} == {"searched", "carried over"}
    by_hand = sw.evaluate(fn, *args, mesh=plan.mesh, device="tpu-v5e", decisions="megatron:model", **options)
    assert plan.in_specs == by_hand.in_specs


def test_a_pin_is_honoured_by_the_search():
    fn, args, options = program("sgd")
    plan = sw.partition(fn, *args, mesh=4, device="tpu-v5e", pin={"params.a": P(None, "model")}, **options)
    assert plan.in_specs[0]["a"] == P(None, "model")
    assert all("model" in row.mesh for row in plan.meshes)


def test_pins_alone():
    """With no time to search, the mesh is that on which the pins do best."""
    fn, args, options = program("sgd")
    plan = sw.partition(fn, *args, mesh=8, device="tpu-v5e", pin=("data", "x[0]"), seconds=0, **options)
    assert plan.decisions == (sw.Decision("data", "x[0]"),)
    assert plan.mesh == {"data": 8}
    assert len(plan.meshes) == 3


def test_a_pin_that_fits_no_mesh():
    fn, args, options = program("sgd")
    with pytest.raises(sw.PinError, match="nothing"):
        sw.partition(fn, *args, mesh=8, device="tpu-v5e", pin=("data", "nothing[0]"), **options)


def test_nothing_fits_on_any_mesh():
    fn, args, options = program("sgd")
    with pytest.raises(sw.InfeasibleError, match="no plan fits") as raised:
        sw.partition(fn, *args, mesh=4, device="tpu-v5e", memory="1MiB", **options)
    plan = raised.value.plan
    assert not plan.fits
    assert not any(row.fits for row in plan.meshes)
    assert plan.meshes[0].peak_bytes == min(row.peak_bytes for row in plan.meshes)


def test_one_device():
    fn, args, options = program("product")
    plan = sw.partition(fn, *args, mesh=1, device="tpu-v5e", **options)
    assert (plan.mesh, plan.decisions, plan.collectives) == ({"x": 1}, (), ())


def small_step(params, x, y):
    grads = jax.grad(lambda p: jnp.mean((jax.nn.relu(x @ p["a"]) @ p["b"] - y) ** 2))(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def test_a_plan_on_a_chosen_mesh_is_saved_and_run(tmp_path):
    shapes_of = {"a": f32(32, 64), "b": f32(64, 16)}, f32(128, 32), f32(128, 16)
    plan = sw.partition(small_step, *shapes_of, mesh="gpu:a100-80:2x4", pin="megatron:model", seconds=0)
    plan.save(tmp_path / "plan.json")
    loaded = sw.load(tmp_path / "plan.json", small_step, *shapes_of)
    assert (loaded.mesh, loaded.decisions, loaded.device) == (plan.mesh, plan.decisions, plan.device)
    assert loaded.estimate.step_seconds == plan.estimate.step_seconds
    random = np.random.default_rng(0)
    args = jax.tree.map(lambda a: random.normal(size=a.shape).astype(a.dtype), shapes_of)
    mesh = loaded.make_mesh()
    assert dict(mesh.shape) == plan.mesh
    result = loaded.jit(mesh)(*(loaded.place(arg, mesh, k) for k, arg in enumerate(args)))
    expected = small_step(*args)
    for name, found in result.items():
        assert found.sharding.spec == loaded.out_specs[name]
        np.testing.assert_allclose(found, expected[name], rtol=1e-4, atol=1e-5)


# Two nodes of eight GPUs: each GPU has 300 GB/s within its node and 25 GB/s out of it.


def residual(params, x, y):
    def loss(params):
        h = x
        for layer in params:
            h = h + jax.nn.relu(h @ layer["up"]) @ layer["down"]
        return jnp.mean((h - y).astype(jnp.float32) ** 2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


def of_rows(rows, width=8192):
    layer = {"up": bf16(width, 4 * width), "down": bf16(4 * width, width)}
    return [layer, layer], bf16(rows, width), bf16(rows, width)


def axes_of(specs):
    return {axis for s in jax.tree.leaves(specs) for e in s if e for axis in ((e,) if isinstance(e, str) else e)}


@pytest.mark.parametrize("mesh", [{"node": 2, "gpu": 8}, "gpu:a100-80:2x8"], ids=str)
def test_data_parallel_across_nodes_and_model_parallel_within(mesh):
    """With 49,152 rows gradients go across nodes and activations stay within.

    If both nodes have all weights, each GPU an eighth, it sends its eighth of two gradients of 8,192 × 32,768 across:
    128 MiB a layer in bf16. If each node had half of the weights, activations would go across, forward and backward,
    each GPU's 6,144 rows of 8,192: 192 MiB.
    """
    plan = sw.partition(residual, *of_rows(49_152), mesh=mesh, device="a100-80", donate=0)
    parts = dict(zip(plan.mesh, axis_parts(plan.device, tuple(plan.mesh.values())), strict=True))
    across = {axis for axis, own in parts.items() if any(p.link.link == "network" for p in own)}
    within = set(plan.mesh) - across
    assert axes_of(plan.in_specs[0]) == within != set()
    assert across <= axes_of(plan.in_specs[1])


def test_with_few_rows_it_is_the_other_way_round():
    """With 8,192 rows it would be 128 MiB of gradients as well, but of activations 32 MiB."""
    plan = sw.partition(residual, *of_rows(8192), mesh={"node": 2, "gpu": 8}, device="a100-80", donate=0)
    assert "node" in axes_of(plan.in_specs[0])
    assert "node" not in axes_of(plan.in_specs[1])
