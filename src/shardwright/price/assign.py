"""How each op runs: which axes split which of its factors, given how its operands lie and how its results must.

The cheapest of a few combinations: every axis takes one of the op's factors whose group is on its list, or none. What
counts is the communication it causes, before and after, and the work that is left on each device, in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwright.ir.kinds import COLLECTIVES
from shardwright.ir.outlook import Outlook
from shardwright.ir.program import Op, bits_of
from shardwright.ir.rules import Rule
from shardwright.price.collectives import Move, local_bytes, own_move, reduce_partial, reduced
from shardwright.price.uneven import moved_padding, paddable, padded_size, padding, splits_factor
from shardwright.price.weights import Prices
from shardwright.request import MeshShape
from shardwright.space.state import Sharding

_MOST_WAYS = 256
_SAMPLE_BYTES, _DECIMALS = 1e6, 15
_RELUCTANCE = 100.0
"""How much dearer it counts to move an operand where a compiler is left to itself."""


class Assignment(NamedTuple):
    """``factors[axis]`` is the factor that the axis splits, or -1.

    ``operands`` and ``results`` are the shardings the op itself works with, ``before`` and ``after`` the moves that
    each operand and result needs, ``own`` those that the op itself is, as a ``psum`` is; ``after_seconds`` is what the
    latter two take, and ``loop_seconds`` what making the op a loop that scatters its sums does. ``seconds`` is the
    price it was chosen by.
    """

    factors: tuple[int, ...]
    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]
    partial: tuple[int, ...]
    before: tuple[tuple[Move, ...], ...]
    after: tuple[tuple[Move, ...], ...]
    after_seconds: float
    loop_seconds: float
    seconds: float
    own: tuple[Move, ...] = ()

    def made(self, result: int, wanted: Sharding) -> Sharding:
        """How the op leaves a result, partial sums reduced, before it is brought to another sharding."""
        return reduced(self.results[result], self.partial, wanted)


_Lie = tuple[Sharding, tuple[int, ...]]
"""How a tensor of an op lies in one of the ways to run it, and the axes over which it is a partial sum."""
_Around = tuple[tuple[Sharding, ...], tuple[Sharding, ...], tuple[bool, ...]]
"""How an op's operands lie and its results must, and which operands are free."""


class Problem(NamedTuple):
    """All that an op's assignment depends on; equal problems have equal answers.

    ``shape_class`` and ``outlook`` are those of the program (``Program.shape_classes``, ``Program.outlooks``).
    """

    shape_class: int
    outlook: Outlook
    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]
    free: tuple[bool, ...]
    candidates: tuple[tuple[int, ...], ...]


class Way(NamedTuple):
    """An op with its factors split by axes: how its tensors lie, the axes its results are partial over, its work."""

    factors: tuple[int, ...]
    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]
    partial: tuple[int, ...]
    work_seconds: float
    own: tuple[Move, ...] = ()


class _Weighed(NamedTuple):
    """What each of the ways takes, with the moves before and after it, and what was chosen of them by its number."""

    seconds: NDArray[np.float64]
    assignments: dict[int, Assignment]


