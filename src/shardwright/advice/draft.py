"""A program to try changes on: what the cost model would say if it were written differently.

A draft begins as a copy. Ops are inserted, their operands exchanged and loops made to carry more; ``finish`` then makes
a program of it. What is new is like something old, and belongs to the same groups.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import cached_property

from shardwright.ir.program import Op, Program, Region, Value
from shardwright.ir.rules import Rule, empty_whole
from shardwright.price.shardings import Pair, Places


def class_number(key: object) -> int:
    """A number for a class of ops that the program does not have: by content, so that it is the same in all drafts.

    What was worked out for one draft is remembered by it, so no other class may ever get it.
    """
    return -int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "big")


class Draft:
    """Values, ops and regions keep their numbers until it is finished; new ones follow.

    ``before[o]`` are ops that stand before op ``o`` in its region, ``after[o]`` those after it.
    """

    def __init__(self, places: Places) -> None:
        self.places = places
        self.program = places.analysis.program
        self.values: list[Value] = list(self.program.values)
        self.ops: list[Op] = list(self.program.ops)
        self.regions: list[Region] = list(self.program.regions)
        self.before: dict[int, list[int]] = defaultdict(list)
        self.after: dict[int, list[int]] = defaultdict(list)
        self.exchanged: dict[int, int] = {}
        """Values for which others stand in, wherever they are used."""
        self.stacks: list[int] = []
        """New values that a loop fills and another reads, all of which are there between the two."""
        self.classes: dict[int, int] = {}
        """The shape classes of what is new, by signature."""
        self._groups: dict[int, tuple[int, ...]] = {}
        self._pairs: dict[int, tuple[Pair, ...]] = {}
        self._like: dict[int, int] = {}
        self._op_groups: dict[int, tuple[int, ...]] = {}
        self._op_like: dict[int, int] = {}

    # New things.

    def stacked(self, v: int, count: int) -> int:
        """A new value: so many of another, one above the other."""
        value = self.values[v]
        self.values.append(Value((count, *value.shape), value.dtype, -1, 0))
        number = len(self.values) - 1
        self._groups[number] = (-1, *self.groups(v))
        self._pairs[number] = tuple([Pair((a + 1, b + 1), conflict) for (a, b), conflict in self.pairs(v)])
        return number

    def scalar(self, dtype: str) -> int:
        """A new value of no dimensions."""
        self.values.append(Value((), dtype, -1, 0))
        self._groups[len(self.values) - 1] = ()
        return len(self.values) - 1

    def like(self, v: int) -> int:
        """A new value of the type and the groups of another."""
        self.values.append(self.values[v])
        self._like[len(self.values) - 1] = v
        return len(self.values) - 1

    def groups(self, v: int) -> tuple[int, ...]:
        """The group of each dimension of a value."""
        v = self.origin(v)
        return self._groups[v] if v in self._groups else self.places.of_value[v]

    def pairs(self, v: int) -> tuple[Pair, ...]:
        """The conflicts of a value."""
        v = self.origin(v)
        return self._pairs[v] if v in self._pairs else self.places.pairs(v)

    def op_groups(self, o: int) -> tuple[int, ...]:
        """The group of each factor of an op."""
        o = self.op_origin(o)
        return self._op_groups[o] if o in self._op_groups else self.places.of_op[o]

    def op_origin(self, o: int) -> int:
        """The op that one was cloned from, or itself."""
        while o in self._op_like:
            o = self._op_like[o]
        return o

    def origin(self, v: int) -> int:
        """The value that one is like, or itself."""
        while v in self._like:
            v = self._like[v]
        return v

    def op(self, near: Op, kind: str, operands: Sequence[int], results: Sequence[int], rule: Rule) -> int:
        """A new op that is like none, at the source of another; the groups of its factors are those of its results."""
        rule = empty_whole(rule)
        types = tuple((self.values[v].shape, self.values[v].dtype) for v in (*operands, *results))
        signature = class_number((kind, types, rule))
        self.classes[signature] = class_number((types, rule))
        self.ops.append(Op(kind, tuple(operands), tuple(results), rule, near.region, near.source, signature))
        groups = [-1] * len(rule.sizes)
        for v, dims in zip((*operands, *results), rule.tensors, strict=bool(rule.tensors)):
            for group, factors in zip(self.groups(v), dims, strict=True):
                if factors:
                    groups[factors[0]] = group
        self._op_groups[len(self.ops) - 1] = tuple(groups)
        return len(self.ops) - 1

    def clone(self, o: int, known: dict[int, int]) -> int:
        """Another op like ``o``, with all inside it; operands stand for themselves unless ``known`` has others.

        Its results are entered into ``known``.
        """
        op = self.ops[o]
        results = tuple([self.like(v) for v in op.results])
        operands = tuple([known.get(v, v) for v in op.operands])
        known.update(zip(op.results, results, strict=True))
        self.ops.append(op._replace(operands=operands, results=results))
        number = len(self.ops) - 1
        self._op_like[number] = o
        if op.regions:
            inside = dict(known)
            self.ops[number] = self.ops[number]._replace(
                regions=tuple([self._clone_region(r, number, inside) for r in op.regions])
            )
        return number

    def _clone_region(self, r: int, op: int, known: dict[int, int]) -> int:
        region = self.regions[r]
        parameters = tuple([self.like(v) for v in region.parameters])
        known.update(zip(region.parameters, parameters, strict=True))
        number = len(self.regions)
        self.regions.append(replace(region, op=op, parameters=parameters))
        body: list[int] = []
        self._bodies.append(body)  # before those of the regions inside, which get the next numbers
        body += [self.clone(o, known) for o in self._bodies[r]]
        self.regions[number] = replace(self.regions[number], results=tuple([known.get(v, v) for v in region.results]))
        return number

    def carry(self, loop: int, operand: int, result: int | None = None) -> tuple[int, int, int]:
        """Let a loop carry one more value: its body's parameter, what the loop gives back, and the slot's number.

        The body gives it back as it came; ``give_back`` changes that.
        """
        op = self.ops[loop]
        after = self.like(operand) if result is None else result
        self.ops[loop] = op._replace(operands=(*op.operands, operand), results=(*op.results, after))
        for r in op.regions:
            region, parameter = self.regions[r], self.like(operand)
            results = region.results if region.role == "condition" else (*region.results, parameter)
            self.regions[r] = replace(region, parameters=(*region.parameters, parameter), results=results)
        return self.regions[op.regions[-1]].parameters[-1], after, len(op.operands)

    def give_back(self, loop: int, slot: int, value: int) -> None:
        """What a loop's body gives back for a slot."""
        r = self.ops[loop].regions[-1]
        results = list(self.regions[r].results)
        results[slot] = value
        self.regions[r] = replace(self.regions[r], results=tuple(results))

    def use(self, o: int, instead: Mapping[int, int]) -> None:
        """Let an op, with all inside it, use other values."""
        op = self.ops[o]
        self.ops[o] = op._replace(operands=tuple([instead.get(v, v) for v in op.operands]))
        for r in op.regions:
            for inner in self._bodies[r]:
                self.use(inner, instead)
            results = tuple([instead.get(v, v) for v in self.regions[r].results])
            self.regions[r] = replace(self.regions[r], results=results)

    @cached_property
    def _bodies(self) -> list[list[int]]:
        """The ops that stand directly in each region, in order."""
        return bodies_of(self.program)

    # For whoever writes it down.

    def order(self, region: int) -> Iterator[int]:
        """The ops that stand directly in a region, with what was inserted."""
        for o in self._bodies[region]:
            yield from self._around(o)

    def _around(self, o: int) -> Iterator[int]:
        for b in self.before.get(o, ()):
            yield from self._around(b)
        yield o
        for a in self.after.get(o, ()):
            yield from self._around(a)

    def standing_for(self, v: int) -> int:
        """The value that stands in for another, or itself."""
        while v in self.exchanged:
            v = self.exchanged[v]
        return v


