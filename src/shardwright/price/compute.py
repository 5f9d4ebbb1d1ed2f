"""Seconds of an op's own work on one device: matrix unit, vector unit, memory.

A kernel takes as long as the slowest of the three, since they work at the same time (the roofline model: Williams,
Waterman and Patterson, 2009), or somewhat longer where the device's figures say that they do so imperfectly. What else
a kernel takes is in ``device.kernel_costs``. In symbols, for a kernel that goes through E entries, reads R bytes and
writes P bytes of narrow types, with N vector instructions of its ops' own:

    vector = entry_slots E + read_slots R + pack_slots P + N
             + operand_slots O + prefetched_slots F                                          for a batch of products
    seconds = launch + max(vector, memory)                                                         without a product
    seconds = launch + (matrix^s + vector^s + memory^s)^(1/s),  R without the product's operands      with a product

where O and F are the bytes of operands that are read from memory, and from fast memory.

That is how the TPU compiler counts: entry by entry, tile by tile, what is computed on the way costing next to nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from shardwright._function import Function
from shardwright._kernel import Kernel
from shardwright.compiler import Compiler
from shardwright.compiler.fusing import DEPTHWISE
from shardwright.compiler.ragged import RAGGED_MATRICES, RAGGED_ROWS, RaggedWork
from shardwright.devices import Device, KernelCosts
from shardwright.ir.kinds import (
    ALONE,
    COLLECTIVES,
    CONSTRAINT,
    EXPENSIVE,
    IN_PLACE,
    MADE,
    MOVES_DATA,
    READS_A_PART,
    REDUCING,
    VIEWS,
)
from shardwright.ir.program import Op
from shardwright.ir.rules import Rule
from shardwright.price.layout import padded
from shardwright.request import MeshShape

_MOVING = MOVES_DATA | IN_PLACE | ALONE | {"gather", "optimization_barrier"}
"""Ops that the vector unit has no part in, or a small one."""


_UNTOUCHED = COLLECTIVES | VIEWS | MADE | {CONSTRAINT, "optimization_barrier"}
"""Ops that read and write nothing of their own; what a collective takes is the price of its move."""


class Work(NamedTuple):
    """What an op asks of each unit, on one device."""

    matrix_seconds: float = 0.0
    vector_ops: float = 0.0
    memory_bytes: float = 0.0


def kernel_seconds(work: Work, device: Device) -> float:
    """Seconds of a kernel."""
    costs = device.kernel_costs
    matrix = work.matrix_seconds
    part = costs.contraction_memory_efficiency if matrix else costs.memory_efficiency
    memory = work.memory_bytes / (device.memory_bytes_per_second * part)
    vector = work.vector_ops / device.vector_ops_per_second if device.vector_ops_per_second else 0.0
    longest = max(matrix, vector, memory)
    if matrix and costs.sharpness:
        s = costs.sharpness
        longest *= ((matrix / longest) ** s + (vector / longest) ** s + (memory / longest) ** s) ** (1 / s)
    return costs.launch_seconds + longest


def relayout_seconds(local_shape: Sequence[int], size: float, device: Device) -> float:
    """Of copying an argument to another layout and back, each time read and written."""
    rows = local_shape[-2] if len(local_shape) > 1 else 1
    small = device.tile is not None and 1 < rows < device.tile[0]
    costs = device.kernel_costs
    slots = 2 * size * (costs.relayout_slots + (costs.small_tile_slots if small else costs.relayout_slots))
    return slots / device.vector_ops_per_second if device.vector_ops_per_second else 0.0


def tiled_copy_seconds(rows: int, size: float, device: Device) -> float:
    """Of a copy of some bytes, read and written, into tiles for so many rows: see ``compiler.storing.STACKED``.

    A tile of fewer rows takes as many instructions as a whole one. ``small_tile_slots`` are those of tiles of 2.
    """
    costs, slots = device.kernel_costs, device.kernel_costs.relayout_slots
    if device.tile is not None and 1 < rows < (whole := device.tile[0]):
        more = (whole / padded(rows, 2 if rows <= 2 else 4) - 1) / (whole / 2 - 1)
        slots += (costs.small_tile_slots - costs.relayout_slots) * max(more, 0.0)
    return 2 * size * slots / device.vector_ops_per_second if device.vector_ops_per_second else 0.0


def matrix_seconds(op: Op, dtype: str, factors: Sequence[int], mesh: MeshShape, device: Device) -> float:
    """Of a contraction whose axes split these factors (-1 for none): FLOPs of padded local shapes over the peak."""
    if not op.flops:
        return 0.0
    if "facts" in op.attributes:
        return kernel_work(op, dtype, factors, mesh, device)[0]
    if "work" in op.attributes:
        return function_work(op, dtype, factors, mesh, device)[0]
    ways: dict[int, int] = {}
    for axis, f in enumerate(factors):
        if f >= 0:
            ways[f] = ways.get(f, 1) * mesh.sizes[axis]
    flops = op.flops * math.prod(-(-op.rule.sizes[f] // parts) / op.rule.sizes[f] for f, parts in ways.items())
    rows, columns, depth = (
        math.prod(-(-op.rule.sizes[f] // ways.get(f, 1)) for f in found) for found in contraction_factors(op.rule)
    )
    costs = device.kernel_costs
    used = efficiency(rows, columns, depth, device.matrix_unit, costs.streamed_rows, costs.held_rows)
    seconds = flops / used / _matrix_rate(dtype, device)
    if op.kind == "ragged_dot":
        work = _ragged(op.rule, ways, device.compiler)
        masking = work.masking_slots / device.vector_ops_per_second if device.vector_ops_per_second else 0.0
        return seconds * work.times + masking
    return seconds


def _matrix_rate(dtype: str, device: Device) -> float:
    """FLOPs a second that large products reach."""
    return device.flops(dtype) * device.kernel_costs.matrix_efficiency


def _ragged(rule: Rule, ways: Mapping[int, int], compiler: Compiler) -> RaggedWork:
    """The work of a ragged product beyond that of its FLOPs; ``ways`` are the parts that factors are split into."""
    left, right, counts = ([f for dim in dims for f in dim] for dims in rule.operands)
    out = {f for dim in rule.results[0] for f in dim}
    rows = [f for f in left if f in rule.whole]

    def size(factors: Iterable[int]) -> int:
        return math.prod(-(-rule.sizes[f] // ways.get(f, 1)) for f in factors)

    work = compiler[RAGGED_MATRICES if out.isdisjoint(rows) else RAGGED_ROWS]
    return work(
        size(rows),
        size(f for f in left if f not in rows),
        size(f for f in right if f not in left and f not in rule.whole),
        size(counts),
    )


def kernel_work(
    op: Op, dtype: str, factors: Sequence[int], mesh: MeshShape, device: Device
) -> tuple[float, float, tuple[float, ...], float]:
    """What a Pallas kernel whose axes split these grid indices asks for on one device.

    These are seconds of the matrix unit, the vector unit's instructions for what is transcendental, bytes read of each
    operand and bytes written: blocks are moved whenever the grid comes to another one.
    """
    kernel: Kernel = op.attributes["facts"].kernel
    grid = list(kernel.grid)
    for axis, k in enumerate(factors):
        if k >= 0:
            grid[k] //= mesh.sizes[axis]
    part = math.prod(grid) / math.prod(kernel.grid)
    scalars = tuple([4.0 * math.prod(shape) for shape in kernel.scalars])
    reads = tuple([block.transferred_bytes(tuple(grid)) for block in kernel.operands])
    return (
        kernel.flops * part / _matrix_rate(dtype, device),
        device.kernel_costs.expensive_slots * kernel.transcendentals * part,
        scalars + reads,
        sum([block.transferred_bytes(tuple(grid)) for block in kernel.results]),
    )


def function_work(op: Op, dtype: str, factors: Sequence[int], mesh: MeshShape, device: Device) -> tuple[float, float]:
    """Seconds of the matrix unit and the vector unit's instructions of a function whose axes split these factors.

    What it makes on the way is not known to be in memory, so it reads and writes what it is called with.
    """
    function: Function = op.attributes["work"]
    ways = math.prod([mesh.sizes[axis] for axis, f in enumerate(factors) if f >= 0])
    return (
        function.flops / ways / _matrix_rate(dtype, device),
        device.kernel_costs.expensive_slots * function.transcendentals / ways,
    )


def contraction_factors(rule: Rule) -> tuple[list[int], list[int], list[int]]:
    """The factors that a matrix product's rows, its columns and its depth are made of; batches are none of them."""
    left, right, out = ({f for dim in dims for f in dim[:1]} for dims in (*rule.operands[:2], rule.results[0]))
    rows = [f for f in sorted(left & out) if f not in right]
    columns = [f for f in sorted(right & out) if f not in left]
    depth = [f for f in sorted(left & right) if f not in out]
    return rows, columns, depth


