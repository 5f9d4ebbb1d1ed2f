"""Sharding rules: which dimensions of an op's operands and results are the same factor, and of which kind.

Shardy's registry is the source for every StableHLO op that it knows. Here its rules are read into a form of our own,
with one correction: a *permutation* factor (the devices exchange parts along it) is kept only where neighbours
exchange a rim, as in a convolution or a shift by one. A slice that keeps a third of a dimension, or a window as wide
as the dimension, moves everything, so the op is computed whole along it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from shardwright.compiler.miscompiled import Forbidden

Dims = tuple[tuple[int, ...], ...]
"""The factors of each dimension of one tensor, major first."""

# A slice, pad or concatenation whose two sides differ by more than this part of the dimension is a cut, not a rim.
# An eighth: with up to eight shards a rim stays within one neighbour.
RIM = 8


@dataclass(frozen=True)
class Rule:
    """How one op's factors lie on its operands and results.

    ``sizes``: of each factor. ``operands``, ``results``: for each tensor, for each dimension, its factors.
    ``reduction``: factors summed over (sharding one leaves partial results). ``halo``: factors along which neighbours
    exchange a rim. ``whole``: factors along which the op cannot run sharded. ``known`` is false where nobody told us
    the rule.

    What the compiler gets wrong is part of the rule, too: ``exact`` pairs a factor with the size that axes must divide
    to split it, ``apart`` are pairs of factors that are not split at once, ``spread`` factors that are split only while
    every axis splits what is summed, and ``records`` names what says so in the table of ``compiler/miscompiled.py``.
    """

    sizes: tuple[int, ...]
    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    reduction: frozenset[int] = frozenset()
    halo: frozenset[int] = frozenset()
    whole: frozenset[int] = frozenset()
    known: bool = True
    exact: tuple[tuple[int, int], ...] = ()
    apart: tuple[tuple[int, int], ...] = ()
    spread: frozenset[int] = frozenset()
    records: tuple[str, ...] = ()

    def allows(self, factors: Sequence[int], sizes: Sequence[int]) -> bool:
        """Whether axes of these sizes may split these factors at once, one each or none (-1)."""
        chosen = set(factors)
        if any(a in chosen and b in chosen for a, b in self.apart):
            return False
        if chosen.isdisjoint(self.spread):
            return True
        return all(f in self.reduction or n == 1 for f, n in zip(factors, sizes, strict=True))

    @cached_property
    def divisors(self) -> Mapping[int, int]:
        """The size that axes must divide to split a factor, for those that are only split exactly."""
        return dict(self.exact)

    @cached_property
    def tensors(self) -> tuple[Dims, ...]:
        """Operands, then results."""
        return self.operands + self.results

    @cached_property
    def links(self) -> tuple[tuple[int, int, int], ...]:
        """``(tensor, dimension, factor)`` wherever a dimension's major factor can be sharded."""
        return tuple(
            (t, d, factors[0])
            for t, dims in enumerate(self.tensors)
            for d, factors in enumerate(dims)
            if factors and factors[0] not in self.whole and self.sizes[factors[0]] > 1
        )

    def __str__(self) -> str:
        def letters(dims: Dims) -> str:
            parts = ["".join(_letter(f) for f in d) or "1" for d in dims]
            return "".join(p if len(p) == 1 else f"({p})" for p in parts)

        def side(tensors: Iterable[Dims]) -> str:
            return ",".join(map(letters, tensors))

        text = f"{side(self.operands)}->{side(self.results)}"
        for word in ("reduction", "halo", "whole"):
            factors = sorted(f for f in getattr(self, word) if self.sizes[f] > 1)
            if factors:
                text += f" {word}={','.join(_letter(f) for f in factors)}"
        if self.apart:
            text += f" apart={','.join(_letter(a) + _letter(b) for a, b in self.apart)}"
        return text


def _letter(factor: int) -> str:
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    return alphabet[factor] if factor < 26 else f"<{factor}>"


def from_shardy(attribute: Any, sdy: Any, types: Sequence[tuple[int, ...]]) -> Rule:
    """Our form of an ``sdy.op_sharding_rule``; ``types`` are the shapes of operands and results."""
    read = sdy.OpShardingRuleAttr(attribute)

    def dims(mapping: Any) -> Dims:
        return tuple(tuple(sdy.DimMappingAttr(d).factor_indices) for d in sdy.TensorMappingAttr(mapping).dim_mappings)

    rule = Rule(
        sizes=tuple(read.factor_sizes),
        operands=tuple(map(dims, read.operand_mappings)),
        results=tuple(map(dims, read.result_mappings)),
        reduction=frozenset(read.reduction_factors),
        halo=frozenset(read.permutation_factors),
        whole=frozenset(read.need_replication_factors) | frozenset(read.blocked_propagation_factors),
    )
    return _without_misfits(rule, types)


