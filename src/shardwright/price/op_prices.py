"""What ops cost in a state: how each class of ops runs there, and what one of them asks of the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shardwright.devices import Device
from shardwright.ir.outlook import Outlook
from shardwright.ir.program import Op
from shardwright.price.assign import Assigner, Assignment, Problem, candidates, spread
from shardwright.price.classes import Classes
from shardwright.price.collectives import ALL_REDUCE
from shardwright.price.compute import function_work, kernel_work, matrix_seconds, traffic, vector_ops
from shardwright.price.shardings import NO_BOUNDS, Bounds
from shardwright.price.tensors import Tensors
from shardwright.price.views import Seen, View, bits
from shardwright.request import MeshShape


class OpWork(NamedTuple):
    """What an op asks of the units of a device: see ``compute``."""

    matrix_seconds: float
    vector_ops: float
    reads: tuple[float, ...]
    writes: float


Allowed = tuple[tuple[int, ...], ...]
"""For each axis the factors of an op that it may split."""

WorkBySplit = dict[tuple[int, tuple[int, ...]], OpWork]
"""By an op's signature and into how many parts each of its factors is split."""


@dataclass(frozen=True, eq=False, slots=True)
class OpPrice:
    """How an op runs in a state, and what it asks of the device.

    Ops of one signature that run in the same way share it, and it equals nothing else: what is made of several prices
    is remembered by them.
    """

    assignment: Assignment
    work: OpWork
    unmoved_bytes: float


class _Choices:
    """The factors that ops of a signature and some groups may split, by which of the groups are on the lists.

    ``factors[axis]`` are those that the axis can split at all, with their groups as bits, ``bits[axis]`` all of these.
    """

    __slots__ = ("always", "bits", "factors", "known", "rule", "sizes")

    def __init__(
        self, op: Op, groups: Sequence[int], mesh: MeshShape, padded: frozenset[int], bounds: Bounds = NO_BOUNDS
    ) -> None:
        own = tuple(groups[: len(op.rule.sizes)])  # an op that is a shortcut for another has none
        every = frozenset(own) - {-1}
        nothing: frozenset[int] = frozenset()
        also = [bounds.of_axis(name) for name in mesh.names]
        self.factors = [
            [(f, 1 << own[f]) for f in candidates(op, own, every, size, padded, None if more is None else nothing)]
            for size, more in zip(mesh.sizes, also, strict=True)
        ]
        self.always = [
            candidates(op, own, nothing, size, padded, more) if more else ()
            for size, more in zip(mesh.sizes, also, strict=True)
        ]
        self.bits = [bits(groups[f] for f, _ in found) for found in self.factors]
        self.known: dict[tuple[int, ...], int] = {}
        self.rule, self.sizes = op.rule, mesh.sizes

    def allowed(self, listed: Sequence[int]) -> Allowed:
        """The factors that each axis may split, given the groups that are on its list."""
        own = tuple(
            [
                tuple([f for f, bit in factors if bit & on_list])
                if not always
                else tuple(sorted({*always, *(f for f, bit in factors if bit & on_list)}))
                for factors, on_list, always in zip(self.factors, listed, self.always, strict=True)
            ]
        )
        return spread(self.rule, own, self.sizes)


_Kind = dict[tuple[int, ...], Assignment]
"""How ops of one kind run, by the number of what they may split and those of the shardings of their values."""

PricedOps = tuple[tuple[int, int, dict[Seen, OpPrice]], ...]
"""Some classes of ops, with the set of groups that each sees and its prices by what that sees of a state."""


