"""Devices: their figures, which link an axis runs on, and how mistakes are told."""

import dataclasses
import json
import math
import os
import pickle
from dataclasses import dataclass

import jax
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from jax.experimental import mesh_utils

from shardwright.cli import main
from shardwright.devices import (
    PRESETS,
    AxisLink,
    Device,
    Link,
    axis_links,
    axis_parts,
    find_device,
    joined,
    parse_bytes,
)
from shardwright.devices.presets import cpu_device
from shardwright.errors import DeviceError, ShardwrightError
from shardwright.price.collectives import collective_seconds
from shardwright.request.targets import parse_target

GB, GIB = 1e9, 1024**3

V3, V4, V5E, V5P, V7 = (PRESETS[f"tpu-{name}"] for name in ("v3", "v4", "v5e", "v5p", "7x"))
A100 = PRESETS["a100-80"]


def short(links):
    return [(link.link, link.bytes_per_second / GB, link.shape) for link in links]


# Figures.


@pytest.mark.parametrize(
    ("name", "units", "side"),
    # Matrix units that work in one cycle of the compiler's clock (two on v6e, of twice that clock).
    [("v3", 2, 128), ("v4", 8, 128), ("v5e", 4, 128), ("v5p", 8, 128), ("v6e", 4, 256), ("7x", 4, 256)],
)
def test_clock_and_matrix_units_make_the_peak(name, units, side):
    device = PRESETS[f"tpu-{name}"]
    assert device.matrix_unit == side
    assert device.clock_hertz * units * side**2 * 2 == pytest.approx(device.flops("bf16"), rel=0.003)


@pytest.mark.parametrize(
    ("name", "gib"),  # as the TPU compiler's RESOURCE_EXHAUSTED prints them
    [("v3", 15.48), ("v4", 30.75), ("v5e", 15.75), ("v5p", 95.74), ("v6e", 31.25), ("7x", 94.75)],
)
def test_usable_memory_is_what_the_compiler_grants(name, gib):
    assert round(PRESETS[f"tpu-{name}"].usable_bytes / GIB, 2) == gib


def test_every_preset_is_whole():
    for name, device in PRESETS.items():
        assert device.name == name
        assert device.usable_bytes <= device.memory_bytes
        assert device.links[-1].devices is None  # something joins any number of them
        assert (device.platform == "tpu") == (device.clock_hertz > 0) == (device.tile is not None)
        rates = [link.bytes_per_second for link in device.links]
        assert rates == sorted(rates, reverse=True)
        assert rates[0] < device.memory_bytes_per_second
        assert pickle.loads(pickle.dumps(device)) == device
        assert len({device, dataclasses.replace(device)}) == 1


def test_an_a100_leaves_what_jax_does_not_take():
    assert A100.usable_bytes == int(0.75 * A100.memory_bytes)


def test_peak_of_types_without_a_figure():
    assert 0.9 < V5E.flops("f32") / V5E.flops("bf16") <= 1  # one pass of bf16, by calibration
    assert V4.flops("f32") == 0.82 * V4.flops("bf16")  # converted on the way
    assert V5E.flops("bf16") == V5E.flops("f16") == V5E.flops("f8E4M3FN") == 197e12
    assert V5E.flops("i8") == V5E.flops("ui8") == V5E.flops("i4") == 394e12
    assert V7.flops("f8E5M2") == 2 * V7.flops("bf16")
    assert A100.flops("f64") == 19.5e12
    assert V5E.flops("f64") == V5E.flops("f32") / 16
    assert A100.flops("complex<f32>") == A100.flops("f32") / 4
    assert A100.flops("complex<f64>") == A100.flops("f64") / 4
    assert A100.flops("i32") == A100.flops("i1") == A100.flops("f32")
    assert PRESETS["cpu"].flops("bf16") == PRESETS["cpu"].flops("f32")
    assert Device("x", "gpu", {"f8": 1e15}, GIB, 1e12).flops("f32") == 1e15


def test_cpu_devices_share_the_host():
    one, four = cpu_device(), cpu_device(4)
    assert one.memory_bytes == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert four.memory_bytes == one.memory_bytes // 4
    assert four.flops("f32") == one.flops("f32") / 4


