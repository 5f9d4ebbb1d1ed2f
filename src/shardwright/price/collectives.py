"""Collectives: what moves when a tensor changes its sharding, how many bytes each device sends, and how long it takes.

*Bytes* are those of ring algorithms (Thakur, Rabenseifner and Gropp, 2005; the formulas of "How to Scale Your Model",
Google DeepMind 2025), per device, for a group of n devices: all-gather (n-1)/n of the gathered tensor, reduce-scatter
(n-1)/n of the unreduced one, all-reduce twice that, all-to-all (n-1)/n of the local tensor, a permute all of it.

*Seconds* are those of the links that the axes run on. A device of a ring sends to both neighbours at once, so a
collective along it goes at twice the one-way rate; on a line the ends have one neighbour, and the link next to them
carries everything one way. Collectives over several axes of one torus use the links of all of them at once ("How to
Scale Your Model", "Sharded matrices"). Axes on different kinds of link are gone through one after the other, the fast
ones first, so that the slow ones see only what is left.

*Stations* are the shardings between two others. XLA brings a tensor from one sharding to another well where that is one
step: some axes are sliced off, or move together from one dimension to another, or are gathered. Of several steps at
once it often makes none of them: it gathers the whole tensor on every device and slices it again. So it was, of all
pairs of shardings of three dimensions by two axes compiled for TPU v5e, where an axis moves and another of its
dimension is gathered, where two of one dimension move to two others, and where two of two dimensions meet in a third.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from shardwright.compiler.moving import LATE_SCATTERING
from shardwright.devices.device import AxisLink
from shardwright.request import MeshShape
from shardwright.space.state import Sharding

ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER = "all-gather", "all-reduce", "reduce-scatter"
ALL_TO_ALL, PERMUTE = "all-to-all", "collective-permute"


class Move(NamedTuple):
    """One collective on one tensor: its kind, the axes it runs over, and the bytes that each device sends.

    ``sharers`` collectives are made one by the compiler and share the latency. ``scale``: the compiler will move this
    many times the bytes, fewer where it rounds the tensor first, more where it does not scatter what it could.
    ``in_place`` is false where parts of several dimensions are gathered at once, and are copied to where they belong.
    ``addends`` such sums are added up first, and each has its part of one reduction.
    """

    kind: str
    axes: tuple[int, ...]
    bytes: float
    sharers: int = 1
    scale: float = 1.0
    in_place: bool = True
    addends: int = 1


def own_move(kind: str, axes: tuple[int, ...], size: float, mesh: MeshShape) -> Move:
    """A collective that the program has itself, on a device's part of so many bytes: of a gather, after it."""
    n = mesh.ways(axes)
    part = (n - 1) / n
    sent = {"all_reduce": 2 * part, "collective_permute": 1.0, "collective_broadcast": 1.0}.get(kind, part)
    named = PERMUTE if kind == "collective_broadcast" else kind.replace("_", "-")
    return Move(named, axes, size * sent)


def local_bytes(total_bytes: float, sharding: Sharding, mesh: MeshShape) -> float:
    """Bytes of one device's part."""
    for axes in sharding:
        for axis in axes:
            total_bytes /= mesh.sizes[axis]
    return total_bytes


def reshard(total_bytes: float, have: Sharding, want: Sharding, mesh: MeshShape) -> tuple[Move, ...]:
    """What it takes to bring a tensor from one sharding to another.

    An axis that is new is a local slice and free, and comes first because it makes the tensor smaller. Axes that leave
    one dimension for one other are an all-to-all, those that go away an all-gather. Axes come and go at the minor
    end of a dimension's list; where that is not so, as in Shardy's program, the parts are permuted first.
    """
    if have == want:
        return ()
    place_have = {axis: d for d, axes in enumerate(have) for axis in axes}
    place_want = {axis: d for d, axes in enumerate(want) for axis in axes}
    size = local_bytes(total_bytes, have, mesh)
    moves: list[Move] = []
    for axis in place_want:
        if axis not in place_have:
            size /= mesh.sizes[axis]
    if _out_of_order(have, want, place_want):
        moves.append(Move(PERMUTE, tuple(place_have), size))
    together: dict[tuple[int, int], list[int]] = {}
    for axis, d in place_have.items():
        if axis in place_want and place_want[axis] != d:
            together.setdefault((d, place_want[axis]), []).append(axis)
    for axes in together.values():
        n = mesh.ways(tuple(axes))
        moves.append(Move(ALL_TO_ALL, tuple(axes), size * (n - 1) / n))
    gone = tuple(axis for axis in place_have if axis not in place_want)
    if gone:
        n = mesh.ways(gone)
        size *= n
        one_dimension = len({place_have[axis] for axis in gone}) == 1
        moves.append(Move(ALL_GATHER, gone, size * (n - 1) / n, in_place=one_dimension))
    return tuple(moves)


