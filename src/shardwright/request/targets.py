"""Devices by where they are: ``tpu:v5e:4x4``, ``tpu:v5e:2x4x4`` (two slices), ``gpu:a100-80:2x8`` (two nodes)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from shardwright.devices import PRESETS, Device
from shardwright.devices.links import slice_chips
from shardwright.errors import MeshError, PlanError

_SHAPE = re.compile(r"^[1-9]\d*(x[1-9]\d*)*$")
_CHIPS_OF_A_HOST = 4
_TPU_SPELLING = {"7x": "tpu7x"}


@dataclass(frozen=True)
class Target:
    """Devices to plan and compile for; this class is the host's own CPUs, the others are where they say.

    Attributes:
        name: As the user spelled it.
        device: The preset.
        shape: Of a TPU slice in chips; of GPUs nodes and GPUs in each; empty for CPU.
        devices: How many devices JAX sees there; None for as many as the mesh has.
        slices: Of TPUs, joined by the data centre's network.

    """

    name: str
    device: Device
    shape: tuple[int, ...] = ()
    devices: int | None = None
    slices: int = 1

    platform: ClassVar[str] = "cpu"
    """JAX's name of the compiler."""
    prefix: ClassVar[str] = ""
    """What the names of presets have before what targets call them."""
    example: ClassVar[str] = "cpu"

    @classmethod
    def of(cls, text: str, name: str, shape: tuple[int, ...]) -> Target:  # noqa: ARG003
        """From the name of a preset and the sizes after it."""
        return cls(text, PRESETS["cpu"])

    @classmethod
    def name_of(cls, device: Device, devices: int) -> str:  # noqa: ARG003
        """What so many devices of a preset are called, "" where they make no target."""
        return "cpu"

    @property
    def placed_device(self) -> Device:
        """The preset where it is."""
        return self.placed(self.device)

    def placed(self, device: Device) -> Device:
        """A device, told the shape of its slices, or how many of it share a node."""
        return device

    @property
    def topology(self) -> str:
        """The topology as JAX's ``get_topology_desc`` has it."""
        return ""

    @property
    def topology_options(self) -> dict[str, Any]:
        """What else ``get_topology_desc`` has to be told."""
        return {}

    def check(self, mesh_devices: int) -> None:
        """Raise ``MeshError`` where a mesh has another number of devices."""
        if self.devices is not None and self.devices != mesh_devices:
            raise MeshError(f"{self.name} has {self.devices} devices, but the plan's mesh has {mesh_devices}.")


class TpuTarget(Target):
    """One slice of TPUs, or several that the data centre's network joins."""

    platform = "tpu"
    prefix = "tpu-"
    example = "tpu:v5e:4x4"

    @classmethod
    def of(cls, text: str, name: str, shape: tuple[int, ...]) -> Target:
        """From a generation and the chips of a slice."""
        device = _preset(text, "tpu", name)
        torus = next(link for link in device.links if link.torus_dimensions)
        slices, shape = (shape[0], shape[1:]) if len(shape) == torus.torus_dimensions + 1 else (1, shape)
        if len(shape) != torus.torus_dimensions:
            example = "x".join(["2", "2", "1"][: torus.torus_dimensions])
            raise PlanError(
                f"{text!r}: slices of TPU {name} have {torus.torus_dimensions} dimensions, as in tpu:{name}:{example}, "
                f"or tpu:{name}:2x{example} for two slices."
            )
        per_chip = math.prod(link.devices or 1 for link in device.links[: device.links.index(torus)])
        devices = math.prod(shape) * per_chip
        if torus.devices is not None and devices > torus.devices:
            raise PlanError(f"{text!r}: a slice of TPU {name} has at most {torus.devices // per_chip} chips.")
        return cls(text, device, shape, devices * slices, slices)

    @classmethod
    def name_of(cls, device: Device, devices: int) -> str:
        """The standard slice."""
        shape = slice_chips(device, devices)
        return f"tpu:{device.name.removeprefix(cls.prefix)}:{'x'.join(map(str, shape))}" if shape else ""

    def placed(self, device: Device) -> Device:
        """A device, told the shape of its slices."""
        return replace(device, slice_shape=self.shape)

    @property
    def topology(self) -> str:
        """The generation and the chips of a slice."""
        kind = self.device.name.removeprefix(self.prefix)
        return f"{_TPU_SPELLING.get(kind, kind)}:{'x'.join(map(str, self.shape))}"

    @property
    def topology_options(self) -> dict[str, Any]:
        """The slices; a host has four chips, or as many as there are; and a TPU v4's two cores are one device."""
        options: dict[str, Any] = {"num_slices": self.slices} if self.slices > 1 else {}
        if math.prod(self.shape) < _CHIPS_OF_A_HOST:
            options["chips_per_host_bounds"] = [*self.shape, 1][:3]
        return {**options, "chip_config_name": "megacore"} if self.device.name == "tpu-v4" else options


