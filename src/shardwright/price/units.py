"""Units and families: what adds up to the cost of a state.

A *unit* is a class of kernels, values, uses or borders of a program on a mesh, with what it adds to the cost. Its part
is remembered by what it is made of, prices of ops or numbers of shardings, and not by the state.

A *family* are the units that see the same groups of a state. It remembers its sum for every part of a state that it has
met. Parts of states that differ often come to the same parts of units, so the sum is remembered by these as well.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from shardwright._memo import Memo, Numbers
from shardwright.compiler.fusing import COPIED_SLICES
from shardwright.compiler.overlapping import LOOPED_BESIDE, started_early
from shardwright.compiler.storing import LATE_SUMS
from shardwright.ir.kinds import CONTRACTIONS, REDUCING, SAME_ENTRIES
from shardwright.ir.memory import HOST, moved_to, moves_between
from shardwright.ir.move_terms import summed
from shardwright.ir.program import Source, bits_of
from shardwright.price.added import reduced_together
from shardwright.price.buffers import AS_IT_LIES, Buffer, Form
from shardwright.price.class_prices import KernelWork, KernelWorks, OpPrice, OpPrices, Seen, Tensors, View
from shardwright.price.collectives import Move, reshard
from shardwright.price.compute import Work, kernel_seconds, relayout_seconds, tiled_copy_seconds
from shardwright.price.corrections import COMPUTE as COMPUTED
from shardwright.price.corrections import COPIES, NONE, OPERANDS, SUMS, Corrections, heaviest
from shardwright.price.gathered import Laid, LaidWork, laid_work
from shardwright.price.layout import stored_bytes
from shardwright.price.overlap import Lane, Overlap, picoseconds
from shardwright.price.prices import DevicePrices
from shardwright.price.program_classes import Classes, Counts, Points, coverage
from shardwright.price.relaid import Relaid
from shardwright.price.stacked import Stacked
from shardwright.price.transfers import COMPUTE, TO_DEVICE, TO_HOST, Seconds, Transfers, host_rate
from shardwright.price.uneven import moved_padding
from shardwright.space.state import Sharding, Subject, without

ATTOSECOND = 1e-18

Rows = Counts
"""Bytes at each point of the program."""
Wanted = dict[Sharding, tuple[tuple[Move, ...], tuple[int, ...]]]
"""The shardings that a value has to be brought to: by which moves, and for which of its uses."""


class Late(NamedTuple):
    """A value that is kept for some of its uses, by number, longer than the program's order asks for."""

    which: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """What a unit adds to a cost; ``held`` are numbers of tensors at each point and the bytes of one of them.

    ``on_host`` are the same of tensors in the host's memory. ``beside`` is what runs at the same time in each place
    where values are moved between the two: see ``price/transfers.py``. ``hidden_seconds`` of the communication run
    beside the unit's own compute; ``lane`` are columns and picoseconds of what may run beside that of others: see
    ``price/overlap.py``. It equals nothing but itself, so that sums can be remembered by what they are made of.
    """

    compute_seconds: float = 0.0
    comm_seconds: float = 0.0
    held: tuple[tuple[Counts, int], ...] = ()
    on_host: tuple[tuple[Counts, int], ...] = ()
    beside: Seconds | None = None
    hidden_seconds: float = 0.0
    lane: tuple[tuple[Lane, int], ...] = ()


NO_PART = Part()


class Unit(NamedTuple):
    """``parts[key(view)]`` is what a class, or several that are asked together, adds to the cost of a state."""

    key: Callable[[View], Any]
    parts: Memo[Any, Part]
    classes: int = 1


class Piece(NamedTuple):
    """Numbers along a row that is nothing before and after them."""

    span: slice
    numbers: Rows


SHORT = 512
"""Of a row: to find out where in it is something does not pay."""


@dataclass(frozen=True, eq=False, slots=True)
class FamilyPart:
    """What a family adds to a cost.

    Its row are bytes at each point, beside those ``everywhere``, and then a lane's picoseconds. Rows are added up for
    every state, and in a long program most families hold bytes for a small part of it, or all the time: of a long row,
    ``pieces`` are what is something. ``row`` is a short one, None where that is nothing. ``compute``, ``comm`` and
    ``hidden`` are whole numbers of attoseconds, so that a sum does not depend on the order in which it came about.
    """

    compute: int
    comm: int
    hidden: int
    everywhere: int
    row: Rows | None
    pieces: tuple[Piece, ...]
    host_rows: Rows | None = None
    beside: Seconds | None = None


