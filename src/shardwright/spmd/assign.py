"""How each op runs: which axes split which of its factors, given how its operands lie and how its results must.

The cheapest of a few combinations: every axis takes one of the op's factors whose group is on its list, or none. What
counts is the communication it causes, before and after, and the work that is left on each device, in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from shardwright.ir.program import Op, bits_of
from shardwright.ir.rules import Rule
from shardwright.spmd.collectives import Move, local_bytes, reduce_partial, reshard
from shardwright.spmd.prices import Prices
from shardwright.spmd.state import MeshShape, Sharding

_MOST_COMBINATIONS = 256


class Assignment(NamedTuple):
    """``factors[axis]`` is the factor that the axis splits, or -1.

    ``operands`` and ``results`` are the shardings the op itself works with, ``before`` and ``after`` the moves that
    each operand and result needs, ``after_seconds`` what the latter take. ``seconds`` is the price it was chosen by.
    """

    factors: tuple[int, ...]
    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]
    partial: tuple[int, ...]
    before: tuple[tuple[Move, ...], ...]
    after: tuple[tuple[Move, ...], ...]
    after_seconds: float
    seconds: float


class Problem(NamedTuple):
    """All that an op's assignment depends on; equal problems have equal answers.

    ``shape_class`` is that of the program (``Program.shape_classes``).
    """

    shape_class: int
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


class Assigner:
    """Chooses how ops run on a mesh. What was worked out once, for a class of ops or for a tensor, is remembered."""

    def __init__(self, mesh: MeshShape, prices: Prices) -> None:
        self.mesh, self.prices = mesh, prices
        self._known: dict[Problem, Assignment] = {}
        self._ways: dict[tuple[int, tuple[tuple[int, ...], ...]], list[Way]] = {}
        self._way_of: dict[tuple[int, tuple[int, ...]], Way] = {}
        self._moves: dict[tuple[float, Sharding, tuple[int, ...], Sharding], tuple[tuple[Move, ...], float]] = {}

    def assign(self, op: Op, problem: Problem, shapes: Sequence[tuple[tuple[int, ...], str]]) -> Assignment:
        """The cheapest way to run an op; ``shapes`` are shape and type of its operands, then results."""
        known = self._known.get(problem)
        if known is None:
            known = self._known[problem] = self._cheapest(op, problem, shapes)
        return known

    def _cheapest(self, op: Op, problem: Problem, shapes: Sequence[tuple[tuple[int, ...], str]]) -> Assignment:
        sizes = [math.prod(shape) * bits_of(dtype) / 8 for shape, dtype in shapes]
        ways = self._ways.get((problem.shape_class, problem.candidates))
        if ways is None:
            ways = self._ways[problem.shape_class, problem.candidates] = [
                self._way(op, problem.shape_class, factors, sizes, shapes)
                for factors in _combinations(op.rule, problem.candidates, self.mesh)
                if not (op.kind == "convolution" and _miscompiled(op.rule, factors))
            ]
        best, least = ways[0], math.inf
        for way in ways:  # no axis at all is always the first of them
            seconds = way.work_seconds
            for _, moved in self._around(way, problem, sizes):
                seconds += moved
                if seconds >= least:
                    break
            else:
                if seconds < least:
                    best, least = way, seconds
        found = list(self._around(best, problem, sizes))
        moves = tuple([moves for moves, _ in found])
        count = len(problem.operands)
        after_seconds = sum([seconds for _, seconds in found[count:]])
        return Assignment(
            best.factors,
            best.operands,
            best.results,
            best.partial,
            moves[:count],
            moves[count:],
            after_seconds,
            least,
        )

    def _around(self, way: Way, problem: Problem, sizes: Sequence[float]) -> Iterator[tuple[tuple[Move, ...], float]]:
        """The moves of each operand, then of each result, and their seconds."""
        known, t = self._moves, 0
        for have, want, free in zip(problem.operands, way.operands, problem.free, strict=True):
            if free or have == want:
                yield _NOTHING
            else:
                yield known.get((sizes[t], have, (), want)) or self._move(sizes[t], have, (), want)
            t += 1
        for have, want in zip(way.results, problem.results, strict=True):
            if have == want and not way.partial:
                yield _NOTHING
            else:
                yield known.get((sizes[t], have, way.partial, want)) or self._move(sizes[t], have, way.partial, want)
            t += 1

    def _move(
        self, size: float, have: Sharding, partial: tuple[int, ...], want: Sharding
    ) -> tuple[tuple[Move, ...], float]:
        if partial:
            moves = reduce_partial(size, have, partial, want, self.mesh)
        else:
            moves = reshard(size, have, want, self.mesh)
        found = self._moves[size, have, partial, want] = (moves, sum(self.prices.move_seconds(m) for m in moves))
        return found

    def _way(
        self,
        op: Op,
        shape_class: int,
        factors: tuple[int, ...],
        sizes: Sequence[float],
        shapes: Sequence[tuple[tuple[int, ...], str]],
    ) -> Way:
        known = self._way_of.get((shape_class, factors))
        if known is not None:
            return known
        rule = op.rule
        shardings = [
            tuple(tuple(a for a, f in enumerate(factors) if dim[:1] == (f,)) for dim in dims) for dims in rule.tensors
        ]
        split = math.prod(self.mesh.sizes[a] for a, f in enumerate(factors) if f >= 0)
        touched = sum(local_bytes(sizes[t], s, self.mesh) for t, s in enumerate(shardings))
        count = len(op.operands)
        way = self._way_of[shape_class, factors] = Way(
            factors,
            tuple(shardings[:count]),
            tuple(shardings[count:]),
            tuple(a for a, f in enumerate(factors) if f in rule.reduction),
            self.prices.work_seconds(op, shapes[0][1], split, touched),
        )
        return way


_NOTHING: tuple[tuple[Move, ...], float] = ((), 0.0)


def _miscompiled(rule: Rule, factors: tuple[int, ...]) -> bool:
    """A convolution split along its image and its output features at once, which XLA's partitioner gets wrong.

    Plain JAX shows it on jaxlib 0.10.2 and 0.12.0: batch, height and output features on three axes give other numbers.
    """
    kernel, result = ({dim[0] for dim in dims if dim} for dims in (rule.operands[1], rule.results[0]))
    chosen = set(factors)
    return bool(chosen & rule.halo) and bool(chosen & kernel & result)


def candidates(rule: Rule, groups: tuple[int, ...], on_list: frozenset[int], axis_size: int) -> tuple[int, ...]:
    """The factors of an op that an axis may split: on its list, divisible, and major in every result that has them."""
    return tuple(
        f
        for f, group in enumerate(groups)
        if group in on_list
        and f not in rule.whole
        and rule.sizes[f] % axis_size == 0
        and all(factors.index(f) == 0 for dims in rule.results for factors in dims if f in factors)
    )


def _combinations(rule: Rule, candidates: tuple[tuple[int, ...], ...], mesh: MeshShape) -> Iterator[tuple[int, ...]]:
    choices = [(-1, *found) for found in candidates]
    if math.prod(map(len, choices)) > _MOST_COMBINATIONS:  # many axes: the first few of each axis's list do
        choices = [found[:3] for found in choices]
    for factors in product(*choices):
        if all(
            rule.sizes[f] % math.prod(mesh.sizes[a] for a, g in enumerate(factors) if g == f) == 0
            for f in set(factors) - {-1}
        ):
            yield factors
