"""Which link each axis of a mesh runs on.

A mesh's last axis is its innermost: it lies on the fastest links, as ``jax.make_mesh`` lays meshes out. Where a switch
joins the devices of a node, the last axes fill the node and the others run between nodes. In a torus, an axis lies
along whole dimensions of it where that works out, and shares a dimension with other axes where it does not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from shardwright.devices.device import AxisLink, Device, Link
from shardwright.errors import DeviceError


@dataclass(frozen=True)
class Part:
    """The ``size`` devices of a mesh axis that lie in one node, along one dimension of a torus, or one per slice.

    ``dimension`` is that of the torus (-1 elsewhere), of which every ``stride``-th device is one of these, and which is
    a ring of ``ring_size`` devices (0 for a line).
    """

    size: int
    link: AxisLink
    dimension: int = -1
    stride: int = 1
    ring_size: int = 0


def axis_links(device: Device, sizes: Sequence[int], topology: Sequence[int] | None = None) -> tuple[AxisLink, ...]:
    """The link of each axis of a mesh with these sizes, the first axis outermost.

    ``topology`` is the slice of a torus in chips, such as (4, 4) for v5e:4x4; by default the standard slice of that
    many devices. An axis along several dimensions of a torus has their rates together, and is a ring if each of them
    is. One that goes beyond its node or slice has the slower link. ``axis_parts`` tells these apart.
    """
    innermost = _axis_link(_links(device)[0])
    return tuple(_together(parts) if parts else innermost for parts in axis_parts(device, sizes, topology))


def axis_parts(
    device: Device, sizes: Sequence[int], topology: Sequence[int] | None = None
) -> tuple[tuple[Part, ...], ...]:
    """Each axis of a mesh as the parts that it consists of, innermost first; an axis of size 1 has none.

    A collective along an axis is one along its parts: sixteen GPUs of two nodes are 8 on NVLink and 2 on the network.
    """
    links = _links(device)
    topology = device.slice_shape if topology is None else topology
    torus = next((k for k, link in enumerate(links) if link.torus_dimensions), None)
    if torus is None:
        shares = _shares(sizes, [link.devices for link in links])
        return tuple(_switched(links, share) for share in shares)
    chip, ici, beyond = links[:torus], links[torus], links[torus + 1 :]
    slice_devices = ici.devices if topology is None else _devices_of(topology, chip, sizes)
    shares = _shares(sizes, [slice_devices, *(link.devices for link in beyond)])
    within = [share[0] for share in shares]
    dimensions = _dimensions(ici, chip, math.prod(within), topology)
    inner = _along(dimensions, within) if dimensions else _lines(ici, within)
    return tuple(parts + _switched(beyond, share[1:]) for parts, share in zip(inner, shares, strict=True))


def slice_shares(sizes: Sequence[int], slice_devices: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How much of each axis of a mesh lies within slices, or nodes, of so many devices, and how much beyond them."""
    shares = _shares(sizes, [slice_devices, None])
    return tuple(inside for inside, _ in shares), tuple(outside for _, outside in shares)


def slice_chips(device: Device, devices: int) -> tuple[int, ...]:
    """The chips of the slice that so many devices of a torus make, along each dimension; none where no slice does.

    Where it is more than one slice, their number comes first.
    """
    torus = next((link for link in device.links if link.torus_dimensions), None)
    if torus is None:
        return ()
    chips, rest = divmod(devices, _devices_per_chip(device.links[: device.links.index(torus)]))
    if rest or not chips:
        return ()
    if device.slice_shape is not None:
        slices, rest = divmod(chips, math.prod(device.slice_shape))
        return () if rest or not slices else (slices, *device.slice_shape) if slices > 1 else device.slice_shape
    return _slice_shape(torus, chips)


