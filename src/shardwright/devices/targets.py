"""Devices by where they are: ``tpu:v5e:4x4``, ``tpu:v5e:2x4x4`` (two slices), ``gpu:a100-80:2x8`` (two nodes)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

from shardwright.devices.device import Device
from shardwright.devices.links import slice_chips
from shardwright.devices.presets import PRESETS
from shardwright.errors import MeshError, PlanError

_SHAPE = re.compile(r"^[1-9]\d*(x[1-9]\d*)*$")
_CHIPS_OF_A_HOST = 4
_TPU_SPELLING = {"7x": "tpu7x"}


@dataclass(frozen=True)
class Target:
    """Devices to plan and compile for.

    Attributes:
        name: As the user spelled it.
        platform: JAX's name of the compiler: "tpu", "cuda" or "cpu".
        device: The preset.
        shape: Of a TPU slice in chips; of GPUs nodes and GPUs in each; empty for CPU.
        devices: How many devices JAX sees there; None for as many as the mesh has.
        slices: Of TPUs, joined by the data centre's network.

    """

    name: str
    platform: str
    device: Device
    shape: tuple[int, ...] = ()
    devices: int | None = None
    slices: int = 1

    @property
    def placed_device(self) -> Device:
        """The preset where it is."""
        return self.placed(self.device)

    def placed(self, device: Device) -> Device:
        """A device, told the shape of its slices, or how many of it share a node."""
        if self.platform == "tpu":
            return replace(device, slice_shape=self.shape)
        if self.platform == "cuda" and device.links:
            node, *rest = device.links
            return replace(device, links=(replace(node, devices=self.shape[1]), *rest))
        return device

    @property
    def topology(self) -> str:
        """The topology as JAX's ``get_topology_desc`` has it."""
        if self.platform == "tpu":
            kind = self.device.name.removeprefix("tpu-")
            return f"{_TPU_SPELLING.get(kind, kind)}:{'x'.join(map(str, self.shape))}"
        return "x".join(map(str, (1, *self.shape))) if self.shape else ""

    @property
    def topology_options(self) -> dict[str, Any]:
        """What else ``get_topology_desc`` has to be told: by default it takes a TPU v4's two cores for two devices.

        A host has four chips, or as many as there are.
        """
        options: dict[str, Any] = {"num_slices": self.slices} if self.slices > 1 else {}
        if self.platform == "tpu" and math.prod(self.shape) < _CHIPS_OF_A_HOST:
            options["chips_per_host_bounds"] = [*self.shape, 1][:3]
        return {**options, "chip_config_name": "megacore"} if self.device.name == "tpu-v4" else options

    def check(self, mesh_devices: int) -> None:
        """Raise ``MeshError`` where a mesh has another number of devices."""
        if self.devices is not None and self.devices != mesh_devices:
            raise MeshError(f"{self.name} has {self.devices} devices, but the plan's mesh has {mesh_devices}.")


def is_target(text: str) -> bool:
    """Whether a name is meant for a compiler rather than for another check."""
    return text == "cpu" or is_place(text)


def is_place(text: str) -> bool:
    """Whether a name says where devices are, and so how many."""
    return text.partition(":")[0] in ("tpu", "gpu")


def target_beginnings() -> list[str]:
    """What the names of targets begin with, up to the number of devices."""
    placed = [d for d in PRESETS.values() if d.platform != "cpu"]
    return ["cpu", *(f"{d.platform}:{d.name.removeprefix('tpu-')}:" for d in placed)]


def parse_target(text: str) -> Target:
    """A target by its name; ``PlanError`` says what is wrong with it."""
    if text == "cpu":
        return Target(text, "cpu", PRESETS["cpu"])
    kind, _, rest = text.partition(":")
    name, _, shape = rest.partition(":")
    if kind == "tpu":
        return _tpu(text, name, _sizes(text, shape, "tpu:v5e:4x4"))
    if kind == "gpu":
        return _gpu(text, name, _sizes(text, shape, "gpu:a100-80:8"))
    raise PlanError(f"a plan is compiled for cpu, tpu:v5e:4x4 or gpu:a100-80:8 and the like, not for {text!r}.")


def target_of(device: Device, devices: int) -> Target | None:
    """The target of so many devices of a preset: the standard slice, or whole nodes; None where there is none."""
    if device.platform == "cpu":
        return parse_target("cpu")
    if device.platform == "tpu":
        shape = slice_chips(device, devices)
        name = f"tpu:{device.name.removeprefix('tpu-')}:{'x'.join(map(str, shape))}" if shape else ""
    else:
        node = device.links[0].devices if device.links else None
        nodes, rest = divmod(devices, node) if node else (0, devices)
        name = f"gpu:{device.name}:{nodes}x{node}" if nodes and not rest else f"gpu:{device.name}:{devices}"
        if nodes and rest:
            return None
    try:
        target = parse_target(name)
    except PlanError:
        return None
    return target if target.devices == devices else None


def _sizes(text: str, shape: str, example: str) -> tuple[int, ...]:
    if not _SHAPE.match(shape):
        raise PlanError(f"{text!r} does not say how many devices there are; write it as in {example}.")
    return tuple(int(part) for part in shape.split("x"))


def _preset(text: str, name: str, platform: str, prefix: str) -> Device:
    known = {d.name.removeprefix(prefix): d for d in PRESETS.values() if d.platform == platform}
    if name not in known:
        raise PlanError(f"{text!r} names no {platform.upper()} to compile for; there are {', '.join(known)}.")
    return known[name]


def _tpu(text: str, name: str, shape: tuple[int, ...]) -> Target:
    device = _preset(text, name, "tpu", "tpu-")
    torus = next(link for link in device.links if link.torus_dimensions)
    slices, shape = (shape[0], shape[1:]) if len(shape) == torus.torus_dimensions + 1 else (1, shape)
    if len(shape) != torus.torus_dimensions:
        example = "x".join(["2", "2", "1"][: torus.torus_dimensions])
        raise PlanError(
            f"{text!r}: slices of TPU {name} have {torus.torus_dimensions} dimensions, as in tpu:{name}:{example}, or "
            f"tpu:{name}:2x{example} for two slices."
        )
    per_chip = math.prod(link.devices or 1 for link in device.links[: device.links.index(torus)])
    devices = math.prod(shape) * per_chip
    if torus.devices is not None and devices > torus.devices:
        raise PlanError(f"{text!r}: a slice of TPU {name} has at most {torus.devices // per_chip} chips.")
    return Target(text, "tpu", device, shape, devices * slices, slices)


def _gpu(text: str, name: str, shape: tuple[int, ...]) -> Target:
    device = _preset(text, name, "gpu", "")
    if len(shape) > 2:
        raise PlanError(f"{text!r}: GPUs are counted by nodes and GPUs in each, as in gpu:{name}:2x8.")
    nodes_and_gpus = (1, *shape)[-2:]
    return Target(text, "cuda", device, nodes_and_gpus, math.prod(shape))
