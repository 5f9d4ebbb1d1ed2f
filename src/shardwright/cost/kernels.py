"""What the compiler fuses: which values are stored in memory, and which ops run together as one kernel.

XLA computes elementwise ops, broadcasts, conversions and slices inside the op that needs them, and those that follow a
contraction inside that contraction, so most values of a program never exist in memory. The rules here, seen in the
compiled programs of the TPU compiler:

- An elementwise op runs inside its user. With several users a cheap one is computed again in each; an expensive one
  (``exp``, ``tanh``, a division) is computed once and stored.
- A contraction takes elementwise ops on its operands in, and the chain of elementwise ops that alone uses its result;
  the end of that chain is what is stored. Of two contractions that meet in one op, the later one takes it in.
- What a loop carries, a branch or the program returns, or an op uses that fuses nothing (sort, gather, …) is stored.

The compiler also decides the order. Elementwise ops that lead to nothing but the program's results (an optimizer's
update) run as soon as their operands are there, which frees a gradient as soon as it is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.ir.program import Op, Program, is_elementwise

EXPENSIVE = frozenset(
    {
        *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cosh", "cosine", "digamma", "divide"),
        *("erf", "erf_inv", "erfc", "exponential", "exponential_minus_one", "lgamma", "log", "log_plus_one"),
        *("logistic", "power", "remainder", "rsqrt", "sine", "sinh", "sqrt", "tan", "tanh"),
    }
)
"""Elementwise ops that the compiler does not compute twice."""
SHAPING = frozenset(
    {
        *("broadcast_in_dim", "concatenate", "constant", "dynamic_slice", "iota", "pad", "reshape", "reverse", "slice"),
        "transpose",
    }
)
"""Ops that only move elements around."""
CONTRACTIONS = frozenset({"convolution", "dot", "dot_general", "ragged_dot"})
VIEWS = frozenset({"reshape", "transpose"})
"""Ops that, on a stored value, need no memory of their own: another way to read the same buffer."""
IN_PLACE = frozenset({"dynamic_update_slice", "scatter"})
"""Ops that write into their first operand's buffer where nobody needs the old content."""
_MOST_LEAVES = 12


@dataclass(frozen=True)
class Kernels:
    """``stored[v]``: a value is in memory. ``root[o]``: the op in whose kernel an op is run.

    ``at[o]``: the position in program order at which it is run, ``last[o]`` the last one. An op that several kernels
    compute again has more than one; its cost counts in the first.
    """

    stored: Sequence[bool]
    root: Sequence[int]
    at: Sequence[int]
    last: Sequence[int]


def find_kernels(program: Program, platform: str = "tpu") -> Kernels:
    """Decide for every value whether it is stored, and for every op where it runs.

    On a GPU or a CPU a contraction is a library's: it reads its operands from memory.
    """
    users = program.users
    fused = _fused(program)
    into = CONTRACTIONS if platform == "tpu" else frozenset()
    must = _must_be_stored(program, fused, into | {"reduce"})
    inside, ends = _epilogues(program, fused, must)
    stored = [value.op < 0 for value in program.values]
    leaves: dict[int, frozenset[int]] = {}
    for op in program.ops:
        for v in op.results:
            stored[v] = must[v] or v in ends
            if stored[v] or v in inside:
                continue
            read = frozenset().union(
                *(leaves.get(a, frozenset({a}) if stored[a] else frozenset()) for a in op.operands)
            )
            if len(users[v]) > 1 and _cheaper_kept(program, v, read):
                stored[v] = True
            else:
                leaves[v] = read
    root = list(range(len(program.ops)))
    for o in range(len(program.ops) - 1, -1, -1):
        results = program.ops[o].results
        if len(results) == 1 and not stored[results[0]] and users[results[0]]:
            root[o] = root[users[results[0]][0]]
    at = _positions(program, fused, root)
    last = list(at)
    for o in range(len(program.ops) - 1, -1, -1):
        results = program.ops[o].results
        if len(results) == 1 and not stored[results[0]] and users[results[0]]:
            at[o], last[o] = at[root[o]], max(last[u] for u in users[results[0]])
    return Kernels(stored, root, at, last)


