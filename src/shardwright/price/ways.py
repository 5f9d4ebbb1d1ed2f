"""The ways to run an op: which of its factors each axis may split, and how its tensors lie in every combination."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shardwright._memo import Memo, Numbers
from shardwright.ir.kinds import COLLECTIVES
from shardwright.ir.move_terms import MoveTerms
from shardwright.ir.program import Op, bits_of
from shardwright.ir.rules import Rule
from shardwright.price.collectives import Move, local_bytes, own_move
from shardwright.price.shardings import Bounds
from shardwright.price.uneven import paddable, padded_size, padding, splits_factor
from shardwright.request import MeshShape
from shardwright.space.state import Sharding

MOST_WAYS = 256
"""On a mesh with so many axes that there are more, only some of them are looked at."""

Allowed = tuple[tuple[int, ...], ...]
"""For each axis the factors of an op that it may split."""
Shape = tuple[tuple[int, ...], str]
"""The shape of a tensor and the type of its elements."""
Lie = tuple[Sharding, tuple[int, ...]]
"""How a tensor of an op lies in one of the ways to run it, and the axes over which it is a partial sum."""


def candidates(
    op: Op,
    groups: tuple[int, ...],
    on_list: frozenset[int],
    axis_size: int,
    padded: frozenset[int] = frozenset(),
    also: frozenset[int] | None = frozenset(),
) -> tuple[int, ...]:
    """The factors of an op that an axis may split: on its list, and major in every result that has them.

    The axis must divide them, but for those of the groups ``padded``. ``also`` are factors that need not be on the
    list; None bars the axis.
    """
    if also is None:
        return ()
    rule, loose = op.rule, paddable(op) if padded else frozenset()
    return tuple(
        f
        for f, group in enumerate(groups)
        if (group in on_list or f in also)
        and f not in rule.whole
        and splits_factor(rule, f, axis_size, padded=f in loose and group in padded)
        and all(factors.index(f) == 0 for dims in rule.results for factors in dims if f in factors)
    )


def spread(rule: Rule, allowed: Allowed, sizes: Sequence[int]) -> Allowed:
    """What each axis may split, with the factors that must be split by all axes where one of them may."""
    found = rule.spread & {f for factors in allowed for f in factors} if rule.spread else ()
    if not found:
        return allowed
    return tuple(
        tuple(sorted({*factors, *(f for f in found if splits_factor(rule, f, size, padded=False))}))
        for factors, size in zip(allowed, sizes, strict=True)
    )


def combinations(op: Op, allowed: Allowed, mesh: MeshShape) -> Iterator[tuple[int, ...]]:
    """For each axis the factor that it splits, or -1 for none, in every way that the op allows; none at all first."""
    if math.prod(len(found) + 1 for found in allowed) > MOST_WAYS:  # many axes: the first few of each axis's list do
        allowed = tuple(found[:2] for found in allowed)
    return every_combination(op, allowed, mesh)


def every_combination(op: Op, allowed: Allowed, mesh: MeshShape) -> Iterator[tuple[int, ...]]:
    """The same, however many they are."""
    loose = paddable(op)
    for factors in product(*[(-1, *found) for found in allowed]):
        if op.rule.allows(factors, mesh.sizes) and all(
            splits_factor(
                op.rule, f, math.prod(mesh.sizes[a] for a, g in enumerate(factors) if g == f), padded=f in loose
            )
            for f in set(factors) - {-1}
        ):
            yield factors


class Choices:
    """The factors that ops of a signature and some groups may split, by which of the groups are on the lists.

    What they may split has a number, one of ``numbers``.
    """

    def __init__(
        self,
        op: Op,
        groups: Sequence[int],
        mesh: MeshShape,
        padded: frozenset[int],
        bounds: Bounds,
        numbers: Numbers[Allowed],
    ) -> None:
        own = tuple(groups[: len(op.rule.sizes)])  # an op that is a shortcut for another has none
        every = frozenset(own) - {-1}
        nothing: frozenset[int] = frozenset()
        also = [bounds.of_axis(name) for name in mesh.names]
        by_axis = [
            _AxisChoices(
                [(f, 1 << own[f]) for f in candidates(op, own, every, size, padded, None if more is None else nothing)],
                candidates(op, own, nothing, size, padded, more) if more else (),
            )
            for size, more in zip(mesh.sizes, also, strict=True)
        ]
        self._bits = [sum({bit for _, bit in found.factors}) for found in by_axis]
        """For each axis all groups that matter, as bits."""
        self._known = Memo(partial(_allowed, op.rule, mesh.sizes, by_axis, numbers))

    def number(self, groups: Sequence[int]) -> int:
        """The number of what each axis may split, given the groups that are on its list, as bits."""
        return self._known[tuple([own & listed for own, listed in zip(self._bits, groups, strict=True)])]


class _AxisChoices(NamedTuple):
    """Factors that an axis can split if their group, as a bit, is on its list, and those that it may in any state."""

    factors: list[tuple[int, int]]
    always: tuple[int, ...]


def _allowed(
    rule: Rule,
    sizes: Sequence[int],
    by_axis: Sequence[_AxisChoices],
    numbers: Numbers[Allowed],
    listed: tuple[int, ...],
) -> int:
    own = [
        tuple(sorted({*always, *(f for f, bit in factors if bit & on_list)}))
        if always
        else tuple([f for f, bit in factors if bit & on_list])
        for (factors, always), on_list in zip(by_axis, listed, strict=True)
    ]
    return numbers[spread(rule, tuple(own), sizes)]


class Loop(NamedTuple):
    """A product that is a loop over the parts of its result, of ``local_bytes`` on each device, ``entry_bytes`` each.

    Without, it takes ``work_seconds``, and reads ``operand_bytes``, of which ``uncut_bytes`` are those of the operand
    that all parts need. ``whole`` are rows and columns of its result on a device, ``part`` those of what one of the
    ``ways`` gets: where they are fewer than the matrix unit has, the rest of it is idle.
    """

    local_bytes: float
    entry_bytes: float
    work_seconds: float
    operand_bytes: float
    uncut_bytes: float
    ways: int
    whole: Sequence[float]
    part: Sequence[float]


class Prices(Protocol):
    """What a choice weighs, on a device and a mesh: seconds of an op's work and of the moves around it."""

    def move_seconds(self, move: Move) -> float:
        """The seconds of a collective, and of copies behind it."""

    def copy_seconds(self, move: Move) -> float:
        """The seconds of copies that bring what was moved into place."""

    def rounding(self, dtype: str) -> float:
        """The part of its bytes that an operand of a product has once it is rounded, if it may be."""

    def reduces_whole(self, axes: tuple[int, ...]) -> bool:
        """Whether sums over these axes are reduced whole where they could be scattered; not those of products."""

    def makes_loop(self, matrix_seconds: float, scatter_seconds: float) -> bool:
        """Whether a product that takes so long is made a loop that scatters its sums, which takes so long."""

    def loop_seconds(self, loop: Loop) -> tuple[float, float]:
        """What making a product a loop that scatters its sums takes more: its products, and adding up their parts."""

    def work_seconds(self, op: Op, dtype: str, split: float, touched_bytes: float) -> float:
        """The seconds of a device's part of an op: its FLOPs split so many ways, its tensors of so many bytes."""