def test_host_that_does_not_tell_its_memory(monkeypatch):
    monkeypatch.delattr(os, "sysconf")
    assert cpu_device().memory_bytes == 8 * GIB


# Links.


def test_v5e_4x4():
    """Two dimensions of 4, shorter than 16: lines, 45 GB/s one way."""
    assert short(axis_links(V5E, (4, 4))) == [("ICI", 45, "line")] * 2
    assert short(axis_links(V5E, (16,))) == [("ICI", 90, "line")]
    assert axis_links(V5E, (4, 4), topology=(4, 4)) == axis_links(V5E, (4, 4))


def test_v5e_pod():
    assert short(axis_links(V5E, (16, 16))) == [("ICI", 45, "ring")] * 2
    assert short(axis_links(V5E, (256,))) == [("ICI", 90, "ring")]


def test_v5e_8x16_closes_along_its_longer_side():
    outer, inner = axis_links(V5E, (8, 16))
    assert (outer.shape, inner.shape) == ("line", "ring")
    (both,) = axis_links(V5E, (128,))
    assert (both.bytes_per_second, both.shape) == (90 * GB, "line")
    (parts,) = axis_parts(V5E, (128,))
    assert sorted((part.size, part.link.shape) for part in parts) == [(8, "line"), (16, "ring")]


def test_several_v5e_slices():
    assert short(axis_links(V5E, (2, 16, 16))) == [("DCN", 3.125, "switch"), ("ICI", 45, "ring"), ("ICI", 45, "ring")]
    assert short(axis_links(V5E, (2, 4, 4), topology=(4, 4)))[0] == ("DCN", 3.125, "switch")
    (parts,) = axis_parts(V5E, (512,))
    assert [(part.size, part.link.link) for part in parts] == [(16, "ICI"), (16, "ICI"), (2, "DCN")]


def test_v4_cube():
    """4x4x4 has optical rings all round: 4 on one, 16 on two."""
    assert short(axis_links(V4, (4, 16))) == [("ICI", 45, "ring"), ("ICI", 90, "ring")]
    assert short(axis_links(V4, (64,))) == [("ICI", 135, "ring")]


def test_less_than_a_cube_has_no_rings():
    """2x4x4, although two of its sides are 4 long."""
    assert short(axis_links(V4, (2, 16))) == [("ICI", 45, "line"), ("ICI", 90, "line")]
    assert {link.shape for link in axis_links(V5P, (4, 4, 8), topology=(4, 4, 8))} == {"ring"}


def test_axes_that_share_a_dimension():
    """(2, 2, 4) on 4x4: the last has a dimension, the others halves of one; the outer's hops cross the inner's."""
    assert short(axis_links(V5E, (2, 2, 4))) == [("ICI", 22.5, "line"), ("ICI", 45, "line"), ("ICI", 45, "line")]


def test_part_of_a_ring_is_a_line():
    assert [link.shape for link in axis_links(V5E, (16, 4, 4))] == ["ring", "line", "line"]


def test_cores_of_one_v3_chip():
    """2x2 chips of two cores. What stays on a chip goes by its own link, which an axis of all eight has, too."""
    assert short(axis_links(V3, (2,))) == [("chip", 100, "switch")]
    (parts,) = axis_parts(V3, (8,), topology=(2, 2))
    assert [(part.size, part.link.link) for part in parts] == [(2, "chip"), (2, "ICI"), (2, "ICI")]
    assert short(axis_links(V3, (8,))) == [("ICI", 100, "line")]
    assert short(axis_links(V7, (2, 4, 16), topology=(4, 4, 4)))[1:] == [("ICI", 45, "ring"), ("ICI", 90, "ring")]


def test_gpu_nodes():
    assert short(axis_links(A100, (2, 8))) == [("network", 25, "switch"), ("NVLink", 300, "switch")]
    assert short(axis_links(A100, (4, 2))) == [("NVLink", 300, "switch")] * 2
    assert short(axis_links(A100, (4, 4))) == [("network", 25, "switch"), ("NVLink", 300, "switch")]
    assert short(axis_links(A100, (16,))) == [("network", 25, "switch")]
    assert short(axis_links(A100, (3,))) == [("NVLink", 300, "switch")]


