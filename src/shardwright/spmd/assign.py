"""How each op runs: which axes split which of its factors, given how its operands lie and how its results must.

The cheapest of a few combinations: every axis takes one of the op's factors whose group is on its list, or none. What
counts is the communication it causes, before and after, and the work that is left on each device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from shardwright.ir.program import Op, bits_of
from shardwright.ir.rules import Rule
from shardwright.spmd.collectives import Move, local_bytes, reduce_partial, reshard
from shardwright.spmd.state import MeshShape, Sharding

# What a byte over a link is worth in work on the chip, until a device says so: a TPU v5e does 197 TFLOP/s in bf16,
# reads 819 GB/s and sends 90 GB/s along one axis of its torus (Google Cloud, "TPU v5e"): 2,200 FLOPs, 9 bytes read.
FLOPS_PER_LINK_BYTE = 2200.0
MEMORY_BYTES_PER_LINK_BYTE = 9.0
_MOST_COMBINATIONS = 256


class Assignment(NamedTuple):
    """``factors[axis]`` is the factor that the axis splits, or -1.

    ``operands`` and ``results`` are the shardings the op itself works with, ``before`` and ``after`` the moves that
    each operand and result needs.
    """

    factors: tuple[int, ...]
    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]
    partial: tuple[int, ...]
    before: tuple[tuple[Move, ...], ...]
    after: tuple[tuple[Move, ...], ...]
    price: float


class Problem(NamedTuple):
    """All that an op's assignment depends on; equal problems have equal answers."""

    signature: int
    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]
    free: tuple[bool, ...]
    candidates: tuple[tuple[int, ...], ...]


def assign(op: Op, problem: Problem, shapes: Sequence[tuple[tuple[int, ...], str]], mesh: MeshShape) -> Assignment:
    """The cheapest way to run an op; ``shapes`` are shape and type of its operands, then results."""
    sizes = [math.prod(shape) * bits_of(dtype) / 8 for shape, dtype in shapes]
    best: Assignment | None = None
    for factors in _combinations(op.rule, problem.candidates, mesh):
        if op.kind == "convolution" and _miscompiled(op.rule, factors):
            continue
        found = _price(op, factors, problem, sizes, mesh)
        if best is None or found.price < best.price:
            best = found
    assert best is not None  # no axis at all is always a combination
    return best


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


def _price(op: Op, factors: tuple[int, ...], problem: Problem, sizes: list[float], mesh: MeshShape) -> Assignment:
    rule = op.rule
    shardings = [
        tuple(tuple(a for a, f in enumerate(factors) if dim[:1] == (f,)) for dim in dims) for dims in rule.tensors
    ]
    count = len(problem.operands)
    operands, results = tuple(shardings[:count]), tuple(shardings[count:])
    partial = tuple(a for a, f in enumerate(factors) if f in rule.reduction)
    before = tuple(
        () if problem.free[t] else reshard(sizes[t], have, operands[t], mesh) for t, have in enumerate(problem.operands)
    )
    after = tuple(
        reduce_partial(sizes[count + r], results[r], partial, want, mesh) for r, want in enumerate(problem.results)
    )
    split = math.prod(mesh.sizes[a] for a, f in enumerate(factors) if f >= 0)
    touched = sum(local_bytes(sizes[t], s, mesh) for t, s in enumerate(shardings))
    price = (
        sum(move.bytes for moves in (*before, *after) for move in moves)
        + op.flops / split / FLOPS_PER_LINK_BYTE
        + touched / MEMORY_BYTES_PER_LINK_BYTE
    )
    return Assignment(factors, operands, results, partial, before, after, price)