class Way(NamedTuple):
    """An op with its factors split by axes: how its tensors lie, the axes its results are partial over, its work.

    ``matrix_seconds`` of the work are those of the matrix unit alone.
    """

    factors: tuple[int, ...]
    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]
    partial: tuple[int, ...]
    work_seconds: float
    own: tuple[Move, ...] = ()
    matrix_seconds: float = 0.0


class Split(NamedTuple):
    """An op with its factors split by axes, and how its tensors lie."""

    factors: tuple[int, ...]
    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]

    @classmethod
    def of(cls, op: Op, factors: tuple[int, ...], mesh: MeshShape) -> Split:
        """Each factor split by its axes, the major one first."""
        lies = [
            tuple([tuple([a for a in mesh.major_first if dim[:1] == (factors[a],)]) for dim in dims])
            for dims in op.rule.tensors
        ]
        count = len(op.operands)
        return cls(factors, tuple(lies[:count]), tuple(lies[count:]))


def make_way(op: Op, factors: tuple[int, ...], shapes: Sequence[Shape], mesh: MeshShape, prices: Prices) -> Way:
    """An op with these factors split, each by its axis; ``shapes`` are those of its operands, then results."""
    rule, lies = op.rule, Split.of(op, factors, mesh)
    shardings = (*lies.operands, *lies.results)
    split = 1.0
    for f in set(factors) - {-1}:
        parts = math.prod(mesh.sizes[a] for a, g in enumerate(factors) if g == f)
        split *= parts * rule.sizes[f] / padded_size(rule.sizes[f], parts)
    touched = 0.0
    for (shape, dtype), sharding in zip(shapes, shardings, strict=True):
        size = math.prod(shape) * bits_of(dtype) / 8 * padding(shape, sharding, mesh)
        touched += local_bytes(size, sharding, mesh)
    return Way(
        *lies,
        tuple(a for a, f in enumerate(factors) if f in rule.reduction),
        prices.work_seconds(op, shapes[0][1], split, touched),
        _own_moves(op, shapes, shardings, mesh) if op.kind in COLLECTIVES else (),
        prices.work_seconds(op, shapes[0][1], split, 0.0),
    )


