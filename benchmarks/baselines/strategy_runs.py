"""How ops run under each strategy of a node: as one of their tensors lies, or in all ways there are.

Shardings come in tuples, one for each strategy of a node; equal tuples have one number, so that what was worked out for
one is found again.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.baselines.strategies import MOST_STRATEGIES, ways_to_run
from shardwright.ir.program import Op
from shardwright.price import CostModel
from shardwright.price.collectives import reduce_partial
from shardwright.price.uneven import splits_factor
from shardwright.price.ways import candidates
from shardwright.space.state import Sharding


class Run(NamedTuple):
    """How an op runs under each strategy of a node.

    ``tensors`` are numbers of the shardings of operands and results, ``factors`` and ``partial`` those of
    ``spmd.assign.Way``; ``left`` are the shardings in which the results are left.
    """

    tensors: tuple[int, ...]
    left: tuple[int, ...]
    factors: tuple[tuple[int, ...], ...]
    partial: tuple[tuple[int, ...], ...]


class Runs:
    """Numbered tuples of shardings, and how each class of ops runs with them.

    ``distinct[n]`` are the different shardings of tuple n, and which of them each strategy has; ``ways[n]`` into how
    many parts each strategy splits the tensor.
    """

    def __init__(self, costs: CostModel) -> None:
        self.costs, self.mesh, self.program = costs, costs.mesh, costs.classes.program
        self.shardings: list[tuple[Sharding, ...]] = []
        self.distinct: list[tuple[list[Sharding], NDArray[np.int64]]] = []
        self.ways: list[NDArray[np.float64]] = []
        self._numbers: dict[tuple[Sharding, ...], int] = {}
        self._following: dict[tuple[int, tuple[bool, ...], int, int], Run] = {}
        self._strategies: dict[tuple[int, tuple[bool, ...]], Run] = {}

    def following(self, o: int, tensor: int, shardings: int) -> Run:
        """How an op runs when one of its tensors lies so, as far as its rule allows."""
        op = self.program.ops[o]
        allowed = tuple([g >= 0 for g in self.costs.classes.places.of_op[o]])
        key = (self.program.shape_classes[op.signature], allowed, tensor, shardings)
        known = self._following.get(key)
        if known is None:
            legal = self._legal(op, allowed)
            dims = op.rule.tensors[tensor]
            factors = []
            for sharding in self.shardings[shardings]:
                taken = [-1] * len(self.mesh.sizes)
                ways: dict[int, int] = {}
                for dim, axes in zip(dims, sharding, strict=True):
                    for axis in axes:
                        f = dim[0] if dim else -1
                        parts = ways.get(f, 1) * self.mesh.sizes[axis]
                        if f in legal[axis] and splits_factor(op.rule, f, parts, padded=False):
                            taken[axis], ways[f] = f, parts
                factors.append(tuple(taken))
            known = self._following[key] = self._as_run(op, factors)
        return known

    def strategies(self, o: int) -> Run:
        """All ways to run an op; partial results are all-reduced, or reduce-scattered onto a dimension."""
        op = self.program.ops[o]
        allowed = tuple([g >= 0 for g in self.costs.classes.places.of_op[o]])
        key = (self.program.shape_classes[op.signature], allowed)
        known = self._strategies.get(key)
        if known is None:
            found = ways_to_run(op, self._legal(op, allowed), self.program.values[op.results[0]].shape, self.mesh.sizes)
            if len(found) > MOST_STRATEGIES:
                seconds = [self._rough_seconds(op, *way) for way in found]
                best = sorted(range(1, len(found)), key=lambda s: seconds[s])[: MOST_STRATEGIES - 1]
                found = [found[s] for s in (0, *sorted(best))]
            known = self._strategies[key] = self._as_run(op, [way[0] for way in found], [way[1] for way in found])
        return known

    def _rough_seconds(self, op: Op, factors: tuple[int, ...], onto: tuple[int, ...]) -> float:
        run = self._as_run(op, [factors], [onto])
        tensors = [self.program.values[v] for v in (*op.operands, *op.results)]
        touched = sum(v.bytes / self.ways[n][0] for v, n in zip(tensors, run.tensors, strict=True))
        split = math.prod(self.mesh.sizes[a] for a, f in enumerate(factors) if f >= 0)
        seconds = self.costs.prices.work_seconds(op, tensors[0].dtype, split, touched)
        if run.partial[0]:
            have, want = self.shardings[run.tensors[-1]][0], self.shardings[run.left[-1]][0]
            seconds += self.costs.moves_seconds(
                reduce_partial(tensors[-1].bytes, have, run.partial[0], want, self.mesh)
            )
        return seconds

    def _legal(self, op: Op, allowed: tuple[bool, ...]) -> list[frozenset[int]]:
        groups = tuple([0 if a else -1 for a in allowed])
        return [frozenset(candidates(op, groups, frozenset({0}), size)) for size in self.mesh.sizes]

    def _as_run(self, op: Op, factors: list[tuple[int, ...]], onto: list[tuple[int, ...]] | None = None) -> Run:
        axes = range(len(self.mesh.sizes))
        tensors = [
            tuple(
                tuple(tuple([a for a in axes if found[a] >= 0 and dim[:1] == (found[a],)]) for dim in dims)
                for found in factors
            )
            for dims in op.rule.tensors
        ]
        count = len(op.operands)
        left = tensors[count:]
        if onto is not None:
            left = [
                tuple(
                    tuple(tuple(sorted((*own, *(a for a in axes if to[a] == d)))) for d, own in enumerate(sharding))
                    for sharding, to in zip(shardings, onto, strict=True)
                )
                for shardings in left
            ]
        partial = tuple([tuple([a for a in axes if found[a] in op.rule.reduction]) for found in factors])
        return Run(tuple(map(self.number, tensors)), tuple(map(self.number, left)), tuple(factors), partial)

    def number(self, shardings: tuple[Sharding, ...]) -> int:
        """The number of a tuple of shardings."""
        number = self._numbers.get(shardings)
        if number is None:
            number = self._numbers[shardings] = len(self.shardings)
            self.shardings.append(shardings)
            distinct: dict[Sharding, int] = {}
            which = np.array([distinct.setdefault(s, len(distinct)) for s in shardings], np.int64)
            self.distinct.append((list(distinct), which))
            self.ways.append(
                np.array([self.mesh.ways(tuple([a for axes in s for a in axes])) for s in shardings], float)
            )
        return number