def _out_of_order(have: Sharding, want: Sharding, place_want: dict[int, int]) -> bool:
    """Some dimension keeps an axis behind one that leaves it, or gets one before those that it keeps.

    Or one moves elsewhere that stands before one that is gathered: it moves first, and what moves is minor.
    """
    for before, after in zip(have, want, strict=True):
        kept = tuple(axis for axis in before if axis in after)
        if before[: len(kept)] != kept or after[: len(kept)] != kept:
            return True
        moves = [axis in place_want for axis in before[len(kept) :]]
        if moves != sorted(moves):
            return True
    return False


def reduce_partial(
    total_bytes: float,
    have: Sharding,
    partial: tuple[int, ...],
    want: Sharding,
    mesh: MeshShape,
    *,
    sharers: int = 1,
    narrowing: float = 1.0,
    whole: bool = False,
    addends: int = 1,
) -> tuple[Move, ...]:
    """What brings partial sums to a sharding: reduce-scatter onto an axis's new dimension, else all-reduce.

    ``sharers`` all-reduces are combined; once it is reduced, the tensor is moved at ``narrowing`` of its bytes.
    ``whole``: the compiler is known to reduce the op's sums whole, which moves twice as much as scattering them.
    ``addends`` such sums are added up and reduced at once, unless they are to be split and are reduced whole.
    """
    moves: list[Move] = []
    wanted = {axis for axes in want for axis in axes}
    size = local_bytes(total_bytes, have, mesh)
    onto = tuple(axis for axis in partial if axis in wanted)
    if onto:
        n = mesh.ways(onto)
        whole = whole or _apart(onto, want) or _late(have, partial, want, mesh)
        scale, among = (LATE_SCATTERING.effect, 1) if whole else (1.0, addends)
        moves.append(Move(REDUCE_SCATTER, onto, size * (n - 1) / n, scale=scale, addends=among))
        size /= n
    rest = tuple(axis for axis in partial if axis not in wanted)
    if rest:
        n = mesh.ways(rest)
        moves.append(Move(ALL_REDUCE, rest, 2 * size * (n - 1) / n, sharers, addends=addends))
    return (*moves, *reshard(total_bytes * narrowing, reduced(have, partial, want), want, mesh))


def _apart(onto: tuple[int, ...], want: Sharding) -> bool:
    """Whether sums are to be scattered onto several dimensions: see ``compiler.moving.SCATTERED_APART``."""
    return sum(any(axis in onto for axis in axes) for axes in want) > 1


def _late(have: Sharding, partial: tuple[int, ...], want: Sharding, mesh: MeshShape) -> bool:
    """Whether sums are to be scattered onto a dimension that lies along a later axis already.

    XLA's partitioner does not do so: see ``compiler.moving.LATE_SCATTERING``.
    """
    place = mesh.major_first.index
    return any(
        bool(axes) and any(axis in partial and place(axis) < max(map(place, axes)) for axis in wanted)
        for axes, wanted in zip(have, want, strict=True)
    )


def reduced(have: Sharding, partial: tuple[int, ...], want: Sharding) -> Sharding:
    """How partial sums lie once they are reduced: scattered over the axes that they are to have anyway.

    A part is scattered within itself: these axes come after those that the dimension has, whatever their order should
    be. Told otherwise, XLA gathers the operands in place of scattering the result.
    """
    return tuple(
        (*axes, *(axis for axis in wanted if axis in partial and axis not in axes))
        for axes, wanted in zip(have, want, strict=True)
    )


def collective_seconds(
    kind: str, sent_bytes: float, links: Sequence[AxisLink], sizes: Sequence[int], sharers: int = 1
) -> float:
    """Seconds of a collective in which each device sends ``sent_bytes`` .

    ``links`` and ``sizes`` are those of the axes that it runs over. ``sharers`` all-reduces are made one, and pay the
    latency between them.
    """
    if sent_bytes <= 0 or not links:
        return 0.0
    if kind == PERMUTE:
        slowest = min(links, key=lambda link: link.bytes_per_second)
        return sent_bytes / slowest.bytes_per_second + slowest.latency_seconds
    if kind == ALL_TO_ALL:
        n = math.prod(sizes)
        local_bytes = sent_bytes * n / (n - 1)
        return sum(_all_to_all(local_bytes, link, size) for link, size in zip(links, sizes, strict=True))
    return _ring(kind, sent_bytes, links, sizes, sharers)


