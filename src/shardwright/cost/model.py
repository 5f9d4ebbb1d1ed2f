"""What a state costs: seconds and bytes, by looking only at what has changed since the last state.

What a class of kernels or values costs in a state depends on nothing but the entries of the state's lists whose groups
it has. Classes with the same groups are a *family*, and each family remembers its price for every such part of a state
that it has met. The price of a state is then one look-up for each family; of a state that differs from the last one by
a decision, one for each family that has the decision's group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.classes import Classes, KernelClass
from shardwright.cost.compute import (
    SLICE_SLOTS,
    Work,
    kernel_seconds,
    matrix_seconds,
    relayout_seconds,
    traffic,
    vector_ops,
)
from shardwright.cost.layout import stored_bytes
from shardwright.cost.points import coverage, extreme_points
from shardwright.cost.prices import DevicePrices
from shardwright.devices import Device
from shardwright.ir.program import Op
from shardwright.spmd.assign import Assigner, Assignment, Problem, candidates
from shardwright.spmd.collectives import ALL_REDUCE, Move, reshard
from shardwright.spmd.shardings import Places, shard_value
from shardwright.spmd.state import Entry, MeshShape, Sharding, State
from shardwright.spmd.uneven import moved_padding

Lists = tuple[tuple[Entry, ...], ...]
Rows = NDArray[np.int64]
"""Bytes at each point of the program."""


_MOST_KEPT_ROWS = 2**27
"""Numbers of bytes at points, eight bytes each, that are remembered before all are forgotten."""


class Cost(NamedTuple):
    """Of a state. ``peak_bytes`` is the most that a device holds at any point."""

    compute_seconds: float
    comm_seconds: float
    peak_bytes: int

    @property
    def step_seconds(self) -> float:
        """Compute and communication, one after the other."""
        return self.compute_seconds + self.comm_seconds


class Part(NamedTuple):
    """What some classes add to a cost; ``rows`` is None where they add no memory."""

    compute_seconds: float
    comm_seconds: float
    rows: Rows | None


class FamilyPart(NamedTuple):
    """What a family adds to a cost."""

    compute_seconds: float
    comm_seconds: float
    rows: Rows


class Points(NamedTuple):
    """Where memory is looked at: the positions, which class of kernel runs there, and how many buffers are alive.

    Buffers are counted by the class of their value and their scale.
    """

    at: Rows
    kinds: Rows
    columns: dict[tuple[int, float], Rows]


class OpPrice(NamedTuple):
    """How an op runs in a state, and what it asks of the device: see ``compute``."""

    assignment: Assignment
    matrix_seconds: float
    vector_ops: float
    reads: tuple[float, ...]
    writes: float
    after_seconds: float
    unmoved_bytes: float


class BlockWork(NamedTuple):
    """What some ops of a kernel ask of the device; ``reads`` are stored values by their number in the kernel."""

    matrix_seconds: float
    vector_ops: float
    after_seconds: float
    unmoved_bytes: float
    writes: float
    reads: tuple[tuple[int, float], ...]


class KernelOp(NamedTuple):
    """An op of a kernel: its class, its stored operands, whether it stores its result and copies for that."""

    op_class: int
    operands: tuple[tuple[int, int], ...]
    stores: bool
    copies: bool


class Block(NamedTuple):
    """Ops of a kernel that see the same groups of a state; ``number`` is that of the set of groups."""

    number: int
    ops: list[KernelOp]
    known: dict[int, BlockWork]


class View:
    """A state as classes see it: its lists, restricted to the groups that a class has, each restriction numbered.

    ``fixed`` are the shardings of all classes of values where no state gives them.
    """

    __slots__ = ("_found", "_numbers", "fixed", "lists", "shardings")

    def __init__(
        self, lists: Lists, numbers: dict[tuple[int, Lists], int], fixed: Sequence[Sharding] | None = None
    ) -> None:
        self.lists = lists
        self.fixed = fixed
        self.shardings: dict[int, Sharding] = {}
        self._numbers = numbers
        self._found: dict[int, tuple[int, Lists]] = {}

    def part(self, number: int, groups: frozenset[int]) -> tuple[int, Lists]:
        """The lists restricted to a set of groups, which goes by ``number``, and the restriction's own number."""
        found = self._found.get(number)
        if found is None:
            own = project(self.lists, groups)
            found = self._found[number] = (self._numbers.setdefault((number, own), len(self._numbers)), own)
        return found


