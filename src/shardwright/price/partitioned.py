"""A program in a state: the sharding of every value, the assignment of every op, and the collectives this implies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from shardwright.ir.kinds import MANUAL
from shardwright.ir.move_terms import summed
from shardwright.ir.program import Op, Program, Source, Value
from shardwright.price.added import Moves, reduced_together
from shardwright.price.assign import Assigner, Assignment, OpProblem
from shardwright.price.collectives import Move, reshard
from shardwright.price.shardings import Bounds, Places, bounds_of, shard_values
from shardwright.price.uneven import moved_padding, padding
from shardwright.price.ways import Prices, candidates, spread
from shardwright.request import MeshShape
from shardwright.space.state import Entry, Sharding, State, without


@dataclass(frozen=True)
class Collective:
    """One collective that a state implies.

    ``bytes`` is what each device sends, once; ``times`` how often it runs. ``where`` is "use" (an operand is brought to
    what the op wants), "result", "border" (of a loop or branch) or "own" (the program's own). The rest is of the
    ``Move``.
    """

    kind: str
    axes: tuple[str, ...]
    bytes: float
    times: int
    value: int
    op: int
    where: str
    source: Source
    sharers: int = 1
    scale: float = 1.0
    in_place: bool = True
    addends: int = 1

    @property
    def total_bytes(self) -> float:
        """Bytes that each device sends over the whole run."""
        return self.bytes * self.times


@dataclass(frozen=True, eq=False)
class Partitioned:
    """``values[v]`` is a value's sharding, ``assignments[o]`` an op's, or None for loops, branches and barriers."""

    places: Places
    mesh: MeshShape
    state: State
    values: tuple[Sharding, ...]
    assignments: tuple[Assignment | None, ...]

    @property
    def program(self) -> Program:
        """The program that was partitioned."""
        return self.places.analysis.program

    @cached_property
    def padded(self) -> frozenset[int]:
        """Values with a dimension that its axes do not divide."""
        values = zip(self.program.values, self.values, strict=True)
        return frozenset(v for v, (value, s) in enumerate(values) if padding(value.shape, s, self.mesh) > 1)

    @cached_property
    def collectives(self) -> tuple[Collective, ...]:
        """Everything that moves, in program order."""
        out: list[Collective] = []
        program, repeats = self.program, self.program.region_repeats

        def add(moves: tuple[Move, ...], value: int, o: int, where: str, region: int) -> None:
            for move in moves:
                if move.bytes:
                    axes = tuple(self.mesh.names[a] for a in move.axes)
                    source = program.ops[o].source
                    times = repeats[region]
                    out.append(Collective(move.kind, axes, move.bytes, times, value, o, where, source, *move[3:]))

        together = self._reduced_together()
        seen: set[tuple[int, int, Sharding]] = set()
        for o, (op, assignment) in enumerate(zip(program.ops, self.assignments, strict=True)):
            if assignment is not None:
                for value, moves, want in zip(op.operands, assignment.before, assignment.operands, strict=True):
                    if moves and (op.region, value, want) not in seen:  # gathered once for all its uses in a body
                        add(moves, value, o, "use", op.region)
                        seen.add((op.region, value, want))
                for value, move in zip(op.results, assignment.own, strict=False):
                    add((move,), value, o, "own", op.region)
                for value, moves in zip(op.results, together.get(o, assignment.after), strict=True):
                    add(moves, value, o, "result", op.region)
            else:
                for a, b in program.ties(op):
                    if not program.free[a]:
                        inside, have, want = self._crossing(op, a, b)
                        size = inside.bytes * moved_padding(inside.shape, have, want, self.mesh)
                        moves = reshard(size, have, want, self.mesh)
                        # What a loop's body returns crosses in every trip.
                        add(moves, a, o, "border", program.values[a].region)
        return tuple(out)

    def _reduced_together(self) -> dict[int, tuple[Moves]]:
        """The moves behind ops whose sums are added up."""
        found: dict[int, tuple[Moves]] = {}
        for addition in self.program.additions:
            ops = summed(addition)
            moves = [a.after[0] for o in ops if (a := self.assignments[o]) is not None]
            found |= {o: (own,) for o, own in zip(ops, reduced_together(addition, moves), strict=True)}
        return found

    def _crossing(self, op: Op, a: int, b: int) -> tuple[Value, Sharding, Sharding]:
        """A value that crosses the border of an op, with its shardings on both sides, manual axes left out."""
        values = self.program.values
        if op.kind != MANUAL:
            return values[a], self.values[a], self.values[b]
        manual = self.mesh.numbers(op.attributes["manual"])
        inside = values[a] if values[b].op >= 0 else values[b]
        return inside, without(self.values[a], manual), without(self.values[b], manual)


def partition_program(
    places: Places, mesh: MeshShape, state: State, prices: Prices, assigner: Assigner | None = None
) -> Partitioned:
    """Give every value its sharding and every op its assignment; an ``assigner`` of the program knows some already."""
    values = tuple(shard_values(places, mesh, state))
    assigner = assigner or Assigner(mesh, prices, as_they_lie=places.analysis.program.typed)
    return partition_values(places, mesh, state, values, assigner, {})


def partition_values(
    places: Places,
    mesh: MeshShape,
    state: State,
    values: tuple[Sharding, ...],
    assigner: Assigner,
    known_of_op: Mapping[int, Assignment],
) -> Partitioned:
    """Give every op its assignment, where the shardings of values are known, and the assignments of some ops."""
    program = places.analysis.program
    on_list = [frozenset(entry.group for entry in entries if isinstance(entry, Entry)) for entries in state.lists]
    free = program.free.tolist()
    allowed: dict[tuple[int, tuple[int, ...], Bounds], tuple[tuple[int, ...], ...]] = {}
    known: dict[OpProblem, Assignment] = {}
    assignments: list[Assignment | None] = []
    for o, op in enumerate(program.ops):
        if not op.rule.tensors or o in known_of_op:
            assignments.append(known_of_op.get(o))
            continue
        groups, bounds = places.of_op[o], bounds_of(program, op)
        choice = allowed.get((op.signature, groups, bounds))
        if choice is None:
            own = tuple(
                candidates(op, groups, found, size, places.uniform, bounds.of_axis(axis))
                for axis, found, size in zip(mesh.names, on_list, mesh.sizes, strict=True)
            )
            choice = allowed[op.signature, groups, bounds] = spread(op.rule, own, mesh.sizes)
        problem = OpProblem(
            program.shape_classes[op.signature],
            program.move_terms[o],
            tuple([values[v] for v in op.operands]),
            tuple([values[v] for v in op.results]),
            tuple([free[v] for v in op.operands]),
            choice,
        )
        if problem not in known:
            tensors = [(program.values[v].shape, program.values[v].dtype) for v in (*op.operands, *op.results)]
            known[problem] = assigner.assign(op, problem, tensors)
        assignments.append(known[problem])
    return Partitioned(places, mesh, state, values, tuple(assignments))
