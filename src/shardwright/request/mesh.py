"""Meshes as users give them, their shapes, and the shapes that a number of devices can have."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import index
from typing import Any, SupportsIndex

from jax.sharding import AbstractMesh, Mesh

from shardwright.devices import Device, axis_parts, find_device
from shardwright.errors import MeshError, PlanError
from shardwright.request.pins import Pins
from shardwright.request.targets import is_place, parse_target

MOST_DEVICES, MOST_AXES = 2**20, 16
"""Of a mesh: more than anybody has. Beyond, a price takes long: a tiny GPT takes seconds on 16 axes, minutes on 32."""


@dataclass(frozen=True)
class MeshShape:
    """The names and sizes of a mesh's axes, in order; the devices themselves do not matter to a plan.

    ``order`` is that in which several axes split one dimension, major first; by default the mesh's own. It is how a
    plan writes shardings, and no part of the mesh.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    order: tuple[int, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, axes: Mapping[str, int], order: Sequence[str] = ()) -> MeshShape:
        """From a dict such as ``{"data": 4, "model": 2}``; ``order`` has all of its axes or none."""
        names = tuple(axes)
        return cls(names, tuple(axes.values()), tuple(names.index(name) for name in order))

    @cached_property
    def major_first(self) -> tuple[int, ...]:
        """The axes by number, in the order in which they split one dimension."""
        return self.order or tuple(range(len(self.names)))

    @property
    def axes(self) -> dict[str, int]:
        """The size of each axis by its name."""
        return dict(zip(self.names, self.sizes, strict=True))

    @cached_property
    def devices(self) -> int:
        """How many devices there are."""
        count = 1
        for size in self.sizes:
            count *= size
        return count

    def numbers(self, names: Container[str]) -> frozenset[int]:
        """The axes of these names, by number."""
        return frozenset(axis for axis, name in enumerate(self.names) if name in names)

    def ways(self, axes: tuple[int, ...]) -> int:
        """Into how many parts these axes split a dimension."""
        parts = 1
        for axis in axes:
            parts *= self.sizes[axis]
        return parts


MeshLike = Mapping[str, int] | Mesh | AbstractMesh | MeshShape | int | str | None
"""A mesh as users give it: its axes, a number of devices, devices by where they are, or None for the program's own."""


def mesh_shape(mesh: Any) -> MeshShape:
    """The axes of a mesh in any of the forms that are allowed."""
    if isinstance(mesh, MeshShape):
        return mesh
    if isinstance(mesh, (Mesh, AbstractMesh)):
        return MeshShape.of(dict(mesh.shape))
    if not isinstance(mesh, Mapping) or not mesh:
        raise MeshError(
            f"a mesh is a dict such as {{'data': 4, 'model': 2}}, a jax Mesh or an AbstractMesh, not {mesh!r}."
        )
    for name, size in mesh.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise MeshError(f"the mesh axis {name!r} needs a name such as 'data'.")
        if isinstance(size, bool) or not isinstance(size, SupportsIndex) or index(size) < 1:
            raise MeshError(f"the mesh axis {name!r} needs a whole number of devices, not {size!r}.")
    shape = MeshShape.of({name: index(size) for name, size in mesh.items()})
    if shape.devices > MOST_DEVICES or len(shape.names) > MOST_AXES:
        raise MeshError(f"a mesh has at most {MOST_AXES} axes and {MOST_DEVICES:,} devices; this one has more.")
    return shape


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
    if not is_place(text):
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