def test_parts_of_an_axis_across_nodes():
    (parts,) = axis_parts(A100, (16,))
    assert [(part.size, part.link.link) for part in parts] == [(8, "NVLink"), (2, "network")]
    # An all-gather of 16 GB: a sixteenth from the other node, then seven eighths from the own one.
    links, sizes = zip(*((part.link, part.size) for part in parts), strict=True)
    without_latency = [dataclasses.replace(link, latency_seconds=0) for link in links]
    seconds = collective_seconds("all-gather", 15 * GB, without_latency, sizes)
    assert seconds == pytest.approx(16 * (7 / 8 / 300 + 1 / 16 / 25))


def test_axes_of_one_device():
    assert short(axis_links(V5E, (1, 16, 1))) == [("ICI", 45, "line"), ("ICI", 90, "line"), ("ICI", 45, "line")]
    assert axis_links(V5E, ()) == ()
    assert axis_parts(A100, (1,)) == ((),)


def test_sizes_that_make_no_slice():
    assert short(axis_links(V5E, (3, 2))) == [("ICI", 45, "line")] * 2
    assert short(axis_links(V4, (6,))) == [("ICI", 45, "line")]
    assert short(axis_links(V3, (3,))) == [("ICI", 50, "line")]
    assert short(axis_links(V5E, (4, 12), topology=(4, 4))) == [("DCN", 3.125, "switch"), ("ICI", 45, "line")]


def test_mesh_that_does_not_fill_the_topology():
    with pytest.raises(
        DeviceError, match=r"^a mesh of 4x2 does not fill slices of 4x4 chips, which have 16 devices\.$"
    ):
        axis_links(V5E, (4, 2), topology=(4, 4))


def test_device_without_links():
    plain = Device("x", "gpu", {"bf16": 1e14}, GIB, 2e12)
    assert axis_links(plain, (2, 4)) == (AxisLink("link", 2e11, 2e-6, "switch"),) * 2


def test_custom_links():
    ring = Device("x", "tpu", 1e14, GIB, 1e12, links=(Link("ring", 1e10, 0, torus_dimensions=1, ring_from=4),))
    assert axis_links(ring, (8,)) == (AxisLink("ring", 1e10, 0, "ring"),)
    small = Device("x", "gpu", 1e14, GIB, 1e12, links=(Link("box", 1e10, 0, devices=4),))
    assert axis_links(small, (2, 8)) == (AxisLink("box", 1e10, 0, "switch"),) * 2


@given(
    name=st.sampled_from(sorted(PRESETS)),
    sizes=st.lists(st.integers(1, 48) | st.sampled_from([64, 128, 256, 512, 6144]), max_size=4),
)
def test_every_axis_has_a_link(name, sizes):
    links, parts = axis_links(PRESETS[name], sizes), axis_parts(PRESETS[name], sizes)
    known = {link.name for link in PRESETS[name].links}
    assert len(links) == len(parts) == len(sizes)
    for link, axis, size in zip(links, parts, sizes, strict=True):
        assert link.link in known
        assert link.bytes_per_second > 0
        assert link.latency_seconds > 0
        assert link.shape in ("ring", "line", "switch")
        assert math.prod(part.size for part in axis) == size
        assert all(part.size > 1 and part.link.bytes_per_second > 0 for part in axis)


@given(name=st.sampled_from(["tpu-v5e", "tpu-v5p", "a100-80"]), powers=st.lists(st.integers(0, 3), max_size=4))
def test_all_axes_together_are_one(name, powers):
    """However the devices are cut into axes, a collective over all of them has the same wires."""
    sizes = [2**power for power in powers]

    def together(sizes):
        found = joined(part for axis in axis_parts(PRESETS[name], sizes) for part in axis)
        return sorted((p.size, p.link.link, p.link.shape, p.link.bytes_per_second) for p in found)

    assert together(sizes) == together([math.prod(sizes)])


def test_parts_apart_along_a_dimension():
    """(2, 2, 2) along 8 chips in a row, the first and the last together: the first crosses four links a hop."""
    row = Device("row", "tpu", 1e14, GIB, 1e12, links=(Link("ICI", 40 * GB, 1e-6, torus_dimensions=1),))
    outer, middle, inner = axis_parts(row, (2, 2, 2))
    assert [p.link.bytes_per_second / GB for p in (*outer, *middle, *inner)] == [10, 20, 40]
    (both,) = joined([*outer, *inner])
    assert (both.size, both.link.bytes_per_second) == (4, 10 * GB)
    (next_to,) = joined([*middle, *inner])
    assert (next_to.size, next_to.link.bytes_per_second) == (4, 40 * GB)