def reads_of(program: Program) -> list[tuple[int, ...]]:
    """The values that each op reads: its operands, then those from around it that are read inside it.

    The branches of a ``cond`` are given nothing and read what they need from where they stand.
    """
    inside: list[dict[int, None]] = [{} for _ in program.ops]
    read = [(op.region, v) for op in program.ops for v in op.operands]
    read += [(r, v) for r, region in enumerate(program.regions) for v in region.results]
    for r, v in read:
        while r != program.values[v].region:
            o = program.regions[r].op
            inside[o][v] = None
            r = program.ops[o].region
    return [(*op.operands, *found) for op, found in zip(program.ops, inside, strict=True)]


def bodies_of(program: Program) -> list[list[int]]:
    """The ops that stand directly in each region, in order."""
    out: list[list[int]] = [[] for _ in program.regions]
    for o, op in enumerate(program.ops):
        out[op.region].append(o)
    return out


class Policy(Enum):
    """From what keeps most to what keeps least, each called as JAX calls it."""

    EVERYTHING = ""
    DOTS = "dots_saveable"
    PLAIN_DOTS = "dots_with_no_batch_dims_saveable"
    NOTHING = "nothing_saveable"

    def keeps(self, op: Op) -> bool:
        """Whether the results of an op are kept where they are needed."""
        if self is Policy.EVERYTHING:
            return True
        dot = op.kind == "dot_general" and self is not Policy.NOTHING
        return dot and (self is Policy.DOTS or not _has_batch(op))


def _has_batch(op: Op) -> bool:
    """Some factor lies on both operands and the result."""
    left, right, out = ({f for dim in dims for f in dim} for dims in (*op.rule.operands[:2], op.rule.results[0]))
    return any(op.rule.sizes[f] > 1 for f in left & right & out)
