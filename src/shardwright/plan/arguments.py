"""A plan's arguments in few rows: those with the same spec together, under a pattern for their paths."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwright.apply import spec, spec_text
from shardwright.ir.program import Argument, Value
from shardwright.plan.patterns import pattern
from shardwright.price.collectives import local_bytes

if TYPE_CHECKING:
    from shardwright.plan.plan import Plan

_MOST_ROWS = 16
_NARROWEST, _ANY_WIDTH = 28, 10**6


@dataclass(frozen=True)
class ArgumentRow:
    """Arguments with the same spec and types that are alike; ``bytes`` is what all of them take on each device.

    ``type`` has ``…`` for sizes that differ.
    """

    paths: tuple[str, ...]
    type: str
    spec: str
    bytes: int


def argument_rows(plan: Plan) -> list[ArgumentRow]:
    """The rows, in the order of the arguments; where they would be too many to read, by bytes, and fewer.

    In the latter case arguments go together that differ in sizes alone and have the same last two names.
    """
    rows = _rows(plan, lambda a, value: (str(value), a.memory_kind))
    if len(rows) <= _MOST_ROWS:
        return rows
    rows = _rows(
        plan, lambda argument, value: (_last_names(argument.path), value.dtype, len(value.shape), argument.memory_kind)
    )
    return sorted(rows, key=lambda row: -row.bytes)


def shown_rows(plan: Plan, width: int) -> tuple[list[tuple[str, ArgumentRow]], list[ArgumentRow]]:
    """The rows to show, each with a pattern that leaves room for the rest of a line, and those to leave out."""
    rows = argument_rows(plan)
    shown, left = rows[:_MOST_ROWS], rows[_MOST_ROWS:]
    taken = sum(max((len(text) for text in texts), default=0) for texts in zip(*map(_beside, shown), strict=True))
    room = max(width - taken, _NARROWEST)
    paths = [a.path for a in plan.analysis.program.arguments]

    others = [[path for path in paths if path not in own] for own in ({*row.paths} for row in shown)]

    def patterns(width: int, terse: bool = False) -> list[str]:
        return [pattern(row.paths, rest, width, terse) for row, rest in zip(shown, others, strict=True)]

    texts = patterns(room)
    if texts != patterns(_ANY_WIDTH):
        texts = patterns(room, terse=True)
    return list(zip(texts, shown, strict=True)), left


def argument_bytes(plan: Plan, value: int) -> int:
    """What an argument takes on each device."""
    whole = plan.analysis.program.values[value].bytes
    return int(local_bytes(whole, plan.partitioned.values[value], plan.partitioned.mesh))


def _beside(row: ArgumentRow) -> tuple[str, str, str]:
    return row.type, row.spec, f"× {len(row.paths)}"


def _rows(plan: Plan, kind: Callable[[Argument, Value], Hashable]) -> list[ArgumentRow]:
    program, axes = plan.analysis.program, plan.partitioned.mesh.names
    found: dict[tuple[Hashable, str], list[Argument]] = defaultdict(list)
    for a in program.arguments:
        found[kind(a, program.values[a.value]), spec_text(spec(plan.partitioned.values[a.value], axes))].append(a)
    return [
        ArgumentRow(
            tuple(a.path for a in same),
            _type([program.values[a.value] for a in same]) + ", on the host" * (same[0].memory_kind is not None),
            text,
            sum(argument_bytes(plan, a.value) for a in same),
        )
        for (_, text), same in found.items()
    ]


def _type(values: Sequence[Value]) -> str:
    sizes = (str(found[0]) if len({*found}) == 1 else "…" for found in zip(*(v.shape for v in values), strict=True))
    return f"{values[0].dtype}[{','.join(sizes)}]"


def _last_names(path: str) -> tuple[str, ...]:
    return tuple([name for name in path.split(".") if not name.isdigit()][-2:])