def test_devices_by_where_they_are():
    v5e = parse_target("tpu:v5e:2x8").placed_device
    assert short(axis_links(v5e, (2, 8))) == [("ICI", 45, "line")] * 2
    slices = parse_target("tpu:v5e:2x4x4")
    assert (slices.devices, slices.slices) == (32, 2)
    assert short(axis_links(slices.placed_device, (2, 16))) == [("DCN", 3.125, "switch"), ("ICI", 90, "line")]
    quads = parse_target("gpu:a100-80:2x4").placed_device
    assert short(axis_links(quads, (2, 4))) == [("network", 25, "switch"), ("NVLink", 300, "switch")]


@dataclass(frozen=True)
class Chip:
    """As much of a JAX device as `mesh_utils` looks at."""

    coords: tuple[int, int, int]
    core_on_chip: int = 0
    device_kind: str = "TPU v4"
    platform: str = "tpu"
    process_index: int = 0


@pytest.mark.parametrize(
    ("topology", "sizes"),
    [
        ((4, 4, 4), (4, 16)),
        ((4, 4, 4), (16, 4)),
        ((4, 4, 4), (2, 2, 16)),
        ((4, 4, 4), (2, 32)),
        ((4, 4, 4), (8, 8)),
        ((2, 2, 4), (4, 4)),
        ((4, 4, 8), (8, 16)),
        ((4, 4, 8), (4, 8, 4)),
        ((4, 8, 8), (2, 4, 32)),
        ((4, 4, 12), (3, 4, 16)),
    ],
)
def test_axes_lie_where_jax_puts_them(topology, sizes):
    chips = [Chip(coords) for coords in np.ndindex(topology)]
    mesh = mesh_utils.create_device_mesh(sizes, chips, allow_split_physical_axes=True)
    for axis, parts in enumerate(axis_parts(V4, sizes, topology)):
        line = np.moveaxis(mesh, axis, 0).reshape(sizes[axis], -1)[:, 0]
        lengths = [len({chip.coords[d] for chip in line}) for d in range(3)]
        assert sorted(part.size for part in parts) == sorted(n for n in lengths if n > 1)


# Descriptions and mistakes.


def test_own_device():
    device = Device("x", "gpu", {"bf16": 1e14}, "16GiB", 1e12)
    assert device.memory_bytes == device.usable_bytes == 16 * GIB
    assert device.flops("f32") == 1e14
    assert find_device(device) is device
    assert Device("x", "gpu", 1e14, 16 * GIB, 1e12) == device
    assert Device("x", "gpu", 1e14, 16 * GIB, 1e12, usable_bytes="12GiB").usable_bytes == 12 * GIB


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"platform": "cuda"}, "the device 'x' has the unknown platform 'cuda'; use cpu, gpu, tpu."),
        ({"flops_per_second": {}}, "the device 'x' needs a peak rate, such as flops_per_second={\"bf16\": 1e14}."),
        (
            {"flops_per_second": {"bf16": 0}},
            "the device 'x' has flops_per_second['bf16']=0; give a positive number.",
        ),
        ({"flops_per_second": "fast"}, "the device 'x' has flops_per_second['bf16']='fast'; give a positive number."),
        ({"memory_bytes_per_second": -1.0}, "the device 'x' has memory_bytes_per_second=-1.0; give a positive number."),
        ({"matrix_unit": True}, "the device 'x' has matrix_unit=True; give a positive number."),
        ({"clock_hertz": math.nan}, "the device 'x' has clock_hertz=nan; give a positive number."),
        (
            {"usable_bytes": 2 * GIB},
            "the device 'x' has 2,147,483,648 usable bytes, more than the 1,073,741,824 of its memory.",
        ),
        (
            {"memory_bytes": "much"},
            "an amount of memory is a positive number of bytes, or text such as '12GiB' or '800MB', not 'much'.",
        ),
    ],
)
def test_description_that_makes_no_sense(change, message):
    fields = {"name": "x", "platform": "gpu", "flops_per_second": 1e14, "memory_bytes": GIB}
    with pytest.raises(DeviceError) as error:
        Device(**{**fields, "memory_bytes_per_second": 1e12, **change})
    assert str(error.value) == message


