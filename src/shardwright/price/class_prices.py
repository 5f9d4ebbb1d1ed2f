"""Classes in a state: how their values lie, how their ops run, and what their kernels ask of a device.

What a class is and costs in a state depends only on the entries of the state's lists that are about its groups, or that
keep its values whole. So a state is looked at as a ``View``: for every set of groups that some class has, the part of
each list that it sees, by a number. Prices are remembered by these numbers, and beneath that by what they are made of,
shardings and the factors that may be split, in which states that look different often agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import NamedTuple

from shardwright._memo import Memo, Numbers
from shardwright.compiler.fusing import CUT_BY_MOVES
from shardwright.devices import Device, KernelCosts
from shardwright.ir.kinds import CONTRACTIONS, MOVES_DATA, PRODUCTS, REDUCING
from shardwright.ir.move_terms import MoveTerms
from shardwright.ir.program import bits_of
from shardwright.price.assign import Assigner, Assignment, OpProblem
from shardwright.price.buffers import Form
from shardwright.price.collectives import ALL_REDUCE
from shardwright.price.compute import (
    Work,
    depthwise_slots,
    entries,
    function_work,
    kernel_seconds,
    kernel_work,
    matrix_seconds,
    product_work,
    traffic,
    vector_ops,
)
from shardwright.price.layout import row_bytes, stored_bytes
from shardwright.price.program_classes import Classes, KernelClass, ValueClass
from shardwright.price.shardings import Bounds, fixed_on, shard_value
from shardwright.price.ways import Allowed, Choices, Split
from shardwright.request import MeshShape
from shardwright.space.state import AnyEntry, Entry, Lists, Sharding, Subject

Seen = tuple[int, ...]
"""What a set of groups sees of a state: for each axis the number of its part of the list."""

_EVERY_GROUP = -1
_WORD_BITS = 32


class View(NamedTuple):
    """A state: ``seen[number]`` is what a set of groups sees of it, ``groups`` are those on each list as bits.

    ``fixed`` are the shardings of all classes of values where no state gives them; an op may then use every group.
    """

    lists: Lists
    seen: Sequence[Seen]
    groups: Sequence[int]
    fixed: Sequence[Sharding] | None = None

    def of_shardings(self, shardings: Sequence[Sharding]) -> View:
        """The view with shardings in place of what the state gives, one for each class of values."""
        return self._replace(groups=[_EVERY_GROUP] * len(self.lists), fixed=shardings)


class Projections:
    """Makes views of states, for some sets of groups. Equal parts of lists have equal numbers, the empty part 0."""

    def __init__(self, sets: Sequence[frozenset[Subject]]) -> None:
        self._about: dict[Subject, list[int]] = {}
        """The sets that see an entry, by what it is about."""
        for number, subjects in enumerate(sets):
            for subject in subjects:
                self._about.setdefault(subject, []).append(number)
        self._longer: dict[tuple[int, AnyEntry], int] = {}
        """The number of a part with one entry more."""
        self._nothing = [0] * len(sets), 0
        self._known: dict[tuple[AnyEntry, ...], tuple[list[int], int]] = {(): self._nothing}

    def view(self, lists: Lists) -> View:
        """A state as the sets see it."""
        parts = [self._known.get(entries) or self._look(entries) for entries in lists]
        seen = list(zip(*[numbers for numbers, _ in parts], strict=True)) if lists else [()] * len(self._nothing[0])
        return View(lists, seen, [bits for _, bits in parts])

    @property
    def remembered(self) -> int:
        """How many numbers are remembered, and can be forgotten."""
        return len(self._known) * len(self._nothing[0])

    def forget(self) -> None:
        """Give back memory; the numbers that were given stay the same."""
        self._known = {(): self._nothing}

    def _look(self, entries: tuple[AnyEntry, ...]) -> tuple[list[int], int]:
        """The number of what each set sees of a list, and the groups on it as bits."""
        last, longer = entries[-1], self._longer
        numbers, bits = self._known.get(entries[:-1]) or self._look(entries[:-1])
        numbers = numbers.copy()
        for number in self._about.get(last.subject, ()):
            numbers[number] = longer.setdefault((numbers[number], last), len(longer) + 1)
        found = self._known[entries] = numbers, bits | 1 << last.group if isinstance(last, Entry) else bits
        return found


class Tensors:
    """Classes of values on one device: their shardings, each with a number, and their bytes.

    ``sets[c]`` is the number of the set of groups that a class sees.
    """

    def __init__(
        self,
        classes: Sequence[ValueClass],
        sets: Sequence[int],
        mesh: MeshShape,
        tile: tuple[int, int] | None,
        on_chip_bytes: float = 0.0,
    ) -> None:
        self.classes, self.mesh, self.tile, self.on_chip_bytes = classes, mesh, tile, on_chip_bytes
        self.numbers: Numbers[Sharding] = Numbers()
        self.shardings = self.numbers.things
        self._sets = sets
        self._known: list[dict[Seen, int]] = [{} for _ in classes]
        self._bytes = [Memo(partial(_local_bytes, c, mesh, tile)) for c in classes]

    def number(self, value_class: int, view: View) -> int:
        """The number of the sharding of a class."""
        if view.fixed is not None:
            return self.numbers[view.fixed[value_class]]
        known, seen = self._known[value_class], view.seen[self._sets[value_class]]
        found = known.get(seen)  # not a Memo: what is seen has a number, and the view tells what that is
        if found is None:
            c = self.classes[value_class]
            fixed = fixed_on(c.given, self.mesh)
            sharding = shard_value(c.shape, c.groups, c.pairs, c.kept, self.mesh, view.lists, c.padded, fixed)
            found = known[seen] = self.numbers[sharding]
        return found

    def sharding(self, value_class: int, view: View) -> Sharding:
        """The sharding of a class."""
        return self.shardings[self.number(value_class, view)]

    def local_shape(self, value_class: int, sharding: Sharding) -> tuple[int, ...]:
        """The shape of one device's part of a value."""
        return _local_shape(self.classes[value_class].shape, sharding, self.mesh)

    def bytes_in(self, value_class: int, sharding: Sharding) -> float:
        """The bytes of one device's part of a value."""
        return self._bytes[value_class][sharding]

    def held_bytes(self, value_class: int, sharding: Sharding, form: Form) -> float:
        """The bytes of a buffer that holds one device's part of a value in some form."""
        if form.rows:
            local = self.local_shape(value_class, sharding)
            c = self.classes[value_class]
            in_rows = row_bytes(local, c.kept_as or c.dtype, self.tile, form.rows)
            if in_rows or form.copy:
                return in_rows * form.scale * form.idle
        size = self.bytes_in(value_class, sharding) * form.scale * form.idle
        return 0.0 if form.brief and size <= self.on_chip_bytes else size

    def most_elements(self, values: Sequence[int], shardings: Sequence[Sharding]) -> float:
        """The elements of one device's part of the largest of some values."""
        most = 0.0
        for v, sharding in zip(values, shardings, strict=True):
            count = 1.0
            for size in self.local_shape(v, sharding):
                count *= size
            most = max(most, count)
        return most


