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

from shardwright._memo import Memo, Numbers
from shardwright.ir.kinds import COLLECTIVES
from shardwright.ir.move_terms import MoveTerms
from shardwright.ir.program import Op
from shardwright.price.collectives import ALL_REDUCE, REDUCE_SCATTER, Move, local_bytes, reduce_partial, reduced
from shardwright.price.uneven import ever_padded, moved_padding, padding
from shardwright.price.ways import (
    MOST_WAYS,
    Allowed,
    Lie,
    Loop,
    Prices,
    Shape,
    Way,
    Ways,
    candidates,
    columns_of,
    combinations,
    is_batched,
    make_way,
)
from shardwright.request import MeshShape
from shardwright.space.state import Sharding

_SAMPLE_BYTES, _DECIMALS = 1e6, 15
_RELUCTANCE = 100.0
"""How much dearer it counts to move an operand where a compiler is left to itself."""


class OpProblem(NamedTuple):
    """All that an op's assignment depends on; equal problems have equal answers.

    ``shape_class`` and ``terms`` are those of the program (``Program.shape_classes``, ``Program.move_terms``).
    """

    shape_class: int
    terms: MoveTerms
    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]
    free: tuple[bool, ...]
    candidates: Allowed


class Assignment(NamedTuple):
    """``factors[axis]`` is the factor that the axis splits, or -1.

    ``operands`` and ``results`` are the shardings the op itself works with, ``before`` and ``after`` the moves that
    each operand and result needs, ``own`` those that the op itself is, as a ``psum`` is; ``after_seconds`` is what the
    latter two take on their links, ``copy_seconds`` what copying into place does, ``loop_seconds`` what making the op a
    loop that scatters its sums does, ``adding_seconds`` of them to add up its parts, and ``looped_seconds`` the part of
    ``after_seconds`` that such a loop moves. ``seconds`` is the price it was chosen by.
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
    looped_seconds: float = 0.0
    copy_seconds: float = 0.0
    adding_seconds: float = 0.0

    def made(self, result: int, wanted: Sharding) -> Sharding:
        """How the op leaves a result, partial sums reduced, before it is brought to another sharding."""
        return reduced(self.results[result], self.partial, wanted)


class _Change(NamedTuple):
    """A move from a sharding, and partial sums, to another; the rest is of the terms, or of an operand's type."""

    have: Sharding
    partial: tuple[int, ...]
    want: Sharding
    sharers: int
    narrowing: float
    rounding: float = 1.0
    whole: bool = False
    addends: int = 1


class Assigner:
    """Chooses how ops run on a mesh. What was worked out once, for a class of ops or for a tensor, is remembered.

    ``as_they_lie``: nobody will tell the compiler otherwise, and it takes operands as they lie where it can.
    """

    def __init__(self, mesh: MeshShape, prices: Prices, *, as_they_lie: bool = False) -> None:
        self.mesh, self.prices = mesh, prices
        self._moves = _Moves(mesh, prices, _RELUCTANCE if as_they_lie else 1.0)
        self._all_ways: dict[tuple[int, MoveTerms], _Kind | None] = {}
        self._some_ways: dict[tuple[int, MoveTerms, Allowed], _Kind] = {}
        self._each_way: dict[tuple[int, tuple[int, ...]], Way] = {}

    def assign(self, op: Op, problem: OpProblem, shapes: Sequence[Shape]) -> Assignment:
        """The cheapest way to run an op; ``shapes`` are shape and type of its operands, then results.

        The same assignment is the same object, which stays as long as the assigner does.
        """
        kind = self._kind(op, problem, shapes)
        weighed = kind.weighed[problem.operands, problem.results, problem.free]
        seconds, allowed = weighed.seconds, kind.ways.among[problem.candidates]
        # No axis at all is the first of the ways: of equals, the one that splits least.
        number = int(seconds.argmin()) if allowed is None else int(allowed[seconds[allowed].argmin()])
        return weighed.assignments[number]

    def _kind(self, op: Op, problem: OpProblem, shapes: Sequence[Shape]) -> _Kind:
        """The kind of an op, with all ways to run it, or, where axes are so many that these are too many, some."""
        key = (problem.shape_class, problem.terms)
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

    def _make_kind(self, op: Op, allowed: Allowed, shapes: Sequence[Shape], problem: OpProblem) -> _Kind:
        shape_class, terms, each, count = problem.shape_class, problem.terms, self._each_way, len(op.operands)
        ways = []
        for factors in combinations(op, allowed, self.mesh):
            if (shape_class, factors) not in each:
                each[shape_class, factors] = make_way(op, factors, shapes, self.mesh, self.prices)
            ways.append(each[shape_class, factors])
        rounding = [
            self.prices.rounding(dtype) if (terms.rounds and t < count) or t in terms.rounded else 1.0
            for t, (_, dtype) in enumerate(shapes)
        ]
        columns = columns_of(op.rule) if terms.product else ()
        own_seconds = [
            sum(self.prices.move_seconds(move._replace(sharers=terms.sharers)) for move in way.own)
            for way in (ways if op.kind in COLLECTIVES else ())
        ]
        loops = terms.product and not is_batched(op.rule)
        found = Ways(ways, shapes, len(op.rule.sizes), terms, rounding, columns, own_seconds, self.mesh, loops=loops)
        vectors = Memo(partial(self._moves.vector, found, Memo(partial(self._moves.lies, found))))
        return _Kind(found, Memo(partial(_weigh, self._moves, found, vectors)))