class Ways:
    """The ways to run the ops of a class, and what each of their tensors costs in each of them.

    The seconds of moving a tensor depend on how it lies and on the way alone, not on the op's other tensors: so they
    are a vector over the ways, worked out once for each sharding of each tensor, and a choice is a sum of vectors.
    """

    def __init__(
        self,
        ways: list[Way],
        shapes: Sequence[tuple[tuple[int, ...], str]],
        factors: int,
        outlook: Outlook,
        rounding: Sequence[float],
        columns: Sequence[bool],
        known: dict[tuple[int, Sharding], dict[_Lie, float]],
        own_seconds: Sequence[float],
    ) -> None:
        self.ways = ways
        self.known = known
        self.own_seconds = own_seconds
        self.outlook = outlook
        self.shapes = [shape for shape, _ in shapes]
        self.sizes = [math.prod(shape) * bits_of(dtype) / 8 for shape, dtype in shapes]
        self.rounding = rounding
        self.columns = columns
        self.work = np.array([way.work_seconds for way in ways])
        if own_seconds:
            self.work = self.work + np.array(own_seconds)
        self.factors = np.array([way.factors for way in ways])
        self.count = factors
        self.moved: dict[tuple[int, Sharding], NDArray[np.float64]] = {}
        self.weighed: dict[_Around, _Weighed] = {}
        self._inside: dict[tuple[int, tuple[int, ...]], NDArray[np.bool_]] = {}
        self._distinct: dict[int, tuple[dict[_Lie, int], NDArray[np.intp]]] = {}
        self.allowed: dict[tuple[tuple[int, ...], ...], NDArray[np.intp] | None] = {}

    def among(self, candidates: tuple[tuple[int, ...], ...]) -> NDArray[np.intp] | None:
        """Those in which every axis splits one of its candidates, or none; None if these are all."""
        if candidates not in self.allowed:
            inside = self._splitting(0, candidates[0]) if candidates else np.ones(len(self.ways), bool)
            for axis, found in enumerate(candidates[1:], 1):
                inside = inside & self._splitting(axis, found)
            self.allowed[candidates] = None if inside.all() else np.flatnonzero(inside)
        return self.allowed[candidates]

    def _splitting(self, axis: int, factors: tuple[int, ...]) -> NDArray[np.bool_]:
        """Whether in each of the ways the axis splits one of these factors, or none."""
        known = self._inside.get((axis, factors))
        if known is None:
            usable = np.zeros(self.count + 1, bool)
            usable[[-1, *factors]] = True  # no factor at all is -1, and so the last
            known = self._inside[axis, factors] = usable[self.factors[:, axis]]
        return known

    def distinct(self, t: int) -> tuple[dict[_Lie, int], NDArray[np.intp]]:
        """How a tensor lies, each with the first of the ways that has it so, and which of these every way has."""
        if t not in self._distinct:
            count = len(self.ways[0].operands)
            numbers: dict[_Lie, int] = {}
            first: dict[_Lie, int] = {}
            of_way = []
            for w, way in enumerate(self.ways):
                lie = (way.operands[t], ()) if t < count else (way.results[t - count], way.partial)
                if lie not in numbers:
                    numbers[lie] = len(numbers)
                    first[lie] = w
                of_way.append(numbers[lie])
            self._distinct[t] = first, np.array(of_way)
        return self._distinct[t]