Unit = Callable[[View], Part]


@dataclass
class Family:
    """Classes that see the same groups of a state."""

    groups: frozenset[int]
    units: list[Unit] = field(default_factory=list)
    known: dict[Lists, FamilyPart] = field(default_factory=dict)

    def add_up(self, view: View, points: int) -> FamilyPart:
        """The family's part of the cost."""
        compute = comm = 0.0
        rows = np.zeros(points, np.int64)
        for unit in self.units:
            found = unit(view)
            compute += found.compute_seconds
            comm += found.comm_seconds
            if found.rows is not None:
                rows += found.rows
        return FamilyPart(compute, comm, rows)


def project(lists: Lists, groups: frozenset[int]) -> Lists:
    """The part of a state that has to do with these groups."""
    return tuple([tuple([entry for entry in entries if entry.group in groups]) for entries in lists])


class CostModel:
    """Costs of states of one program on one mesh of devices. ``evaluate`` is the fast way in.

    An ``assigner`` that has seen the same classes of ops on this mesh need not weigh them again. ``like`` prices the
    same program on another mesh: what does not depend on the mesh is taken from it.
    """

    def __init__(
        self,
        places: Places,
        mesh: MeshShape,
        device: Device,
        whole: tuple[frozenset[int], ...] = (),
        fixed: Sequence[Sharding] | None = None,
        assigner: Assigner | None = None,
        like: CostModel | None = None,
    ) -> None:
        self.mesh, self.device, self.whole = mesh, device, whole
        if like is not None and (like.whole != whole or like.device.platform != device.platform or fixed is not None):
            like = None
        self.classes: Classes = like.classes if like is not None else Classes(places, whole, device.platform, fixed)
        self.prices = DevicePrices.of(device, mesh)
        self.assigner = assigner or Assigner(mesh, self.prices)
        self._parts_seen: dict[tuple[int, Lists], int] = {}
        self._shardings: dict[tuple[int, int], Sharding] = {}
        self._op_prices: list[dict[int, OpPrice]] = [{} for _ in self.classes.ops.keys]
        self._by_problem: dict[tuple[int, Problem], OpPrice] = {}
        # Into how many parts each factor is split says what is left to do, on any mesh of the same device.
        self._work: dict[tuple[int, tuple[int, ...]], tuple[float, float, tuple[float, ...], float]] = (
            like._work if like is not None and like.device == device else {}
        )
        self._allowed: dict[tuple[int, tuple[int, ...], int, frozenset[int]], tuple[int, ...]] = {}
        self.points: Points = self._points() if like is None else like.points
        self.at, self.kinds, self.columns = self.points
        self.families = self._find_families()
        self._of_group: dict[int, list[int]] = {}
        for f, family in enumerate(self.families):
            for group in family.groups:
                self._of_group.setdefault(group, []).append(f)
        self.priced_units = 0
        """How many prices of classes have been worked out: what the time of evaluations goes by, on any machine."""
        self._kept_rows = 0
        empty: Lists = ((),) * len(mesh.sizes)
        self._lists = empty
        self._parts = [family.add_up(View(empty, self._parts_seen), len(self.at)) for family in self.families]
        self._rows: Rows = np.zeros(len(self.at), np.int64)
        for part in self._parts:
            self._rows += part.rows

    # The fast way.

    def evaluate(self, state: State) -> Cost:
        """The cost of a state."""
        if state.lists != self._lists:
            self._move_to(state.lists)
        compute = comm = 0.0
        for part in self._parts:
            compute += part.compute_seconds
            comm += part.comm_seconds
        return Cost(compute, comm, int(self._rows.max()))

    def evaluate_shardings(self, shardings: Sequence[Sharding]) -> Cost:
        """The cost of any shardings, one for each class of values, whether or not a state leads to them.

        An op may then use every axis on every factor that the axis divides. Slower than ``evaluate``.
        """
        view = View(self._lists, self._parts_seen, shardings)
        parts = [family.add_up(view, len(self.at)) for family in self.families]
        compute, comm = sum(part.compute_seconds for part in parts), sum(part.comm_seconds for part in parts)
        return Cost(compute, comm, int(np.sum([part.rows for part in parts], axis=0).max(initial=0)))

    @classmethod
    def of_shardings(cls, places: Places, mesh: MeshShape, device: Device, shardings: Sequence[Sharding]) -> Cost:
        """The cost of any shardings, one for each value of the program."""
        model = cls(places, mesh, device, fixed=shardings)
        return model.evaluate_shardings([c.fixed or () for c in model.classes.values.keys])

    def rows(self, lists: Lists) -> Rows:
        """Bytes at each point in a state."""
        if lists != self._lists:
            self._move_to(lists)
        return self._rows.copy()

    def _move_to(self, lists: Lists) -> None:
        changed: set[int] = set()
        for old, new in zip(self._lists, lists, strict=True):
            if old != new:
                changed.update(_differing_groups(old, new))
        families = {f for group in changed for f in self._of_group.get(group, ())}
        rows, parts, points = self._rows, self._parts, len(self.at)
        for f in families:
            family = self.families[f]
            own = project(lists, family.groups)
            part = family.known.get(own)
            if part is None:
                part = family.known[own] = family.add_up(View(own, self._parts_seen), points)
                self.priced_units += len(family.units)
                self._kept_rows += points
            before = parts[f]
            if part is not before:
                rows += part.rows
                rows -= before.rows
                parts[f] = part
        self._lists = lists
        if self._kept_rows > _MOST_KEPT_ROWS:
            self._forget()

    def _forget(self) -> None:
        """Give back the memory of prices that may never be asked for again."""
        for family in self.families:
            family.known.clear()
        self._kept_rows = 0

    # What classes cost.

    def view(self, lists: Lists) -> View:
        """A state as classes see it."""
        return View(lists, self._parts_seen)

    def sharding(self, value_class: int, view: View) -> Sharding:
        """The sharding of the values of a class."""
        if view.fixed is not None:
            return view.fixed[value_class]
        known = view.shardings.get(value_class)
        if known is None:
            number = self._value_sets[value_class]
            part, own = view.part(number, self._sets[number])
            known = self._shardings.get((value_class, part))
            if known is None:
                c = self.classes.values.keys[value_class]
                known = shard_value(c.shape, c.groups, c.pairs, c.kept, self.mesh, own, c.padded)
                self._shardings[value_class, part] = known
            view.shardings[value_class] = known
        return known

    def assignment(self, op_class: int, view: View) -> Assignment:
        """How the ops of a class run."""
        return self.op_price(op_class, view).assignment

    def op_price(self, op_class: int, view: View) -> OpPrice:
        """How the ops of a class run, and what each costs."""
        number = self._op_sets[op_class]
        if view.fixed is not None:
            groups = frozenset(self.classes.ops.keys[op_class].groups) - {-1}
            return self._op_price_of(op_class, self._problem(op_class, [groups] * len(self.mesh.sizes), view))
        part, own = view.part(number, self._sets[number])
        prices = self._op_prices[op_class]
        known = prices.get(part)
        if known is None:
            on_lists = [frozenset([entry.group for entry in entries]) for entries in own]
            known = prices[part] = self._op_price_of(op_class, self._problem(op_class, on_lists, view))
        return known

    def _op_price_of(self, op_class: int, problem: Problem) -> OpPrice:
        signature = self.classes.ops.keys[op_class].signature
        known = self._by_problem.get((signature, problem))
        if known is None:
            known = self._by_problem[signature, problem] = self._price_op(op_class, problem)
        return known

    def _problem(self, op_class: int, on_lists: Sequence[frozenset[int]], view: View) -> Problem:
        c, op = self.classes.ops.keys[op_class], self.classes.op(op_class)
        return Problem(
            self.classes.program.shape_classes[c.signature],
            c.outlook,
            tuple([self.sharding(v, view) for v in c.operands]),
            tuple([self.sharding(v, view) for v in c.results]),
            c.free,
            tuple([self._candidates(op, c.groups, axis, on_list) for axis, on_list in enumerate(on_lists)]),
        )

    def _candidates(self, op: Op, groups: tuple[int, ...], axis: int, on_list: frozenset[int]) -> tuple[int, ...]:
        key = (op.signature, groups, axis, on_list)
        known = self._allowed.get(key)
        if known is None:
            known = self._allowed[key] = candidates(
                op, groups, on_list, self.mesh.sizes[axis], self.classes.places.uniform
            )
        return known

    def _price_op(self, op_class: int, problem: Problem) -> OpPrice:
        c, op = self.classes.ops.keys[op_class], self.classes.op(op_class)
        values = self.classes.values.keys
        shapes = [(values[v].shape, values[v].dtype) for v in (*c.operands, *c.results)]
        a = self.assigner.assign(op, problem, shapes)
        parts = [1] * len(op.rule.sizes)
        for axis, factor in enumerate(a.factors):
            if factor >= 0:
                parts[factor] *= self.mesh.sizes[axis]
        key = (c.signature, tuple(parts))
        known = self._work.get(key)
        if known is None:
            known = self._work[key] = self._op_work(op_class, a)
        matrix, *rest = known
        return OpPrice(a, matrix + a.loop_seconds, *rest, a.after_seconds, self._unmoved_bytes(op_class, a))

    def _op_work(self, op_class: int, a: Assignment) -> tuple[float, float, tuple[float, ...], float]:
        """Matrix seconds, vector operations, bytes read of each operand and bytes written."""
        c, op = self.classes.ops.keys[op_class], self.classes.op(op_class)
        sizes_in = [self.bytes_in(v, s) for v, s in zip(c.operands, a.operands, strict=True)]
        sizes_out = [self.bytes_in(v, s) for v, s in zip(c.results, a.results, strict=True)]
        dtype = self.classes.values.keys[(*c.operands, *c.results)[0]].dtype
        return (
            matrix_seconds(op, dtype, a.factors, self.mesh, self.device) if op.flops else 0.0,
            vector_ops(op, self._elements(c.operands, a.operands), self._elements(c.results, a.results)),
            *traffic(op, sizes_in, sizes_out),
        )

    def bytes_in(self, value_class: int, sharding: Sharding) -> float:
        """Bytes of one device's part of a value."""
        dtype = self.classes.values.keys[value_class].dtype
        return stored_bytes(self.local_shape(value_class, sharding), dtype, self.device.tile)

    def local_shape(self, value_class: int, sharding: Sharding) -> tuple[int, ...]:
        """One device's part of a value."""
        shape = self.classes.values.keys[value_class].shape
        return tuple([-(-size // self.mesh.ways(axes)) for size, axes in zip(shape, sharding, strict=True)])

    @property
    def relaid(self) -> tuple[int, ...]:
        """Results of loops that are copied to another layout and back, on a device that has layouts."""
        return self.classes.buffers.relaid if self.device.tile else ()

    def relayout_seconds(self, value_class: int, view: View) -> float:
        """Of copying a loop's values of a class to another layout and back."""
        sharding = self.sharding(value_class, view)
        local = self.local_shape(value_class, sharding)
        return relayout_seconds(local, self.bytes_in(value_class, sharding), self.device)

    def kernel_work(self, kernel_class: int, view: View) -> tuple[Work, float, float]:
        """What a kernel asks of each unit of the device, once; seconds and memory of moving its results."""
        matrix = vector = written = comm = extra = 0.0
        read: dict[int, float] = {}
        for block in self._kernel_blocks[kernel_class]:
            if view.fixed is None:
                part, _ = view.part(block.number, self._sets[block.number])
                found = block.known.get(part)
                if found is None:
                    found = block.known[part] = self._block_work(block, view)
            else:
                found = self._block_work(block, view)
            matrix += found.matrix_seconds
            vector += found.vector_ops
            comm += found.after_seconds
            extra += found.unmoved_bytes
            written += found.writes
            for number, size in found.reads:
                if size > read.get(number, 0.0):
                    read[number] = size
        return Work(matrix, vector, sum(read.values()) + written), comm, extra

    def _block_work(self, block: Block, view: View) -> BlockWork:
        matrix = vector = written = comm = extra = 0.0
        read: dict[int, float] = {}
        for o, operands, stores, copies in block.ops:
            price = self.op_price(o, view)
            matrix += price.matrix_seconds
            vector += price.vector_ops
            comm += price.after_seconds
            extra += price.unmoved_bytes
            for k, number in operands:
                size = price.reads[k]
                if size > read.get(number, 0.0):
                    read[number] = size
            if stores:
                written += price.writes
                if copies:
                    vector += 2 * SLICE_SLOTS * price.writes
        return BlockWork(matrix, vector, comm, extra, written, tuple(read.items()))

    def _blocks(self, kernel: KernelClass) -> list[Block]:
        blocks: dict[int, Block] = {}
        for o, operands, results in zip(kernel.ops, kernel.operands, kernel.results, strict=True):
            op, number = self.classes.op(o), self._op_sets[o]
            if op.rule.tensors:
                stored = tuple((k, n) for k, n in enumerate(operands) if n >= 0)
                found = KernelOp(o, stored, max(results, default=-1) >= 0, op.kind == "dynamic_slice")
                blocks.setdefault(number, Block(number, [], {})).ops.append(found)
        return list(blocks.values())

    def bound(self, work: Work) -> str:
        """What a kernel waits for."""
        parts = {
            "matrix": Work(work.matrix_seconds),
            "vector": Work(vector_ops=work.vector_ops),
            "memory": Work(memory_bytes=work.memory_bytes),
        }
        return max(parts, key=lambda name: kernel_seconds(parts[name], self.device))

    def _elements(self, values: tuple[int, ...], shardings: tuple[Sharding, ...]) -> float:
        most = 0.0
        for v, sharding in zip(values, shardings, strict=True):
            count = 1.0
            for size, axes in zip(self.classes.values.keys[v].shape, sharding, strict=True):
                count *= -(-size // self.mesh.ways(axes))
            most = max(most, count)
        return most

    def moves_seconds(self, moves: Iterable[Move]) -> float:
        """Of collectives, one after the other."""
        return sum(self.prices.move_seconds(move) for move in moves)

    # Points and families.

    def _points(self) -> Points:
        """Where memory is looked at."""
        classes = self.classes
        kinds, roots = [], []
        for k, members in enumerate(classes.kernel_classes.members):
            kinds += [k] * len(members)
            roots += members
        if not roots:  # nothing runs, but arguments are held all the same
            kinds, roots = [-1], [-1]
        at = np.array([classes.kernels.at[root] if root >= 0 else 0 for root in roots], np.int64)
        columns: dict[tuple[int, float], list[tuple[int, int]]] = {}
        for buffer in classes.buffers.temporary:
            columns.setdefault((classes.of_value[buffer.value], buffer.scale), []).append((buffer.start, buffer.end))
        counts = [coverage(at, *zip(*spans, strict=True)) for spans in columns.values()]
        left = extreme_points(at, kinds, counts)
        alive = {key: column[left] for key, column in zip(columns, counts, strict=True)}
        return Points(at[left], np.array(kinds)[left], alive)

    def _find_families(self) -> list[Family]:
        classes = self.classes
        value_groups = [frozenset((*c.groups, *c.kept)) - {-1} for c in classes.values.keys]
        op_groups = [
            (frozenset(c.groups) - {-1}).union(*(value_groups[v] for v in (*c.operands, *c.results)))
            for c in classes.ops.keys
        ]
        numbers: dict[frozenset[int], int] = {}
        self._value_sets = [numbers.setdefault(groups, len(numbers)) for groups in value_groups]
        self._op_sets = [numbers.setdefault(groups, len(numbers)) for groups in op_groups]
        self._sets = list(numbers)
        self._kernel_blocks = [self._blocks(kernel) for kernel in classes.kernel_classes.keys]
        families: dict[frozenset[int], Family] = {}

        def add(groups: frozenset[int], unit: Unit) -> None:
            families.setdefault(groups, Family(groups)).units.append(unit)

        held: dict[int, int] = {}
        for v in classes.buffers.held:
            held[classes.of_value[v]] = held.get(classes.of_value[v], 0) + 1
        everywhere = np.ones(len(self.at), np.int64)
        for c, count in held.items():
            add(value_groups[c], self._buffer_unit(c, 1.0, count * everywhere))
        for (c, scale), column in self.columns.items():
            add(value_groups[c], self._buffer_unit(c, scale, column))
        for v in self.relaid:
            add(value_groups[classes.of_value[v]], self._relayout_unit(classes.of_value[v]))
        for k, kernel in enumerate(classes.kernel_classes.keys):
            if not self._kernel_blocks[k]:
                continue
            add(frozenset().union(*(op_groups[o] for o in kernel.ops)), self._kernel_unit(k))
        for u, use in enumerate(classes.use_classes.keys):
            add(frozenset().union(*(op_groups[o] for o, _ in use.uses)), self._use_unit(u))
        for b, border in enumerate(classes.border_classes.keys):
            add(value_groups[border.before] | value_groups[border.after], self._border_unit(b))
        return list(families.values())

    def _buffer_unit(self, value_class: int, scale: float, column: Rows) -> Unit:
        def price(view: View) -> Part:
            size = self.bytes_in(value_class, self.sharding(value_class, view)) * scale
            return Part(0.0, 0.0, column * int(size))

        return price

    def _relayout_unit(self, value_class: int) -> Unit:
        def price(view: View) -> Part:
            return Part(self.relayout_seconds(value_class, view), 0.0, None)

        return price

    def _kernel_unit(self, kernel_class: int) -> Unit:
        """Work, the moves of results, and the memory of results before they are moved."""
        kernel = self.classes.kernel_classes.keys[kernel_class]
        count = len(self.classes.kernel_classes.members[kernel_class]) * kernel.repeats
        here = (self.kinds == kernel_class).astype(np.int64)

        def price(view: View) -> Part:
            work, comm, extra = self.kernel_work(kernel_class, view)
            compute = kernel_seconds(work, self.device) * count if any(work) else 0.0
            return Part(compute, comm * count, here * int(extra) if extra else None)

        return price

    def _unmoved_bytes(self, op_class: int, assignment: Assignment) -> float:
        """Memory of partial or wrongly sharded results until they have been moved; an all-reduce works in place."""
        c = self.classes.ops.keys[op_class]
        total = 0.0
        for v, sharding, moves in zip(c.results, assignment.results, assignment.after, strict=True):
            if any(move.kind != ALL_REDUCE for move in moves):
                total += self.bytes_in(v, sharding)
        return total

    def _use_unit(self, use_class: int) -> Unit:
        """A value brought to other shardings for its uses: each sharding once, kept from its first use to its last."""
        use = self.classes.use_classes.keys[use_class]
        members = self.classes.use_classes.members[use_class]
        count = len(members) * use.repeats
        columns: dict[tuple[int, ...], Rows] = {}

        def price(view: View) -> Part:
            comm = 0.0
            rows: Rows | None = None
            for want, (moves, which) in self.wanted(use_class, view).items():
                comm += self.moves_seconds(moves)
                column = columns.get(which)
                if column is None:
                    column = columns[which] = self._use_column(members, which)
                added = column * int(self.bytes_in(use.value, want))
                rows = added if rows is None else rows + added
            return Part(0.0, comm * count, rows)

        return price

    def wanted(self, use_class: int, view: View) -> dict[Sharding, tuple[tuple[Move, ...], tuple[int, ...]]]:
        """The shardings that a value has to be brought to: by which moves, and for which of its uses."""
        use = self.classes.use_classes.keys[use_class]
        found: dict[Sharding, tuple[tuple[Move, ...], tuple[int, ...]]] = {}
        for k, (o, operand) in enumerate(use.uses):
            a = self.assignment(o, view)
            moves = a.before[operand]
            if moves:
                want = a.operands[operand]
                found[want] = (found[want][0], (*found[want][1], k)) if want in found else (moves, (k,))
        return found

    def _use_column(self, members: list[int], which: tuple[int, ...]) -> Rows:
        return coverage(self.at, *zip(*(self.use_span(m, which) for m in members), strict=True))

    def use_span(self, member: int, which: tuple[int, ...]) -> tuple[int, int]:
        """From when to when a value is there for these of its uses."""
        kernels = self.classes.kernels
        ops = [self.classes.uses[member][1][k][0] for k in which]
        return min(kernels.at[o] for o in ops), max(kernels.last[o] for o in ops)

    def _border_unit(self, border_class: int) -> Unit:
        border = self.classes.border_classes.keys[border_class]
        count = len(self.classes.border_classes.members[border_class]) * border.repeats
        c = self.classes.values.keys[border.before]

        def price(view: View) -> Part:
            before, after = self.sharding(border.before, view), self.sharding(border.after, view)
            if before == after:
                return Part(0.0, 0.0, None)
            size = stored_bytes(c.shape, c.dtype, None) * moved_padding(c.shape, before, after, self.mesh)
            return Part(0.0, count * self.moves_seconds(reshard(size, before, after, self.mesh)), None)

        return price


def _differing_groups(old: tuple[Entry, ...], new: tuple[Entry, ...]) -> set[int]:
    """Groups whose entry, or whose place among the others, is not the same in both lists."""
    first = 0
    while first < min(len(old), len(new)) and old[first] == new[first]:
        first += 1
    last = 0
    while last < min(len(old), len(new)) - first and old[-1 - last] == new[-1 - last]:
        last += 1
    ends = len(old) - last, len(new) - last
    return {entry.group for entry in (*old[first : ends[0]], *new[first : ends[1]])}
