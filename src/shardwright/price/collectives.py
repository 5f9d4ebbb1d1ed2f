"""Collectives: what moves when a tensor changes its sharding, and how many bytes each device sends.

Ring algorithms, per device (Thakur, Rabenseifner and Gropp, 2005; the formulas of "How to Scale Your Model", Google
DeepMind 2025), for a group of n devices: all-gather (n-1)/n of the gathered tensor, reduce-scatter (n-1)/n of the
unreduced one, all-reduce twice that, all-to-all (n-1)/n of the local tensor, a permute all of it.
"""

from __future__ import annotations

from typing import NamedTuple

from shardwright.compiler.moving import LATE_SCATTERING
from shardwright.request import MeshShape
from shardwright.space.state import Sharding

ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER = "all-gather", "all-reduce", "reduce-scatter"
ALL_TO_ALL, PERMUTE = "all-to-all", "collective-permute"


class Move(NamedTuple):
    """One collective on one tensor: its kind, the axes it runs over, and the bytes that each device sends.

    ``sharers`` collectives are made one by the compiler and share the latency. ``scale``: the compiler will move this
    many times the bytes, fewer where it rounds the tensor first, more where it does not scatter what it could.
    ``in_place`` is false where parts of several dimensions are gathered at once, and are copied to where they belong.
    """

    kind: str
    axes: tuple[int, ...]
    bytes: float
    sharers: int = 1
    scale: float = 1.0
    in_place: bool = True


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
    """From partial sums over some axes to a sharding: reduce-scatter onto an axis's new dimension, else all-reduce.

    ``sharers`` all-reduces are combined; once it is reduced, the tensor is moved at ``narrowing`` of its bytes.
    ``whole``: the compiler is known to reduce the op's sums whole, which moves twice as much as scattering them.
    ``addends`` such sums are added up and reduced at once, so that each has its part of one all-reduce.
    """
    moves: list[Move] = []
    wanted = {axis for axes in want for axis in axes}
    size = local_bytes(total_bytes, have, mesh)
    onto = tuple(axis for axis in partial if axis in wanted)
    if onto:
        n = mesh.ways(onto)
        scale = LATE_SCATTERING.effect if whole or _late(have, partial, want, mesh) else 1.0
        moves.append(Move(REDUCE_SCATTER, onto, size * (n - 1) / n, scale=scale))
        size /= n
    rest = tuple(axis for axis in partial if axis not in wanted)
    if rest:
        n = mesh.ways(rest)
        moves.append(Move(ALL_REDUCE, rest, 2 * size * (n - 1) / n, sharers * addends, 1 / addends))
    return (*moves, *reshard(total_bytes * narrowing, reduced(have, partial, want), want, mesh))


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