@dataclass
class Family:
    """Units that see the same groups of a state; ``number`` is that of the set of groups."""

    groups: frozenset[Subject]
    number: int
    units: list[Unit] = field(default_factory=list)
    known: dict[Seen, FamilyPart] = field(default_factory=dict)
    sums: Memo[tuple[Part, ...], FamilyPart] = field(init=False)
    points: int = 0
    lane_size: int = 0

    def __post_init__(self) -> None:
        self.sums = Memo(partial(_sum, self.points, self.lane_size))

    def add_up(self, view: View) -> FamilyPart:
        """The family's part of the cost."""
        return self.sums[tuple([parts[key(view)] for key, parts, _ in self.units])]

    @cached_property
    def classes(self) -> int:
        """How many classes it is made of."""
        return sum(unit.classes for unit in self.units)

    def forget(self) -> None:
        """Give back memory."""
        self.known.clear()
        self.sums.clear()


def find_families(
    units: Iterable[tuple[Iterable[Subject], Unit]], sets: Numbers[frozenset[Subject]], points: int, lane_size: int
) -> list[Family]:
    """Units by the groups that they see; new sets of groups are numbered with those that there are."""
    found: dict[frozenset[Subject], Family] = {}
    for seen, unit in units:
        groups = frozenset(seen)
        if groups not in found:
            found[groups] = Family(groups, sets[groups], points=points, lane_size=lane_size)
        found[groups].units.append(unit)
    return list(found.values())


def _parts_together(kernels: Sequence[Memo[KernelWork, Part]], works: tuple[KernelWork, ...]) -> Part:
    """What several classes of kernels add to a cost."""
    parts = [known[work] for known, work in zip(kernels, works, strict=True)]
    if len(parts) == 1:
        return parts[0]
    return Part(
        sum([part.compute_seconds for part in parts]),
        sum([part.comm_seconds for part in parts]),
        tuple([held for part in parts for held in part.held]),
        tuple([held for part in parts for held in part.on_host]),
        added_beside(parts),
        sum([part.hidden_seconds for part in parts]),
        tuple([column for part in parts for column in part.lane]),
    )


def _sum(points: int, lane_size: int, parts: Sequence[Part]) -> FamilyPart:
    compute = comm = hidden = 0.0
    row = np.zeros(points + lane_size, np.int64)
    held, lane, empty = row[:points], row[points:], True
    host_rows: Rows | None = None
    beside: Seconds | None = None
    for part in parts:
        compute += part.compute_seconds
        comm += part.comm_seconds
        hidden += part.hidden_seconds
        for column, each in part.lane:
            lane += column * each
            empty = False
        for counts, size in part.held:
            if size:
                held += counts * size
                empty = False
        for counts, size in part.on_host:
            host_rows = counts * size if host_rows is None else host_rows + counts * size
        if part.beside is not None:
            beside = part.beside if beside is None else beside + part.beside
    times = _whole(compute), _whole(comm), _whole(hidden)
    if empty or len(row) <= SHORT:
        return FamilyPart(*times, 0, None if empty else row, (), host_rows, beside)
    return FamilyPart(*times, *_pieces(row, points), host_rows, beside)


def _pieces(row: Rows, points: int) -> tuple[int, None, tuple[Piece, ...]]:
    """The bytes at all points, and the pieces of a row in which is more."""
    everywhere = int(row[:points].min())
    row[:points] -= everywhere
    found = []
    for first, numbers in ((0, row[:points]), (points, row[points:])):
        where = numbers.nonzero()[0]
        if len(where):
            span = slice(first + int(where[0]), first + int(where[-1]) + 1)
            found.append(Piece(span, row[span].copy()))
    return everywhere, None, tuple(found)


def _whole(seconds: float) -> int:
    return round(seconds / ATTOSECOND)


def total_row(parts: Iterable[FamilyPart], size: int) -> Rows:
    """The sum of all families' rows, but for what they have everywhere."""
    total = np.zeros(size, np.int64)
    for part in parts:
        if part.row is not None:
            total += part.row
        for piece in part.pieces:
            total[piece.span] += piece.numbers
    return total