def _own_moves(op: Op, shapes: Sequence[Shape], shardings: Sequence[Sharding], mesh: MeshShape) -> tuple[Move, ...]:
    """What a collective of the program's own moves, operand by operand."""
    axes = tuple(mesh.names.index(name) for name in op.attributes["over"])
    count = len(op.operands)
    found = []
    for t in range(count):
        k = count + t if op.kind == "all_gather" else t
        (shape, dtype), sharding = shapes[k], shardings[k]
        size = local_bytes(math.prod(shape) * bits_of(dtype) / 8, sharding, mesh)
        found.append(own_move(op.kind, axes, size, mesh))
    return tuple(found)


def columns_of(rule: Rule) -> tuple[bool, ...]:
    """Whether a dimension of a product's result is of its columns: one that the left operand does not have."""
    left = {f for dim in rule.operands[0] for f in dim}
    return tuple([not left.issuperset(dim) for dim in rule.results[0]])


def is_batched(rule: Rule) -> bool:
    """Whether a product is many at once: both of its operands have a dimension of its result."""
    left, right = ({f for dim in dims for f in dim} for dims in rule.operands)
    return any(f in left and f in right and rule.sizes[f] > 1 for dim in rule.results[0] for f in dim)


class Ways:
    """The ways to run the ops of a class.

    ``rounding`` is the part of its bytes at which each tensor is moved, ``columns`` tells which dimensions of a
    product's result are columns, ``loops`` whether a compiler can make the op a loop that scatters its sums, and
    ``own_seconds`` is what the op's own collectives take in each way, if it is one.
    """

    def __init__(
        self,
        ways: list[Way],
        shapes: Sequence[Shape],
        factors: int,
        terms: MoveTerms,
        rounding: Sequence[float],
        columns: Sequence[bool],
        own_seconds: Sequence[float],
        mesh: MeshShape,
        *,
        loops: bool = False,
    ) -> None:
        self.loops = loops
        self.ways, self.terms, self.rounding, self.columns, self.own_seconds = (
            ways,
            terms,
            rounding,
            columns,
            own_seconds,
        )
        self.shapes = [shape for shape, _ in shapes]
        self.sizes = [math.prod(shape) * bits_of(dtype) / 8 for shape, dtype in shapes]
        self.work = np.array([way.work_seconds for way in ways])
        if own_seconds:
            self.work = self.work + np.array(own_seconds)
        inside = Memo(partial(_splitting, np.array([way.factors for way in ways]), factors))
        self.among = Memo(partial(_among, inside, len(ways)))
        """Those in which every axis splits one of the factors that it is allowed, or none; None if these are all."""
        self.distinct = Memo(partial(_distinct, ways))
        """For each tensor how it lies, with the first way that has it so, and which of these every way has."""
        self.paddings = Memo(partial(_paddings, self.shapes, self.distinct, mesh))
        """For each tensor by which factor it is padded as it lies, in the order of ``distinct``."""


def _splitting(
    split: NDArray[np.int64], count: int, axis_and_factors: tuple[int, tuple[int, ...]]
) -> NDArray[np.bool_]:
    """Whether in each of the ways an axis splits one of these factors, or none."""
    axis, factors = axis_and_factors
    usable = np.zeros(count + 1, bool)
    usable[[-1, *factors]] = True  # no factor at all is -1, and so the last
    return usable[split[:, axis]]


def _among(
    inside: Memo[tuple[int, tuple[int, ...]], NDArray[np.bool_]], count: int, allowed: Allowed
) -> NDArray[np.intp] | None:
    found = inside[0, allowed[0]] if allowed else np.ones(count, bool)
    for axis, factors in enumerate(allowed[1:], 1):
        found = found & inside[axis, factors]
    return None if found.all() else np.flatnonzero(found)


def _distinct(ways: Sequence[Way], t: int) -> tuple[dict[Lie, int], NDArray[np.intp]]:
    count = len(ways[0].operands)
    numbers: Numbers[Lie] = Numbers()
    first: dict[Lie, int] = {}
    of_way = []
    for w, way in enumerate(ways):
        lie = (way.operands[t], ()) if t < count else (way.results[t - count], way.partial)
        first.setdefault(lie, w)
        of_way.append(numbers[lie])
    return first, np.array(of_way)


def _paddings(
    shapes: Sequence[tuple[int, ...]],
    distinct: Memo[int, tuple[dict[Lie, int], NDArray[np.intp]]],
    mesh: MeshShape,
    t: int,
) -> NDArray[np.float64]:
    return np.array([padding(shapes[t], lie, mesh) for lie, _ in distinct[t][0]])
