"""Sharding rules of Pallas kernels, out of their grids.

Where the block of an array that a step works on has a grid index for its number along a dimension, that dimension goes
with that index, and so do the dimensions of all other arrays that have it. Such a kernel can run on a part of the grid,
on the parts of its arrays that belong to it, as long as nothing in it can tell the difference: that is what is looked
at here. The factors of a kernel's rule are its grid's indices in order, then one for each dimension that stays whole.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardwright._kernel import Block, Kernel
from shardwright.errors import RuleError
from shardwright.ir.rules import Dims, Rule


def kernel_rule(kernel: Kernel, read: frozenset[int], split: frozenset[int] | None = None) -> Rule:
    """The rule of a kernel whose results ``read`` are used; ``split`` are its grid indices that may be, if known."""
    kept = obstacles(kernel, read)
    if split is None:
        split = frozenset(range(len(kernel.grid))) - kept.keys()
    sizes = list(kernel.grid)
    whole = set(range(len(sizes))) - split

    def own(size: int) -> int:
        sizes.append(size)
        whole.add(len(sizes) - 1)
        return len(sizes) - 1

    tensors: list[Dims] = [tuple((own(size),) for size in shape) for shape in kernel.scalars]
    for block in kernel.blocks:
        dims: list[tuple[int, ...]] = []
        for d, k in enumerate(block.index):
            if k not in split or not _covers(kernel, block, d):
                dims.append((own(block.shape[d]),))
            else:
                dims.append((k,) if block.sizes[d] == 1 else (k, own(block.sizes[d])))
        tensors.append(tuple(dims))
    count = len(kernel.scalars) + len(kernel.operands)
    return Rule(tuple(sizes), tuple(tensors[:count]), tuple(tensors[count:]), whole=frozenset(whole))


def obstacles(kernel: Kernel, read: frozenset[int]) -> Mapping[int, str]:
    """Why the grid indices that cannot be split cannot, each in words."""
    found: dict[int, str] = {}
    for k, size in enumerate(kernel.grid):
        reason = _shape_obstacle(kernel, k, read) or _body_obstacle(kernel, k)
        if size > 1 and reason:
            found[k] = reason
        elif size <= 1:
            found[k] = "has a single step"
    return found


def split_by_user(kernel: Kernel, rule: Rule, read: frozenset[int]) -> frozenset[int]:
    """The grid indices that a user's rule lets be split: whose dimensions, and only those, it has as one factor."""
    placed = [(dims[d][0], block.index[d]) for dims, block in _paired(kernel, rule) for d in range(len(block.index))]
    found: set[int] = set()
    for k, size in enumerate(kernel.grid):
        factors = {f for f, index in placed if index == k}
        if size > 1 and len(factors) == 1 and not _shape_obstacle(kernel, k, read):
            (f,) = factors
            others = {index for g, index in placed if g == f}
            if others == {k} and f not in rule.reduction:
                found.add(k)
    if not found:
        raise RuleError(
            f"the rule splits nothing by which the kernel {kernel.name!r} could be split, which are dimensions whose "
            "block number is a grid index wherever that index occurs; leave it out, and sw.analyse says which they are."
        )
    return frozenset(found)


def _paired(kernel: Kernel, rule: Rule) -> list[tuple[Dims, Block]]:
    return list(zip(rule.tensors[len(kernel.scalars) :], kernel.blocks, strict=True))


def _covers(kernel: Kernel, block: Block, d: int) -> bool:
    """Whether the grid's blocks are exactly the dimension."""
    return block.sizes[d] > 0 and kernel.grid[block.index[d]] * block.sizes[d] == block.shape[d]


def _shape_obstacle(kernel: Kernel, k: int, read: frozenset[int]) -> str:
    """What about the arrays keeps a grid index from being split."""
    if kernel.fixed:
        return kernel.fixed
    first = len(kernel.operands)
    for t, block in enumerate(kernel.blocks):
        name = f"operand {len(kernel.scalars) + t}" if t < first else f"result {t - first}"
        if k in block.mixed:
            return f"is not just the number of a block of {name}: its index map computes with it"
        dims = [d for d, index in enumerate(block.index) if index == k]
        if len(dims) > 1:
            return f"is the number of a block along several dimensions of {name}"
        if dims and not _covers(kernel, block, dims[0]):
            return f"does not go over dimension {dims[0]} of {name} in whole blocks"
        if t - first in read and not dims:
            return f"has {name} written by all of its steps"
    for operand, result in kernel.aliases:
        t = operand - len(kernel.scalars)
        if t < 0 or _places(kernel.operands[t], k) != _places(kernel.results[result], k):
            return f"splits operand {operand} otherwise than result {result}, which is written over it"
    return ""


def _body_obstacle(kernel: Kernel, k: int) -> str:
    """What the kernel does that keeps a grid index from being split."""
    if k in kernel.numbered:
        return "is asked for by number in the kernel"
    if kernel.carries and k not in kernel.parallel:
        return "is not declared parallel, and the kernel has memory that outlives a step"
    return ""


def _places(block: Block, k: int) -> list[int]:
    return [d for d, index in enumerate(block.index) if index == k]
