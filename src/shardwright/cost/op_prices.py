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


class _Choices:
    """The factors that ops of a signature and some groups may split, by which of the groups are on the lists.

    Each choice for all axes has a number: ``found[number]``.
    """

    __slots__ = ("bits", "by_axis", "found", "known", "numbers")

    def __init__(self, groups: Sequence[int], axes: int) -> None:
        self.bits = bits(groups)
        self.by_axis: list[dict[int, tuple[int, ...]]] = [{} for _ in range(axes)]
        self.known: dict[tuple[int, ...], int] = {}
        self.found: list[tuple[tuple[int, ...], ...]] = []
        self.numbers: dict[tuple[tuple[int, ...], ...], int] = {}


class _Kind(NamedTuple):
    """Classes of ops that differ in their values alone; ``prices`` by choice and the shardings of the values."""

    choices: _Choices
    prices: dict[tuple[int, ...], OpPrice]


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
        self._by_assignment: dict[tuple[int, int], OpPrice] = {}
        self._kinds = self._find_kinds()

    def _find_kinds(self) -> list[_Kind]:
        """The kind of each class."""
        axes = len(self.mesh.sizes)
        choices: dict[tuple[int, tuple[int, ...]], _Choices] = {}
        kinds: dict[tuple[int, tuple[int, ...], tuple[bool, ...], Outlook], _Kind] = {}
        out = []
        for c in self.classes.ops.keys:
            of_groups = choices.setdefault((c.signature, c.groups), _Choices(c.groups, axes))
            out.append(kinds.setdefault((c.signature, c.groups, c.free, c.outlook), _Kind(of_groups, {})))
        return out

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
        listed = tuple([kind.choices.bits & groups for groups in view.groups])
        choice = kind.choices.known.get(listed)
        if choice is None:
            choice = kind.choices.known[listed] = self._choice(op_class, listed)
        key = (choice, *[number(v, view) for v in c.operands], *[number(v, view) for v in c.results])
        found = kind.prices.get(key)
        if found is None:
            found = kind.prices[key] = self._worked_out(op_class, kind.choices.found[choice], key[1:])
        return found

    def _worked_out(
        self, op_class: int, allowed: tuple[tuple[int, ...], ...], sharding_numbers: Sequence[int]
    ) -> OpPrice:
        c, values = self.classes.ops.keys[op_class], self.classes.values.keys
        count = len(c.operands)
        shardings = tuple([self.tensors.shardings[n] for n in sharding_numbers])
        shape_class = self.classes.program.shape_classes[c.signature]
        problem = Problem(shape_class, c.outlook, shardings[:count], shardings[count:], c.free, allowed)
        shapes = [(values[v].shape, values[v].dtype) for v in (*c.operands, *c.results)]
        a = self.assigner.assign(self.classes.op(op_class), problem, shapes)
        key = (c.signature, id(a))  # the assigner keeps it, and gives the same one for the same
        known = self._by_assignment.get(key)
        if known is None:
            work = self._work(op_class, a)
            if a.loop_seconds:
                work = work._replace(matrix_seconds=work.matrix_seconds + a.loop_seconds)
            known = self._by_assignment[key] = OpPrice(a, work, self._unmoved_bytes(op_class, a))
        return known

    def _choice(self, op_class: int, listed: tuple[int, ...]) -> int:
        """The number of the choice of factors for each axis, given which of the op's groups are on its list."""
        c, op = self.classes.ops.keys[op_class], self.classes.op(op_class)
        choices, uniform = self._kinds[op_class].choices, self.classes.places.uniform
        out = []
        for found, size, known in zip(listed, self.mesh.sizes, choices.by_axis, strict=True):
            if found not in known:
                on_list = frozenset([g for g in c.groups if g >= 0 and found >> g & 1])
                known[found] = candidates(op, c.groups, on_list, size, uniform)
            out.append(known[found])
        allowed = tuple(out)
        if allowed not in choices.numbers:
            choices.numbers[allowed] = len(choices.found)
            choices.found.append(allowed)
        return choices.numbers[allowed]

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
