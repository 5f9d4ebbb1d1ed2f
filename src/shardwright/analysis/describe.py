"""What a person is told about groups and conflicts: names, sizes, and how much of the program they touch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright.analysis.colours import Colours
from shardwright.analysis.conflicts import CompatibilitySet, Conflict
from shardwright.analysis.groups import Group
from shardwright.analysis.names import Ints
from shardwright.ir.kinds import SAME_ENTRIES
from shardwright.ir.program import Op, Program, Source

Floats = NDArray[np.float64]
"""Counts that may exceed 64 bits."""


@dataclass(frozen=True)
class Side:
    """One of the two places that a conflict leaves to choose from."""

    value: str
    dimension: int
    type: str
    role: str

    def __str__(self) -> str:
        return f"{self.role}: {self.value}[{self.dimension}]"


@dataclass(frozen=True)
class ConflictDescription:
    """A conflict group: where it begins, its two sides, and how many sets and members it decides."""

    source: Source
    kind: str
    sides: tuple[Side, Side]
    sets: int
    members: int
    consistent: bool


@dataclass(frozen=True)
class Description:
    """A group: ``bytes`` and ``flops`` count loops as often as they run, and each tensor or op once per run.

    ``size`` is that of the dimension it is named after; ``sizes`` are all that occur in the group.
    """

    name: str
    size: int
    sizes: tuple[int, ...]
    copies: int
    tensors: int
    bytes: int
    flops: int
    arguments: tuple[str, ...]
    conflicts: tuple[ConflictDescription, ...]


def describe_groups(
    colours: Colours, sets: Sequence[CompatibilitySet], groups: Sequence[Group]
) -> tuple[Description, ...]:
    """Describe every group; names are unique."""
    program = colours.names.program
    owned = _owned_values(program)
    bytes_of, tensors_of = _bytes_by_colour(colours, owned)
    flops_of = _flops_by_colour(colours)
    sizes_of = _sizes_by_colour(colours)
    first_use = _first_uses(program)
    taken: Counter[str] = Counter()
    out = []
    for group in groups:
        named_after = [_naming_dimension(colours, c, first_use) for c in group.colours]
        name = _common([f"{program.name_of(v)}[{d}]" for v, d in named_after])
        taken[name] += 1
        if taken[name] > 1:
            name += f"#{taken[name]}"
        v, d = named_after[0]
        out.append(
            Description(
                name=name,
                size=program.values[v].shape[d],
                sizes=tuple(sorted({size for c in group.colours for size in sizes_of[c]})),
                copies=len(group.colours),
                tensors=int(sum(tensors_of[c] for c in group.colours)),
                bytes=int(sum(bytes_of[c] for c in group.colours)),
                flops=int(sum(flops_of[c] for c in group.colours)),
                arguments=tuple(
                    f"{program.argument_of[v].path}[{d}]"
                    for c in group.colours
                    for v, d in colours.dims[c]
                    if v in program.argument_of
                ),
                conflicts=tuple(
                    _describe_conflict(program, sets, conflict.sets, conflict.consistent)
                    for conflict in group.conflicts
                ),
            )
        )
    return tuple(out)


def _owned_values(program: Program) -> NDArray[np.bool_]:
    """Values that are tensors of their own: not a loop's parameters, nor what only passes through a loop or barrier."""
    owned = np.array([v.op >= 0 for v in program.values], dtype=bool)
    owned[[a.value for a in program.arguments]] = True
    for op in program.ops:
        if not op.rule.tensors:
            owned[list(op.results)] = False
    return owned


def _bytes_by_colour(colours: Colours, owned: NDArray[np.bool_]) -> tuple[Floats, Ints]:
    program = colours.names.program
    repeats = program.repeats
    maker = np.array([v.op for v in program.values], dtype=np.int64)
    weight = program.bytes_of * np.where(maker >= 0, np.append(repeats, 1)[maker], 1).astype(np.float64)
    values, _, of = colours.dim_table
    pairs = np.unique(np.stack([of, values], axis=1)[owned[values]], axis=0)
    total = np.zeros(colours.count)
    np.add.at(total, pairs[:, 0], weight[pairs[:, 1]])
    return total, np.bincount(pairs[:, 0], minlength=colours.count)


def _flops_by_colour(colours: Colours) -> Floats:
    program = colours.names.program
    weight = np.array([op.flops for op in program.ops], dtype=np.float64) * program.repeats
    ops, _, of = colours.factor_table
    pairs = np.unique(np.stack([of, ops], axis=1)[weight[ops] > 0], axis=0)
    total = np.zeros(colours.count)
    np.add.at(total, pairs[:, 0], weight[pairs[:, 1]])
    return total