class GpuTarget(Target):
    """Nodes of GPUs."""

    platform = "cuda"
    example = "gpu:a100-80:8"

    @classmethod
    def of(cls, text: str, name: str, shape: tuple[int, ...]) -> Target:
        """From a GPU, the nodes and the GPUs in each."""
        device = _preset(text, "gpu", name)
        if len(shape) > 2:
            raise PlanError(f"{text!r}: GPUs are counted by nodes and GPUs in each, as in gpu:{name}:2x8.")
        return cls(text, device, (1, *shape)[-2:], math.prod(shape))

    @classmethod
    def name_of(cls, device: Device, devices: int) -> str:
        """Whole nodes, or a part of one."""
        node = device.links[0].devices if device.links else None
        nodes, rest = divmod(devices, node) if node else (0, devices)
        if nodes and rest:
            return ""
        return f"gpu:{device.name}:{nodes}x{node}" if nodes else f"gpu:{device.name}:{devices}"

    def placed(self, device: Device) -> Device:
        """A device, told how many of it share a node."""
        if not device.links:
            return device
        node, *rest = device.links
        return replace(device, links=(replace(node, devices=self.shape[1]), *rest))

    @property
    def topology(self) -> str:
        """One after the other: slices, nodes, GPUs."""
        return "x".join(map(str, (1, *self.shape)))


KINDS: dict[str, type[Target]] = {"cpu": Target, "tpu": TpuTarget, "gpu": GpuTarget}
"""What a target's name begins with, which is its devices' platform."""


def is_target(text: str) -> bool:
    """Whether a name is meant for a compiler rather than for another check."""
    return text == Target.example or is_place(text)


def is_place(text: str) -> bool:
    """Whether a name says where devices are, and so how many."""
    return KINDS.get(text.partition(":")[0], Target) is not Target


def target_beginnings() -> list[str]:
    """What the names of targets begin with, up to the number of devices."""
    placed = [(kind, d) for d in PRESETS.values() for kind in (d.platform,) if KINDS[kind] is not Target]
    return [Target.example, *(f"{kind}:{d.name.removeprefix(KINDS[kind].prefix)}:" for kind, d in placed)]


def parse_target(text: str) -> Target:
    """A target by its name; ``PlanError`` says what is wrong with it."""
    if text == Target.example:
        return Target.of(text, "", ())
    kind, _, rest = text.partition(":")
    name, _, shape = rest.partition(":")
    if not is_place(text):
        raise PlanError(f"a plan is compiled for cpu, tpu:v5e:4x4 or gpu:a100-80:8 and the like, not for {text!r}.")
    if not _SHAPE.match(shape):
        raise PlanError(f"{text!r} does not say how many devices there are; write it as in {KINDS[kind].example}.")
    return KINDS[kind].of(text, name, tuple(int(part) for part in shape.split("x")))


def target_of(device: Device, devices: int) -> Target | None:
    """The target of so many devices of a preset: the standard slice, or whole nodes; None where there is none."""
    try:
        target = parse_target(KINDS[device.platform].name_of(device, devices))
    except PlanError:
        return None
    return target if target.devices in (None, devices) else None


def _preset(text: str, kind: str, name: str) -> Device:
    prefix = KINDS[kind].prefix
    known = {d.name.removeprefix(prefix): d for d in PRESETS.values() if d.platform == kind}
    if name not in known:
        raise PlanError(f"{text!r} names no {kind.upper()} to compile for; there are {', '.join(known)}.")
    return known[name]