def joined(parts: Iterable[Part]) -> list[Part]:
    """The parts of several axes as a collective over all of them finds them.

    Into a switch every device has one wire for all axes. Parts along one dimension of a torus share its wires: next to
    one another they make one longer part of it, and apart from one another the outer one crosses wires of the inner.
    """
    out: list[Part] = []
    switches: dict[str, Part] = {}
    for part in sorted(parts, key=lambda part: (part.dimension, part.stride)):
        inner = out[-1] if out else None
        if part.link.shape == "switch":
            before = switches.get(part.link.link)
            switches[part.link.link] = replace(part, size=part.size * before.size) if before else part
        elif inner is None or part.dimension < 0 or inner.dimension != part.dimension:
            out.append(part)
        elif inner.stride * inner.size == part.stride:
            out[-1] = _grown(inner, part)
        else:
            out[-1] = replace(inner, size=inner.size * part.size, link=part.link)
    return [*switches.values(), *out]


def _grown(inner: Part, outer: Part) -> Part:
    size = inner.size * outer.size
    shape = "ring" if size == inner.ring_size else inner.link.shape
    return replace(inner, size=size, link=replace(inner.link, shape=shape))


def _links(device: Device) -> tuple[Link, ...]:
    """The device's links; for one described without any, a switch at a tenth of the memory's rate.

    NVLink has 12 to 15% of the rate of an A100's, H100's or B200's memory.
    """
    return device.links or (Link("link", device.memory_bytes_per_second / 10, 2e-6),)


def _together(parts: Sequence[Part]) -> AxisLink:
    """One link for all parts: those on the outermost of their links, at the sum of their rates."""
    outermost = parts[-1].link
    links = [part.link for part in parts if part.link.link == outermost.link]
    shape = outermost.shape if len({link.shape for link in links}) == 1 else "line"
    return AxisLink(outermost.link, sum(link.bytes_per_second for link in links), outermost.latency_seconds, shape)


def _axis_link(link: Link, *, ring: bool = False, sharing: int = 1) -> AxisLink:
    shape = "ring" if ring else "line" if link.torus_dimensions else "switch"
    return AxisLink(link.name, link.bytes_per_second / sharing, link.latency_seconds, shape)