def total_times(parts: Sequence[FamilyPart]) -> tuple[int, int, int]:
    """Compute, communication, and what of it runs beside the ops' own work, of all families, in attoseconds."""
    return sum(p.compute for p in parts), sum(p.comm for p in parts), sum(p.hidden for p in parts)


def most_on_host(parts: Iterable[FamilyPart]) -> int:
    """The most bytes that all families hold in the host's memory at a point."""
    found = [part.host_rows for part in parts if part.host_rows is not None]
    return int(np.sum(found, axis=0).max()) if found else 0


def added_beside(parts: Iterable[Part | FamilyPart]) -> Seconds | None:
    """What runs at the same time in each place where values are moved to the host or back; None if there is none."""
    found = [part.beside for part in parts if part.beside is not None]
    return np.sum(found, axis=0) if found else None


class Units:
    """Makes the units of a program on a mesh of devices."""

    def __init__(
        self,
        classes: Classes,
        points: Points,
        tensors: Tensors,
        ops: OpPrices,
        kernels: KernelWorks,
        on: DevicePrices,
        overlap: Overlap | None = None,
        corrections: Corrections = NONE,
    ) -> None:
        self.corrections = corrections
        self.classes, self.points, self.tensors, self.ops = classes, points, tensors, ops
        self.kernels, self.on = kernels, on
        self.overlap = overlap
        """What the compiler starts ahead of its use, if it does; what is started ahead is ``self.early``."""
        self.early = started_early(on.device.compiler) if overlap is not None else frozenset()
        self.looped = on.device.compiler[LOOPED_BESIDE]
        self.transfers = Transfers(classes.program)
        self.relaid: tuple[Relaid, ...] = classes.buffers.relaid if on.device.tile else ()
        """Results of loops that may be copied to another layout and back, on a device that has layouts."""
        self.laid: tuple[Laid, ...] = classes.buffers.laid if on.device.tile else ()
        """What is laid out anew for gathers and scatters, on a device that has layouts."""
        self.stacked: tuple[Stacked, ...] = classes.buffers.stacked if on.device.tile else ()
        """Slices of stacks that loops write to and stack again, on a device that has layouts."""
        self.given_back = tuple([v for v in classes.buffers.given_back if v not in {s.value for s in self.stacked}])
        """Other results of loops that are copied to donated arguments."""
        self._uses = [ops.among([o for o, _ in use.uses]) for use in classes.use_classes.keys]
        late = on.device.compiler[LATE_SUMS]
        self._gradients = [self._gradient_uses(u) if late else () for u in range(len(classes.use_classes.keys))]
        self._last_products = self._find_last_products() if late else {}
        self._barriers: dict[int, list[int]] = defaultdict(list)
        for o, op in enumerate(classes.program.ops):
            if op.kind == "optimization_barrier":
                self._barriers[op.region].append(o)

    def _gradient_uses(self, use_class: int) -> tuple[int, ...]:
        """Which uses of the values of a class are products that no other product waits for."""
        program = self.classes.program
        uses = self.classes.uses[self.classes.use_classes.members[use_class][0]][1]
        found = [(k, program.ops[o]) for k, (o, _) in enumerate(uses)]
        return tuple([k for k, op in found if op.kind in CONTRACTIONS and not program.awaited[op.results[0]]])

    def _find_last_products(self) -> dict[int, int]:
        """Where in each region the last product runs that another one waits for."""
        program, at = self.classes.program, self.classes.kernels.at
        last: dict[int, int] = {}
        for o, op in enumerate(program.ops):
            if op.kind in CONTRACTIONS and program.awaited[op.results[0]]:
                region, position = op.region, at[o]
                last[region] = max(last.get(region, 0), position)
                while (loop := program.regions[region].op) >= 0:  # outside, what is in a loop runs until its end
                    position, region = program.regions[region].stop, program.ops[loop].region
                    last[region] = max(last.get(region, 0), position)
        return defaultdict(lambda: -1, last)

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
        for relaid in self.relaid:
            made = of_op[classes.of_op[relaid.maker]] if relaid.maker >= 0 else frozenset()
            yield of_class[classes.of_value[relaid.value]] | made, self._relayout(relaid)
        for laid in self.laid:
            yield of_op[classes.of_op[laid.op]], self._laid(laid)
        for stacked in self.stacked:
            own = [of_op[o] for k in self._kernels_of(stacked) for o in classes.kernel_classes.keys[k].ops]
            lies = of_class[classes.of_value[stacked.slab]] | of_class[classes.of_value[stacked.value]]
            yield lies.union(*own), self._stacked(stacked)
        for v in self.given_back:
            yield of_class[classes.of_value[v]], self._given_back(v)
        seeing: dict[frozenset[Subject], list[int]] = {}
        for k, kernel in enumerate(classes.kernel_classes.keys):
            if self.kernels.works(k):
                seeing.setdefault(frozenset[Subject]().union(*[of_op[o] for o in kernel.ops]), []).append(k)
            if self.transfers and moves_between(classes.program, classes.kernel_classes.members[k][0]):
                yield of_op[kernel.ops[-1]], self._transfer(k)
        for groups, kernels in seeing.items():
            yield groups, self._kernels(kernels)
        for u, use in enumerate(classes.use_classes.keys):
            yield chain.from_iterable([of_op[o] for o, _ in use.uses]), self._use(u)
        for a, addition in enumerate(classes.addition_classes.keys):
            yield chain.from_iterable([of_op[o] for o in summed(addition.ops)]), self._addition(a)
        for b, border in enumerate(classes.border_classes.keys):
            yield of_class[border.before] | of_class[border.after], self._border(b)

    # Buffers.

    def _buffer(self, value_class: int, form: Form, column: Counts) -> Unit:
        """The memory of the buffers of a class, and the seconds of those that are converted copies."""
        tensors, on_host = self.tensors, self.classes.values.keys[value_class].on_host
        made = self._converted.get((value_class, form), 0)

        def part(number: int) -> Part:
            sharding = tensors.shardings[number]
            size = int(tensors.held_bytes(value_class, sharding, form))
            if on_host:
                return Part(on_host=((column, size),))
            compute = made * self.converted_seconds(value_class, form, sharding) if made else 0.0
            return Part(compute, held=((column, size),))

        return Unit(partial(tensors.number, value_class), Memo(part))

    @cached_property
    def _converted(self) -> dict[tuple[int, Form], int]:
        """How many stacks of a class are converted before a loop: see ``compiler.fusing.COPIED_SLICES``."""
        copied = self.on.device.compiler[COPIED_SLICES]
        found = [(self.classes.of_value[b.value], b.form) for b in self.converted] if copied else []
        return {key: found.count(key) for key in found}

    @cached_property
    def converted(self) -> tuple[Buffer, ...]:
        """The copies of stacks in a narrower type."""
        return tuple([b for b in self.classes.buffers.temporary if b.form.scale < 1.0])

    def converted_seconds(self, value_class: int, form: Form, sharding: Sharding) -> float:
        """Of converting a device's part of a stack, an op that the compiler runs by itself."""
        device, size = self.on.device, self.tensors.bytes_in(value_class, sharding)
        entries, costs = 8 * size / bits_of(self.classes.values.keys[value_class].dtype), device.kernel_costs
        slots = (costs.entry_slots + costs.alone_slots) * entries + costs.read_slots * size
        return kernel_seconds(Work(0.0, slots + costs.pack_slots * size * form.scale, size * (1 + form.scale)), device)

    # Values that are laid out anew.

    def _relayout(self, relaid: Relaid) -> Unit:
        """A loop's value that is copied to another layout and back."""
        column = coverage(self.points.at, [relaid.start], [relaid.end]) if relaid.start >= 0 else None
        factor = self.corrections.factor(COPIES)

        def part(key: tuple[Sharding, bool]) -> Part:
            work = self._relaid_work(relaid, *key)
            held = ((column, int(work.copy_bytes)),) if column is not None and work.copy_bytes else ()
            return Part(factor * work.seconds, 0.0, held) if work.seconds or held else NO_PART

        return Unit(partial(self._relaid_key, relaid), Memo(part))

    def relaid_work(self, relaid: Relaid, view: View) -> LaidWork:
        """What copying a loop's value to another layout and back takes; nothing where it lies so anyway."""
        return self._relaid_work(relaid, *self._relaid_key(relaid, view))

    def _relaid_key(self, relaid: Relaid, view: View) -> tuple[Sharding, bool]:
        """How such a value lies, and whether what is written to it comes out of a collective."""
        maker = relaid.maker
        moved = maker >= 0 and any(self.ops.price(self.classes.of_op[maker], view).assignment.after)
        return self.tensors.sharding(self.classes.of_value[relaid.value], view), moved

    def _relaid_work(self, relaid: Relaid, sharding: Sharding, moved: bool) -> LaidWork:
        c = self.classes.of_value[relaid.value]
        local = self.tensors.local_shape(c, sharding)
        if not relaid.is_copied(local, moved=moved):
            return LaidWork()
        size = self.tensors.bytes_in(c, sharding)
        return LaidWork(relayout_seconds(local, size, self.on.device), size if relaid.start >= 0 else 0.0)

    def _stacked(self, stacked: Stacked) -> Unit:
        """Slices of a stack that are copied in each turn of a loop, beyond what its kernels take, and the stack."""
        column = coverage(self.points.at, [stacked.start], [stacked.end])

        def part(work: LaidWork) -> Part:
            held = ((column, int(work.copy_bytes)),) if work.copy_bytes else ()
            return Part(work.seconds, 0.0, held) if work.seconds or held else NO_PART

        return Unit(partial(self.stacked_work, stacked), Memo(part))

    def stacked_work(self, stacked: Stacked, view: View) -> LaidWork:
        """What slices of a stack and the stack take to be copied, all turns together, beyond the kernels of the ops."""
        classes, tensors, device = self.classes, self.tensors, self.on.device
        slab, stack = classes.of_value[stacked.slab], classes.of_value[stacked.value]
        sharding = tensors.sharding(slab, view)
        local, size = tensors.local_shape(slab, sharding), tensors.bytes_in(slab, sharding)
        turned = stacked.turned(local, classes.values.keys[slab].shape)
        seconds = tiled_copy_seconds(turned.cut_rows, size, device) + tiled_copy_seconds(turned.put_rows, size, device)
        if turned.between:
            seconds += tiled_copy_seconds(1, size, device)
        found = [self.kernels.of(k, view) for k in self._kernels_of(stacked)]
        more = max(seconds - sum([work.seconds(device) + work.copy_seconds for work in found]), 0.0)
        more *= float(classes.program.repeats[stacked.put])
        whole = tensors.bytes_in(stack, tensors.sharding(stack, view))
        if turned.before:  # a donated argument is free then, and the loop fills it
            copy_bytes = 0.0 if stacked.given_back else whole
            return LaidWork(more + tiled_copy_seconds(turned.cut_rows, whole, device), copy_bytes)
        return LaidWork(more + (tiled_copy_seconds(turned.put_rows, whole, device) if stacked.given_back else 0.0))

    def _kernels_of(self, stacked: Stacked) -> tuple[int, ...]:
        """The classes of the kernels that take a slice out of its stack and bring it to the other one."""
        root = self.classes.kernels.root
        return tuple([self._class_of_kernel[root[o]] for o in (stacked.cut, stacked.put)])

    @cached_property
    def _class_of_kernel(self) -> dict[int, int]:
        return {root: k for k, members in enumerate(self.classes.kernel_classes.members) for root in members}

    def _given_back(self, v: int) -> Unit:
        """A loop's result that is copied to a donated argument."""
        c = self.classes.of_value[v]

        def part(sharding: Sharding) -> Part:
            return Part(self.given_back_seconds(c, sharding))

        return Unit(partial(self.tensors.sharding, c), Memo(part))

    def given_back_seconds(self, value_class: int, sharding: Sharding) -> float:
        """Of a copy of a device's part of a value to memory in which it lies alike."""
        local, size = self.tensors.local_shape(value_class, sharding), self.tensors.bytes_in(value_class, sharding)
        device = self.on.device
        if not device.tile:
            return kernel_seconds(Work(memory_bytes=2 * size), device)
        return tiled_copy_seconds(local[-2] if len(local) > 1 else 1, size, device)

    def _laid(self, laid: Laid) -> Unit:
        """A value that is laid out anew for a gather or a scatter."""
        repeats = int(self.classes.program.repeats[laid.op])
        column = coverage(self.points.at, *zip(self.laid_span(laid), strict=True)) if laid.made >= 0 else None

        def part(shardings: tuple[Sharding, Sharding]) -> Part:
            work = self._laid_work(laid, *shardings)
            held = ((column, int(work.copy_bytes)),) if column is not None and work.copy_bytes else ()
            return Part(repeats * work.seconds, 0.0, held)

        return Unit(partial(self._laid_shardings, laid), Memo(part))

    def laid_work(self, laid: Laid, view: View) -> LaidWork:
        """What laying a value out anew for a gather or a scatter takes, once."""
        return self._laid_work(laid, *self._laid_shardings(laid, view))

    def laid_span(self, laid: Laid) -> tuple[int, int]:
        """The positions from and up to which the copy of such a value is there."""
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

    # Kernels.

    def _kernels(self, kernel_classes: Sequence[int]) -> Unit:
        """Kernels that see the same groups; they have many ops in common, as what is computed again is in several."""
        shares, works = self.kernels.among(kernel_classes)
        parts = [self._kernel(k) for k in kernel_classes]
        by_works = Memo(partial(_parts_together, parts))
        return Unit(shares, Memo(lambda found: by_works[works(found)]), len(kernel_classes))

    def _kernel(self, kernel_class: int) -> Memo[KernelWork, Part]:
        """Work, the moves of results, and the memory of results before they are moved."""
        kernel = self.classes.kernel_classes.keys[kernel_class]
        count = len(self.classes.kernel_classes.members[kernel_class]) * kernel.repeats
        here = (self.points.kinds == kernel_class).astype(np.int64)
        device, transfers, places = self.on.device, self.transfers, self._places(kernel_class)
        members = self.classes.kernel_classes.members[kernel_class]
        column = self.overlap.of_kernels(members) if self.overlap is not None else None
        lines = [self._line(root) for root in members] if self.corrections else []
        factor = self.corrections.factor(COMPUTED, lines)
        added = [line for root in members for line in self._summing_lines(root)] if self.corrections else []
        moving, more = self.corrections.factor(SUMS, added), self.corrections.hidden_part(SUMS, added)

        def part(found: KernelWork) -> Part:
            compute = factor * found.seconds(device) + found.copy_seconds
            held = ((here, int(found.unmoved_bytes)),) if found.unmoved_bytes else ()
            beside = transfers.beside(places, COMPUTE, compute)
            comm = moving * found.comm_seconds
            hidden = (found.looped_seconds if self.looped else 0.0) + more * comm
            lane = ((column, picoseconds(compute)),) if column is not None and compute else ()
            return Part(compute * count, comm * count, held, (), beside, hidden * count, lane)

        return Memo(part)

    def _line(self, root: int) -> Source:
        """The place in the source that a kernel belongs to."""
        program = self.classes.program
        return program.ops[heaviest(program, self.classes.ops_of_kernel[root], root)].source

    def _summing_lines(self, root: int) -> list[Source]:
        """The places of the ops of a kernel whose results may be partial sums; the kernel's own if there are none."""
        ops = [self.classes.program.ops[o] for o in self.classes.ops_of_kernel[root]]
        found = [op.source for op in ops if op.kind in CONTRACTIONS or op.kind in REDUCING]
        return found or [self._line(root)]

    def _places(self, kernel_class: int) -> Seconds | None:
        """How often the kernels of a class run in each place where values are moved to the host or back."""
        kernels = self.classes.kernel_classes
        counts = self.transfers.counts(kernels.members[kernel_class])
        return None if counts is None else counts * kernels.keys[kernel_class].repeats

    def _transfer(self, kernel_class: int) -> Unit:
        """A value that is moved to the host or back."""
        op = self.classes.op(self.classes.kernel_classes.keys[kernel_class].ops[-1])
        rate = host_rate(self.on.device.host_bytes_per_second, self.on.device.name)
        way, places = TO_HOST if moved_to(op) == HOST else TO_DEVICE, self._places(kernel_class)

        def part(size: float) -> Part:
            return Part(beside=self.transfers.beside(places, way, size / rate))

        return Unit(partial(self.transfer_bytes, kernel_class), Memo(part))

    def transfer_bytes(self, kernel_class: int, view: View) -> float:
        """What a device moves to its host or back, once."""
        moved = self.classes.ops.keys[self.classes.kernel_classes.keys[kernel_class].ops[-1]].results[0]
        return self.tensors.bytes_in(moved, self.tensors.sharding(moved, view))

    # Values that are moved between devices.

    def _use(self, use_class: int) -> Unit:
        """A value brought to other shardings for its uses: each sharding once, kept from its first use to its last."""
        use, members = self.classes.use_classes.keys[use_class], self.classes.use_classes.members[use_class]
        count = len(members) * use.repeats

        def column(key: tuple[tuple[int, ...], bool]) -> Counts:
            spans = [self.use_span(m, *key) for m in members]
            return coverage(self.points.at, *zip(*spans, strict=True))

        columns = Memo(column)
        gathers = Memo(partial(self._gathers, members))
        users = [self.classes.uses[m][1][0][0] for m in members] if self.corrections else []
        lines = [self.classes.program.ops[o].source for o in users]
        factor, more = self.corrections.factor(OPERANDS, lines), self.corrections.hidden_part(OPERANDS, lines)

        def late_column(which: tuple[int, ...]) -> Counts:
            spans = [span for m in members if (span := self.late_span(m, which))]
            return coverage(self.points.at, *zip(*spans, strict=True)) if spans else np.zeros(len(self.points.at), int)

        late_columns = Memo(late_column)

        def part(prices: tuple[OpPrice, ...]) -> Part:
            comm, copies, held, lane = 0.0, 0.0, [], []
            for want, (moves, which) in self._wanted(use_class, prices).items():
                seconds = factor * self.moves_seconds(moves)
                comm += seconds
                copies += self.copies_seconds(moves)
                early = self.starts_early(moves)
                held.append((columns[which, early], int(self.copy_bytes(use_class, want, which))))
                if early and (beside := gathers[which]) is not None:
                    lane.append((beside, picoseconds(seconds)))
            if (late := self._kept_late(use_class, prices)) is not None:
                held.append((late_columns[late.which], late.bytes))
            hidden = more * comm * count
            return Part(copies * count, comm * count, tuple(held), (), None, hidden, tuple(lane)) if held else NO_PART

        return Unit(partial(self.ops.prices, self._uses[use_class]), Memo(part))

    def starts_early(self, moves: Iterable[Move]) -> bool:
        """Whether the compiler starts moves ahead of where their result is used."""
        return bool(self.early) and all(move.kind in self.early for move in moves)

    def _gathers(self, members: Sequence[int], which: tuple[int, ...]) -> Lane | None:
        """The column of values of a class that are moved for these of their uses."""
        if self.overlap is None:
            return None
        uses = [self.classes.uses[m] for m in members]
        return self.overlap.of_gathers([(value, [every[k][0] for k in which]) for value, every in uses])

    def copy_bytes(self, use_class: int, want: Sharding, which: tuple[int, ...]) -> float:
        """The bytes of a value that was brought to another sharding for these of its uses."""
        use, ops = self.classes.use_classes.keys[use_class], self.classes.ops.keys
        c = self.classes.values.keys[use.value]
        rounds = not c.kept_as and all(ops[use.uses[k][0]].terms.rounds for k in which)
        return self.tensors.bytes_in(use.value, want) * (self.on.rounding(c.dtype) if rounds else 1.0)

    def wanted(self, use_class: int, view: View) -> Wanted:
        """How a value has to be brought to other shardings for its uses."""
        return self._wanted(use_class, self.ops.prices(self._uses[use_class], view))

    def _wanted(self, use_class: int, prices: tuple[OpPrice, ...]) -> Wanted:
        found: Wanted = {}
        uses = self.classes.use_classes.keys[use_class].uses
        for k, ((_, operand), price) in enumerate(zip(uses, prices, strict=True)):
            a = price.assignment
            moves = a.before[operand]
            if moves:
                want = a.operands[operand]
                found[want] = (found[want][0], (*found[want][1], k)) if want in found else (moves, (k,))
        return found

    def kept_late(self, use_class: int, view: View) -> Late | None:
        """For which of its uses a value is kept until the end of its region, and its bytes then; None for none."""
        return self._kept_late(use_class, self.ops.prices(self._uses[use_class], view))

    def _kept_late(self, use_class: int, prices: tuple[OpPrice, ...]) -> Late | None:
        which = tuple([k for k in self._gradients[use_class] if prices[k].assignment.loop_seconds])
        if not which:
            return None
        operand = self.classes.use_classes.keys[use_class].uses[which[0]][1]
        lies = prices[which[0]].assignment.operands[operand]
        return Late(which, int(self.copy_bytes(use_class, lies, which)))

    def late_span(self, member: int, which: tuple[int, ...]) -> tuple[int, int] | None:
        """The positions for which a value is kept longer than the program's order asks for; None for none."""
        program, kernels = self.classes.program, self.classes.kernels
        v, uses = self.classes.uses[member]
        if self._is_computed_inside(v):
            start = min(kernels.at[o] for o, _ in uses)
        else:
            start = max(kernels.last[u] for u in program.users[v]) + 1
        region = program.ops[uses[which[0]][0]].region
        barriers = self._barriers[region]
        following = bisect_left(barriers, start)
        end = min(self._last_products[region], *barriers[following : following + 1], start + len(program.ops))
        return (start, end) if start <= end else None

    def _is_computed_inside(self, v: int) -> bool:
        """Whether a value is computed in the kernels that read it, and not only read there in another form."""
        program, stored = self.classes.program, self.classes.kernels.stored
        while not stored[v] and (o := program.values[v].op) >= 0 and program.ops[o].kind in SAME_ENTRIES:
            v = program.ops[o].operands[0]
        return not stored[v]

    def use_span(self, member: int, which: tuple[int, ...], early: bool) -> tuple[int, int]:
        """The positions from and up to which a value is there for these of its uses.

        What is started ``early`` has its memory from then on.
        """
        kernels = self.classes.kernels
        value, uses = self.classes.uses[member]
        ops = [uses[k][0] for k in which]
        first = min(ops, key=kernels.at.__getitem__)
        start = self.overlap.started(value, first) if early and self.overlap is not None else None
        return kernels.at[first] if start is None else start, max(kernels.last[o] for o in ops)

    def _addition(self, addition_class: int) -> Unit:
        """Sums that are added up and were taken to be reduced at once: what it takes more where they are not."""
        addition = self.classes.addition_classes.keys[addition_class]
        count = len(self.classes.addition_classes.members[addition_class]) * addition.repeats

        def part(prices: tuple[OpPrice, ...]) -> Part:
            taken = [price.assignment.after[0] for price in prices]
            found = reduced_together(addition.ops, taken)
            if found == taken:
                return NO_PART
            more = sum(self.moves_seconds(moves) for moves in found) - sum(self.moves_seconds(moves) for moves in taken)
            return Part(0.0, more * count)

        return Unit(partial(self.ops.prices, self.ops.among(summed(addition.ops))), Memo(part))

    def _border(self, border_class: int) -> Unit:
        """A value that lies differently inside of a loop, a branch, a barrier or a manual region."""
        border = self.classes.border_classes.keys[border_class]
        count = len(self.classes.border_classes.members[border_class]) * border.repeats
        c, tensors, mesh = self.classes.values.keys[border.inside], self.tensors, self.tensors.mesh
        manual = mesh.numbers(border.manual)

        def key(view: View) -> tuple[int, int]:
            return tensors.number(border.before, view), tensors.number(border.after, view)

        def part(numbers: tuple[int, int]) -> Part:
            if numbers[0] == numbers[1]:
                return NO_PART
            before, after = (without(tensors.shardings[n], manual) for n in numbers)
            size = stored_bytes(c.shape, c.dtype, None) * moved_padding(c.shape, before, after, mesh)
            moves = reshard(size, before, after, mesh)
            return Part(count * self.copies_seconds(moves), count * self.moves_seconds(moves))

        return Unit(key, Memo(part))

    def moves_seconds(self, moves: Iterable[Move]) -> float:
        """The seconds of collectives on their links, one after the other."""
        return sum(self.on.link_seconds(move) for move in moves)

    def copies_seconds(self, moves: Iterable[Move]) -> float:
        """The seconds of copies that bring what was moved into place."""
        return sum(self.on.copy_seconds(move) for move in moves)