class Assigner:
    """Chooses how ops run on a mesh. What was worked out once, for a class of ops or for a tensor, is remembered.

    ``as_they_lie``: nobody will tell the compiler otherwise, and it takes operands as they lie where it can.
    """

    def __init__(self, mesh: MeshShape, prices: Prices, *, as_they_lie: bool = False) -> None:
        self.mesh, self.prices = mesh, prices
        self._reluctance = _RELUCTANCE if as_they_lie else 1.0
        self._all_ways: dict[tuple[int, Outlook], Ways | None] = {}
        self._some_ways: dict[tuple[int, Outlook, tuple[tuple[int, ...], ...]], Ways] = {}
        self._each_way: dict[tuple[int, tuple[int, ...]], Way] = {}
        self._known: dict[tuple[int, Outlook], dict[tuple[int, Sharding], dict[_Lie, float]]] = {}
        self._lines: dict[_Change, tuple[float, float]] = {}
        self._samples: dict[tuple[Move, int], float] = {}
        self._moves: dict[tuple[float, _Change], tuple[tuple[Move, ...], float]] = {}

    def assign(self, op: Op, problem: Problem, shapes: Sequence[tuple[tuple[int, ...], str]]) -> Assignment:
        """The cheapest way to run an op; ``shapes`` are shape and type of its operands, then results.

        The same assignment is the same object, which stays as long as the assigner does.
        """
        ways = self._ways(op, problem, shapes)
        around = (problem.operands, problem.results, problem.free)
        weighed = ways.weighed.get(around)
        if weighed is None:
            weighed = ways.weighed[around] = _Weighed(self._all_seconds(ways, problem), {})
        seconds, allowed = weighed.seconds, ways.among(problem.candidates)
        # No axis at all is the first of the ways: of equals, the one that splits least.
        number = int(seconds.argmin()) if allowed is None else int(allowed[seconds[allowed].argmin()])
        known = weighed.assignments.get(number)
        if known is None:
            known = self._assignment(ways, number, problem, float(seconds[number]))
            weighed.assignments[number] = known
        return known

    def _all_seconds(self, ways: Ways, problem: Problem) -> NDArray[np.float64]:
        count = len(problem.operands)
        seconds = ways.work
        for t, sharding in enumerate((*problem.operands, *problem.results)):
            if t >= count or not problem.free[t]:
                moved = ways.moved.get((t, sharding))
                if moved is None:
                    moved = ways.moved[t, sharding] = self._seconds(ways, t, count, sharding)
                seconds = seconds + moved
        return seconds.round(_DECIMALS)  # or equals would differ by how they were added up

    def _assignment(self, ways: Ways, number: int, problem: Problem, seconds: float) -> Assignment:
        way, count = ways.ways[number], len(problem.operands)
        found = list(self._around(way, problem, ways))
        moves = tuple([moves for moves, _ in found])
        after_seconds = sum([seconds for _, seconds in found[count:]])
        own = tuple([move._replace(sharers=ways.outlook.sharers) for move in way.own])
        if own:
            after_seconds += ways.own_seconds[number]
        loop_seconds = sum(
            [self._loop_seconds(ways, count + k, way, want) for k, want in enumerate(problem.results)]
            if way.partial and ways.outlook.product
            else []
        )
        return Assignment(
            way.factors,
            way.operands,
            way.results,
            way.partial,
            moves[:count],
            moves[count:],
            after_seconds,
            loop_seconds,
            seconds,
            own,
        )

    def _ways(self, op: Op, problem: Problem, shapes: Sequence[tuple[tuple[int, ...], str]]) -> Ways:
        """All ways to run an op, or, on a mesh with so many axes that they are too many, those of the problem."""
        kind = (problem.shape_class, problem.outlook)
        if kind not in self._all_ways:
            every = frozenset(range(len(op.rule.sizes)))
            own = tuple(every)
            choices = tuple(candidates(op, own, every, size, every) for size in self.mesh.sizes)
            few = math.prod(len(found) + 1 for found in choices) <= _MOST_WAYS
            self._all_ways[kind] = self._make_ways(op, choices, shapes, problem) if few else None
        ways = self._all_ways[kind]
        if ways is not None:
            return ways
        key = (*kind, problem.candidates)
        if key not in self._some_ways:
            self._some_ways[key] = self._make_ways(op, problem.candidates, shapes, problem)
        return self._some_ways[key]

    def _make_ways(
        self,
        op: Op,
        choices: tuple[tuple[int, ...], ...],
        shapes: Sequence[tuple[tuple[int, ...], str]],
        problem: Problem,
    ) -> Ways:
        shape_class, outlook, each = problem.shape_class, problem.outlook, self._each_way
        ways = [
            each.get((shape_class, factors)) or self._way(op, shape_class, factors, shapes)
            for factors in _combinations(op, choices, self.mesh)
            if op.rule.allows(factors, self.mesh.sizes)
        ]
        return Ways(
            ways,
            shapes,
            len(op.rule.sizes),
            outlook,
            [
                self.prices.rounding(dtype) if outlook.rounds and t < len(op.operands) else 1.0
                for t, (_, dtype) in enumerate(shapes)
            ],
            _columns(op.rule) if outlook.product else (),
            self._known.setdefault((shape_class, outlook), {}),
            [sum(self.prices.move_seconds(move._replace(sharers=outlook.sharers)) for move in way.own) for way in ways]
            if op.kind in COLLECTIVES
            else (),
        )

    def _seconds(self, ways: Ways, t: int, count: int, sharding: Sharding) -> NDArray[np.float64]:
        """Of moving a tensor that lies, or must lie, in this way, for each of the ways."""
        known = ways.known.setdefault((t, sharding), {})
        first, like = ways.distinct(t)
        for lie, number in first.items():
            if lie not in known:
                known[lie] = self._seconds_in(ways, ways.ways[number], t, count, sharding)
        return np.array([known[lie] for lie in first])[like]

    def _seconds_in(self, ways: Ways, way: Way, t: int, count: int, sharding: Sharding) -> float:
        change = (
            _before(sharding, way.operands[t], ways.rounding[t])
            if t < count
            else self._after(way, ways.outlook, t - count, sharding)
        )
        if change.have == change.want and not change.partial:
            return 0.0
        start, slope = self._lines.get(change) or self._line(change)
        seconds = start + slope * self._size(ways, t, change)
        if t < count:
            seconds *= self._reluctance
        if t >= count and ways.outlook.product:
            seconds += self._loop_seconds(ways, t, way, sharding)
        return seconds

    def _loop_seconds(self, ways: Ways, t: int, way: Way, want: Sharding) -> float:
        """Of making a product a loop, which is done if all of its partial sums are scattered along new dimensions."""
        have = way.results[t - len(way.operands)]
        onto = {axis for axes, wanted in zip(have, want, strict=True) if not axes for axis in wanted}
        if not way.partial or not onto.issuperset(way.partial):
            return 0.0
        whole, part = [1.0, 1.0], [1.0, 1.0]  # rows and columns of the result, and of what one turn of the loop makes
        for size, held, wanted, column in zip(ways.shapes[t], have, want, ways.columns, strict=True):
            whole[column] *= size / self.mesh.ways(held)
            part[column] *= size / self.mesh.ways(held or wanted)
        local = local_bytes(ways.sizes[t], have, self.mesh)
        return self.prices.loop_seconds(local, way.work_seconds, whole, part)

    def _line(self, change: _Change) -> tuple[float, float]:
        """Seconds of a move by the tensor's bytes, which are a straight line: for none, and for each."""
        moves = self._moves_of(_SAMPLE_BYTES, change)
        one, two = (sum([self._sample_seconds(move, times) for move in moves]) for times in (1, 2))
        slope = (two - one) / _SAMPLE_BYTES
        found = self._lines[change] = (one - slope * _SAMPLE_BYTES, slope)
        return found

    def _sample_seconds(self, move: Move, times: int) -> float:
        """Of a move of so many times its bytes. A tensor of one size lies in few ways: most have been asked before."""
        found = self._samples.get((move, times))
        if found is None:
            seconds = self.prices.move_seconds(move._replace(bytes=times * move.bytes))
            found = self._samples[move, times] = seconds
        return found

    def _around(self, way: Way, problem: Problem, ways: Ways) -> Iterator[tuple[tuple[Move, ...], float]]:
        """The moves of each operand, then of each result, and their seconds."""
        known, count = self._moves, len(problem.operands)
        for t, (have, want, free) in enumerate(zip(problem.operands, way.operands, problem.free, strict=True)):
            if free or have == want:
                yield _NOTHING
            else:
                change = _before(have, want, ways.rounding[t])
                size = self._size(ways, t, change)
                yield known.get((size, change)) or self._move(size, change)
        for k, (have, want) in enumerate(zip(way.results, problem.results, strict=True)):
            if have == want and not way.partial:
                yield _NOTHING
            else:
                change = self._after(way, ways.outlook, k, want)
                size = self._size(ways, count + k, change)
                yield known.get((size, change)) or self._move(size, change)

    def _after(self, way: Way, outlook: Outlook, result: int, want: Sharding) -> _Change:
        have, whole = way.results[result], outlook.reduces_whole
        if way.partial and not (whole or outlook.product):
            wanted = {axis for axes in want for axis in axes}
            whole = self.prices.reduces_whole(tuple([axis for axis in way.partial if axis in wanted]))
        narrowing, addends = outlook.narrowing[result], outlook.addends
        return _Change(have, way.partial, want, outlook.sharers, narrowing, whole=whole, addends=addends)

    def _size(self, ways: Ways, t: int, change: _Change) -> float:
        """Bytes of a tensor that is moved, padded as it is before or after."""
        return ways.sizes[t] * moved_padding(ways.shapes[t], change.have, change.want, self.mesh)

    def _move(self, size: float, change: _Change) -> tuple[tuple[Move, ...], float]:
        moves = self._moves_of(size, change)
        found = self._moves[size, change] = (moves, sum(self.prices.move_seconds(m) for m in moves))
        return found

    def _moves_of(self, size: float, change: _Change) -> tuple[Move, ...]:
        have, partial, want, sharers, narrowing, rounding, whole, addends = change
        moves = reduce_partial(
            size, have, partial, want, self.mesh, sharers=sharers, narrowing=narrowing, whole=whole, addends=addends
        )
        return moves if rounding == 1 else tuple([move._replace(scale=rounding) for move in moves])

    def _way(
        self,
        op: Op,
        shape_class: int,
        factors: tuple[int, ...],
        shapes: Sequence[tuple[tuple[int, ...], str]],
    ) -> Way:
        rule, order = op.rule, self.mesh.major_first
        shardings = [
            tuple(tuple(a for a in order if dim[:1] == (factors[a],)) for dim in dims) for dims in rule.tensors
        ]
        split = 1.0
        for f in set(factors) - {-1}:
            parts = math.prod(self.mesh.sizes[a] for a, g in enumerate(factors) if g == f)
            split *= parts * rule.sizes[f] / padded_size(rule.sizes[f], parts)
        touched = 0.0
        for (shape, dtype), sharding in zip(shapes, shardings, strict=True):
            size = math.prod(shape) * bits_of(dtype) / 8 * padding(shape, sharding, self.mesh)
            touched += local_bytes(size, sharding, self.mesh)
        count = len(op.operands)
        found = self._each_way[shape_class, factors] = Way(
            factors,
            tuple(shardings[:count]),
            tuple(shardings[count:]),
            tuple(a for a, f in enumerate(factors) if f in rule.reduction),
            self.prices.work_seconds(op, shapes[0][1], split, touched),
            self._own_moves(op, shapes, shardings) if op.kind in COLLECTIVES else (),
        )
        return found

    def _own_moves(
        self, op: Op, shapes: Sequence[tuple[tuple[int, ...], str]], shardings: Sequence[Sharding]
    ) -> tuple[Move, ...]:
        """What a collective of the program's own moves, operand by operand."""
        axes = tuple(self.mesh.names.index(name) for name in op.attributes["over"])
        count = len(op.operands)
        found = []
        for t in range(count):
            (shape, dtype), sharding = shapes[t], shardings[t]
            if op.kind == "all_gather":
                (shape, dtype), sharding = shapes[count + t], shardings[count + t]
            size = local_bytes(math.prod(shape) * bits_of(dtype) / 8, sharding, self.mesh)
            found.append(own_move(op.kind, axes, size, self.mesh))
        return tuple(found)