_Around = tuple[tuple[Sharding, ...], tuple[Sharding, ...], tuple[bool, ...]]
"""How an op's operands lie and its results must, and which operands are free."""
_Vector = NDArray[np.float64]
"""Seconds in each of the ways to run an op."""


class _Weighed(NamedTuple):
    """What each of the ways takes, with the moves before and after it, and the assignment that each is."""

    seconds: _Vector
    assignments: Memo[int, Assignment]


class _Kind(NamedTuple):
    """Ops of one shape class and terms: the ways to run them, weighed by how their tensors lie outside of them."""

    ways: Ways
    weighed: Memo[_Around, _Weighed]


def _weigh(moves: _Moves, ways: Ways, vectors: Memo[tuple[int, Sharding], _Vector], around: _Around) -> _Weighed:
    """The seconds of every way: its work, and the moves of all tensors."""
    operands, results, free = around
    count, seconds = len(operands), ways.work
    for t, sharding in enumerate((*operands, *results)):
        if t >= count or not free[t]:
            seconds = seconds + vectors[t, sharding]
    seconds = seconds.round(_DECIMALS)  # or equals would differ by how they were added up
    return _Weighed(seconds, Memo(partial(_assignment, moves, ways, seconds, around)))


def _assignment(moves: _Moves, ways: Ways, seconds: _Vector, around: _Around, number: int) -> Assignment:
    way, count = ways.ways[number], len(around[0])
    found = list(moves.around(ways, way, around))
    all_moves = tuple([moves for moves, _ in found])
    after_seconds = sum([seconds for _, seconds in found[count:]])
    own = tuple([move._replace(sharers=ways.terms.sharers) for move in way.own])
    if own:
        after_seconds += ways.own_seconds[number]
    copies = sum([moves.prices.copy_seconds(move) for after in (*all_moves[count:], own) for move in after])
    product_seconds = adding_seconds = looped_seconds = 0.0
    if ways.loops and moves.is_loop(ways, way, 0, around[1][0]):
        product_seconds, adding_seconds = moves.loop_seconds(ways, way, around[1][0])
        scattered = [move for after in all_moves[count:] for move in after if move.kind == REDUCE_SCATTER]
        looped_seconds = sum([moves.prices.move_seconds(move) for move in scattered])
    return Assignment(
        way.factors,
        way.operands,
        way.results,
        way.partial,
        all_moves[:count],
        all_moves[count:],
        after_seconds - copies,
        product_seconds + adding_seconds,
        float(seconds[number]),
        own,
        looped_seconds,
        copies,
        adding_seconds,
    )


