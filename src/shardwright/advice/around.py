"""What a person would call some ops: the function that they are the inside of."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from shardwright.ir.kinds import IN_PLACE, MOVES_DATA
from shardwright.ir.program import Program, Source

_NEARLY_ALL = 0.9


def function_around(program: Program, ops: Iterable[int]) -> Source | None:
    """The innermost function that nearly all of these ops are inside of one call of, at the first of its lines.

    Slices, reshapes and counters do not count: those that a scan makes for its layers are outside of the layer.
    """
    located = [o for o in ops if program.ops[o].source.file]
    found = [o for o in located if _computes(program, o)] or located
    counts: Counter[tuple[str, str]] = Counter()
    depths: dict[tuple[str, str], int] = {}
    calls: dict[tuple[str, str], Counter[tuple[str, int, str]]] = defaultdict(Counter)
    for o in found:
        around = list(frames(program.ops[o].source))
        names = [(file, function) for file, _, function in around]
        counts.update(set(names))
        depths.update({name: depth for depth, name in enumerate(reversed(names))})
        for name, caller in zip(names, around[1:], strict=False):
            calls[name][caller] += 1
    one_call = {name for name, found_calls in calls.items() if _nearly(max(found_calls.values()), counts[name])}
    nearly_all = [
        name for name in counts if _nearly(counts[name], len(found)) and (name in one_call or name not in calls)
    ]
    if not nearly_all:
        return None
    file, function = max(nearly_all, key=lambda name: depths[name])
    lines = [line for o in found if (line := line_in(program.ops[o].source, file, function))]
    return Source(file, min(lines), function)


def _computes(program: Program, o: int) -> bool:
    op = program.ops[o]
    return op.kind not in MOVES_DATA | IN_PLACE and any(program.values[v].shape for v in op.results)


def _nearly(part: int, whole: int) -> bool:
    return part >= _NEARLY_ALL * whole


def frames(source: Source) -> Iterator[tuple[str, int, str]]:
    """File, line and function of a source and of its callers, innermost first."""
    yield source.file, source.line, source.function
    yield from source.callers


def line_in(source: Source, file: str, function: str) -> int:
    """The line of a function at which a source is, or is called from; 0 if it is not inside it."""
    return next((line for f, line, name in frames(source) if (f, name) == (file, function)), 0)
