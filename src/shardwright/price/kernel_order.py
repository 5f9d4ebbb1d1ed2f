"""In which order kernels run: each in its place, what leads to results alone as early as it can."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardwright.ir.kinds import CONTRACTIONS
from shardwright.ir.memory import DEVICE, moved_to
from shardwright.ir.program import Program


def positions(program: Program, fused: Sequence[bool], stored: Sequence[bool], root: Sequence[int]) -> list[int]:
    """Each op in its place, but what leads to the results alone right after its operands.

    What writes over a donated argument waits until the argument has been read.
    """
    at = list(root)
    tail: set[int] = set()
    for o in range(len(program.ops) - 1, -1, -1):
        op = program.ops[o]
        if (
            (fused[o] or op.kind == "reduce")
            and op.region == 0
            and not all(program.free[v] for v in op.operands)
            and all(v in program.returned or program.users[v] for v in op.results)
            and all(u in tail for v in op.results for u in program.users[v])
        ):
            tail.add(o)
    for o, r in enumerate(root):
        if r in tail and o not in tail:  # a product that an update at the end takes in runs in its own place
            at[o] = o
    _run_when_ready(program, root, tail, at)
    read = _last_read(program, stored, tail, at)
    for o in sorted(tail):
        op = program.ops[o]
        ready = 0
        for v in op.operands:
            maker = program.values[v].op
            if maker >= 0 and not all(program.free[a] for a in program.ops[maker].operands):
                ready = max(ready, done(program, at, maker))
        over = program.donations.get(op.results[0])
        if over is not None:
            ready = max([ready, *(read[u] for u in program.users[over])])
        at[o] = ready
    return at


def _last_read(program: Program, stored: Sequence[bool], tail: set[int], at: Sequence[int]) -> list[int]:
    """The last position at which each op reads its operands; one whose result is not stored, where that is used.

    What is in the tail has no position yet, and does not count.
    """
    read = [-1] * len(program.ops)
    for o in range(len(program.ops) - 1, -1, -1):
        if o in tail:
            continue
        op = program.ops[o]
        if len(op.results) == 1 and not stored[op.results[0]] and program.users[op.results[0]]:
            read[o] = max(read[u] for u in program.users[op.results[0]])
        else:
            read[o] = done(program, at, o)
    return read


def _run_when_ready(program: Program, root: Sequence[int], tail: set[int], at: list[int]) -> None:
    """Have each contraction run as soon as what it takes in is there, whatever stands between it and its last op."""
    last: dict[int, int] = {}  # of a kernel with contractions the last of these, and then when it can run
    members: dict[int, list[int]] = {}
    for o, r in enumerate(root):
        if r not in tail and program.ops[o].region == program.ops[r].region:
            members.setdefault(r, []).append(o)
            if program.ops[o].kind in CONTRACTIONS and program.ops[o].flops:
                last[r] = o
    for r in sorted(last):
        if last[r] == r:
            continue
        ready = last[r]
        for o in members[r]:
            for v in program.ops[o].operands:
                maker = program.values[v].op
                if maker >= 0 and root[maker] != r and not program.free[v]:
                    ready = max(ready, done(program, at, maker))
        for o in members[r]:
            at[o] = min(ready, r)


def moved_early(program: Program) -> Iterator[tuple[int, int]]:
    """Moves to the device of what is on the host from the start, with the last loop before their first use.

    They wait for nothing, and the compiler has them done before that loop: see ``compiler/offloading.py``.
    """
    loops = [o for o, op in enumerate(program.ops) if op.kind == "while" and op.region == 0] if program.on_host else []
    for o in range(len(program.ops) if loops else 0):
        op = program.ops[o]
        if (
            op.region == 0
            and moved_to(op) == DEVICE
            and _before_barriers(program, op.operands[0]) in program.argument_of
        ):
            first = min(program.users[op.results[0]], default=o)
            before = [loop for loop in loops if loop < first]
            if before:
                yield o, before[-1]


def _before_barriers(program: Program, v: int) -> int:
    """What a value was before barriers, which the compiler drops before it orders its moves."""
    while (maker := program.values[v].op) >= 0 and program.ops[maker].kind == "optimization_barrier":
        v = program.ops[maker].operands[program.ops[maker].results.index(v)]
    return v


def done(program: Program, at: Sequence[int], o: int) -> int:
    """The position at which an op has ended: a loop's after its body, another's as in ``at``."""
    regions = program.ops[o].regions
    return program.regions[regions[-1]].stop if regions else at[o]
