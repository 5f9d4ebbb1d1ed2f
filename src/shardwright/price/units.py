"""Units: the classes of a program, each with what it adds to the cost of a state.

A unit remembers its parts by what they are made of, prices of ops or numbers of shardings, and not by the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np

from shardwright.ir.memory import HOST, moved_to, moves_between
from shardwright.price.buffers import AS_IT_LIES, Form
from shardwright.price.classes import Classes
from shardwright.price.collectives import Move, reshard
from shardwright.price.compute import kernel_seconds, relayout_seconds
from shardwright.price.families import NO_PART, Part, Rows, Seconds, Unit
from shardwright.price.gathered import Laid, LaidWork, laid_work
from shardwright.price.kernel_work import KernelWork, KernelWorks
from shardwright.price.layout import stored_bytes
from shardwright.price.op_prices import OpPrice, OpPrices
from shardwright.price.points import Points, coverage
from shardwright.price.prices import DevicePrices
from shardwright.price.tensors import Tensors
from shardwright.price.transfers import COMPUTE, TO_DEVICE, TO_HOST, Transfers, host_rate
from shardwright.price.uneven import moved_padding
from shardwright.price.views import View
from shardwright.space.state import Sharding, Subject, without

Wanted = dict[Sharding, tuple[tuple[Move, ...], tuple[int, ...]]]
"""The shardings that a value has to be brought to: by which moves, and for which of its uses."""


class Units:
    """Makes the units of a program on a mesh of devices."""

    def __init__(
        self, classes: Classes, points: Points, tensors: Tensors, ops: OpPrices, kernels: KernelWorks, on: DevicePrices
    ) -> None:
        self.classes, self.points, self.tensors, self.ops, self.kernels, self.on = (
            classes,
            points,
            tensors,
            ops,
            kernels,
            on,
        )
        self.relaid: tuple[int, ...] = classes.buffers.relaid if on.device.tile else ()
        self.transfers = Transfers(classes.program)
        self.laid: tuple[Laid, ...] = classes.buffers.laid if on.device.tile else ()
        self._uses = [ops.among([o for o, _ in use.uses]) for use in classes.use_classes.keys]

    def all(self) -> Iterator[tuple[Iterable[Subject], Unit]]:
        """Every unit, with the groups of a state that it sees."""
        classes = self.classes
        of_class, of_op = classes.groups_of_values, classes.groups_of_ops
        held: dict[int, int] = {}
        for v in (*classes.buffers.held, *classes.buffers.held_on_host):
            held[classes.of_value[v]] = held.get(classes.of_value[v], 0) + 1
        everywhere = np.ones(len(self.points.at), np.int64)
        for c, count in held.items():
            yield of_class[c], self._buffer(c, AS_IT_LIES, count * everywhere)
        for (c, form), column in self.points.columns.items():
            yield of_class[c], self._buffer(c, form, column)
        for v in self.relaid:
            yield of_class[classes.of_value[v]], self._relayout(classes.of_value[v])
        for laid in self.laid:
            yield of_op[classes.of_op[laid.op]], self._laid(laid)
        for k, kernel in enumerate(classes.kernel_classes.keys):
            if self.kernels.works(k):
                yield chain.from_iterable([of_op[o] for o in kernel.ops]), self._kernel(k)
            if self.transfers and moves_between(classes.program, classes.kernel_classes.members[k][0]):
                yield of_op[kernel.ops[-1]], self._transfer(k)
        for u, use in enumerate(classes.use_classes.keys):
            yield chain.from_iterable([of_op[o] for o, _ in use.uses]), self._use(u)
        for b, border in enumerate(classes.border_classes.keys):
            yield of_class[border.before] | of_class[border.after], self._border(b)

    def moves_seconds(self, moves: Iterable[Move]) -> float:
        """Of collectives, one after the other."""
        return sum(self.on.move_seconds(move) for move in moves)

    def relayout_seconds(self, value_class: int, view: View) -> float:
        """Of copying a loop's values of a class to another layout and back."""
        sharding = self.tensors.sharding(value_class, view)
        local = self.tensors.local_shape(value_class, sharding)
        return relayout_seconds(local, self.tensors.bytes_in(value_class, sharding), self.on.device)

    def laid_work(self, laid: Laid, view: View) -> LaidWork:
        """Of laying a value out anew for a gather or a scatter, once."""
        return self._laid_work(laid, *self._laid_shardings(laid, view))

    def laid_span(self, laid: Laid) -> tuple[int, int]:
        """From when to when the copy of such a value is there."""
        at = self.classes.kernels.at
        return at[laid.made], max(at[laid.made], at[laid.used])

    def _laid_shardings(self, laid: Laid, view: View) -> tuple[Sharding, Sharding]:
        """How such a value lies in its op, and how it does outside."""
        op = self.classes.program.ops[laid.op]
        a = self.ops.price(self.classes.of_op[laid.op], view).assignment
        number = (*op.operands, *op.results).index(laid.value) if laid.made >= 0 else -1
        outside = self.tensors.sharding(self.classes.of_value[laid.value], view)
        return (*a.operands, *a.results)[number] if number >= 0 else outside, outside

    def _laid_work(self, laid: Laid, own: Sharding, outside: Sharding) -> LaidWork:
        c = self.classes.of_value[laid.value]
        shapes = self.tensors.local_shape(c, own), self.tensors.local_shape(c, outside)
        return laid_work(laid, *shapes, self.classes.values.keys[c].dtype, self.on.device)

    def wanted(self, use_class: int, view: View) -> Wanted:
        """How a value has to be brought to other shardings for its uses."""
        return self._wanted(use_class, self.ops.prices(self._uses[use_class], view))

    def use_span(self, member: int, which: tuple[int, ...]) -> tuple[int, int]:
        """From when to when a value is there for these of its uses."""
        kernels = self.classes.kernels
        ops = [self.classes.uses[member][1][k][0] for k in which]
        return min(kernels.at[o] for o in ops), max(kernels.last[o] for o in ops)

    def _buffer(self, value_class: int, form: Form, column: Rows) -> Unit:
        """The memory of the buffers of a class."""
        known: dict[int, Part] = {}
        tensors = self.tensors
        on_host = self.classes.values.keys[value_class].on_host

        def price(view: View) -> Part:
            number = tensors.number(value_class, view)
            part = known.get(number)
            if part is None:
                size = tensors.held_bytes(value_class, tensors.shardings[number], form)
                bytes_ = ((column, int(size)),)
                part = known[number] = Part(on_host=bytes_) if on_host else Part(held=bytes_)
            return part

        return price

    def _relayout(self, value_class: int) -> Unit:
        known: dict[int, Part] = {}

        def price(view: View) -> Part:
            number = self.tensors.number(value_class, view)
            part = known.get(number)
            if part is None:
                part = known[number] = Part(self.relayout_seconds(value_class, view))
            return part

        return price

    def _laid(self, laid: Laid) -> Unit:
        known: dict[tuple[Sharding, Sharding], Part] = {}
        repeats = int(self.classes.program.repeats[laid.op])
        column = coverage(self.points.at, *zip(self.laid_span(laid), strict=True)) if laid.made >= 0 else None

        def price(view: View) -> Part:
            shardings = self._laid_shardings(laid, view)
            part = known.get(shardings)
            if part is None:
                work = self._laid_work(laid, *shardings)
                held = ((column, int(work.copy_bytes)),) if column is not None and work.copy_bytes else ()
                part = known[shardings] = Part(repeats * work.seconds, 0.0, held)
            return part

        return price

    def _kernel(self, kernel_class: int) -> Unit:
        """Work, the moves of results, and the memory of results before they are moved."""
        kernel = self.classes.kernel_classes.keys[kernel_class]
        count = len(self.classes.kernel_classes.members[kernel_class]) * kernel.repeats
        here = (self.points.kinds == kernel_class).astype(np.int64)
        known: dict[KernelWork, Part] = {}
        kernels, device, transfers = self.kernels, self.on.device, self.transfers
        places = self._places(kernel_class)

        def price(view: View) -> Part:
            found = kernels.of(kernel_class, view)
            part = known.get(found)
            if part is None:
                compute = kernel_seconds(found.work, device) if any(found.work) else 0.0
                held = ((here, int(found.unmoved_bytes)),) if found.unmoved_bytes else ()
                beside = transfers.beside(places, COMPUTE, compute)
                part = known[found] = Part(compute * count, found.comm_seconds * count, held, beside=beside)
            return part

        return price

    def _places(self, kernel_class: int) -> Seconds | None:
        """How often the kernels of a class run in each place where values are moved to the host or back."""
        kernels = self.classes.kernel_classes
        counts = self.transfers.counts(kernels.members[kernel_class])
        return None if counts is None else counts * kernels.keys[kernel_class].repeats

    def transfer_bytes(self, kernel_class: int, view: View) -> float:
        """What a device moves to its host or back, once."""
        moved = self.classes.ops.keys[self.classes.kernel_classes.keys[kernel_class].ops[-1]].results[0]
        return self.tensors.bytes_in(moved, self.tensors.sharding(moved, view))

    def _transfer(self, kernel_class: int) -> Unit:
        """A value that is moved to the host or back."""
        op = self.classes.op(self.classes.kernel_classes.keys[kernel_class].ops[-1])
        rate = host_rate(self.on.device.host_bytes_per_second, self.on.device.name)
        way, places = TO_HOST if moved_to(op) == HOST else TO_DEVICE, self._places(kernel_class)
        known: dict[float, Part] = {}

        def price(view: View) -> Part:
            size = self.transfer_bytes(kernel_class, view)
            part = known.get(size)
            if part is None:
                part = known[size] = Part(beside=self.transfers.beside(places, way, size / rate))
            return part

        return price

    def _use(self, use_class: int) -> Unit:
        """A value brought to other shardings for its uses: each sharding once, kept from its first use to its last."""
        use, members = self.classes.use_classes.keys[use_class], self.classes.use_classes.members[use_class]
        count = len(members) * use.repeats
        columns: dict[tuple[int, ...], Rows] = {}
        known: dict[tuple[OpPrice, ...], Part] = {}
        ops, priced = self.ops, self._uses[use_class]

        def column(which: tuple[int, ...]) -> Rows:
            if which not in columns:
                spans = [self.use_span(m, which) for m in members]
                columns[which] = coverage(self.points.at, *zip(*spans, strict=True))
            return columns[which]

        def work_out(prices: tuple[OpPrice, ...]) -> Part:
            comm, held = 0.0, []
            for want, (moves, which) in self._wanted(use_class, prices).items():
                comm += self.moves_seconds(moves)
                held.append((column(which), int(self.tensors.bytes_in(use.value, want))))
            return Part(0.0, comm * count, tuple(held)) if held else NO_PART

        def price(view: View) -> Part:
            prices = ops.prices(priced, view)
            part = known.get(prices)
            if part is None:
                part = known[prices] = work_out(prices)
            return part

        return price

    def _wanted(self, use_class: int, prices: tuple[OpPrice, ...]) -> Wanted:
        found: Wanted = {}
        for k, ((_, operand), price) in enumerate(
            zip(self.classes.use_classes.keys[use_class].uses, prices, strict=True)
        ):
            a = price.assignment
            moves = a.before[operand]
            if moves:
                want = a.operands[operand]
                found[want] = (found[want][0], (*found[want][1], k)) if want in found else (moves, (k,))
        return found

    def _border(self, border_class: int) -> Unit:
        """A value that lies differently inside of a loop, a branch, a barrier or a manual region."""
        border = self.classes.border_classes.keys[border_class]
        count = len(self.classes.border_classes.members[border_class]) * border.repeats
        c, tensors, mesh = self.classes.values.keys[border.inside], self.tensors, self.tensors.mesh
        manual = mesh.numbers(border.manual)
        known: dict[tuple[int, int], Part] = {}

        def work_out(before: Sharding, after: Sharding) -> Part:
            size = stored_bytes(c.shape, c.dtype, None) * moved_padding(c.shape, before, after, mesh)
            return Part(0.0, count * self.moves_seconds(reshard(size, before, after, mesh)))

        def price(view: View) -> Part:
            numbers = tensors.number(border.before, view), tensors.number(border.after, view)
            if numbers[0] == numbers[1]:
                return NO_PART
            part = known.get(numbers)
            if part is None:
                part = known[numbers] = work_out(*[without(tensors.shardings[n], manual) for n in numbers])
            return part

        return price
