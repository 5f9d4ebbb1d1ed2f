"""What kernels ask of a device: the work of their ops, each stored value read once."""

from __future__ import annotations

from typing import NamedTuple

from shardwright.price.classes import Classes, KernelClass
from shardwright.price.compute import Work
from shardwright.price.op_prices import OpPrice, OpPrices, PricedOps
from shardwright.price.views import View


class KernelWork(NamedTuple):
    """What a kernel asks of each unit of the device, once; seconds and memory of moving its results."""

    work: Work
    comm_seconds: float
    unmoved_bytes: float


class _KernelOp(NamedTuple):
    """An op of a kernel: its class, its stored operands, whether it stores its result and copies for that."""

    op_class: int
    operands: tuple[tuple[int, int], ...]
    stores: bool
    copies: bool


class KernelWorks:
    """The work of every class of kernels; classes without ops that work have none."""

    def __init__(self, classes: Classes, ops: OpPrices) -> None:
        self._ops, self._slice_slots = ops, ops.device.kernel_costs.slice_slots
        self._of_kernel = [_working_ops(classes, kernel) for kernel in classes.kernel_classes.keys]
        self._priced: list[PricedOps] = [ops.among([op.op_class for op in found]) for found in self._of_kernel]
        self._known: list[dict[tuple[OpPrice, ...], KernelWork]] = [{} for _ in self._of_kernel]

    def works(self, kernel_class: int) -> bool:
        """Whether there is anything to do."""
        return bool(self._of_kernel[kernel_class])

    def of(self, kernel_class: int, view: View) -> KernelWork:
        """The work of a kernel in a state."""
        prices, known = self._ops.prices(self._priced[kernel_class], view), self._known[kernel_class]
        found = known.get(prices)
        if found is None:
            found = known[prices] = _kernel_work(self._of_kernel[kernel_class], prices, self._slice_slots)
        return found


def _working_ops(classes: Classes, kernel: KernelClass) -> list[_KernelOp]:
    found = []
    for o, operands, results in zip(kernel.ops, kernel.operands, kernel.results, strict=True):
        op = classes.op(o)
        if op.rule.tensors:
            stored = tuple([(k, n) for k, n in enumerate(operands) if n >= 0])
            found.append(_KernelOp(o, stored, max(results, default=-1) >= 0, op.kind == "dynamic_slice"))
    return found


def _kernel_work(ops: list[_KernelOp], prices: tuple[OpPrice, ...], slice_slots: float) -> KernelWork:
    matrix = vector = written = comm = unmoved = 0.0
    read: dict[int, float] = {}
    for (_, operands, stores, copies), price in zip(ops, prices, strict=True):
        work = price.work
        matrix += work.matrix_seconds
        vector += work.vector_ops
        comm += price.assignment.after_seconds
        unmoved += price.unmoved_bytes
        for k, number in operands:
            if work.reads[k] > read.get(number, 0.0):
                read[number] = work.reads[k]
        if stores:
            written += work.writes
            if copies:
                vector += 2 * slice_slots * work.writes
    return KernelWork(Work(matrix, vector, sum(read.values()) + written), comm, unmoved)
