"""Colours: the connected components of names.

    x: f32[8,16], w: f32[16,32]          colours  {x0, y0}  {x1, w0}  {w1, y1}
    y = dot(x, w)

All dimensions of a colour are sharded together, or else somebody pays for a reshard.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from shardwright.analysis.names import Ints, Names


@dataclass(frozen=True, eq=False)
class Colours:
    """``of[name]`` is the colour of a dimension's or factor's name, or -1 where there is nothing to shard.

    Colours are numbered by their first dimension in program order, so arguments' colours come first.
    """

    names: Names
    of: NDArray[np.int64]
    count: int

    def of_value(self, value: int) -> Ints:
        """The colour of each dimension of a value."""
        start = self.names.dim_start
        return self.of[start[value] : start[value + 1]]

    def of_op(self, op: int) -> Ints:
        """The colour of each factor of an op."""
        start = self.names.factor_start
        return self.of[start[op] : start[op + 1]]

    @cached_property
    def dims(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each colour its dimensions, as ``(value, dimension)`` in program order."""
        values, dims, of = self.dim_table
        order = np.argsort(of, kind="stable")
        pairs = list(zip(values[order].tolist(), dims[order].tolist(), strict=True))
        stops = np.cumsum(np.bincount(of, minlength=self.count)).tolist()
        return tuple(tuple(pairs[start:stop]) for start, stop in zip([0, *stops], stops, strict=False))

    @cached_property
    def dim_table(self) -> tuple[Ints, Ints, Ints]:
        """Coloured dimensions as three arrays: value, dimension, colour."""
        start = self.names.dim_start
        ranks = np.diff(start)
        values = np.repeat(np.arange(len(ranks)), ranks)
        dims = np.arange(len(values)) - start[values]
        colours = self.of[: start[-1]]
        keep = colours >= 0
        return values[keep], dims[keep], colours[keep]

    @cached_property
    def factor_table(self) -> tuple[Ints, Ints, Ints]:
        """Coloured factors as three arrays: op, factor, colour."""
        start = self.names.factor_start
        counts = np.diff(start)
        ops = np.repeat(np.arange(len(counts)), counts)
        factors = np.arange(len(ops)) - (start[ops] - start[0])
        colours = self.of[start[0] :]
        keep = colours >= 0
        return ops[keep], factors[keep], colours[keep]


def find_colours(names: Names) -> Colours:
    """Colour every name by its component, if that has a dimension larger than one of a value that is not free."""
    program = names.program
    rows, columns = names.edges.T
    graph = coo_array((np.ones(len(rows), np.int8), (rows, columns)), shape=(names.count, names.count))
    _, component = connected_components(graph, directed=False)
    ranks = np.diff(names.dim_start)
    counts_as_dim = (program.dim_sizes > 1) & ~np.repeat(program.free, ranks)
    dims = np.flatnonzero(counts_as_dim)
    present, first = np.unique(component[dims], return_index=True)
    number = np.full(component.max(initial=-1) + 1, -1, dtype=np.int64)
    number[present[np.argsort(first)]] = np.arange(len(present))
    of = number[component]
    of[np.flatnonzero(~counts_as_dim)] = -1
    return Colours(names, of, len(present))
