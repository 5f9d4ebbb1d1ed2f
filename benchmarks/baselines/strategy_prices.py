"""What strategies cost: bytes of tensors, seconds of moves and of kernels, an array entry for each strategy.

The same formulas as the common cost model's. A kernel whose ops belong to several nodes is priced by parts, one for
each node, which add up, where in truth the units of a device work at the same time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks.baselines.strategy_runs import Run, Runs
from shardwright.ir.kinds import REDUCING
from shardwright.ir.program import bits_of
from shardwright.price import CostModel
from shardwright.price.collectives import reduce_partial, reshard
from shardwright.price.compute import (
    Work,
    entries,
    kernel_seconds,
    matrix_seconds,
    relayout_seconds,
    traffic,
    vector_ops,
)
from shardwright.price.layout import stored_bytes
from shardwright.price.relaid import Relaid
from shardwright.space.state import Sharding

Vector = NDArray[np.float64]
"""Something for each strategy of a node."""


class _Work:
    """What a part of a kernel asks of the device, under each strategy of its node."""

    def __init__(self) -> None:
        self.matrix: Vector | float = 0.0
        self.vector: Vector | float = 0.0
        self.written: Vector | float = 0.0
        self.packed: Vector | float = 0.0
        self.entries: Vector | float = 0.0
        self.read: dict[int, Vector] = {}
        self.operands: set[int] = set()


class Pricing:
    """Prices of strategies; work is collected kernel by kernel."""

    def __init__(self, costs: CostModel, runs: Runs) -> None:
        self.costs, self.runs, self.mesh, self.program = costs, runs, costs.mesh, costs.classes.program
        self._free = self.program.free.tolist()
        self._repeats = self.program.repeats.tolist()
        self._work: dict[tuple[int, int], _Work] = defaultdict(_Work)
        self._moves: dict[tuple[float, Sharding, Sharding], float] = {}
        self._bytes: dict[tuple[tuple[int, ...], str, int], Vector] = {}

    def local_bytes(self, v: int, shardings: int) -> Vector:
        """Bytes of one device's part of a value under each strategy."""
        value = self.program.values[v]
        key = (value.shape, value.dtype, shardings)
        known = self._bytes.get(key)
        if known is None:
            distinct, which = self.runs.distinct[shardings]
            sizes = [stored_bytes(self._local_shape(v, s), value.dtype, self.costs.device.tile) for s in distinct]
            known = self._bytes[key] = np.array(sizes)[which]
        return known

    def _local_shape(self, v: int, sharding: Sharding) -> tuple[int, ...]:
        shape = self.program.values[v].shape
        return tuple([-(-size // self.mesh.ways(axes)) for size, axes in zip(shape, sharding, strict=True)])

    def add_op(self, o: int, node: int, run: Run) -> None:
        """Add an op's own work to that of its kernel, as far as the kernel belongs to the node."""
        op, program, stored = self.program.ops[o], self.program, self.costs.classes.kernels.stored
        if all(self._free[v] for v in op.results):
            return
        work = self._work[self.costs.classes.kernels.root[o], node]
        values, count = (*op.operands, *op.results), len(op.operands)
        sizes = [self.local_bytes(v, n) for v, n in zip(values, run.tensors, strict=True)]
        reads, writes = traffic(op, sizes[:count], sizes[count:])  # type: ignore[arg-type]
        elements = [
            math.prod(program.values[v].shape) / self.runs.ways[n] for v, n in zip(values, run.tensors, strict=True)
        ]
        if op.flops:
            dtype = program.values[values[0]].dtype
            seconds = [matrix_seconds(op, dtype, f, self.mesh, self.costs.device) for f in run.factors]
            work.matrix = work.matrix + np.array(seconds)
        most_in = np.max(elements[:count], axis=0) if count else 0.0
        most_out, costs = np.max(elements[count:], axis=0), self.costs.device.kernel_costs
        work.vector = work.vector + vector_ops(op, most_in, most_out, costs)
        bits = [bits_of(program.values[v].dtype) for v in values]
        padded = [8 * size / n for size, n in zip(sizes, bits, strict=True)]
        if entries(op, 1.0, 1.0):
            of = padded if op.kind in REDUCING else padded[count:]
            work.entries = np.maximum(work.entries, np.max(of, axis=0))
        for v, size in zip(op.operands, reads, strict=True):
            if stored[v]:
                work.read[v] = np.maximum(work.read.get(v, 0.0), size)
                if op.flops:
                    work.operands.add(v)
        if any(stored[v] for v in op.results):
            work.written = work.written + writes
            work.packed = work.packed + (writes if max(bits[count:]) < 32 else 0.0)
            if op.kind == "dynamic_slice":
                work.vector = work.vector + 2 * costs.slice_slots * writes

    def kernels(self) -> Iterator[tuple[int, Vector]]:
        """Nodes and seconds of their parts of kernels, by the formula of ``price.compute``, without the launch."""
        device = self.costs.device
        costs = device.kernel_costs
        for (root, node), work in self._work.items():
            beside = sum([size for v, size in work.read.items() if v not in work.operands], np.zeros(1))
            fetched = [np.where(work.read[v] > costs.prefetched_bytes, work.read[v], 0.0) for v in work.operands]
            vector = work.vector + costs.entry_slots * work.entries
            vector = vector + costs.read_slots * beside + costs.pack_slots * work.packed
            memory = beside + sum(fetched) + work.written
            each = np.broadcast_arrays(work.matrix, vector, memory)
            seconds = [kernel_seconds(Work(*map(float, parts)), device) for parts in zip(*each, strict=True)]
            yield node, self._repeats[root] * (np.array(seconds) - costs.launch_seconds)

    def relayout(self, relaid: Relaid, shardings: int) -> Vector:
        """Seconds of copying what a loop carries to another layout and back, as if nothing written to it were moved."""
        sizes = self.local_bytes(relaid.value, shardings).tolist()
        shapes = [self._local_shape(relaid.value, s) for s in self.runs.shardings[shardings]]
        return np.array(
            [
                relayout_seconds(local, size, self.costs.device) if relaid.is_copied(local, moved=False) else 0.0
                for local, size in zip(shapes, sizes, strict=True)
            ]
        )

    def reduction(self, o: int, run: Run) -> Vector | float:
        """Seconds of reducing an op's partial results."""
        if not any(run.partial):
            return 0.0
        op, known = self.program.ops[o], self.runs.shardings
        total = np.zeros(len(run.partial))
        for v, computed, left in zip(op.results, run.tensors[len(op.operands) :], run.left, strict=True):
            size = self.program.values[v].bytes
            sharers = self.program.move_terms[o].sharers
            total += [
                self.costs.moves_seconds(reduce_partial(size, have, partial, want, self.mesh, sharers=sharers))
                for have, partial, want in zip(known[computed], run.partial, known[left], strict=True)
            ]
        return total * float(self._repeats[o])

    def move(self, size: float, have: Sharding, want: Sharding) -> float:
        """Seconds of bringing a tensor of so many bytes from one sharding to another."""
        known = self._moves.get((size, have, want))
        if known is None:
            known = self._moves[size, have, want] = self.costs.moves_seconds(reshard(size, have, want, self.mesh))
        return known