class _Change(NamedTuple):
    """From a sharding, and partial sums, to another; the rest is of the ``Outlook``, or of an operand's type."""

    have: Sharding
    partial: tuple[int, ...]
    want: Sharding
    sharers: int
    narrowing: float
    rounding: float = 1.0
    whole: bool = False
    addends: int = 1


def _before(have: Sharding, want: Sharding, rounding: float) -> _Change:
    return _Change(have, (), want, 1, 1.0, rounding)


def _columns(rule: Rule) -> tuple[bool, ...]:
    """Whether a dimension of a product's result is of its columns: one that the left operand does not have."""
    left = {f for dim in rule.operands[0] for f in dim}
    return tuple([not left.issuperset(dim) for dim in rule.results[0]])


_NOTHING: tuple[tuple[Move, ...], float] = ((), 0.0)


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


def spread(rule: Rule, allowed: tuple[tuple[int, ...], ...], sizes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """What each axis may split, with the factors that must be split by all axes where one of them may."""
    found = rule.spread & {f for factors in allowed for f in factors} if rule.spread else ()
    if not found:
        return allowed
    return tuple(
        tuple(sorted({*factors, *(f for f in found if splits_factor(rule, f, size, padded=False))}))
        for factors, size in zip(allowed, sizes, strict=True)
    )


def _combinations(op: Op, candidates: tuple[tuple[int, ...], ...], mesh: MeshShape) -> Iterator[tuple[int, ...]]:
    loose = paddable(op)
    choices = [(-1, *found) for found in candidates]
    if math.prod(map(len, choices)) > _MOST_WAYS:  # many axes: the first few of each axis's list do
        choices = [found[:3] for found in choices]
    for factors in product(*choices):
        if all(
            splits_factor(
                op.rule, f, math.prod(mesh.sizes[a] for a, g in enumerate(factors) if g == f), padded=f in loose
            )
            for f in set(factors) - {-1}
        ):
            yield factors
