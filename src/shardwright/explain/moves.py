"""The collectives that an argument or a source line causes, copies of a layer added up."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwright.ir.kinds import CARRIES, SAME_ENTRIES
from shardwright.ir.program import Program, Source, is_elementwise
from shardwright.price import Collective
from shardwright.space.carried import carried_results

if TYPE_CHECKING:
    from shardwright.plan.plan import Plan

ITSELF, UPDATE = "itself", "its update"


@dataclass(frozen=True)
class Moved:
    """Collectives of one kind, on one kind of tensor, at one source line.

    ``of`` is "itself" (an argument, or a cast or slice of it), "its update" (its gradient, on its way into it), or ""
    where a line was asked about. ``bytes`` are those that each device sends in one of them; ``seconds`` are of all,
    ``hidden_seconds`` those of them that other work runs beside.
    """

    kind: str
    axes: tuple[str, ...]
    tensor: str
    of: str
    bytes: float
    times: int
    seconds: float
    source: Source
    hidden_seconds: float = 0.0


def moved_by_argument(plan: Plan, arguments: Sequence[int]) -> tuple[Moved, ...]:
    """Those that move arguments with these values, or what updates them."""
    program = plan.analysis.program
    own, updates = forms_of(program, arguments), updates_of(program, arguments)
    return _collected(plan, lambda c: ITSELF if c.value in own else UPDATE if c.value in updates else None)


def moved_at(plan: Plan, at: Callable[[Source], bool]) -> tuple[Moved, ...]:
    """Those at some source lines."""
    return _collected(plan, lambda c: "" if at(c.source) else None)


def _collected(plan: Plan, of: Callable[[Collective], str | None]) -> tuple[Moved, ...]:
    found: dict[tuple[str, tuple[str, ...], str, str, float, Source], list[float]] = {}
    for collective, cost in zip(plan.collectives, plan.estimate.collectives, strict=True):
        part = of(collective)
        if part is not None:
            key = (cost.kind, cost.axes, cost.tensor, part, cost.bytes, cost.source)
            total = found.setdefault(key, [0, 0.0, 0.0])
            total[0] += cost.times
            total[1] += cost.seconds
            total[2] += cost.hidden_seconds
    out = [
        Moved(kind, axes, tensor, part, size, int(times), seconds, source, hidden)
        for (kind, axes, tensor, part, size, source), (times, seconds, hidden) in found.items()
    ]
    return tuple(sorted(out, key=lambda m: -m.seconds))


def forms_of(program: Program, arguments: Collection[int]) -> frozenset[int]:
    """The arguments' values, and their casts, slices and reshapes, inside of loops as well."""
    found = set(arguments)
    for op in program.ops:
        if op.kind == "while":
            body = program.regions[op.regions[-1]]
            for k, v in enumerate(op.operands):
                if v in found and body.results[k] == body.parameters[k]:
                    found.add(op.results[k])
                    found.update(program.regions[r].parameters[k] for r in op.regions)
        elif op.kind == "optimization_barrier":
            found.update(b for a, b in zip(op.operands, op.results, strict=True) if a in found)
        elif op.kind in SAME_ENTRIES and op.operands[0] in found:
            found.update(op.results)
    return frozenset(found)


def updates_of(program: Program, arguments: Collection[int]) -> frozenset[int]:
    """What arguments' next values are computed from, element by element: back to the contraction or sum that made it.

    An argument's next value is the result that has its path and type.
    """
    carried = carried_results(program)
    left = [v for argument in arguments for v in carried.get(argument, ())]
    found: set[int] = set()
    while left:
        v = left.pop()
        if v in found or program.free[v] or not program.values[v].shape:
            continue
        found.add(v)
        if program.values[v].op >= 0:
            left += _one_back(program, v)
    return frozenset(found)


def _one_back(program: Program, v: int) -> list[int]:
    op = program.ops[program.values[v].op]
    if op.kind in CARRIES:
        k = op.results.index(v)
        return [program.regions[op.regions[-1]].results[k]] if op.kind == "while" else [op.operands[k]]
    if op.kind == "dynamic_update_slice":  # a loop writes one layer's part at a time
        return [op.operands[1]]
    if op.kind in SAME_ENTRIES or (op.kind == "broadcast_in_dim" and _same_size(program, op.operands[0], v)):
        return [op.operands[0]]
    if is_elementwise(program, op) or op.kind == "select":
        return [x for x in op.operands if program.values[x].shape == program.values[v].shape]
    return []


def _same_size(program: Program, a: int, b: int) -> bool:
    """As many elements: a dimension of size one was added, no more."""
    return math.prod(program.values[a].shape) == math.prod(program.values[b].shape)