def _local_shape(shape: tuple[int, ...], sharding: Sharding, mesh: MeshShape) -> tuple[int, ...]:
    ways = mesh.ways
    return tuple([-(-size // ways(axes)) if axes else size for size, axes in zip(shape, sharding, strict=True)])


def _local_bytes(c: ValueClass, mesh: MeshShape, tile: tuple[int, int] | None, sharding: Sharding) -> float:
    return stored_bytes(_local_shape(c.shape, sharding, mesh), c.kept_as or c.dtype, tile)


class OpWork(NamedTuple):
    """What an op asks of the units of a device: see ``compute``.

    ``entries`` are those that a kernel goes through for it, padding included, and ``packed_bytes`` what it writes of
    narrow types. ``batched``: it is a batch of products.
    """

    matrix_seconds: float
    vector_ops: float
    reads: tuple[float, ...]
    writes: float
    entries: float = 0.0
    packed_bytes: float = 0.0
    batched: bool = False


WorkBySplit = dict[tuple[int, tuple[int, ...], tuple[str, ...]], OpWork]
"""The work of ops by their signature, into how many parts each of their factors is split, and as what it is kept."""


@dataclass(frozen=True, eq=False, slots=True)
class OpShare:
    """What an op adds to its kernel: its work, and the moves of its results.

    Ops that add the same share it, whatever their operands are moved from, and it equals nothing else: what is made of
    several is remembered by them. ``beside_seconds`` of the communication run beside the op's own work.
    """

    work: OpWork
    comm_seconds: float
    copy_seconds: float
    unmoved_bytes: float
    beside_seconds: float


@dataclass(frozen=True, eq=False, slots=True)
class OpPrice:
    """How an op runs in a state, and what it asks of the device.

    Ops of one signature that run in the same way share it, and it equals nothing else: what is made of several prices
    is remembered by them.
    """

    assignment: Assignment
    share: OpShare

    @property
    def work(self) -> OpWork:
        """What the op asks of the units of the device."""
        return self.share.work


_Runs = Memo[tuple[int, ...], Assignment]
"""How ops of one kind run, by the number of what they may split and those of the shardings of their values."""

PricedOps = tuple[tuple[int, int, dict[Seen, OpPrice]], ...]
"""Some classes of ops, with the set of groups that each sees and its prices by what that sees of a state."""


class OpPrices:
    """Prices of classes of ops; ``sets[o]`` is the number of the set of groups that a class sees."""

    def __init__(
        self,
        classes: Classes,
        sets: Sequence[int],
        tensors: Tensors,
        device: Device,
        assigner: Assigner,
        work: WorkBySplit,
    ) -> None:
        self.classes, self.tensors, self.device = classes, tensors, device
        self.mesh: MeshShape = tensors.mesh
        self.work = work
        self._sets = sets
        self._known: list[dict[Seen, OpPrice]] = [{} for _ in classes.ops.keys]
        self._by_assignment: dict[tuple[int, int, bool, tuple[str, ...]], OpPrice] = {}
        self._shares: dict[tuple[OpWork, float, float, float, float], OpShare] = {}
        self._on_host = [
            any(classes.values.keys[v].on_host for v in (*c.operands, *c.results)) for c in classes.ops.keys
        ]
        """Classes of ops that touch the host's memory: they move, slice or stack what lies there, beside all else."""
        self._kept_as = [
            tuple([classes.values.keys[v].kept_as for v in (*c.operands, *c.results)]) for c in classes.ops.keys
        ]
        allowed: Numbers[Allowed] = Numbers()
        choices: dict[tuple[int, tuple[int, ...], Bounds], Choices] = {}
        runs: dict[tuple[int, MoveTerms, tuple[bool, ...]], _Runs] = {}
        self._choices: list[Choices] = []
        self._runs: list[_Runs] = []
        for o, c in enumerate(classes.ops.keys):
            own = (c.signature, c.groups, c.bounds)
            if own not in choices:
                found = Choices(classes.op(o), c.groups, self.mesh, classes.places.uniform, c.bounds, allowed)
                choices[own] = found
            kind = (classes.program.shape_classes[c.signature], c.terms, c.free)  # which run alike if they lie alike
            if kind not in runs:
                runs[kind] = Memo(_assign(assigner, classes, o, allowed.things, tensors.shardings))
            self._choices.append(choices[own])
            self._runs.append(runs[kind])

    def among(self, op_classes: Sequence[int]) -> PricedOps:
        """Classes of ops whose prices are asked for together."""
        return tuple([(o, self._sets[o], self._known[o]) for o in op_classes])

    def prices(self, ops: PricedOps, view: View) -> tuple[OpPrice, ...]:
        """The prices of some classes."""
        if view.fixed is not None:
            return tuple([self._price(o, view) for o, _, _ in ops])
        seen = (
            view.seen
        )  # the innermost loop of all: plain dictionaries, as a call for each price would double its time
        return tuple([known.get(seen[number]) or self._price(o, view) for o, number, known in ops])

    def shares(self, ops: PricedOps, view: View) -> tuple[OpShare, ...]:
        """What some classes add to their kernel."""
        if view.fixed is not None:
            return tuple([self._price(o, view).share for o, _, _ in ops])
        seen = view.seen
        return tuple([(known.get(seen[number]) or self._price(o, view)).share for o, number, known in ops])

    def price(self, op_class: int, view: View) -> OpPrice:
        """The price of a class."""
        if view.fixed is not None:
            return self._price(op_class, view)
        return self._known[op_class].get(view.seen[self._sets[op_class]]) or self._price(op_class, view)

    def _price(self, op_class: int, view: View) -> OpPrice:
        """The price by the shardings of an op's values and the factors it may split, in which many states agree."""
        c, number = self.classes.ops.keys[op_class], self.tensors.number
        allowed = self._choices[op_class].number(view.groups)
        a = self._runs[op_class][
            (allowed, *[number(v, view) for v in c.operands], *[number(v, view) for v in c.results])
        ]
        key = (
            c.signature,
            id(a),
            self._on_host[op_class],
            self._kept_as[op_class],
        )  # the assigner keeps it, and gives the same one for the same
        known = self._by_assignment.get(key)
        if known is None:
            work = self.work_of(op_class, a)
            if a.loop_seconds:
                work = work._replace(matrix_seconds=work.matrix_seconds + a.loop_seconds)
            known = self._by_assignment[key] = OpPrice(a, self._share(op_class, a, work))
        if view.fixed is None:
            self._known[op_class][view.seen[self._sets[op_class]]] = known
        return known

    def _share(self, op_class: int, a: Assignment, work: OpWork) -> OpShare:
        key = (work, a.after_seconds, a.copy_seconds, self._unmoved_bytes(op_class, a), _beside_seconds(a, work))
        found = self._shares.get(key)
        if found is None:
            found = self._shares[key] = OpShare(*key)
        return found

    def work_of(self, op_class: int, a: Assignment | Split) -> OpWork:
        """What an op asks of the units of the device, run in one way."""
        c, op = self.classes.ops.keys[op_class], self.classes.op(op_class)
        parts = [1] * len(op.rule.sizes)
        for axis, factor in enumerate(a.factors):
            if factor >= 0:
                parts[factor] *= self.mesh.sizes[axis]
        if self._on_host[op_class]:
            return OpWork(0.0, 0.0, (0.0,) * len(c.operands), 0.0)
        key = (c.signature, tuple(parts), self._kept_as[op_class])
        known = self.work.get(key)  # models of other meshes know it, too
        if known is None:
            known = self.work[key] = self._op_work(op_class, a)
        return known

    def _op_work(self, op_class: int, a: Assignment | Split) -> OpWork:
        c, op, tensors = self.classes.ops.keys[op_class], self.classes.op(op_class), self.tensors
        sizes_in = [tensors.bytes_in(v, s) for v, s in zip(c.operands, a.operands, strict=True)]
        sizes_out = [tensors.bytes_in(v, s) for v, s in zip(c.results, a.results, strict=True)]
        dtype = self.classes.values.keys[(*c.operands, *c.results)[0]].dtype
        if "facts" in op.attributes:
            return OpWork(*kernel_work(op, dtype, a.factors, self.mesh, self.device))
        if "work" in op.attributes:
            busy = function_work(op, dtype, a.factors, self.mesh, self.device)
            return OpWork(*busy, *traffic(op, sizes_in, sizes_out))
        elements = tensors.most_elements(c.operands, a.operands), tensors.most_elements(c.results, a.results)
        reads, writes = traffic(op, sizes_in, sizes_out)
        bits_in, bits_out = ([bits_of(self.classes.values.keys[v].dtype) for v in of] for of in (c.operands, c.results))
        most, slots = _entries(sizes_out, bits_out), vector_ops(op, *elements, self.device.kernel_costs)
        batched = False
        if op.kind in PRODUCTS and op.flops:
            most, batched = product_work(op, a.factors, self.mesh, self.device.tile)
        alone = depthwise_slots(op, a.factors, self.mesh, self.device)
        products = op.flops and not alone
        return OpWork(
            matrix_seconds(op, dtype, a.factors, self.mesh, self.device) if products else 0.0,
            slots + alone,
            reads,
            writes,
            entries(op, _entries(sizes_in, bits_in), most),
            writes if bits_out and max(bits_out) < _WORD_BITS else 0.0,
            batched,
        )

    def _unmoved_bytes(self, op_class: int, assignment: Assignment) -> float:
        """Memory of partial or wrongly sharded results until they have been moved; an all-reduce works in place.

        A product that is a loop of parts and permutes never has the whole of its sums.
        """
        c = self.classes.ops.keys[op_class]
        total = 0.0
        if assignment.loop_seconds:
            return total
        for v, sharding, moves in zip(c.results, assignment.results, assignment.after, strict=True):
            if any(move.kind != ALL_REDUCE for move in moves):
                total += self.tensors.bytes_in(v, sharding)
        return total


def _assign(
    assigner: Assigner,
    classes: Classes,
    op_class: int,
    every_allowed: Sequence[Allowed],
    every_sharding: Sequence[Sharding],
) -> Callable[[tuple[int, ...]], Assignment]:
    """How ops of a class's kind run, by the number of what they may split and those of their values' shardings."""
    c, op, values = classes.ops.keys[op_class], classes.op(op_class), classes.values.keys
    shape_class, terms, free, count = classes.program.shape_classes[c.signature], c.terms, c.free, len(c.operands)
    shapes = [(values[v].shape, values[v].dtype) for v in (*c.operands, *c.results)]

    def run(key: tuple[int, ...]) -> Assignment:
        shardings = tuple([every_sharding[n] for n in key[1:]])
        allowed = every_allowed[key[0]]
        problem = OpProblem(shape_class, terms, shardings[:count], shardings[count:], free, allowed)
        return assigner.assign(op, problem, shapes)

    return run


_NO_WORK = Work()


class KernelWork(NamedTuple):
    """What a kernel asks of each unit of the device, once; seconds and memory of moving its results.

    ``looped_seconds`` of the moves run beside the kernel's own products, which are loops that scatter their sums, and
    ``copy_seconds`` are those of copies that bring what was moved into place. ``rest`` is the work of what has to wait
    for a result in it to be moved, and so is a kernel of its own.
    """

    work: Work
    comm_seconds: float
    unmoved_bytes: float
    looped_seconds: float = 0.0
    copy_seconds: float = 0.0
    rest: Work = _NO_WORK

    def seconds(self, device: Device) -> float:
        """What the device computes for, without copies."""
        return sum([kernel_seconds(work, device) for work in (self.work, self.rest) if any(work)])


class _KernelOp(NamedTuple):
    """An op of a kernel: its class, its stored operands, whether it stores its result and copies for that.

    ``computes`` is 0 for an op that only moves entries, makes them, or converts them, and 2 for one that gives several
    results. ``finds_rows``: it finds the largest entry of each row. ``summed``: its partial sums are added to others'
    before they are moved.
    """

    op_class: int
    operands: tuple[tuple[int, int], ...]
    stores: bool
    copies: bool
    computes: int
    converts: bool
    contracts: bool
    reduces: bool
    finds_rows: bool
    again: bool
    summed: bool


class _KernelOps(NamedTuple):
    """The ops of a kernel, in order; ``product`` is the number of its last contraction, or -1.

    ``alone``: it is one op, or a sum in a wider type that the compiler makes one op of. ``twice`` are the stored values
    that it reads once more when it has found the largest of each row. ``cuts`` are contractions that others follow.
    """

    ops: tuple[_KernelOp, ...]
    product: int
    alone: bool
    twice: frozenset[int] = frozenset()
    cuts: tuple[int, ...] = ()

    @classmethod
    def of(cls, ops: Sequence[_KernelOp], *, cut: bool = False) -> _KernelOps:
        product = max((k for k, op in enumerate(ops) if op.contracts), default=-1)
        computing, converting = sum(op.computes for op in ops), sum(op.converts for op in ops)
        last = ops[-1] if ops else None
        either = last is not None and (last.converts or last.finds_rows)
        one = (computing == 1 and (not converting or either)) or (computing, converting) == (0, 1)
        one = one and not any(op.again for op in ops)
        rows = {n for op in ops if op.finds_rows for _, n in op.operands}
        later = {n for op in ops if not op.reduces for _, n in op.operands}
        working = max((k for k, op in enumerate(ops) if op.computes), default=-1)
        cuts = [
            k for k, op in enumerate(ops) if op.contracts and not (op.stores or op.again or op.summed) and k < working
        ]
        return cls(tuple(ops), product, product < 0 and one, frozenset(rows & later), tuple(cuts) if cut else ())

    def cut_after(self, op: int) -> tuple[_KernelOps, _KernelOps]:
        """The two kernels that it is where the result of an op has to be moved, and so is stored."""
        *before, last = self.ops[: op + 1]
        return _KernelOps.of([*before, last._replace(stores=True)]), _KernelOps.of(self.ops[op + 1 :])


class KernelWorks:
    """The work of every class of kernels; classes without ops that work have none."""

    def __init__(self, classes: Classes, ops: OpPrices) -> None:
        self._ops = ops
        self._of_kernel = [_working_ops(classes, kernel) for kernel in classes.kernel_classes.keys]
        self._distinct = [list(dict.fromkeys([op.op_class for op in found])) for found in self._of_kernel]
        self._priced = [ops.among(distinct) for distinct in self._distinct]
        cut = ops.device.compiler[CUT_BY_MOVES]
        self._works: list[Memo[tuple[OpShare, ...], KernelWork]] = []
        for found, distinct in zip(self._of_kernel, self._distinct, strict=True):
            kernel, numbers = _KernelOps.of(found, cut=cut), [distinct.index(op.op_class) for op in found]
            make = partial(_kernel_work, kernel, Memo(kernel.cut_after), numbers, ops.device.kernel_costs)
            self._works.append(Memo(make))

    def works(self, kernel_class: int) -> bool:
        """Whether kernels of a class have anything to do."""
        return bool(self._of_kernel[kernel_class])

    def of(self, kernel_class: int, view: View) -> KernelWork:
        """The work of a kernel in a state."""
        return self._works[kernel_class][self._ops.shares(self._priced[kernel_class], view)]

    def least_seconds(self, kernel_class: int, least: Callable[[int], OpWork]) -> float:
        """The least that a kernel computes for, whole or cut after any of its products: see ``price/bound.py``."""
        shares = [OpShare(least(o), 0.0, 0.0, 0.0, 0.0) for o in self._distinct[kernel_class]]
        ways = [shares]
        for op in self._of_kernel[kernel_class]:
            if op.contracts:  # what is moved cuts a kernel
                number = self._distinct[kernel_class].index(op.op_class)
                ways.append([*shares[:number], replace(shares[number], comm_seconds=1.0), *shares[number + 1 :]])
        return min([self._works[kernel_class][tuple(found)].seconds(self._ops.device) for found in ways])

    def among(
        self, kernel_classes: Sequence[int]
    ) -> tuple[Callable[[View], tuple[OpShare, ...]], Callable[[tuple[OpShare, ...]], tuple[KernelWork, ...]]]:
        """What the ops of some classes of kernels add, a class of ops that several have once, and the works of that."""
        ops = list(dict.fromkeys(chain.from_iterable([self._distinct[k] for k in kernel_classes])))
        number = {o: n for n, o in enumerate(ops)}
        found = [(self._works[k], [number[o] for o in self._distinct[k]]) for k in kernel_classes]
        return partial(self._ops.shares, self._ops.among(ops)), partial(_works, found)


def _works(
    kernels: Sequence[tuple[Memo[tuple[OpShare, ...], KernelWork], Sequence[int]]], shares: tuple[OpShare, ...]
) -> tuple[KernelWork, ...]:
    """The work of some kernels, each with the numbers of its ops' shares."""
    return tuple([works[tuple([shares[n] for n in own])] for works, own in kernels])


def _working_ops(classes: Classes, kernel: KernelClass) -> list[_KernelOp]:
    found = []
    made = {n for numbers in kernel.results for n in numbers}
    for k, (o, operands, results) in enumerate(zip(kernel.ops, kernel.operands, kernel.results, strict=True)):
        op = classes.op(o)
        if op.rule.tensors:
            stored = tuple([(a, n) for a, n in enumerate(operands) if n >= 0 and n not in made])
            contracts = op.kind in CONTRACTIONS and op.flops > 0
            copies, converts = op.kind == "dynamic_slice", op.kind == "convert"
            computes = int(op.kind not in MOVES_DATA and not converts)
            summed = classes.ops.keys[o].terms.addends > 1
            stores, again = max(results, default=-1) >= 0, k < kernel.again
            reduces, largest = op.kind in REDUCING, op.attributes.get("reducer") == "maximum"
            computes += len(op.results) > 1
            found.append(
                _KernelOp(o, stored, stores, copies, computes, converts, contracts, reduces, largest, again, summed)
            )
    return found


def _beside_seconds(a: Assignment, work: OpWork) -> float:
    """What an op that is a loop moves while it computes: see ``compiler.overlapping.LOOPED_BESIDE``."""
    return min(a.looped_seconds, work.matrix_seconds - a.adding_seconds) if a.looped_seconds else 0.0


def _kernel_work(
    kernel: _KernelOps,
    cut_after: Memo[int, tuple[_KernelOps, _KernelOps]],
    numbers: Sequence[int],
    costs: KernelCosts,
    distinct: tuple[OpShare, ...],
) -> KernelWork:
    """The work of all ops of a kernel, of which ``numbers`` tell whose share is whose.

    See ``compiler.fusing.CUT_BY_MOVES``.
    """
    shares = [distinct[number] for number in numbers]
    count = len(kernel.ops)
    cut = max([k for k in kernel.cuts if shares[k].comm_seconds], default=count)
    if cut == count:
        return _work_of_ops(kernel, costs, shares)
    before, after = cut_after[cut]
    first = _work_of_ops(before, costs, shares[: cut + 1])
    rest = shares[cut + 1 :]
    moved = min(shares[cut].work.writes, max([size for share in rest for size in share.work.reads], default=0.0))
    second = _work_of_ops(after, costs, rest, moved)
    kept = sum([share.work.writes for op, share in zip(after.ops, rest, strict=True) if op.stores])
    waiting = max(0.0, shares[cut].work.writes - kept)  # what is as large is written over it
    return KernelWork(
        first.work,
        first.comm_seconds + second.comm_seconds,
        first.unmoved_bytes + second.unmoved_bytes + waiting,
        first.looped_seconds + second.looped_seconds,
        first.copy_seconds + second.copy_seconds,
        second.work,
    )


def _work_of_ops(
    kernel: _KernelOps, costs: KernelCosts, shares: Sequence[OpShare], moved_bytes: float = 0.0
) -> KernelWork:
    """The work of all ops of a kernel, each stored value read once, and ``moved_bytes`` of what was moved for it.

    What a product's operands are computed from is read as they are; from the product on, reading takes the vector unit.
    """
    matrix = vector = written = packed = comm = unmoved = entries = stored = looped = copies = 0.0
    batched = False
    operands: dict[int, float] = {}
    read: dict[int, float] = {}
    for k, (op, share) in enumerate(zip(kernel.ops, shares, strict=True)):
        work = share.work
        if k >= kernel.product:  # what is computed on the way to a product's operands costs next to nothing
            vector += work.vector_ops
        if not op.again:
            matrix += work.matrix_seconds
            comm += share.comm_seconds
            copies += share.copy_seconds
            unmoved += share.unmoved_bytes
            looped += share.beside_seconds
        reads = operands if k <= kernel.product else read
        for o, value in op.operands:
            if work.reads[o] > reads.get(value, 0.0):
                reads[value] = work.reads[o]
        if work.entries > entries and (kernel.product < 0 or op.contracts):
            entries = work.entries
        batched = batched or work.batched
        if op.stores:
            if not op.reduces:
                stored += work.entries
            written += work.writes
            packed += work.packed_bytes
            if op.copies:
                vector += 2 * costs.slice_slots * work.writes
    beside = moved_bytes + sum([size for number, size in read.items() if number not in operands])
    beside += sum([read.get(number, 0.0) for number in kernel.twice])
    fetched = sum([size for size in operands.values() if size > costs.prefetched_bytes])
    vector += costs.read_slots * beside + costs.pack_slots * packed
    if batched:
        vector += costs.operand_slots * fetched + costs.prefetched_slots * (sum(operands.values()) - fetched)
    entries = max(entries, stored)
    vector += (costs.entry_slots + costs.alone_slots if kernel.alone else costs.entry_slots) * entries
    read_bytes = beside + fetched
    return KernelWork(Work(matrix, vector, read_bytes + written), comm, unmoved, looped, copies)


def _entries(sizes: Sequence[float], bits: Sequence[int]) -> float:
    """The entries of the largest of some tensors, padding included."""
    return max([8 * size / n for size, n in zip(sizes, bits, strict=True) if n], default=0.0)
