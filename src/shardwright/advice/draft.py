"""A program to try changes on: what the cost model would say if it were written differently.

A draft begins as a copy. Ops are inserted, their operands exchanged and loops made to carry more; ``finish`` drops what
nobody needs any more and gives the program with the groups of all its dimensions, so that every state of the old one
can be priced in the new one without an analysis. What is new is like something old, and belongs to the same groups.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from shardwright.ir.program import Loop, Op, Program, Region, Value
from shardwright.ir.rules import Rule
from shardwright.spmd.shardings import Pair, Places


def class_number(key: object) -> int:
    """A number for a class of ops that the program does not have: by content, so that it is the same in all drafts.

    What was worked out for one draft is remembered by it, so no other class may ever get it.
    """
    return -int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "big")


class ChangedPlaces(Places):
    """The groups of a finished draft."""

    def __init__(
        self,
        places: Places,
        program: Program,
        of_value: list[tuple[int, ...]],
        of_op: list[tuple[int, ...]],
        pairs: dict[int, tuple[Pair, ...]],
    ) -> None:
        self.analysis = replace(places.analysis, program=program)
        self.of_value, self.of_op = of_value, of_op
        self._known_pairs = pairs

    def pairs(self, value: int) -> tuple[Pair, ...]:
        """The conflicts of a value."""
        return self._known_pairs.get(value, ())


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
        v = self._origin(v)
        return self._groups[v] if v in self._groups else self.places.of_value[v]

    def pairs(self, v: int) -> tuple[Pair, ...]:
        """The conflicts of a value."""
        v = self._origin(v)
        return self._pairs[v] if v in self._pairs else self.places.pairs(v)

    def _origin(self, v: int) -> int:
        while v in self._like:
            v = self._like[v]
        return v

    def op(self, near: Op, kind: str, operands: Sequence[int], results: Sequence[int], rule: Rule) -> int:
        """A new op that is like none, at the source of another; the groups of its factors are those of its results."""
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
        self._bodies.append([self.clone(o, known) for o in self._bodies[r]])
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
        """Let an op use other values."""
        op = self.ops[o]
        self.ops[o] = op._replace(operands=tuple([instead.get(v, v) for v in op.operands]))

    @property
    def _bodies(self) -> list[list[int]]:
        """The ops that stand directly in each region, in order."""
        found = self.__dict__.get("_found_bodies")
        if found is None:
            found = self.__dict__["_found_bodies"] = bodies_of(self.program)
        bodies: list[list[int]] = found
        return bodies

    # The end.

    def finish(self) -> ChangedPlaces:
        """The program as it now is, without what nobody needs."""
        return _Finish(self).run()

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


def bodies_of(program: Program) -> list[list[int]]:
    """The ops that stand directly in each region, in order."""
    out: list[list[int]] = [[] for _ in program.regions]
    for o, op in enumerate(program.ops):
        out[op.region].append(o)
    return out


class _Finish:
    """Finds what is needed, then writes it down in order under new numbers."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.number: dict[int, int] = {}
        self.values: list[Value] = []
        self.ops: list[Op] = []
        self.regions: list[Region] = []
        self.loops: list[Loop] = []
        self.trips = {loop.op: loop for loop in draft.program.loops}
        self.value_origin: list[int] = []
        self.op_origin: list[int] = []

    def run(self) -> ChangedPlaces:
        draft, old = self.draft, self.draft.program
        self._find_needed()
        self._region(0, -1)
        program = Program(
            old.name,
            tuple(self.values),
            tuple(self.ops),
            tuple(self.regions),
            tuple(self.loops),
            tuple(replace(a, value=self.number[a.value]) for a in old.arguments),
            old.unused_arguments,
            old.results,
        )
        program.__dict__["shape_classes"] = {**old.shape_classes, **draft.classes}
        pairs = {new: found for new, v in enumerate(self.value_origin) if (found := draft.pairs(v))}
        return ChangedPlaces(
            draft.places,
            program,
            [draft.groups(v) for v in self.value_origin],
            [self._op_groups(o) for o in self.op_origin],
            pairs,
        )

    def _op_groups(self, o: int) -> tuple[int, ...]:
        draft = self.draft
        while o in draft._op_like:
            o = draft._op_like[o]
        return draft._op_groups[o] if o in draft._op_groups else draft.places.of_op[o]

    def _find_needed(self) -> None:
        """Mark every value that a result of the program depends on."""
        draft = self.draft
        stands = draft.standing_for
        made_by: dict[int, int] = {}
        parameter_of: dict[int, tuple[int, int]] = {}
        for o, op in enumerate(draft.ops):
            made_by.update(dict.fromkeys(op.results, o))
        for r, region in enumerate(draft.regions):
            parameter_of.update({v: (r, k) for k, v in enumerate(region.parameters)})
        self.needed: set[int] = set()
        self.needed_ops: set[int] = set()
        waiting = [*draft.regions[0].parameters, *draft.regions[0].results]
        waiting += [v for op in draft.ops[: len(draft.program.ops)] if not op.results for v in op.operands]
        while waiting:
            v = stands(waiting.pop())
            if v in self.needed:
                continue
            self.needed.add(v)
            o = made_by.get(v, -1)
            if o < 0:
                r, k = parameter_of[v]
                if draft.regions[r].op >= 0:
                    waiting += self._slot(draft.regions[r].op, k)
                continue
            op = draft.ops[o]
            self.needed_ops.add(o)
            waiting += self._slot(o, op.results.index(v)) if op.regions else op.operands

    def _slot(self, o: int, k: int) -> list[int]:
        """What an op with regions needs for one of its results, or for a parameter of one of its bodies."""
        draft = self.draft
        op = draft.ops[o]
        self.needed_ops.add(o)
        if op.kind != "while":
            return [*op.operands, *(v for r in op.regions for v in draft.regions[r].results)]
        body = draft.regions[op.regions[-1]]
        found = [op.operands[k], body.results[k], op.results[k]]
        return [*found, *(v for r in op.regions[:-1] for v in draft.regions[r].results)]

    def _slots(self, op: Op) -> list[bool]:
        """Which of a loop's slots are needed: all of them for another op."""
        stands = self.draft.standing_for
        parameters = [self.draft.regions[r].parameters for r in op.regions]
        return [
            op.kind != "while"
            or stands(v) in self.needed
            or any(len(found) > k and found[k] in self.needed for found in parameters)
            for k, v in enumerate(op.results)
        ]

    def _define(self, v: int, op: int, region: int) -> int:
        self.number[v] = len(self.values)
        self.values.append(self.draft.values[v]._replace(op=op, region=region))
        self.value_origin.append(v)
        return self.number[v]

    def _read(self, v: int) -> int:
        return self.number[self.draft.standing_for(v)]

    def _region(self, r: int, op: int, keep: Sequence[bool] | None = None) -> int:
        draft, region = self.draft, self.draft.regions[r]
        number = len(self.regions)
        self.regions.append(region)  # filled below: the ops inside need the number now
        kept = region.parameters if keep is None else tuple(itertools.compress(region.parameters, keep))
        parameters = tuple([self._define(v, -1, number) for v in kept])
        start = len(self.ops)
        for o in draft.order(r):
            if o in self.needed_ops or not draft.ops[o].results:
                self._op(o, number)
        through = (
            region.results if keep is None or region.role == "condition" else itertools.compress(region.results, keep)
        )
        results = tuple([self._read(v) for v in through])
        self.regions[number] = Region(op, region.role, parameters, results, start, len(self.ops))
        return number

    def _op(self, o: int, region: int) -> None:
        op = self.draft.ops[o]
        number = len(self.ops)
        if not op.regions:
            operands = tuple([self._read(v) for v in op.operands])
            results = tuple([self._define(v, number, region) for v in op.results])
            self.ops.append(op._replace(operands=operands, results=results, region=region))
            self.op_origin.append(o)
            return
        loop = op.kind == "while"
        keep = self._slots(op)
        operands = tuple([self._read(v) for v in (itertools.compress(op.operands, keep) if loop else op.operands)])
        results = tuple([self._define(v, number, region) for v in itertools.compress(op.results, keep)])
        self.ops.append(op._replace(operands=operands, results=results, region=region))
        self.op_origin.append(o)
        original = o
        while original in self.draft._op_like:
            original = self.draft._op_like[original]
        if original in self.trips:
            self.loops.append(replace(self.trips[original], op=number))
        regions = tuple([self._region(r, number, keep if loop else None) for r in op.regions])
        self.ops[number] = self.ops[number]._replace(regions=regions)