def restricted(rule: Rule, forbidden: Forbidden) -> Rule:
    """The rule without the splits that the compiler gets wrong."""
    if not forbidden.records:
        return rule
    whole = rule.whole | forbidden.whole
    return replace(
        rule,
        whole=whole,
        halo=rule.halo - whole,
        reduction=rule.reduction - whole,
        exact=tuple((f, size) for f, size in forbidden.exact if f not in whole),
        apart=tuple(pair for pair in forbidden.apart if not whole.intersection(pair)),
        spread=forbidden.spread - whole,
        records=forbidden.records,
    )


def empty_whole(rule: Rule) -> Rule:
    """The rule with factors of size 0 whole: every axis divides nothing, and nothing is gained by it."""
    empty = {f for f, size in enumerate(rule.sizes) if size == 0}
    return replace(rule, whole=rule.whole | empty) if empty else rule


def _without_misfits(rule: Rule, shapes: Sequence[tuple[int, ...]]) -> Rule:
    """Give a whole factor of its own to each dimension that its factors do not cover.

    Shardy maps a convolution kernel's dimension of 3 to a factor of 1 or 2; that says nothing about sharding it.
    """

    def fits(t: int, d: int, factors: tuple[int, ...]) -> bool:
        return bool(rule.halo & set(factors)) or math.prod(rule.sizes[f] for f in factors) == shapes[t][d]

    return keep_where(rule, shapes, fits)


def keep_where(
    rule: Rule, shapes: Sequence[tuple[int, ...]], keep: Callable[[int, int, tuple[int, ...]], bool]
) -> Rule:
    """The rule with every ``(tensor, dimension)`` that ``keep`` refuses split off as a whole factor of its own.

    A halo factor that is then left on one tensor only cannot be exchanged with anything, and becomes whole as well.
    """
    sizes, whole = list(rule.sizes), set(rule.whole)
    tensors: list[Dims] = []
    for t, dims in enumerate(rule.tensors):
        kept: list[tuple[int, ...]] = []
        for d, factors in enumerate(dims):
            if factors and not keep(t, d, factors):
                sizes.append(shapes[t][d])
                factors = (len(sizes) - 1,)
                whole.add(factors[0])
            kept.append(factors)
        tensors.append(tuple(kept))
    for factor in rule.halo:
        if sum(factor in {f for d in dims for f in d} for dims in tensors) < 2:
            whole.add(factor)
    count = len(rule.operands)
    return replace(
        rule,
        sizes=tuple(sizes),
        operands=tuple(tensors[:count]),
        results=tuple(tensors[count:]),
        halo=rule.halo - whole,
        reduction=rule.reduction - whole,
        whole=frozenset(whole),
    )


def cut_slice(rule: Rule, shapes: Sequence[tuple[int, ...]], strides: Sequence[int]) -> Rule:
    """A slice: the result keeps the factor where ``result × stride`` is nearly all of the operand."""

    def keep(t: int, d: int, factors: tuple[int, ...]) -> bool:
        return t == 0 or not rule.halo & set(factors) or _near(shapes[1][d] * strides[d], shapes[0][d])

    return keep_where(rule, shapes, keep)


def cut_pad(rule: Rule, shapes: Sequence[tuple[int, ...]], interior: Sequence[int]) -> Rule:
    """A pad: the result keeps the factor where it is hardly larger than the (dilated) operand."""

    def keep(t: int, d: int, factors: tuple[int, ...]) -> bool:
        dilated = shapes[0][d] * (interior[d] + 1)
        return t != 2 or not rule.halo & set(factors) or _near(dilated, shapes[2][d])

    return keep_where(rule, shapes, keep)


def cut_concatenate(rule: Rule, shapes: Sequence[tuple[int, ...]]) -> Rule:
    """A concatenation: an operand keeps the factor where it is nearly all of the result."""

    def keep(t: int, d: int, factors: tuple[int, ...]) -> bool:
        return not rule.halo & set(factors) or _near(shapes[t][d], shapes[-1][d])

    return keep_where(rule, shapes, keep)


def cut_window(rule: Rule, shapes: Sequence[tuple[int, ...]], window: Sequence[int]) -> Rule:
    """A windowed reduction: whole where the window spans half the dimension or more, as in a cumulative sum."""

    def keep(_t: int, d: int, factors: tuple[int, ...]) -> bool:
        return not rule.halo & set(factors) or 2 * window[d] < shapes[0][d]

    return keep_where(rule, shapes, keep)


def _near(size: int, other: int) -> bool:
    return RIM * abs(size - other) <= max(size, other)