class OpPrices:
    """Prices of classes of ops; ``sets[o]`` is the number of the groups that a class sees."""

    def __init__(
        self,
        classes: Classes,
        sets: Sequence[int],
        tensors: Tensors,
        device: Device,
        assigner: Assigner,
        work: WorkBySplit,
    ) -> None:
        self.classes, self.tensors, self.device, self.assigner = classes, tensors, device, assigner
        self.mesh: MeshShape = tensors.mesh
        self.work = work
        self._sets = sets
        self._known: list[dict[Seen, OpPrice]] = [{} for _ in classes.ops.keys]
        self._by_assignment: dict[tuple[int, int, bool], OpPrice] = {}
        self._on_host = [
            any(classes.values.keys[v].on_host for v in (*c.operands, *c.results)) for c in classes.ops.keys
        ]
        """Classes of ops that touch the host's memory: they move, slice or stack what lies there, beside all else."""
        self._allowed: list[Allowed] = []
        self._numbers: dict[Allowed, int] = {}
        self._choices, self._kinds = self._find_kinds()

    def _find_kinds(self) -> tuple[list[_Choices], list[_Kind]]:
        """For each class what it may split, and its kind: those of a kind run alike where their values lie alike."""
        choices: dict[tuple[int, tuple[int, ...], Bounds], _Choices] = {}
        kinds: dict[tuple[int, Outlook, tuple[bool, ...]], _Kind] = {}
        shape_classes, padded = self.classes.program.shape_classes, self.classes.places.uniform
        for o, c in enumerate(self.classes.ops.keys):
            if (c.signature, c.groups, c.bounds) not in choices:
                found = _Choices(self.classes.op(o), c.groups, self.mesh, padded, c.bounds)
                choices[c.signature, c.groups, c.bounds] = found
            kinds.setdefault((shape_classes[c.signature], c.outlook, c.free), {})
        return (
            [choices[c.signature, c.groups, c.bounds] for c in self.classes.ops.keys],
            [kinds[shape_classes[c.signature], c.outlook, c.free] for c in self.classes.ops.keys],
        )

    def among(self, op_classes: Sequence[int]) -> PricedOps:
        """Classes of ops whose prices are asked for together."""
        return tuple([(o, self._sets[o], self._known[o]) for o in op_classes])

    def prices(self, ops: PricedOps, view: View) -> tuple[OpPrice, ...]:
        """The prices of some classes."""
        if view.fixed is not None:
            return tuple([self._price(o, view) for o, _, _ in ops])
        seen = view.seen
        return tuple([known.get(seen[number]) or self.price(o, view) for o, number, known in ops])

    def price(self, op_class: int, view: View) -> OpPrice:
        """The price of a class."""
        if view.fixed is not None:
            return self._price(op_class, view)
        known, seen = self._known[op_class], view.seen[self._sets[op_class]]
        found = known.get(seen)
        if found is None:
            found = known[seen] = self._price(op_class, view)
        return found

    def _price(self, op_class: int, view: View) -> OpPrice:
        """By the shardings of its values and the factors it may split, in which states that differ may agree."""
        c, kind, number = self.classes.ops.keys[op_class], self._kinds[op_class], self.tensors.number
        allowed = self._allowed_in(self._choices[op_class], view)
        key = (allowed, *[number(v, view) for v in c.operands], *[number(v, view) for v in c.results])
        a = kind.get(key)
        if a is None:
            a = kind[key] = self._assign(op_class, self._allowed[allowed], key[1:])
        by_assignment = (
            c.signature,
            id(a),
            self._on_host[op_class],
        )  # the assigner keeps it, and gives the same one for the same
        known = self._by_assignment.get(by_assignment)
        if known is None:
            work = self._work(op_class, a)
            if a.loop_seconds:
                work = work._replace(matrix_seconds=work.matrix_seconds + a.loop_seconds)
            known = self._by_assignment[by_assignment] = OpPrice(a, work, self._unmoved_bytes(op_class, a))
        return known

    def _allowed_in(self, choices: _Choices, view: View) -> int:
        """The number of what an op may split in a state."""
        listed = tuple([own & groups for own, groups in zip(choices.bits, view.groups, strict=True)])
        number = choices.known.get(listed)
        if number is None:
            allowed = choices.allowed(listed)
            number = choices.known[listed] = self._numbers.setdefault(allowed, len(self._allowed))
            if number == len(self._allowed):
                self._allowed.append(allowed)
        return number

    def _assign(self, op_class: int, allowed: Allowed, sharding_numbers: Sequence[int]) -> Assignment:
        c, values = self.classes.ops.keys[op_class], self.classes.values.keys
        count = len(c.operands)
        shardings = tuple([self.tensors.shardings[n] for n in sharding_numbers])
        shape_class = self.classes.program.shape_classes[c.signature]
        problem = Problem(shape_class, c.outlook, shardings[:count], shardings[count:], c.free, allowed)
        shapes = [(values[v].shape, values[v].dtype) for v in (*c.operands, *c.results)]
        return self.assigner.assign(self.classes.op(op_class), problem, shapes)

    def _work(self, op_class: int, a: Assignment) -> OpWork:
        c, op = self.classes.ops.keys[op_class], self.classes.op(op_class)
        parts = [1] * len(op.rule.sizes)
        for axis, factor in enumerate(a.factors):
            if factor >= 0:
                parts[factor] *= self.mesh.sizes[axis]
        if self._on_host[op_class]:
            return OpWork(0.0, 0.0, (0.0,) * len(c.operands), 0.0)
        key = (c.signature, tuple(parts))
        known = self.work.get(key)
        if known is None:
            known = self.work[key] = self._op_work(op_class, a)
        return known

    def _op_work(self, op_class: int, a: Assignment) -> OpWork:
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
        return OpWork(
            matrix_seconds(op, dtype, a.factors, self.mesh, self.device) if op.flops else 0.0,
            vector_ops(op, *elements, self.device.kernel_costs),
            *traffic(op, sizes_in, sizes_out),
        )

    def _unmoved_bytes(self, op_class: int, assignment: Assignment) -> float:
        """Memory of partial or wrongly sharded results until they have been moved; an all-reduce works in place."""
        c = self.classes.ops.keys[op_class]
        total = 0.0
        for v, sharding, moves in zip(c.results, assignment.results, assignment.after, strict=True):
            if any(move.kind != ALL_REDUCE for move in moves):
                total += self.tensors.bytes_in(v, sharding)
        return total