class _Moves:
    """What brings the tensors of ops to where these want them, and their results to where they must be.

    ``reluctance`` is how much dearer it counts to move an operand.
    """

    def __init__(self, mesh: MeshShape, prices: Prices, reluctance: float) -> None:
        self.mesh, self.prices, self.reluctance = mesh, prices, reluctance
        self._lines = Memo(partial(_line, mesh, Memo(partial(_sample_seconds, prices))))
        self._numbers: Numbers[Lie] = Numbers()
        self._lines_of_side = Memo(partial(_lines_of_side, prices, self._lines, self._numbers.things))
        self._some_lines = Memo(partial(_some_lines, self._lines_of_side))
        self._moves = Memo(partial(_moves_and_seconds, mesh, prices))

    def lies(self, ways: Ways, t: int) -> tuple[int, ...]:
        """How a tensor lies in the ways, by numbers: shardings take long to look up, and are looked up often."""
        return tuple([self._numbers[lie] for lie in ways.distinct[t][0]])

    def vector(self, ways: Ways, all_lies: Memo[int, tuple[int, ...]], tensor: tuple[int, Sharding]) -> _Vector:
        """The seconds, in each of the ways, of moving a tensor that lies, or must lie, so outside of the op.

        ``all_lies`` are the numbers of how the ways have each tensor.
        A move takes a time that is a straight line in the tensor's bytes, and tensors of other ops, of other sizes,
        have the same lines.
        """
        t, sharding = tensor
        first, like = ways.distinct[t]
        count, lies = len(ways.ways[0].operands), all_lies[t]
        if t < count:
            starts, slopes = self._some_lines[lies, _Side(sharding, ways.rounding[t])]
            return (self.reluctance * (starts + slopes * self._sizes(ways, t, sharding)))[like]
        terms, k = ways.terms, t - count
        side = _Side(
            sharding,
            ways.rounding[t] if terms.narrowing[k] == 1 else 1.0,
            terms.sharers,
            terms.narrowing[k],
            terms.addends,
            terms.reduces_whole,
        )
        starts, slopes = self._some_lines[lies, side]
        seconds = starts + slopes * self._sizes(ways, t, sharding)
        if ways.loops:
            for n, number in enumerate(first.values()):
                if self.is_loop(ways, way := ways.ways[number], k, sharding):
                    change = self._after(ways, way, k, sharding, looped=True)
                    start, slope = self._lines[change]
                    moved = start + slope * self._size(ways, t, change)
                    seconds[n] = moved + sum(self.loop_seconds(ways, way, sharding))
        return seconds[like]

    def _sizes(self, ways: Ways, t: int, sharding: Sharding) -> _Vector | float:
        """Bytes of a tensor that is moved from or to a sharding, padded as it is before or after."""
        if not ever_padded(ways.shapes[t], self.mesh.sizes):
            return ways.sizes[t]
        outside = padding(ways.shapes[t], sharding, self.mesh)
        return ways.sizes[t] * np.maximum(ways.paddings[t], outside)

    def is_loop(self, ways: Ways, way: Way, result: int, want: Sharding) -> bool:
        """Whether a product is made a loop that scatters its sums: see ``compiler.moving.LOOPED_PRODUCTS``."""
        if not (ways.loops and is_scattered(way, result, want)):
            return False
        n = self.mesh.ways(way.partial)
        local = local_bytes(ways.sizes[len(way.operands) + result], way.results[result], self.mesh)
        scattering = Move(REDUCE_SCATTER, way.partial, local * (n - 1) / n)
        return self.prices.makes_loop(way.matrix_seconds, self.prices.move_seconds(scattering))

    def loop_seconds(self, ways: Ways, way: Way, want: Sharding) -> tuple[float, float]:
        """What making a product a loop takes more, for its products and to add up their parts."""
        have, t = way.results[0], len(way.operands)
        whole, part = [1.0, 1.0], [1.0, 1.0]  # rows and columns of the result, and of what one turn of the loop makes
        for size, held, wanted, column in zip(ways.shapes[t], have, want, ways.columns, strict=True):
            whole[column] *= size / self.mesh.ways(held)
            part[column] *= size / self.mesh.ways(held or wanted)
        cut = next((column for a, b, column in zip(whole, part, (0, 1), strict=True) if b < a), 0)
        entry_bytes = ways.sizes[t] / max(math.prod(ways.shapes[t]), 1)
        operands = [local_bytes(ways.sizes[o], lies, self.mesh) for o, lies in enumerate(way.operands)]
        return self.prices.loop_seconds(
            Loop(
                local_bytes(ways.sizes[t], have, self.mesh),
                entry_bytes,
                way.work_seconds,
                sum(operands),
                operands[1 - cut]
                * ways.rounding[1 - cut],  # rows of a product are its first operand's, columns its second's
                self.mesh.ways(way.partial),
                whole,
                part,
            )
        )

    def around(self, ways: Ways, way: Way, around: _Around) -> Iterator[tuple[tuple[Move, ...], float]]:
        """The moves of each operand, then of each result, and their seconds."""
        operands, results, all_free = around
        count = len(operands)
        for t, (have, want, free) in enumerate(zip(operands, way.operands, all_free, strict=True)):
            if free or have == want:
                yield _NOTHING
            else:
                change = _before(have, want, ways.rounding[t])
                yield self._moves[self._size(ways, t, change), change]
        for k, (have, want) in enumerate(zip(way.results, results, strict=True)):
            if have == want and not way.partial:
                yield _NOTHING
            else:
                change = self._after(ways, way, k, want, looped=self.is_loop(ways, way, k, want))
                yield self._moves[self._size(ways, count + k, change), change]

    def _after(self, ways: Ways, way: Way, result: int, want: Sharding, *, looped: bool) -> _Change:
        terms = ways.terms
        have, whole = way.results[result], terms.reduces_whole
        if way.partial and not (whole or looped):
            wanted = {axis for axes in want for axis in axes}
            whole = self.prices.reduces_whole(tuple([axis for axis in way.partial if axis in wanted]))
        narrowing = terms.narrowing[result]
        rounding = ways.rounding[len(way.operands) + result] if narrowing == 1 else 1.0
        addends = 1 if looped else terms.addends  # a loop scatters its own
        return _Change(have, way.partial, want, terms.sharers, narrowing, rounding, whole, addends)

    def _size(self, ways: Ways, t: int, change: _Change) -> float:
        """Bytes of a tensor that is moved, padded as it is before or after."""
        return ways.sizes[t] * moved_padding(ways.shapes[t], change.have, change.want, self.mesh)


