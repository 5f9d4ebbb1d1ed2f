"""Layers that are written out one after another: the stretch of the forward pass that repeats itself.

A layer is a number of ops of the same classes at the same source lines, in the same order, again and again. Where one
layer ends and the next begins is where least is handed on.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright.ir.kinds import IN_PLACE, MOVES_DATA
from shardwright.ir.program import Op, Program, Source

_PERIODS_TRIED = 8
_FEWEST_OPS = 3


@dataclass(frozen=True)
class Layers:
    """The ops of each layer, in order, all of one region."""

    region: int
    ops: tuple[tuple[int, ...], ...]


def is_forward(op: Op) -> bool:
    """Of the forward pass of something that is differentiated."""
    return "jvp(" in op.source.scope and not op.source.backward and not op.source.recomputed


def find_layers(program: Program, region: int, body: list[int]) -> Layers | None:
    """The layers among the ops of a region's body, if most of its work is in such."""
    free = program.free
    ops = [o for o in body if is_forward(program.ops[o]) and not all(free[v] for v in program.ops[o].results)]
    numbers: dict[object, int] = {}
    keys = np.array(
        [
            numbers.setdefault((op.signature, op.source.file, op.source.line), len(numbers))
            for op in (program.ops[o] for o in ops)
        ],
        np.int64,
    )
    flops = np.array([program.ops[o].flops for o in ops], np.float64)
    best: tuple[float, int, int, int] | None = None
    for period in _periods(keys):
        start, run = _longest_run(keys[:-period] == keys[period:])
        if run < period:
            continue
        covered = float(flops[start : start + run + period].sum())
        if best is None or covered > 1.001 * best[0]:
            best = (covered, period, start, run + period)
    if best is None or 2 * best[0] < flops.sum() or not best[0]:
        return None
    _, period, start, length = best
    first = start + _best_cut(program, ops, period, start, length)
    count = (start + length - first) // period
    if count < 2:
        return None
    found = [tuple(ops[first + k * period : first + (k + 1) * period]) for k in range(count)]
    earlier = _first_layer(keys, flops, first, period)
    return Layers(region, (*([tuple(ops[earlier:first])] if earlier < first else []), *found))


def _first_layer(keys: NDArray[np.int64], flops: NDArray[np.float64], first: int, period: int) -> int:
    """Where a layer before the others begins; it may lack some ops, since nobody asks for its input's derivative."""
    layer = keys[first : first + period].tolist()
    i, j = first - 1, period - 1
    while i >= 0 and j >= 0:
        i, j = (i - 1 if keys[i] == layer[j] else i), j - 1
    same = flops[i + 1 : first].sum() == flops[first : first + period].sum()
    return i + 1 if same else first


def _periods(keys: NDArray[np.int64]) -> list[int]:
    """The commonest distances between ops that are alike, the shortest first."""
    last: dict[int, int] = {}
    found: Counter[int] = Counter()
    for i, key in enumerate(keys.tolist()):
        if key in last:
            found[i - last[key]] += 1
        last[key] = i
    return sorted(p for p, _ in found.most_common(_PERIODS_TRIED) if p >= _FEWEST_OPS)


def _longest_run(same: NDArray[np.bool_]) -> tuple[int, int]:
    """Where the longest stretch of true begins, and how long it is."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], same.astype(np.int8), [0]))))
    if not len(edges):
        return 0, 0
    starts, stops = edges[::2], edges[1::2]
    k = int((stops - starts).argmax())
    return int(starts[k]), int(stops[k] - starts[k])


def _best_cut(program: Program, ops: list[int], period: int, start: int, length: int) -> int:
    """How many ops into the stretch the first layer begins: where least is handed from one to the next."""
    index = {o: i for i, o in enumerate(ops)}
    crossing = np.zeros(len(ops) + 1, np.int64)
    for o, i in index.items():
        for v in program.ops[o].results:
            uses = [index[u] for u in program.users[v] if u in index]
            if uses and not program.free[v]:
                crossing[i + 1] += program.values[v].bytes  # cut before an op between its maker and its last user
                crossing[max(uses) + 1] -= program.values[v].bytes
    handed_on = crossing.cumsum()
    whole = [c for c in range(period) if length - c >= (length // period) * period] or list(range(period))
    cuts = {c: int(handed_on[start + c + period : start + length : period].sum()) for c in whole}
    least = [c for c in whole if cuts[c] == min(cuts.values())]
    around = function_around(program, ops[start : start + period])
    if around is None:
        return least[0]
    sources = {c: program.ops[ops[start + c]].source for c in least}
    return min(least, key=lambda c: (line_in(sources[c], around.file, around.function) or math.inf, c))


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
