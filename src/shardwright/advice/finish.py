"""A finished draft: a program without what nobody needs any more, with the groups of all its dimensions.

So every state of the old program can be priced in the new one without another analysis.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from shardwright.advice.draft import Draft
from shardwright.ir.program import Loop, Op, Program, Region, Value
from shardwright.price import Cost, CostModel
from shardwright.price.collectives import local_bytes
from shardwright.price.shardings import Pair, Places, shard_value
from shardwright.space.state import State


def finish(draft: Draft) -> ChangedPlaces:
    """The program that a draft has become."""
    return _Finish(draft).run()


class ChangedPlaces(Places):
    """The groups of a finished draft."""

    def __init__(
        self,
        places: Places,
        program: Program,
        of_value: list[tuple[int, ...]],
        of_op: list[tuple[int, ...]],
        pairs: dict[int, tuple[Pair, ...]],
        numbers: Mapping[int, int],
    ) -> None:
        self.analysis = replace(places.analysis, program=program)
        self.of_value, self.of_op = of_value, of_op
        self.numbers = numbers
        """The new numbers of the draft's values."""
        self._known_pairs = pairs

    def pairs(self, value: int) -> tuple[Pair, ...]:
        """The conflicts of a value."""
        return self._known_pairs.get(value, ())


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
            old.own_mesh,
            told_shape_classes={**old.shape_classes, **draft.classes},
        )
        pairs = {new: found for new, v in enumerate(self.value_origin) if (found := draft.pairs(v))}
        return ChangedPlaces(
            draft.places,
            program,
            [draft.groups(v) for v in self.value_origin],
            [draft.op_groups(o) for o in self.op_origin],
            pairs,
            self.number,
        )

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
        original = self.draft.op_origin(o)
        if original in self.trips:
            self.loops.append(replace(self.trips[original], op=number))
        regions = tuple([self._region(r, number, keep if loop else None) for r in op.regions])
        self.ops[number] = self.ops[number]._replace(regions=regions)


def price(model: CostModel, places: ChangedPlaces, state: State) -> Cost:
    """What a changed program costs in a state of the model's program, with what the model has weighed already."""
    whole = tuple([frozenset([places.numbers[v] for v in values if v in places.numbers]) for values in state.whole])
    once = _Once(places, model.mesh, model.device, whole, assigner=model.assigner)
    return once.price(once.view(state.lists))


def least_bytes(model: CostModel, draft: Draft, state: State) -> float:
    """What a draft needs at least: its new stacks and the arguments, which are there at the same time."""
    mesh, values = model.mesh, draft.values
    view = model.view(state.lists)
    of_value = model.classes.of_value
    held = sum(model.bytes_in(of_value[v], model.sharding(of_value[v], view)) for v in model.classes.buffers.held)
    for v in draft.stacks:
        sharding = shard_value(values[v].shape, draft.groups(v), draft.pairs(v), (), mesh, state.lists)
        held += local_bytes(values[v].bytes, sharding, mesh)
    return held


class _Once(CostModel):
    """Prices no state before it is asked to."""

    def _start(self) -> None:
        pass