_LOOKED_THROUGH = SAME_ENTRIES | {"broadcast_in_dim"}


def _first_uses(program: Program) -> Ints:
    """For each value the first op that computes with it; casts, views and the borders of loops are looked through."""
    first = np.full(len(program.values), len(program.ops), dtype=np.int64)
    for o in range(len(program.ops) - 1, -1, -1):
        op = program.ops[o]
        if op.rule.tensors and op.kind not in _LOOKED_THROUGH:
            first[list(op.operands)] = o
        elif op.kind in _LOOKED_THROUGH or op.kind == "optimization_barrier":
            for a, b in zip(op.operands, op.results, strict=False):
                first[a] = min(first[a], first[b])
        elif op.kind == "while":
            inside = [program.regions[r].parameters for r in op.regions]
            for a, parameters in zip(op.operands, zip(*inside, strict=True), strict=True):
                first[a] = min(first[a], *(first[p] for p in parameters))
        elif op.operands:
            first[list(op.operands)] = o
    return first


def _naming_dimension(colours: Colours, colour: int, first_use: Ints) -> tuple[int, int]:
    """What a colour is called after: the argument that the program reads first, else its largest tensor."""
    program = colours.names.program
    dims = colours.dims[colour]
    arguments = [(int(first_use[v]), k) for k, (v, _) in enumerate(dims) if v in program.argument_of]
    if arguments:
        return dims[min(arguments)[1]]
    size = program.bytes_of[[v for v, _ in dims]]
    return dims[int(size.argmax())]


def _common(names: Sequence[str]) -> str:
    """One name for copies: list positions that differ become ``*``; else the first one's name speaks for all."""
    split = [name.split(".") for name in names]
    if any(len(parts) != len(split[0]) for parts in split):
        return names[0]
    columns = [set(column) for column in zip(*split, strict=True)]
    if not all(len(column) == 1 or all(part.isdigit() for part in column) for column in columns):
        return names[0]
    return ".".join(part if len(column) == 1 else "*" for part, column in zip(split[0], columns, strict=True))


def _sizes_by_colour(colours: Colours) -> list[tuple[int, ...]]:
    """For each colour the sizes that its dimensions have, ascending."""
    program = colours.names.program
    values, dims, of = colours.dim_table
    sizes = program.dim_sizes[colours.names.dim_start[values] + dims]
    out: list[list[int]] = [[] for _ in range(colours.count)]
    for colour, size in np.unique(np.stack([of, sizes], axis=1), axis=0).tolist():
        out[colour].append(size)
    return [tuple(found) for found in out]


def _describe_conflict(
    program: Program, all_sets: Sequence[CompatibilitySet], numbers: Sequence[int], consistent: bool
) -> ConflictDescription:
    members = all_sets[numbers[0]].members
    birth = next((m for m in members if m.of == "op" and _is_birth(program.ops[m.index], m)), members[0])
    if birth.of == "op":
        op = program.ops[birth.index]
        source, kind = op.source, op.kind
        first, second = (_side_of_factor(program, op, f) for f in birth.sides())
    else:
        first_op = next((m.index for m in members if m.of == "op"), -1)
        source = program.ops[first_op].source if first_op >= 0 else program.source_of(birth.index)
        kind = "value"
        first, second = (_side_of_dimension(program, birth.index, d) for d in birth.sides())
    return ConflictDescription(
        source=source,
        kind=kind,
        sides=(first, second),
        sets=len(numbers),
        members=sum(len(all_sets[s].members) for s in numbers),
        consistent=consistent,
    )


def _is_birth(op: Op, conflict: Conflict) -> bool:
    """The two places come together here: no operand has both."""
    for dims in op.rule.operands:
        majors = {factors[0] for factors in dims if factors}
        if {conflict.first, conflict.second} <= majors:
            return False
    return True


def _side_of_factor(program: Program, op: Op, factor: int) -> Side:
    for t, dims in enumerate(op.rule.tensors):
        for d, factors in enumerate(dims):
            if factors[:1] == (factor,):
                operand = t < len(op.operands)
                value = op.operands[t] if operand else op.results[t - len(op.operands)]
                role = f"operand {t}" if operand else "result"
                return Side(program.name_of(value), d, str(program.values[value]), role)
    raise AssertionError("a factor in conflict lies on some tensor")


def _side_of_dimension(program: Program, value: int, dimension: int) -> Side:
    role = "argument" if value in program.argument_of else "value"
    return Side(program.name_of(value), dimension, str(program.values[value]), role)