def is_scattered(way: Way, result: int, want: Sharding) -> bool:
    """Whether the partial sums of a result are scattered along one dimension, which lies along no axis yet."""
    return bool(way.partial) and any(
        not axes and all(axis in wanted for axis in way.partial)
        for axes, wanted in zip(way.results[result], want, strict=True)
    )


_NOTHING: tuple[tuple[Move, ...], float] = ((), 0.0)


def _before(have: Sharding, want: Sharding, rounding: float) -> _Change:
    return _Change(have, (), want, 1, 1.0, rounding)


class _Side(NamedTuple):
    """How a tensor lies, or must lie, outside of an op; the rest as of a ``_Change``.

    ``reduces_whole`` is None for an operand; for a result, whether its op's sums are known to be reduced whole.
    """

    sharding: Sharding
    rounding: float
    sharers: int = 1
    narrowing: float = 1.0
    addends: int = 1
    reduces_whole: bool | None = None


_Line = tuple[float, float]
"""Seconds of a move for no bytes, and for each byte of the tensor."""


def _some_lines(
    lines_of_side: Memo[_Side, Memo[int, _Line]], numbers_and_side: tuple[tuple[int, ...], _Side]
) -> tuple[_Vector, _Vector]:
    """The lines of moves between some ways to lie, by their numbers, and one sharding."""
    numbers, side = numbers_and_side
    lines = lines_of_side[side]
    found = [lines[number] for number in numbers]
    return np.array([start for start, _ in found]), np.array([slope for _, slope in found])


def _lines_of_side(prices: Prices, lines: Memo[_Change, _Line], lies: Sequence[Lie], side: _Side) -> Memo[int, _Line]:
    wanted = {axis for axes in side.sharding for axis in axes}

    def line(number: int) -> _Line:
        """The line of moves between one way to lie, by its number, and a sharding."""
        lie, partial = lies[number]
        if lie == side.sharding and not partial:
            return _NO_LINE
        if side.reduces_whole is None:
            return lines[_before(*_split_ones(side.sharding, lie), side.rounding)]
        have, want = _split_ones(lie, side.sharding)
        if not partial:  # there is nothing to reduce
            return lines[_Change(have, (), want, 1, side.narrowing, side.rounding)]
        onto = tuple([axis for axis in partial if axis in wanted])
        whole = side.reduces_whole or (bool(onto) and prices.reduces_whole(onto))
        return lines[_Change(have, partial, want, side.sharers, side.narrowing, side.rounding, whole, side.addends)]

    return Memo(line)


_NO_LINE = (0.0, 0.0)


def _split_ones(have: Sharding, want: Sharding) -> tuple[Sharding, Sharding]:
    """Two shardings without the dimensions that neither splits: what moves is the same, for tensors of any rank."""
    pairs = [pair for pair in zip(have, want, strict=True) if pair[0] or pair[1]]
    return tuple([axes for axes, _ in pairs]), tuple([axes for _, axes in pairs])


def _line(mesh: MeshShape, samples: Memo[tuple[Move, int], float], change: _Change) -> _Line:
    """Seconds of a move by the tensor's bytes, which are a straight line: for none, and for each."""
    moves = _moves_of(mesh, _SAMPLE_BYTES, change)
    one, two = (sum([samples[move, times] for move in moves]) for times in (1, 2))
    slope = (two - one) / _SAMPLE_BYTES
    return one - slope * _SAMPLE_BYTES, slope


def _sample_seconds(prices: Prices, move_and_times: tuple[Move, int]) -> float:
    """The seconds of a move of so many times its bytes; a tensor of one size lies in few ways, so few are asked for."""
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
    if rounding == 1:
        return moves
    sums = (ALL_REDUCE, REDUCE_SCATTER)  # which are rounded when they are complete
    return tuple([move if move.kind in sums else move._replace(scale=rounding * move.scale) for move in moves])
