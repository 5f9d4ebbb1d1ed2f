"""What ops cost in a state: how each class of ops runs there, and what one of them asks of the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shardwright.cost.classes import Classes
from shardwright.cost.compute import matrix_seconds, traffic, vector_ops
from shardwright.cost.tensors import Tensors
from shardwright.cost.views import Seen, View, bits
from shardwright.devices import Device
from shardwright.ir.outlook import Outlook
from shardwright.spmd.assign import Assigner, Assignment, Problem, candidates
from shardwright.spmd.collectives import ALL_REDUCE
from shardwright.spmd.state import MeshShape


class OpWork(NamedTuple):
    """What an op asks of the units of a device: see ``compute``."""

    matrix_seconds: float
    vector_ops: float
    reads: tuple[float, ...]
    writes: float


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


class _Kind:
    """Classes of ops with the same groups that differ in their values alone: what decides about a price, and prices."""

    __slots__ = ("allowed", "bits", "prices")

    def __init__(self, groups: Sequence[int]) -> None:
        self.bits = bits(groups)
        self.allowed: dict[tuple[int, ...], tuple[tuple[int, ...], ...]] = {}
        self.prices: dict[tuple[int, ...], OpPrice] = {}


class PricedOps(NamedTuple):
    """Some classes of ops, with the set of groups that each sees and its prices by what that sees of a state."""

    classes: tuple[int, ...]
    known: tuple[tuple[int, dict[Seen, OpPrice]], ...]


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
        self._by_assignment: dict[tuple[int, int], OpPrice] = {}
        kinds: dict[tuple[int, tuple[int, ...], tuple[bool, ...], Outlook], _Kind] = {}
        self._kinds = [
            kinds.setdefault((c.signature, c.groups, c.free, c.outlook), _Kind(c.groups)) for c in classes.ops.keys
        ]

    def among(self, op_classes: Sequence[int]) -> PricedOps:
        """Classes of ops whose prices are asked for together."""
        return PricedOps(tuple(op_classes), tuple([(self._sets[o], self._known[o]) for o in op_classes]))

    def prices(self, ops: PricedOps, view: View) -> tuple[OpPrice, ...]:
        """The prices of some classes."""
        if view.fixed is not None:
            return tuple([self._price(o, view) for o in ops.classes])
        seen = view.seen
        found = [known.get(seen[number]) for number, known in ops.known]
        return tuple([price or self.price(o, view) for o, price in zip(ops.classes, found, strict=True)])

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
        """By the shardings of its values and the groups that are on the lists: states that differ may agree in these."""
        c, kind, number = self.classes.ops.keys[op_class], self._kinds[op_class], self.tensors.number
        listed = [kind.bits & groups for groups in view.groups]
        shardings = [number(v, view) for v in (*c.operands, *c.results)]
        key = (*listed, *shardings)
        found = kind.prices.get(key)
        if found is None:
            found = kind.prices[key] = self._worked_out(op_class, tuple(listed), shardings)
        return found

    def _worked_out(self, op_class: int, listed: tuple[int, ...], numbers: Sequence[int]) -> OpPrice:
        c, op = self.classes.ops.keys[op_class], self.classes.op(op_class)
        values, count = self.classes.values.keys, len(c.operands)
        shardings = [self.tensors.shardings[n] for n in numbers]
        problem = Problem(
            self.classes.program.shape_classes[c.signature],
            c.outlook,
            tuple(shardings[:count]),
            tuple(shardings[count:]),
            c.free,
            self._allowed(op_class, listed),
        )
        shapes = [(values[v].shape, values[v].dtype) for v in (*c.operands, *c.results)]
        a = self.assigner.assign(op, problem, shapes)
        key = (c.signature, id(a))  # the assigner keeps it, and gives the same one for the same
        known = self._by_assignment.get(key)
        if known is None:
            price = OpPrice(a, self._work(op_class, a), self._unmoved_bytes(op_class, a))
            known = self._by_assignment[key] = price
        return known

    def _allowed(self, op_class: int, listed: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """The factors that each axis may split, given which of the op's groups are on its list."""
        allowed = self._kinds[op_class].allowed
        known = allowed.get(listed)
        if known is None:
            c, op = self.classes.ops.keys[op_class], self.classes.op(op_class)
            known = allowed[listed] = tuple(
                candidates(
                    op,
                    c.groups,
                    frozenset([g for g in c.groups if g >= 0 and found >> g & 1]),
                    size,
                    self.classes.places.uniform,
                )
                for found, size in zip(listed, self.mesh.sizes, strict=True)
            )
        return known

    def _work(self, op_class: int, a: Assignment) -> OpWork:
        c, op = self.classes.ops.keys[op_class], self.classes.op(op_class)
        parts = [1] * len(op.rule.sizes)
        for axis, factor in enumerate(a.factors):
            if factor >= 0:
                parts[factor] *= self.mesh.sizes[axis]
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
        elements = tensors.most_elements(c.operands, a.operands), tensors.most_elements(c.results, a.results)
        return OpWork(
            matrix_seconds(op, dtype, a.factors, self.mesh, self.device) if op.flops else 0.0,
            vector_ops(op, *elements),
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
