"""The devices that a plan is for, and the shapes that a mesh of them may have."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import index
from typing import SupportsIndex

from shardwright.devices import Device, axis_parts, find_device
from shardwright.devices.targets import is_target, parse_target
from shardwright.errors import MeshError, PlanError
from shardwright.request.mesh import MeshLike, MeshShape, mesh_shape
from shardwright.request.pins import Pins

AXES = ("x", "y", "z")
"""What the axes of a mesh are called that nobody named."""
_MOST_DEVICES = 2**20


@dataclass(frozen=True)
class Machine:
    """The devices, and the shapes that a mesh of them may have; one if the user gave it."""

    device: Device
    shapes: tuple[MeshShape, ...]
    """None at all where the program's own mesh is to be taken."""


def find_machine(mesh: MeshLike, device: str | Device | None, pins: Pins | None = None) -> Machine:
    """From ``mesh=`` and ``device=`` as users give them.

    A mesh may be a dict or one of JAX's, a number of devices, or devices by where they are (``"gpu:a100-80:2x8"``).
    Without one the program must have its own.
    """
    if mesh is None:
        return Machine(find_device(device), ())
    if isinstance(mesh, str):
        mesh, device = _by_place(mesh, device)
    if isinstance(mesh, bool) or not isinstance(mesh, SupportsIndex):
        return Machine(find_device(device), (mesh_shape(mesh),))
    mesh = index(mesh)
    if not 1 <= mesh <= _MOST_DEVICES:
        raise MeshError(f"a mesh cannot have {mesh} devices; give a number from 1 to {_MOST_DEVICES}.")
    found = find_device(device)
    return Machine(found, shapes(found, mesh, pins.axes if pins else ()))


def _by_place(text: str, device: str | Device | None) -> tuple[int, Device]:
    if not is_target(text) or text == "cpu":
        raise MeshError(
            f"{text!r} is no mesh; write its axes ({{'data': 4, 'model': 2}}), a number of devices (16), or where they "
            "are ('tpu:v5e:4x4', 'gpu:a100-80:2x8')."
        )
    try:
        target = parse_target(text)
    except PlanError as error:
        raise MeshError(str(error)) from None
    assert target.devices is not None
    given = target.device if device is None else find_device(device)
    other = isinstance(device, str) and given.name != target.device.name
    if other or given.platform != target.device.platform:
        raise MeshError(f"the mesh {text} is made of {target.device.name}, but the device is {given.name}; drop one.")
    return target.devices, target.placed(given)


def shapes(device: Device, devices: int, names: Sequence[str] = ()) -> tuple[MeshShape, ...]:
    """The shapes worth a look: one axis first, then those whose axes are most alike.

    One or two axes; three on devices that are joined by more than one kind of link, where no axis needs two kinds.
    Shapes whose axes run on the same links are one. ``names`` are axes that must be there.
    """
    kinds = {part.link.link for axis in axis_parts(device, (devices,)) for part in axis}
    if len(names) > len(AXES):
        raise MeshError(f"pins name {len(names)} axes ({', '.join(names)}); write the mesh with these and their sizes.")
    free = [axis for axis in AXES if axis not in names]
    found: dict[object, MeshShape] = {}
    for count in range(max(len(names), 1), max(len(names), 2 + (len(kinds) > 1)) + 1):
        given = [*names, *free[: count - len(names)]]
        for sizes in _factored(devices, count):
            if count > max(2, len(names)) and any(len({p.link.link for p in a}) > 1 for a in axis_parts(device, sizes)):
                continue
            for order in itertools.permutations(given) if names else [given]:
                shape = MeshShape(tuple(order), sizes)
                found.setdefault(_alike(device, shape, names), shape)
    if not found:
        raise MeshError(f"{devices} devices make no mesh with the axes {' and '.join(names)}, which pins name.")
    return tuple(sorted(found.values(), key=_unlikeness))


def _alike(device: Device, shape: MeshShape, names: Sequence[str]) -> object:
    """Equal for shapes whose axes, those that somebody named apart, run on the same links."""
    axes = zip(shape.names, axis_parts(device, shape.sizes), strict=True)
    return tuple(
        sorted((name if name in names else "", tuple((p.size, repr(p.link)) for p in parts)) for name, parts in axes)
    )


def _factored(devices: int, count: int) -> Iterator[tuple[int, ...]]:
    """Every product of so many factors that gives a number; where they are several, none is 1."""
    if count == 1:
        yield (devices,)
        return
    for first in range(2, devices // 2 + 1):
        if devices % first == 0:
            yield from ((first, *rest) for rest in _factored(devices // first, count - 1))


def _unlikeness(shape: MeshShape) -> tuple[int, int, tuple[int, ...]]:
    return len(shape.sizes), max(shape.sizes), shape.sizes