def rate(link: AxisLink) -> float:
    """Bytes per second that each device gets rid of in a ring collective along an axis."""
    return link.bytes_per_second * (2 if link.shape == "ring" else 1)


def _all_to_all(local_bytes: float, link: AxisLink, n: int) -> float:
    """Half of all data crosses the middle: of a line by one link each way, of a ring by two, of a switch by all.

    The middle carries ``n/2`` devices' halves, ``n · local / 4`` bytes each way. Between two devices a ring's second
    link is the same as its first.
    """
    latency = link.latency_seconds * (n - 1)
    if link.shape == "switch":
        return local_bytes * (n - 1) / n / link.bytes_per_second + latency
    across = 2 if link.shape == "ring" and n > 2 else 1
    return n * local_bytes / 4 / across / link.bytes_per_second + latency


def _ring(kind: str, sent_bytes: float, links: Sequence[AxisLink], sizes: Sequence[int], sharers: int) -> float:
    """All-gather, reduce-scatter, all-reduce: per kind of link, fast ones on the larger part."""
    rounds = 2 if kind == ALL_REDUCE else 1
    assert kind in (ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE), kind
    n = math.prod(sizes)
    full_bytes = sent_bytes * n / (n - 1) / rounds  # of the tensor before it is scattered or after it is gathered
    by_link: dict[str, list[tuple[AxisLink, int]]] = {}
    for link, size in zip(links, sizes, strict=True):
        by_link.setdefault(link.link, []).append((link, size))
    seconds = 0.0
    for members in sorted(by_link.values(), key=lambda found: -found[0][0].bytes_per_second):
        ways = math.prod(size for _, size in members)
        speed = sum(rate(link) for link, _ in members)
        seconds += rounds * full_bytes * (ways - 1) / ways / speed
        seconds += rounds * sum(link.latency_seconds * (size - 1) for link, size in members) / sharers
        full_bytes /= ways
    return seconds


def stations(shape: Sequence[int], have: Sharding, want: Sharding, mesh: MeshShape) -> tuple[Sharding, ...]:
    """What to pass between two shardings, so that every step is one that compilers know; often nothing.

    Slices come first, because they make the tensor smaller, gathers last. A station that does not divide the tensor is
    left out. XLA finds the way itself where a permutation of the parts brings every axis to its place, or where an
    axis is sliced off in place of one that leaves.
    """
    held = {axis for axes in have for axis in axes}
    changes = list(zip(have, want, strict=True))
    if all(mesh.ways(before) % mesh.ways(after) == 0 for before, after in changes):
        return ()
    if any(set(before) - set(after) and set(after) - held for before, after in changes):
        return ()
    now = tuple((*before, *(axis for axis in after if axis not in held)) for before, after in changes)
    passed = [now]
    while (following := _moved(now, want)) != now:
        now = following
        passed.append(now)
    told = (_unordered(have), _unordered(want))  # the order within a dimension comes right with the last step
    return tuple(
        station
        for station in passed
        if _unordered(station) not in told
        and all(size % mesh.ways(axes) == 0 for size, axes in zip(shape, station, strict=True))
    )


def _moved(now: Sharding, want: Sharding) -> Sharding:
    """The sharding once the axes of one dimension that belong to one other are there; minor ones go first, alone."""
    place = {axis: d for d, axes in enumerate(want) for axis in axes}
    moves: dict[tuple[int, int], list[int]] = {}
    for d, axes in enumerate(now):
        for axis in axes:
            if place.get(axis, d) != d:
                moves.setdefault((d, place[axis]), []).append(axis)
    if not moves:
        return now

    def last(move: tuple[int, int]) -> tuple[bool, bool]:
        origin, target = move
        axes = moves[move]
        before = want[target][: min(want[target].index(axis) for axis in axes)]
        return list(now[origin][-len(axes) :]) != axes, not set(before) <= set(now[target])

    origin, target = min(moves, key=last)
    moving = moves[origin, target]
    out = list(now)
    out[origin] = tuple(axis for axis in now[origin] if axis not in moving)
    out[target] = (*now[target], *(axis for axis in want[target] if axis in moving))
    return tuple(out)


def _unordered(sharding: Sharding) -> tuple[frozenset[int], ...]:
    return tuple(frozenset(axes) for axes in sharding)
