"""How each op runs: which axes split which of its factors, given how its operands lie and how its results must.

The cheapest of a few combinations: every axis takes one of the op's factors whose group is on its list, or none. What
counts is the communication it causes, before and after, and the work that is left on each device, in seconds.

The seconds of moving a tensor depend on how it lies and on the way alone, not on the op's other tensors: so they are a
vector over the ways, worked out once for each sharding of each tensor, and a choice is the least entry of a sum of
vectors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwright._memo import Memo
from shardwright.ir.kinds import COLLECTIVES
from shardwright.ir.outlook import Outlook
from shardwright.ir.program import Op
from shardwright.price.collectives import Move, local_bytes, reduce_partial, reduced
from shardwright.price.uneven import moved_padding
from shardwright.price.ways import (
    MOST_WAYS,
    Allowed,
    Lie,
    Prices,
    Shape,
    Way,
    Ways,
    candidates,
    columns_of,
    combinations,
    make_way,
)
from shardwright.request import MeshShape
from shardwright.space.state import Sharding

_SAMPLE_BYTES, _DECIMALS = 1e6, 15
_RELUCTANCE = 100.0
"""How much dearer it counts to move an operand where a compiler is left to itself."""


class Problem(NamedTuple):
    """All that an op's assignment depends on; equal problems have equal answers.

    ``shape_class`` and ``outlook`` are those of the program (``Program.shape_classes``, ``Program.outlooks``).
    """

    shape_class: int
    outlook: Outlook
    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]
    free: tuple[bool, ...]
    candidates: Allowed


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


class _Weighed(NamedTuple):
    """What each of the ways takes, with the moves before and after it, and what was chosen of them by its number."""

    seconds: NDArray[np.float64]
    assignments: dict[int, Assignment]


class _Kind:
    """Ops of one shape class and outlook: what moving their tensors takes in each of the ways, and what was chosen.

    ``moved`` are seconds by the number of a tensor, its sharding outside the op and how it lies in it.
    """

    def __init__(self, ways: Ways, moved: dict[tuple[int, Sharding], dict[Lie, float]]) -> None:
        self.ways, self.moved = ways, moved
        self.vectors: dict[tuple[int, Sharding], NDArray[np.float64]] = {}
        """The same over the ways, by the number of a tensor and its sharding outside the op."""
        self.weighed: dict[tuple[object, ...], _Weighed] = {}
        """By how the operands lie and the results must, and which operands are free."""


class Assigner:
    """Chooses how ops run on a mesh. What was worked out once, for a class of ops or for a tensor, is remembered.

    ``as_they_lie``: nobody will tell the compiler otherwise, and it takes operands as they lie where it can.
    """

    def __init__(self, mesh: MeshShape, prices: Prices, *, as_they_lie: bool = False) -> None:
        self.mesh, self.prices = mesh, prices
        self._reluctance = _RELUCTANCE if as_they_lie else 1.0
        self._all_ways: dict[tuple[int, Outlook], _Kind | None] = {}
        self._some_ways: dict[tuple[int, Outlook, Allowed], _Kind] = {}
        self._each_way: dict[tuple[int, tuple[int, ...]], Way] = {}
        self._moved: dict[tuple[int, Outlook], dict[tuple[int, Sharding], dict[Lie, float]]] = {}
        self._lines = Memo(partial(_line, mesh, Memo(partial(_sample_seconds, prices))))
        self._moves = Memo(partial(_moves_and_seconds, mesh, prices))

    def assign(self, op: Op, problem: Problem, shapes: Sequence[Shape]) -> Assignment:
        """The cheapest way to run an op; ``shapes`` are shape and type of its operands, then results.

        The same assignment is the same object, which stays as long as the assigner does.
        """
        kind = self._kind(op, problem, shapes)
        around = (problem.operands, problem.results, problem.free)
        weighed = kind.weighed.get(around)
        if weighed is None:
            weighed = kind.weighed[around] = _Weighed(self._weigh(kind, problem), {})
        seconds, allowed = weighed.seconds, kind.ways.among[problem.candidates]
        # No axis at all is the first of the ways: of equals, the one that splits least.
        number = int(seconds.argmin()) if allowed is None else int(allowed[seconds[allowed].argmin()])
        known = weighed.assignments.get(number)
        if known is None:
            known = self._assignment(kind.ways, number, problem, float(seconds[number]))
            weighed.assignments[number] = known
        return known

    # The ways to run an op.

    def _kind(self, op: Op, problem: Problem, shapes: Sequence[Shape]) -> _Kind:
        """With all ways to run an op, or, on a mesh with so many axes that they are too many, those of the problem."""
        key = (problem.shape_class, problem.outlook)
        if key not in self._all_ways:
            every = frozenset(range(len(op.rule.sizes)))
            allowed = tuple(candidates(op, tuple(every), every, size, every) for size in self.mesh.sizes)
            few = math.prod(len(found) + 1 for found in allowed) <= MOST_WAYS
            self._all_ways[key] = self._make_kind(op, allowed, shapes, problem) if few else None
        kind = self._all_ways[key]
        if kind is not None:
            return kind
        longer = (*key, problem.candidates)
        if longer not in self._some_ways:
            self._some_ways[longer] = self._make_kind(op, problem.candidates, shapes, problem)
        return self._some_ways[longer]

    def _make_kind(self, op: Op, allowed: Allowed, shapes: Sequence[Shape], problem: Problem) -> _Kind:
        shape_class, outlook, each, count = problem.shape_class, problem.outlook, self._each_way, len(op.operands)
        ways = [
            each.get((shape_class, factors)) or self._way(op, shape_class, factors, shapes)
            for factors in combinations(op, allowed, self.mesh)
        ]
        rounding = [
            self.prices.rounding(dtype) if outlook.rounds and t < count else 1.0 for t, (_, dtype) in enumerate(shapes)
        ]
        columns = columns_of(op.rule) if outlook.product else ()
        own_seconds = [
            sum(self.prices.move_seconds(move._replace(sharers=outlook.sharers)) for move in way.own)
            for way in (ways if op.kind in COLLECTIVES else ())
        ]
        moved = self._moved.setdefault((shape_class, outlook), {})
        return _Kind(Ways(ways, shapes, len(op.rule.sizes), outlook, rounding, columns, own_seconds), moved)

    def _way(self, op: Op, shape_class: int, factors: tuple[int, ...], shapes: Sequence[Shape]) -> Way:
        found = self._each_way[shape_class, factors] = make_way(op, factors, shapes, self.mesh, self.prices)
        return found

    # What each of them takes.

    def _weigh(self, kind: _Kind, problem: Problem) -> NDArray[np.float64]:
        """The seconds of every way: its work, and the moves of all tensors."""
        count, known = len(problem.operands), kind.vectors
        seconds = kind.ways.work
        for t, sharding in enumerate((*problem.operands, *problem.results)):
            if t >= count or not problem.free[t]:
                moved = known.get((t, sharding))
                if moved is None:
                    moved = known[t, sharding] = self._moving_seconds(kind, t, count, sharding)
                seconds = seconds + moved
        return seconds.round(_DECIMALS)  # or equals would differ by how they were added up

    def _moving_seconds(self, kind: _Kind, t: int, count: int, sharding: Sharding) -> NDArray[np.float64]:
        """The seconds, in each of the ways, of moving a tensor that lies, or must lie, so outside of the op."""
        ways, known = kind.ways, kind.moved.setdefault((t, sharding), {})
        first, like = ways.distinct[t]
        for lie, number in first.items():
            if lie not in known:
                known[lie] = self._moving_seconds_in(ways, ways.ways[number], t, count, sharding)
        return np.array([known[lie] for lie in first])[like]

    def _moving_seconds_in(self, ways: Ways, way: Way, t: int, count: int, sharding: Sharding) -> float:
        change = (
            _before(sharding, way.operands[t], ways.rounding[t])
            if t < count
            else self._after(way, ways.outlook, t - count, sharding)
        )
        if change.have == change.want and not change.partial:
            return 0.0
        start, slope = self._lines[change]
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

    # The one that was chosen.

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

    def _around(self, way: Way, problem: Problem, ways: Ways) -> Iterator[tuple[tuple[Move, ...], float]]:
        """The moves of each operand, then of each result, and their seconds."""
        count = len(problem.operands)
        for t, (have, want, free) in enumerate(zip(problem.operands, way.operands, problem.free, strict=True)):
            if free or have == want:
                yield _NOTHING
            else:
                change = _before(have, want, ways.rounding[t])
                yield self._moves[self._size(ways, t, change), change]
        for k, (have, want) in enumerate(zip(way.results, problem.results, strict=True)):
            if have == want and not way.partial:
                yield _NOTHING
            else:
                change = self._after(way, ways.outlook, k, want)
                yield self._moves[self._size(ways, count + k, change), change]


_NOTHING: tuple[tuple[Move, ...], float] = ((), 0.0)


def _before(have: Sharding, want: Sharding, rounding: float) -> _Change:
    return _Change(have, (), want, 1, 1.0, rounding)


def _line(mesh: MeshShape, samples: Memo[tuple[Move, int], float], change: _Change) -> tuple[float, float]:
    """Seconds of a move by the tensor's bytes, which are a straight line: for none, and for each."""
    moves = _moves_of(mesh, _SAMPLE_BYTES, change)
    one, two = (sum([samples[move, times] for move in moves]) for times in (1, 2))
    slope = (two - one) / _SAMPLE_BYTES
    return one - slope * _SAMPLE_BYTES, slope


def _sample_seconds(prices: Prices, move_and_times: tuple[Move, int]) -> float:
    """Of a move of so many times its bytes. A tensor of one size lies in few ways: most have been asked before."""
    move, times = move_and_times
    return prices.move_seconds(move._replace(bytes=times * move.bytes))


def _moves_and_seconds(
    mesh: MeshShape, prices: Prices, size_and_change: tuple[float, _Change]
) -> tuple[tuple[Move, ...], float]:
    moves = _moves_of(mesh, *size_and_change)
    return moves, sum(prices.move_seconds(m) for m in moves)


def _moves_of(mesh: MeshShape, size: float, change: _Change) -> tuple[Move, ...]:
    have, partial, want, sharers, narrowing, rounding, whole, addends = change
    moves = reduce_partial(
        size, have, partial, want, mesh, sharers=sharers, narrowing=narrowing, whole=whole, addends=addends
    )
    return moves if rounding == 1 else tuple([move._replace(scale=rounding) for move in moves])