def efficiency(rows: int, columns: int, depth: int, unit: int, streamed_rows: int, held_rows: float = 0.0) -> float:
    """The part of a matrix unit's work that is not padding.

    One operand is held in the unit, ``depth`` by ``columns`` or ``rows``, padded both ways; the other streams through
    it some rows at a time (Jouppi et al., "In-datacenter performance analysis of a tensor processing unit", 2017).
    To hold another block takes as long as ``held_rows`` that stream.
    """

    def part(size: int, multiple: int, beside: float = 0.0) -> float:
        return size / (padded(size, multiple) + beside) if size else 1.0

    few = min(streamed_rows, unit)
    as_rows = part(columns, unit) * part(rows, few, held_rows)
    as_columns = part(rows, unit) * part(columns, few, held_rows)
    return part(depth, unit) * max(as_rows, as_columns)


def product_work(op: Op, factors: Sequence[int], mesh: MeshShape, tile: tuple[int, int] | None) -> tuple[float, bool]:
    """The entries of a product's result on one device, and whether it is a batch of products of matrices.

    Rows and columns are padded to tiles, either of them minor.
    """
    ways: dict[int, int] = {}
    for axis, f in enumerate(factors):
        if f >= 0:
            ways[f] = ways.get(f, 1) * mesh.sizes[axis]
    size = [-(-n // ways.get(f, 1)) for f, n in enumerate(op.rule.sizes)]
    rows, columns, _ = (math.prod([size[f] for f in found]) for found in contraction_factors(op.rule))
    total = math.prod([size[f] for dim in op.rule.results[0] for f in dim])
    if tile is None or not total:
        return float(total), False
    both = (padded(a, tile[0]) * padded(b, tile[1]) for a, b in ((rows, columns), (columns, rows)))
    batch = total / (rows * columns)
    return batch * min(both), batch > 1 and min(rows, columns) >= tile[0]


def depthwise_slots(op: Op, factors: Sequence[int], mesh: MeshShape, device: Device) -> float:
    """The vector unit's part of a convolution that sums up nothing across channels; 0 for any other op."""
    if op.kind != "convolution" or not op.flops:
        return 0.0
    rows, columns, depth = contraction_factors(op.rule)
    if columns or (rows and depth):
        return 0.0
    ways = math.prod([mesh.sizes[axis] for axis, f in enumerate(factors) if f >= 0])
    return device.compiler[DEPTHWISE] * op.flops / 2 / ways


def vector_ops(op: Op, elements_in: float, elements_out: float, costs: KernelCosts) -> float:
    """Vector instructions times lanes."""
    if op.regions or op.flops or op.kind in _MOVING:
        return 0.0
    if op.kind in REDUCING:
        return costs.reduce_slots * elements_in
    expensive = op.kind in EXPENSIVE or op.kind == "divide"
    return (costs.expensive_slots if expensive else costs.cheap_slots) * elements_out


def entries(op: Op, entries_in: float, entries_out: float) -> float:
    """The entries that a kernel goes through for an op, given those of its largest operand and result.

    None for what it has no kernel of its own for, and for ops whose seconds are counted by their bytes.
    """
    if op.regions or op.kind in _UNTOUCHED or op.kind in IN_PLACE or op.kind in READS_A_PART:
        return 0.0
    return max(entries_in, entries_out) if op.kind in REDUCING else entries_out


def traffic(op: Op, operand_bytes: Sequence[float], result_bytes: Sequence[float]) -> tuple[tuple[float, ...], float]:
    """Bytes read of each operand and bytes written, if all of them lie in memory.

    Slices and gathers read what they give; updates in place write what they are given.
    """
    if op.regions or op.kind in _UNTOUCHED:
        return (0.0,) * len(operand_bytes), 0.0
    if op.kind in READS_A_PART:
        return (sum(result_bytes), *(0.0,) * (len(operand_bytes) - 1)), sum(result_bytes)
    if op.kind in IN_PLACE:
        update = operand_bytes[1 if op.kind == "dynamic_update_slice" else -1]
        old = 0.0 if op.kind == "dynamic_update_slice" else update  # a scatter adds to what is there
        return (old, *operand_bytes[1:]), update
    return tuple(operand_bytes), sum(result_bytes)
