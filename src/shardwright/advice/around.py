"""What a person would call some ops: the function that they are the inside of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from shardwright.ir.program import Program, Source

_NEARLY_ALL = 0.9


def function_around(program: Program, ops: Iterable[int]) -> Source | None:
    """The innermost function that nearly all of the work among these ops is called from, at the first of its lines."""
    found = [o for o in ops if program.ops[o].source.file and program.ops[o].kind != "constant"]
    heavy = [o for o in found if program.ops[o].flops] or found
    counts: Counter[tuple[str, str]] = Counter()
    depths: dict[tuple[str, str], int] = {}
    for o in heavy:
        inside = [(file, function) for file, _, function in frames(program.ops[o].source)]
        counts.update(set(inside))
        depths.update({name: depth for depth, name in enumerate(reversed(inside))})
    around = [name for name, count in counts.items() if count >= _NEARLY_ALL * len(heavy)]
    if not around:
        return None
    file, function = max(around, key=lambda name: depths[name])
    lines = [line for o in found if (line := line_in(program.ops[o].source, file, function))]
    return Source(file, min(lines), function)


def frames(source: Source) -> Iterator[tuple[str, int, str]]:
    """File, line and function of a source and of its callers, innermost first."""
    yield source.file, source.line, source.function
    yield from source.callers


def line_in(source: Source, file: str, function: str) -> int:
    """The line of a function at which a source is, or is called from; 0 if it is not inside it."""
    return next((line for f, line, name in frames(source) if (f, name) == (file, function)), 0)
