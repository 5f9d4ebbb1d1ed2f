"""Names: one for every dimension of every value, one for every factor of every op, and the edges between them.

    x: f32[8,16], w: f32[16,32]          names  x0 x1   w0 w1   y0 y1   and the dot's factors i j k
    y = dot(x, w)                        edges  x0–i  x1–k  w0–k  w1–j  y0–i  y1–j

An edge between a value's dimension and a factor of an op that reads the value is where a reshard can happen, so the two
names stay apart and are only joined. Dimensions of size one, factors that an op computes whole, and values that cost
nothing to make anew (``Program.free``) have no edges.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright.ir.program import Program
from shardwright.ir.rules import Rule

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class OpsOfRule:
    """All ops with one rule: their numbers ``[n]`` and their operands and results ``[n, tensors]``."""

    rule: Rule
    ops: Ints
    tensors: Ints


@dataclass(frozen=True, eq=False)
class Names:
    """All names, as numbers, and the ``edges [m, 2]`` that join them.

    Dimension ``d`` of value ``v`` is ``dim_start[v] + d``; after all dimensions, factor ``f`` of op ``o`` is
    ``factor_start[o] + f``.
    """

    program: Program
    dim_start: Ints
    factor_start: Ints
    edges: Ints
    by_rule: tuple[OpsOfRule, ...]

    @property
    def count(self) -> int:
        """How many names there are."""
        return int(self.factor_start[-1])


def name_dimensions(program: Program) -> Names:
    """Name every dimension and factor of the program and join those that an op, a loop or a branch identifies."""
    ranks = [len(v.shape) for v in program.values]
    dim_start = _starts(ranks, 0)
    factor_start = _starts([len(op.rule.sizes) for op in program.ops], int(dim_start[-1]))
    by_rule = _by_rule(program)
    free = program.free
    large = program.dim_sizes > 1
    parts = [_ties(program, dim_start, free)]
    for group in by_rule:
        if group.rule.links:
            tensor, dimension, factor = np.array(group.rule.links).T
            values = group.tensors[:, tensor]
            dims = dim_start[values] + dimension
            factors = factor_start[group.ops][:, None] + factor
            keep = ~free[values] & large[dims]
            parts.append(np.stack([dims[keep], factors[keep]], axis=1))
    edges = np.concatenate(parts)
    return Names(program, dim_start, factor_start, edges, by_rule)


def _starts(lengths: list[int], first: int) -> Ints:
    starts = np.full(len(lengths) + 1, first, dtype=np.int64)
    np.cumsum(lengths, out=starts[1:])
    starts[1:] += first
    return starts


def _by_rule(program: Program) -> tuple[OpsOfRule, ...]:
    members: dict[int, list[int]] = defaultdict(list)
    for o, op in enumerate(program.ops):
        if op.rule.sizes:
            members[id(op.rule)].append(o)
    return tuple(
        OpsOfRule(
            program.ops[ops[0]].rule,
            np.array(ops, dtype=np.int64),
            np.array([program.ops[o].operands + program.ops[o].results for o in ops], dtype=np.int64),
        )
        for ops in members.values()
    )


def _ties(program: Program, dim_start: Ints, free: NDArray[np.bool_]) -> Ints:
    """Edges across the borders of loops and branches, dimension by dimension."""
    edges = [
        (dim_start[a] + d, dim_start[b] + d)
        for op in program.ops
        if not op.rule.tensors
        for a, b in program.ties(op)
        if not free[a] and not free[b]
        for d, size in enumerate(program.values[a].shape)
        if size > 1
    ]
    return np.array(edges, dtype=np.int64).reshape(-1, 2)
