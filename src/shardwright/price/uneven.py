"""Dimensions that an axis does not divide: 50,257 words on 8 devices.

``compiler.partitioner.PADDED`` says what XLA does with them.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from math import prod

from shardwright.compiler.partitioner import PADDED
from shardwright.ir.program import Op
from shardwright.ir.rules import Rule
from shardwright.request import MeshShape
from shardwright.space.state import Sharding

MOST_PADDING, _EXACT = PADDED.effect.most, PADDED.effect.exact


def splits(size: int, parts: int, *, padded: bool) -> bool:
    """Whether a dimension can be split into so many parts, exactly or, if it may be padded, nearly."""
    if size % parts == 0:
        return True
    return padded and size > parts and padded_size(size, parts) <= (1 + MOST_PADDING) * size


def splits_factor(rule: Rule, factor: int, parts: int, *, padded: bool) -> bool:
    """Whether a factor of an op can be split into so many parts."""
    divisor = rule.divisors.get(factor)
    return splits(rule.sizes[factor], parts, padded=padded) if divisor is None else divisor % parts == 0


def padded_size(size: int, parts: int) -> int:
    """Of a dimension that is split into so many parts."""
    return -(-size // parts) * parts


def padding(shape: tuple[int, ...], sharding: Sharding, mesh: MeshShape) -> float:
    """By which factor a tensor is larger for being padded."""
    factor = 1.0
    for size, axes in zip(shape, sharding, strict=True):
        if axes:
            parts = mesh.ways(axes)
            if size % parts:
                factor *= padded_size(size, parts) / size
    return factor


def paddable(op: Op) -> frozenset[int]:
    """The factors of an op that may be padded: each a dimension of its own wherever it occurs."""
    if op.kind in _EXACT or not op.rule.known:
        return frozenset()
    mixed = {f for dims in op.rule.tensors for factors in dims if len(factors) > 1 for f in factors}
    return frozenset(range(len(op.rule.sizes))) - mixed - op.rule.whole - op.rule.halo


def moved_padding(shape: tuple[int, ...], have: Sharding, want: Sharding, mesh: MeshShape) -> float:
    """Of a tensor that goes from one sharding to another, padded as it is before or after."""
    if not ever_padded(shape, mesh.sizes):
        return 1.0
    return max(padding(shape, have, mesh), padding(shape, want, mesh))


@lru_cache(maxsize=4096)
def ever_padded(shape: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
    """Whether there are axes that split a dimension, and do not divide it: hardly ever, and it is asked very often."""
    ways = {prod(axes) for n in range(len(sizes)) for axes in combinations(sizes, n + 1)}
    return any(size % parts and splits(size, parts, padded=True) for size in set(shape) for parts in ways)
