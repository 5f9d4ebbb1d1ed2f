"""How often each loop runs.

A ``scan`` or ``fori_loop`` arrives as a ``while`` whose condition compares a counter with a limit. The count follows
from the counter's start, its step and the limit, wherever these are constants, directly or through values that the
loops around carry unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from shardwright.errors import TargetError
from shardwright.ir.kinds import SAME_SCALAR
from shardwright.ir.program import Loop, Op, Program, Region, Source

TripCounts = int | Mapping[str, int] | None
"""What the user may say about loops whose count is not in the program: one number for all, or by source line."""


def find_loops(program: Program, trip_counts: TripCounts = None) -> tuple[Loop, ...]:
    """Every loop of the program with its trip count, the user's word taken where the program does not say."""
    given = {"*": trip_counts} if isinstance(trip_counts, int) else dict(trip_counts or {})
    for pattern, count in given.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise TargetError(f"the trip count for {pattern!r} must be a whole number of at least 1, not {count!r}.")
    unmatched = set(given) - {"*"}
    loops = []
    for o, op in enumerate(program.ops):
        if op.kind != "while":
            continue
        loop = _count(program, o)
        if loop.known != "exact":
            for pattern, count in given.items():
                if _matches(pattern, op.source):
                    loop = Loop(o, count, "set")
                    unmatched.discard(pattern)
        loops.append(loop)
    if unmatched:
        open_loops = [str(program.ops[l.op].source) for l in loops if l.known in ("unknown", "at most", "set")]
        raise TargetError(
            f"no loop of unknown length is at {sorted(unmatched)[0]!r}; "
            f"those that are: {', '.join(open_loops) or 'none'}."
        )
    return tuple(loops)


def _matches(pattern: str, source: Source) -> bool:
    short = f"{source.file.rsplit('/', 1)[-1]}:{source.line}"
    names = (short, f"{source.file}:{source.line}", source.function)
    return any(fnmatchcase(name, pattern) for name in names) or pattern == str(source)


@dataclass(frozen=True)
class _Bound:
    trips: int
    alone: bool
    """The only condition of the loop: the count is exact and not just a bound."""


def _count(program: Program, o: int) -> Loop:
    bounds = list(_bounds(program, program.ops[o], program.regions[program.ops[o].regions[0]]))
    if not bounds:
        return Loop(o, 1, "unknown")
    best = min(bounds, key=lambda b: b.trips)
    return Loop(o, best.trips, "exact" if best.alone else "at most")


def _bounds(program: Program, op: Op, condition: Region) -> Iterator[_Bound]:
    body = program.regions[op.regions[1]]
    pending = [(condition.results[0], True)]
    while pending:
        value, alone = pending.pop()
        maker = _maker(program, value)
        if maker is None:
            continue
        if maker.kind == "and":
            pending.extend((v, False) for v in maker.operands)
        elif maker.kind == "compare":
            left, right = maker.operands
            direction = maker.attributes["direction"]
            if direction == "NE" and program.values[left].dtype == "i1" and _constant(program, right) == 0:
                pending.append((left, alone))  # how JAX turns a boolean into itself
                continue
            for counter, limit, way in ((left, right, direction), (right, left, _FLIPPED.get(direction, ""))):
                trips = _trips(program, op, condition, body, counter, limit, way)
                if trips is not None:
                    yield _Bound(trips, alone)
                    break


_FLIPPED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE"}


def _trips(
    program: Program, op: Op, condition: Region, body: Region, counter: int, limit: int, direction: str
) -> int | None:
    counter = _through(program, counter)
    if counter not in condition.parameters:
        return None
    k = condition.parameters.index(counter)
    start, end = _constant(program, op.operands[k]), _constant(program, limit)
    step = _step(program, body.parameters[k], body.results[k])
    if start is None or end is None or not step:
        return None
    distance = end - start
    if direction == "NE":
        return distance // step if distance % step == 0 and distance // step >= 0 else None
    if (direction in ("LT", "LE")) != (step > 0):
        return None
    inclusive = direction in ("LE", "GE")
    return max(0, math.floor(distance / step) + 1 if inclusive else math.ceil(distance / step))


def _step(program: Program, parameter: int, result: int) -> int | None:
    maker = _maker(program, result)
    if maker is None or maker.kind not in ("add", "subtract"):
        return None
    left, right = (_through(program, v) for v in maker.operands)
    if left == parameter:
        step = _constant(program, right)
        return -step if step is not None and maker.kind == "subtract" else step
    return _constant(program, left) if right == parameter and maker.kind == "add" else None


def _maker(program: Program, value: int) -> Op | None:
    value = _through(program, value)
    o = program.values[value].op
    return program.ops[o] if o >= 0 else None


def _through(program: Program, value: int) -> int:
    """The value behind conversions that do not change a counter."""
    while (o := program.values[value].op) >= 0 and program.ops[o].kind in SAME_SCALAR:
        value = program.ops[o].operands[0]
    return value


_FOLDS: Mapping[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "minimum": min,
    "maximum": max,
}


def _constant(program: Program, value: int) -> int | None:
    """The integer that a scalar always is, if the program says."""
    value = _through(program, value)
    v = program.values[value]
    if v.op < 0:
        region = program.regions[v.region]
        if region.op < 0:
            return None
        op = program.ops[region.op]
        k = region.parameters.index(value)
        body = program.regions[op.regions[-1]]
        unchanged = op.kind == "while" and _through(program, body.results[k]) == body.parameters[k]
        return _constant(program, op.operands[k]) if unchanged else None
    op = program.ops[v.op]
    if op.kind == "constant":
        known: int | None = op.attributes.get("value")
        return known
    if op.kind in _FOLDS:
        left, right = (_constant(program, x) for x in op.operands)
        return None if left is None or right is None else _FOLDS[op.kind](left, right)
    if op.kind == "while":  # what a loop carries unchanged comes out as it went in
        k = op.results.index(value)
        body = program.regions[op.regions[-1]]
        return _constant(program, op.operands[k]) if _through(program, body.results[k]) == body.parameters[k] else None
    return None