def _shares(sizes: Sequence[int], capacities: Sequence[int | None]) -> list[list[int]]:
    """For each axis, how much of it lies in each of the nested groups that hold at most so many devices.

    Each group is filled from the last axis on, as far as the axes' sizes divide. The outermost takes what is left,
    whatever its capacity.
    """
    shares = [[1] * len(capacities) for _ in sizes]
    filled, level = 1, 0
    for axis in reversed(range(len(sizes))):
        left = sizes[axis]
        while left > 1:
            capacity = capacities[level] if level + 1 < len(capacities) else None
            inside = left if capacity is None else _largest_divisor(left, at_most=capacity // filled)
            shares[axis][level] = inside
            filled, left = filled * inside, left // inside
            level += left > 1
    return shares


def _switched(links: Sequence[Link], share: Sequence[int]) -> tuple[Part, ...]:
    return tuple(Part(size, _axis_link(link)) for link, size in zip(links, share, strict=True) if size > 1)


def _lines(link: Link, sizes: Sequence[int]) -> tuple[tuple[Part, ...], ...]:
    """Devices that make no slice: each axis is a line, one link wide."""
    return tuple((Part(size, _axis_link(link)),) if size > 1 else () for size in sizes)


# The torus.


@dataclass(frozen=True)
class _Dimension:
    """A dimension of a slice; devices that share a chip are one more, on the chip's own link."""

    length: int
    link: Link
    ring: bool = False


def _devices_of(topology: Sequence[int], chip: Sequence[Link], sizes: Sequence[int]) -> int:
    devices = math.prod(topology) * _devices_per_chip(chip)
    if not devices or math.prod(sizes) % devices:
        raise DeviceError(
            f"a mesh of {'x'.join(map(str, sizes))} does not fill slices of {'x'.join(map(str, topology))} chips, "
            f"which have {devices} devices."
        )
    return devices


def _devices_per_chip(chip: Sequence[Link]) -> int:
    return math.prod(link.devices or 1 for link in chip)


def _dimensions(
    torus: Link, chip: Sequence[Link], devices: int, topology: Sequence[int] | None
) -> tuple[_Dimension, ...]:
    """The dimensions of the slice that so many devices make; none where no slice has so many."""
    chips, rest = divmod(devices, _devices_per_chip(chip))
    if rest:
        return ()
    lengths = tuple(topology or _slice_shape(torus, chips))
    if not lengths or math.prod(lengths) != chips:
        return ()
    rings = _rings(torus, lengths)
    along = (_Dimension(length, torus, ring) for length, ring in zip(lengths, rings, strict=True))
    return (*along, *(_Dimension(link.devices or 1, link) for link in chip))


def _rings(torus: Link, lengths: Sequence[int]) -> list[bool]:
    """Which dimensions close into rings.

    In two dimensions those that are the pod's whole width. In three, optical switches close all of them, but only
    those of slices made of whole cubes: 2x4x4 has no wrap-around ("How to Scale Your Model", "TPU Networking").
    """
    whole = [bool(torus.ring_from) and length % torus.ring_from == 0 for length in lengths]
    return [all(whole)] * len(lengths) if torus.torus_dimensions == 3 else whole


def _slice_shape(torus: Link, chips: int) -> tuple[int, ...]:
    """The standard slice of so many chips: 2x4 and 8x16 in two dimensions, 2x2x4 and 4x4x8 in three."""
    if torus.torus_dimensions == 3 and chips % 64 == 0:
        return tuple(4 * length for length in _near_cube(chips // 64))
    power = chips.bit_length() - 1
    if chips != 1 << power:
        return ()
    if torus.torus_dimensions == 3:
        return ((1, 1, 1), (1, 1, 2), (2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))[power]
    if torus.torus_dimensions == 2:
        return (1 << power // 2, 1 << (power - power // 2))
    return (chips,)


def _near_cube(count: int) -> tuple[int, int, int]:
    """Three factors in ascending order, as near to each other as there are."""
    factors = ((a, b, count // a // b) for a in _divisors(count) for b in _divisors(count // a))
    return min(((a, b, c) for a, b, c in factors if a <= b <= c), key=sum)


def _along(dimensions: Sequence[_Dimension], sizes: Sequence[int]) -> tuple[tuple[Part, ...], ...]:
    """Give each axis dimensions or parts of them, last axis first, as ``jax.experimental.mesh_utils`` does."""
    taken = [1] * len(dimensions)
    axes: list[tuple[Part, ...]] = [()] * len(sizes)
    for axis in reversed(range(len(sizes))):
        choice = max(_choices(sizes[axis], dimensions, taken), key=lambda c: _preference(c, dimensions, taken))
        parts = [_part(k, *of) for k, of in enumerate(zip(choice, taken, dimensions, strict=True))]
        axes[axis] = tuple(part for part in reversed(parts) if part.size > 1)  # a chip's own dimension comes first
        taken = [t * size for t, size in zip(taken, choice, strict=True)]
    return tuple(axes)


def _choices(size: int, dimensions: Sequence[_Dimension], taken: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every way to make an axis of this size out of what is left of each dimension."""
    left = [dimension.length // t for dimension, t in zip(dimensions, taken, strict=True)]
    factors = ([d for d in _divisors(length) if size % d == 0] for length in left)
    return (choice for choice in itertools.product(*factors) if math.prod(choice) == size)


def _preference(
    choice: tuple[int, ...], dimensions: Sequence[_Dimension], taken: Sequence[int]
) -> tuple[int, int, int, tuple[int, ...]]:
    """Larger is better: most in whole dimensions, then more of them, then where an inner axis already is."""
    whole = [size for size, dimension in zip(choice, dimensions, strict=True) if 1 < size == dimension.length]
    shared = math.prod(size for size, t in zip(choice, taken, strict=True) if t > 1)
    return math.prod(whole), len(whole), shared, choice


def _part(number: int, size: int, taken: int, dimension: _Dimension) -> Part:
    """A whole dimension as it is; less of one is a line.

    Where an inner axis of ``taken`` devices has the same dimension, a hop crosses as many links, and as many such
    axes side by side share them.
    """
    ring = dimension.ring and size == dimension.length
    ring_size = dimension.length if dimension.ring else 0
    return Part(size, _axis_link(dimension.link, ring=ring, sharing=taken), number, taken, ring_size)


def _largest_divisor(count: int, at_most: int) -> int:
    return next(d for d in range(min(count, at_most), 0, -1) if count % d == 0)


def _divisors(count: int) -> list[int]:
    return [d for d in range(1, count + 1) if count % d == 0]
