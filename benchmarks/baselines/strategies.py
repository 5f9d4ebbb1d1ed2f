"""Strategies: the ways to lay a tensor out on a mesh, and the ways to run an op on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

from shardwright.ir.program import Op
from shardwright.price.uneven import splits_factor
from shardwright.space.state import Sharding

MOST_STRATEGIES = 96
"""Of one node of an integer program; Alpa prunes as well."""
_MOST_COMBINATIONS = 4096


def value_shardings(shape: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[Sharding, ...]:
    """Every way to put each axis on one dimension or none; of many, those on the largest dimensions."""
    dims = sorted(range(len(shape)), key=lambda d: -shape[d])
    while dims and (1 + len(dims)) ** len(sizes) > MOST_STRATEGIES:
        dims.pop()
    dims.sort()

    def fits(places: tuple[int, ...]) -> bool:
        ways = {d: math.prod(n for n, p in zip(sizes, places, strict=True) if p == d) for d in set(places) - {-1}}
        return all(shape[d] % n == 0 for d, n in ways.items())

    return tuple(
        tuple(tuple(a for a, p in enumerate(places) if p == d) for d in range(len(shape)))
        for places in product((-1, *dims), repeat=len(sizes))
        if fits(places)
    )


def ways_to_run(
    op: Op, legal: Sequence[frozenset[int]], shape: tuple[int, ...], sizes: tuple[int, ...]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """For each axis the factor that it splits, and the dimension of the result that it scatters partial sums onto.

    No axis at all comes first.
    """
    may_scatter = len(op.results) == 1
    choices = [_choices(op, sorted(found), shape, size, may_scatter) for found, size in zip(legal, sizes, strict=True)]
    if math.prod(map(len, choices)) > _MOST_COMBINATIONS:
        choices = [_choices(op, sorted(found), shape, 1, False) for found in legal]
    out = []
    for combination in product(*choices):
        factors, onto = tuple([f for f, _ in combination]), tuple([d for _, d in combination])
        if op.rule.allows(factors, sizes) and _divides(op, factors, onto, shape, sizes):
            out.append((factors, onto))
    return out


def _choices(
    op: Op, factors: Sequence[int], shape: tuple[int, ...], size: int, may_scatter: bool
) -> list[tuple[int, int]]:
    out = [(-1, -1), *((f, -1) for f in factors)]
    if may_scatter:
        out += [
            (f, d) for f in factors if f in op.rule.reduction for d, n in enumerate(shape) if n > 1 and n % size == 0
        ]
    return out


def _divides(
    op: Op, factors: tuple[int, ...], onto: tuple[int, ...], shape: tuple[int, ...], sizes: tuple[int, ...]
) -> bool:
    ways: dict[int, int] = {}
    for f, n in zip(factors, sizes, strict=True):
        if f >= 0:
            ways[f] = ways.get(f, 1) * n
    if not all(splits_factor(op.rule, f, n, padded=False) for f, n in ways.items()):
        return False
    if max(onto) < 0:
        return True
    for d, dim in enumerate(op.rule.results[0]):
        parts = math.prod(n for n, to in zip(sizes, onto, strict=True) if to == d)
        if shape[d] % (parts * (ways.get(dim[0], 1) if dim else 1)):
            return False
    return True
