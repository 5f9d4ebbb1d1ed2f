"""Rules for ops that Shardy has none for: loops, ``top_k``, ``ragged_dot``, cuDNN's attention, what nobody knows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from shardwright._function import Function
from shardwright.compiler.partitioner import CUDNN_ATTENTION
from shardwright.ir.rules import Dims, Rule

Shape = tuple[int, ...]


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


_BATCH, _KV_HEADS, _GROUP = range(3)
_PAGE_TABLES = (8, 9)


def attention_rule(function: Function, operands: Sequence[Shape], results: Sequence[Shape]) -> Rule:
    """Of a forward or backward call: queries, keys, values, a bias, lengths, offsets and page tables come first.

    Query heads that share keys and values are one factor with them, and one of their own. What a sequence's lengths and
    offsets are goes with the sequence. With pages nothing is split.
    """
    record = CUDNN_ATTENTION[function.name]
    heads_first = function.static[record.layout_at] == 1
    batch, at = operands[0][0], 1 if heads_first else 2
    heads, kv_heads = operands[0][at], operands[1][at]
    sizes = [batch, kv_heads, heads // kv_heads]
    whole = {_GROUP}

    def own(size: int) -> int:
        sizes.append(size)
        whole.add(len(sizes) - 1)
        return len(sizes) - 1

    def of_heads(size: int) -> tuple[int, ...]:
        if size == kv_heads:
            return (_KV_HEADS,)
        if size == heads:
            return (_KV_HEADS, _GROUP)
        return (own(size),)

    def first(size: int) -> tuple[int, ...]:
        """A sequence, or one of its parts where several are packed into one."""
        if batch == 0 or size % batch or size == 0:
            return (own(size),)
        return (_BATCH,) if size == batch else (_BATCH, own(size // batch))

    def tensor(shape: Shape, kind: str) -> Dims:
        dims: list[tuple[int, ...]] = [(own(size),) for size in shape]
        if kind == "attended":
            dims[0], dims[at] = (_BATCH,), of_heads(shape[at])
        elif kind == "statistics":
            dims[0], dims[1] = first(shape[0]), of_heads(shape[1])
        elif kind == "bias" and len(shape) == 4:
            dims[0] = (_BATCH,) if shape[0] == batch and batch > 1 else dims[0]
            dims[1] = of_heads(shape[1]) if shape[1] == heads and heads > 1 else dims[1]
        elif kind == "lengths" and shape and shape[0] == batch:
            dims[0] = (_BATCH,)
        return tuple(dims)

    kinds = ["attended"] * 3 + ["bias"] + ["lengths"] * 4 + ["pages"] * 2
    made = ["attended", "statistics"]
    if record.backward:
        kinds += ["statistics", "attended", "attended"]
        made = ["attended"] * 3 + ["bias"]
    tensors_in = tuple(tensor(shape, kind) for shape, kind in zip(operands, kinds, strict=True))
    tensors_out = tuple(tensor(shape, kind) for shape, kind in zip(results, made, strict=False))
    if any(0 not in operands[k] for k in _PAGE_TABLES):
        whole.update(range(len(sizes)))
    return Rule(tuple(sizes), tensors_in, tensors_out, whole=frozenset(whole))
