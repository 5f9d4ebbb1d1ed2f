"""The ops of a source line: how each runs, and how its results lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jax.sharding import PartitionSpec

from shardwright.apply import spec
from shardwright.compiler.miscompiled import Avoided, splits_taken
from shardwright.errors import PlanError, nearest
from shardwright.ir.program import Program, Source

if TYPE_CHECKING:
    from shardwright.plan.plan import Plan

At = Callable[[Source], bool]
_BACKWARD = ", backward"


@dataclass(frozen=True)
class Split:
    """The axes that split a dimension in an op; ``partial``: it is summed over, so the results are partial sums."""

    axes: tuple[str, ...]
    dimension: str
    partial: bool


@dataclass(frozen=True)
class OpKind:
    """Ops of one line that are alike: how often they run in all, what they read and make, and how each runs.

    ``specs`` are those of the results, once they are reduced and moved. ``flops`` and ``bytes`` (of what it reads and
    makes) are those of one of them, unsharded. ``avoided`` are splits that the compiler gets wrong.
    """

    kind: str
    source: Source
    times: int
    operands: tuple[str, ...]
    results: tuple[str, ...]
    splits: tuple[Split, ...]
    specs: tuple[PartitionSpec, ...]
    flops: int
    bytes: int
    avoided: tuple[Avoided, ...] = ()


def find_lines(program: Program, text: str) -> At:
    """Which sources are meant by ``file.py:12``, ``file.py:12 (function)`` or the name of a function.

    With ``, backward`` at the end, as sources are printed, only the backward pass is meant.
    """
    name = text.removesuffix(_BACKWARD).strip()
    backward = text.endswith(_BACKWARD)
    sources = {op.source for op in program.ops}

    def at(source: Source) -> bool:
        return name in _names(source) and (source.backward or not backward)

    if not any(map(at, sources)):
        raise PlanError(f"there is no argument, source line or function {text!r}{_nearest(program, name, sources)}.")
    return at


def _names(source: Source) -> set[str]:
    if not source.file:
        return {str(source)}
    file = source.file.rsplit("/", 1)[-1]
    return {str(source), f"{file}:{source.line}", f"{source.file}:{source.line}", source.function or str(source)}


def _nearest(program: Program, name: str, sources: set[Source]) -> str:
    """The end of a sentence: the lines of that file that are nearest, else the names that are most alike."""
    file, _, line = name.partition(" (")[0].rpartition(":")
    if line.isdigit():
        lines = {s.line for s in sources if file in (s.file, s.file.rsplit("/", 1)[-1])}
        close = sorted(sorted(lines, key=lambda n: abs(n - int(line)))[:3])
        if close:
            return f"; the nearest lines that compute something are {', '.join(f'{file}:{n}' for n in close)}"
    paths = [a.path for a in program.arguments]
    prefixes = {path.rsplit(".", k)[0] for path in paths for k in range(path.count(".") + 1)}
    known = {n for s in sources for n in _names(s) if "/" not in n}
    return nearest(name, sorted({*prefixes, *program.unused_arguments, *known}))


def ops_at(plan: Plan, at: At) -> tuple[OpKind, ...]:
    """The ops of some lines, alike ones together: forward before backward, the most arithmetic first, then bytes.

    Constants and what is computed from them alone are left out: every device makes its own.
    """
    program, partitioned = plan.analysis.program, plan.partitioned
    repeats, free = program.repeats.tolist(), program.free
    found: Counter[OpKind] = Counter()
    for o, op in enumerate(program.ops):
        if not op.results or all(free[v] for v in op.results) or not at(op.source):
            continue
        kind = OpKind(
            op.kind,
            op.source,
            0,
            tuple(str(program.values[v]) for v in op.operands),
            tuple(str(program.values[v]) for v in op.results),
            _splits(plan, o),
            tuple(spec(partitioned.values[v], partitioned.mesh.names) for v in op.results),
            op.flops,
            sum(program.values[v].bytes for v in (*op.operands, *op.results)),
            splits_taken(op.rule.records),
        )
        found[kind] += repeats[o]
    kinds = [replace(kind, times=times) for kind, times in found.items()]
    return tuple(sorted(kinds, key=lambda k: (k.source.backward, -k.flops * k.times, -k.bytes * k.times)))


def _splits(plan: Plan, o: int) -> tuple[Split, ...]:
    assignment = plan.partitioned.assignments[o]
    if assignment is None:
        return ()
    names, groups = plan.partitioned.mesh.names, plan.partitioned.places.of_op[o]
    axes: dict[int, list[str]] = {}
    for axis, factor in enumerate(assignment.factors):
        if factor >= 0:
            axes.setdefault(factor, []).append(names[axis])
    reduction = plan.analysis.program.ops[o].rule.reduction
    return tuple(
        Split(tuple(found), plan.analysis.descriptions[groups[factor]].name, factor in reduction)
        for factor, found in axes.items()
    )
