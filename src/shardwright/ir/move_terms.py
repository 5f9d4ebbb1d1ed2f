"""On what terms an op's operands and results are moved: what the compiler does that changes what it costs.

Which all-reduces are made one, which tensors are narrower by the time they are moved, whose operands are rounded, and
whose partial sums are reduced together: ``compiler/moving.py`` has the behaviours with their evidence.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from shardwright.ir.kinds import CONSTRAINT, CUTS, PRODUCTS, VIEWS
from shardwright.ir.program import Op, Program, bits_of


class MoveTerms(NamedTuple):
    """Of one op: how many all-reduces may become one with its own, and the bytes that are left of each result.

    ``narrowing`` is 0.5 for a result in f32 that is only used to be converted to bf16, and 1 where nothing narrows.
    ``product``: it is a matrix product; ``rounds``: and its operands may be rounded. ``addends``: so many ops' sums,
    with this one's, are added up, and may be reduced at once. ``rounded`` are numbers of its tensors, operands first,
    that only such products read in the end. ``reduces_whole``: its partial sums are not scattered.
    """

    sharers: int
    narrowing: tuple[float, ...]
    product: bool = False
    rounds: bool = False
    addends: int = 1
    rounded: tuple[int, ...] = ()
    reduces_whole: bool = False


def find_move_terms(program: Program) -> list[MoveTerms]:
    """The terms of every op.

    All-reduces can be combined when nothing heavy waits for their results: gradients, in short. Those of one region
    are taken to be combined.
    """
    awaited = program.awaited

    def late(op: Op) -> bool:
        reduces = bool(op.rule.reduction) or op.kind == "all_reduce"
        return reduces and not any(awaited[v] for v in op.results)

    count = Counter(op.region for op in program.ops if late(op))
    addends = {o: len(ops) for ops in map(summed, program.additions) for o in ops}
    rounded = find_rounded(program)
    return [
        MoveTerms(
            count[op.region] if late(op) else 1,
            tuple([_narrowing(program, v) for v in op.results]),
            _is_product(op),
            _rounds(op),
            addends.get(o, 1),
            tuple([t for t, v in enumerate((*op.operands, *op.results)) if rounded[v]]),
            op.kind == "scatter",
        )
        for o, op in enumerate(program.ops)
    ]


def _is_product(op: Op) -> bool:
    return bool(op.flops) and op.kind in PRODUCTS


def _rounds(op: Op) -> bool:
    return _is_product(op) and not op.attributes.get("precise", False)


_SAME_ENTRIES = VIEWS | CUTS | {"concatenate", "gather", "pad", CONSTRAINT}
"""Ops whose result has their operand's entries, rounded or not."""


def find_rounded(program: Program) -> list[bool]:
    """Values of f32 that only products read, which round them, at once or by way of ops that move entries."""
    out = [False] * len(program.values)
    carried = {v for region in program.regions for v in region.results}
    for op in reversed(program.ops):
        for v in op.results:
            if program.values[v].dtype == "f32" and v not in carried and not op.regions:
                readers = [program.ops[u] for u in program.users[v]]
                out[v] = bool(readers) and all(
                    _rounds(r) or (r.kind in _SAME_ENTRIES and out[r.results[0]]) for r in readers
                )
    return out


Addition = int | tuple["Addition", ...]
"""Sums that are added up before anything else is done with them: an op that makes one, or what is added."""


def find_additions(program: Program) -> list[Addition]:
    """The sums of a program that are added up, each with all that it is added to."""
    returned, users = program.returned, program.users
    found: dict[int, Addition] = {}  # values that are sums of sums and of nothing else

    def only_use(v: int) -> bool:
        return len(users[v]) == 1 and v not in returned

    for o, op in enumerate(program.ops):
        if op.rule.reduction and len(op.results) == 1 and (op.flops or op.attributes.get("reducer") == "add"):
            found[op.results[0]] = o
        elif op.kind in ("add", CONSTRAINT) or op.kind in VIEWS:
            parts = [found.get(v) if only_use(v) else None for v in op.operands]
            known = [part for part in parts if part is not None]
            if len(known) < len(parts) and len(known) == 1 and _is_scatter(program, known[0]):
                parts = list(known)  # what is added to a scatter's sum is what it scatters into
            here = all(program.ops[o].region == op.region for part in known for o in summed(part))
            if len(known) == len(parts) and here and len(set(op.operands)) == len(op.operands):
                for v in op.operands:
                    found.pop(v, None)
                found[op.results[0]] = known[0] if len(known) == 1 else tuple(known)
    return [addition for addition in found.values() if not isinstance(addition, int)]


def _is_scatter(program: Program, addition: Addition) -> bool:
    return isinstance(addition, int) and program.ops[addition].kind == "scatter"


def summed(addition: Addition) -> tuple[int, ...]:
    """The ops that make the sums of an addition, in order."""
    return (addition,) if isinstance(addition, int) else tuple([o for part in addition for o in summed(part)])


def find_awaited(program: Program) -> list[bool]:
    """Values that a contraction or a loop needs, at once or by way of other ops, in this turn of a loop or the next."""
    awaited = [False] * len(program.values)
    bodies = [program.regions[op.regions[-1]] for op in program.ops if op.kind == "while"]
    changed = True
    while changed:
        for op in reversed(program.ops):
            if op.flops or op.regions or any(awaited[v] for v in op.results):
                for v in op.operands:
                    awaited[v] = True
        changed = False
        for body in bodies:
            for before, after in zip(body.parameters, body.results, strict=True):
                if awaited[before] and not awaited[after]:
                    awaited[after] = changed = True
    return awaited


def narrowed_by(program: Program, value: int) -> int:
    """The op that makes a value narrower and is its only use, or -1."""
    users = program.users[value]
    if len(users) != 1 or value in program.returned:
        return -1
    op = program.ops[users[0]]
    before = program.values[value]
    same_region = before.op >= 0 and program.ops[before.op].region == op.region
    if op.kind != "convert" or not same_region:
        return -1
    return users[0] if 0 < bits_of(program.values[op.results[0]].dtype) < bits_of(before.dtype) else -1


def _narrowing(program: Program, value: int) -> float:
    op = narrowed_by(program, value)
    if op < 0:
        return 1.0
    return bits_of(program.values[program.ops[op].results[0]].dtype) / bits_of(program.values[value].dtype)
