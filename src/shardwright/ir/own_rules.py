"""Rules for ops that Shardy has none for: loops and barriers, ``top_k``, ``ragged_dot``, and what nobody knows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from shardwright.ir.rules import Dims, Rule


def elementwise(shape: tuple[int, ...], operands: int, results: int) -> Rule:
    """All tensors have the same shape and the same factors."""
    dims: Dims = tuple((d,) for d in range(len(shape)))
    return Rule(shape, (dims,) * operands, (dims,) * results)


NONE = Rule((), (), ())
"""Of ops that compute nothing themselves (loops, branches, barriers): their tensors are tied in pairs instead."""


def opaque(operands: Sequence[tuple[int, ...]], results: Sequence[tuple[int, ...]]) -> Rule:
    """Nothing is known: the op is computed whole."""
    return replace(batched(operands, results, 0), known=False)


def batched(operands: Sequence[tuple[int, ...]], results: Sequence[tuple[int, ...]], batch: int) -> Rule:
    """The first ``batch`` dimensions of every tensor run side by side; the op is computed whole along the others."""
    shapes = [*operands, *results]
    sizes = list(shapes[0][:batch]) if batch else []
    tensors: list[Dims] = []
    for shape in shapes:
        own = range(len(sizes), len(sizes) + len(shape) - batch)
        tensors.append(tuple((f,) for f in (*range(batch), *own)))
        sizes.extend(shape[batch:])
    count = len(operands)
    whole = frozenset(range(batch, len(sizes)))
    return Rule(tuple(sizes), tuple(tensors[:count]), tuple(tensors[count:]), whole=whole)


def ragged_dot(
    shapes: Sequence[tuple[int, ...]],
    *,
    batch: tuple[Sequence[int], Sequence[int]],
    contracting: tuple[Sequence[int], Sequence[int]],
    ragged: int,
    groups: Sequence[int],
) -> Rule:
    """``lhs`` rows in groups, each group multiplied by its own matrix of ``rhs``.

    Only batch and plain dimensions, and a contracted dimension that is not the ragged one, can be sharded: how the
    rows split into groups is known at run time alone.
    """
    lhs, rhs, counts, out = shapes
    sizes: list[int] = []
    whole: set[int] = set()
    reduction: set[int] = set()

    def fresh(size: int) -> int:
        sizes.append(size)
        return len(sizes) - 1

    left, right = [-1] * len(lhs), [-1] * len(rhs)
    result: list[int] = []
    for l, r in zip(*batch, strict=True):
        left[l] = right[r] = fresh(lhs[l])
        result.append(left[l])
    for l, r in zip(*contracting, strict=True):
        left[l] = right[r] = fresh(lhs[l])
        (whole if l == ragged else reduction).add(left[l])
    per_group = ragged in contracting[0]
    if per_group:  # each group contracts its own rows: the result has a group dimension in front
        result.insert(0, fresh(out[0]))
        whole.add(result[0])
    for l in range(len(lhs)):
        if left[l] < 0:
            left[l] = fresh(lhs[l])
            result.append(left[l])
            if l == ragged:
                whole.add(left[l])
    for r in range(len(rhs)):
        if right[r] < 0:
            right[r] = fresh(rhs[r])
            if r in groups:
                whole.add(right[r])
            else:
                result.append(right[r])
    group_counts = [fresh(size) for size in counts]
    whole.update(group_counts)

    def dims(factors: Iterable[int]) -> Dims:
        return tuple((f,) for f in factors)

    return Rule(
        tuple(sizes),
        (dims(left), dims(right), dims(group_counts)),
        (dims(result),),
        reduction=frozenset(reduction),
        whole=frozenset(whole),
    )
