"""The rule of cuDNN's attention, as ``jax.nn.dot_product_attention`` calls it: sequences and heads run side by side."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright._function import Function
from shardwright.compiler.partitioner import CUDNN_ATTENTION
from shardwright.ir.rules import Dims, Rule

Shape = tuple[int, ...]
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