def _fused(program: Program) -> list[bool]:
    """The ops that are computed inside others: elementwise ones, and those that only move elements around."""
    known: dict[int, bool] = {}
    for op in program.ops:
        if op.signature not in known:
            known[op.signature] = op.kind in SHAPING or (bool(op.operands) and is_elementwise(program, op))
    return [known[op.signature] and op.kind not in ("custom_call", "rng_bit_generator") for op in program.ops]


def _must_be_stored(program: Program, fused: Sequence[bool], into: frozenset[str]) -> list[bool]:
    """Values that are stored whatever else is: not fusible, returned, used by what fuses nothing, expensive."""
    must = [value.op < 0 for value in program.values]
    for o, op in enumerate(program.ops):
        for v in op.results:
            must[v] = (
                not fused[o]
                or v in program.returned
                or any(
                    program.ops[u].region != op.region
                    or not takes_in(program.ops[u], fused[u] or program.ops[u].kind in into, v)
                    for u in program.users[v]
                )
                or (op.kind in EXPENSIVE and len(program.users[v]) > 1 and not program.free[v])
            )
    return must


def takes_in(op: Op, anything: bool, value: int) -> bool:
    """Whether an op computes this operand inside its own kernel."""
    if anything:
        return True
    if op.kind == "dynamic_update_slice":
        return op.operands[0] != value
    if op.kind in ("gather", "scatter"):
        return op.operands[0] != value and value not in op.operands[2:]
    return False


def _cheaper_kept(program: Program, v: int, read: frozenset[int]) -> bool:
    """To compute a value again in each user keeps all that it is computed from; rather keep it if that is smaller."""
    if len(read) > _MOST_LEAVES:
        return True
    needed = sum(program.values[a].bytes for a in read if a not in program.argument_of)
    return needed > 1.25 * program.values[v].bytes


def _epilogues(program: Program, fused: Sequence[bool], must: list[bool]) -> tuple[set[int], set[int]]:
    """The values inside the chains that contractions take in, the latest contraction first, and what these store.

    Of a chain the narrowest value is stored, the last such: a conversion to a wider type is left to the users.
    """
    claimed: set[int] = set()
    inside: set[int] = set()
    ends: set[int] = set()
    for o in range(len(program.ops) - 1, -1, -1):
        op = program.ops[o]
        if op.kind not in CONTRACTIONS:
            continue
        must[op.results[0]] = False
        chain = [op.results[0]]
        while chain[-1] not in program.returned and len(program.users[chain[-1]]) == 1:
            u = program.users[chain[-1]][0]
            if not fused[u] or u in claimed or program.ops[u].region != op.region:
                break
            claimed.add(u)
            chain.append(program.ops[u].results[0])
            if must[chain[-1]]:
                break
        sizes = [program.values[v].bytes for v in chain]
        end = len(chain) - 1 if must[chain[-1]] else max(k for k, size in enumerate(sizes) if size == min(sizes))
        inside.update(chain[:end])
        ends.add(chain[end])
    return inside, ends


def _positions(program: Program, fused: Sequence[bool], root: Sequence[int]) -> list[int]:
    """Each op in its place, but what leads to the results alone right after its operands.

    What writes over a donated argument waits until the argument has been read.
    """
    at = list(root)
    tail: set[int] = set()
    for o in range(len(program.ops) - 1, -1, -1):
        op = program.ops[o]
        if (
            fused[o]
            and op.region == 0
            and not all(program.free[v] for v in op.results)
            and all(v in program.returned or program.users[v] for v in op.results)
            and all(u in tail for v in op.results for u in program.users[v])
        ):
            tail.add(o)
    for o in sorted(tail):
        op = program.ops[o]
        ready = 0
        for v in op.operands:
            maker = program.values[v].op
            if maker >= 0 and not program.free[v]:
                ready = max(ready, _done(program, at, maker))
        over = program.donations.get(op.results[0])
        if over is not None:
            ready = max([ready, *(_done(program, at, u) for u in program.users[over] if u not in tail)])
        at[o] = ready
    return at


def _done(program: Program, at: Sequence[int], o: int) -> int:
    """The position at which an op has ended: a loop's after its body."""
    regions = program.ops[o].regions
    return program.regions[regions[-1]].stop if regions else at[o]