@pytest.mark.parametrize(
    "change", [{"bytes_per_second": 0}, {"latency_seconds": -1}, {"devices": 0}, {"torus_dimensions": 4}]
)
def test_link_that_makes_no_sense(change):
    with pytest.raises(DeviceError, match=r"^the link 'wire' has .*\.$"):
        Link(**{"name": "wire", "bytes_per_second": 1e9, "latency_seconds": 0, **change})


def test_finding_a_device():
    assert find_device("tpu-v5e") is V5E
    assert issubclass(DeviceError, ShardwrightError)
    with pytest.raises(
        DeviceError, match=r"^there is no device 'tpu-v5'; did you mean tpu-v5p or tpu-v5e or tpu-v4\.$"
    ):
        find_device("tpu-v5")
    with pytest.raises(DeviceError, match=r"^there is no device 'xyz'; known devices: tpu-v3, .*, cpu\.$"):
        find_device("xyz")
    with pytest.raises(DeviceError, match=r"^there is no device 7; known"):
        find_device(7)


def test_default_device_is_this_host():
    assert jax.default_backend() == "cpu"
    assert find_device(None) == cpu_device(jax.local_device_count())


@dataclass(frozen=True)
class Present:
    platform: str
    device_kind: str
    stats: dict | None = None

    def memory_stats(self):
        return self.stats


def test_default_device_of_other_backends(monkeypatch):
    def default(*present):
        monkeypatch.setattr(jax, "local_devices", lambda: [Present(*present)])
        return find_device()

    assert default("tpu", "TPU v5 lite") is V5E
    small = default("gpu", "NVIDIA A100-SXM4-80GB", {"bytes_limit": 70 * GIB})
    assert (small.usable_bytes, small.memory_bytes) == (70 * GIB, A100.memory_bytes)
    large = default("gpu", "Tesla V100-SXM2-32GB", {"bytes_limit": 24 * GIB})
    assert (large.usable_bytes, large.memory_bytes) == (24 * GIB, 24 * GIB)
    with pytest.raises(
        DeviceError, match=r"^no preset describes this backend's 'NVIDIA T4'; give device= one of tpu-v3"
    ):
        default("gpu", "NVIDIA T4")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("12GiB", 12 * 1024**3),
        ("12GB", 12 * 10**9),
        ("1.5TiB", 3 * 1024**4 // 2),
        ("800MB", 800 * 10**6),
        (" 64 kib ", 65536),
        (".5 gb", 5 * 10**8),
        ("123", 123),
        ("7b", 7),
        (4096, 4096),
        (1e9, 10**9),
        (np.int64(5), 5),
    ],
)
def test_amounts_of_memory(text, count):
    assert parse_bytes(text) == count
    assert type(parse_bytes(text)) is int


@pytest.mark.parametrize(
    "text", ["", "GiB", "12 GiBs", "-1GB", "0", 0, -5, "1e9", None, True, math.inf, math.nan, [1], "1,000MB"]
)
def test_no_amount_of_memory(text):
    with pytest.raises(DeviceError) as error:
        parse_bytes(text)
    assert str(error.value).endswith(f"or text such as '12GiB' or '800MB', not {text!r}.")


# The command.


def run(*arguments):
    return CliRunner().invoke(main, ["devices", *arguments])


def test_table():
    result = run()
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert " ".join(lines[0].split()) == "device TFLOP/s of usable of memory GB/s links, GB/s one way"
    rows = {line.split()[0]: line for line in lines[1 : len(PRESETS) + 1]}
    assert list(rows) == list(PRESETS)
    assert " 197  bf16   15.7 GiB   16.0 GiB    819  ICI 45 (256 devices, 2D torus), DCN 3.125" in rows["tpu-v5e"]
    assert " 125  f16 " in rows["v100"]
    assert " f32 " in rows["cpu"]


def test_json():
    result = run("--json")
    assert not result.stderr
    found = json.loads(result.stdout)
    assert list(found) == list(PRESETS)
    assert found["tpu-v4"]["links"][0]["torus_dimensions"] == 3
    assert found["tpu-v4"]["flops_per_second"]["bf16"] == 275e12
