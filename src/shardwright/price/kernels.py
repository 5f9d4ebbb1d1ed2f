"""What the compiler fuses: which values are stored in memory, and which ops run together as one kernel.

Most values of a program never exist in memory. What the compiler fuses, what it computes again or copies, and in which
order it runs the rest, is told by the records of ``compiler/fusing.py``; here a program is walked by them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise

from shardwright.compiler import Compiler
from shardwright.compiler.fusing import (
    COPIED_SLICES,
    EPILOGUES,
    EXPONENTIALS,
    INSIDE_PRODUCTS,
    JOINED_REDUCTIONS,
    KEPT_WHERE_ROUNDED,
    ONE_HOT,
    OPERANDS_INSIDE,
    RECOMPUTED,
    SUMMED_INSIDE,
    Recomputing,
    Softmax,
)
from shardwright.compiler.storing import IN_BOTH_TYPES
from shardwright.ir.kinds import ALONE, CONTRACTIONS, EXPENSIVE, INDEXED, MOVES_DATA, PRODUCTS, VIEWS, WRITTEN_OUT
from shardwright.ir.program import Op, Program, bits_of, is_elementwise
from shardwright.price.kernel_order import moved_early, positions
from shardwright.price.softmaxes import KeptSoftmax, exponentials, is_with_product, made_of, products_reading, size_of
from shardwright.price.sums import sum_of

_WORD_BITS = 32
_REPEATED = 8
"""A value that repeats another at least so often is made of it where it is needed."""


@dataclass(frozen=True)
class Kernels:
    """``stored[v]``: a value is in memory. ``root[o]``: the op in whose kernel an op is run.

    ``at[o]``: the position in program order at which it is run, ``last[o]`` the last one. An op that several kernels
    compute again has more than one; its cost counts in the first. ``joined[r]``: the root of the kernel that the one of
    root ``r`` is run with, as one that stores the results of both. ``fused[o]``: an op is computed inside others if it
    can be. ``narrow[v]``: the value in a narrower type that all read in place of ``v`` who can convert it themselves.
    ``over[v]``: the value that a kernel writes in place of ``v``, which is never there.
    """

    stored: Sequence[bool]
    root: Sequence[int]
    at: Sequence[int]
    last: Sequence[int]
    fused: Sequence[bool]
    joined: Mapping[int, int] = field(default_factory=dict)
    narrow: Mapping[int, int] = field(default_factory=dict)
    over: Mapping[int, int] = field(default_factory=dict)


def find_kernels(program: Program, compiler: Compiler) -> Kernels:
    """Decide for every value whether it is stored, and for every op where it runs."""
    users, again = program.users, compiler[RECOMPUTED]
    fused = find_fused(program, compiler)
    must = _must_be_stored(program, fused, compiler)
    softmax = compiler[JOINED_REDUCTIONS]
    wide, narrow = set[int](), set[int]()
    softmaxes: list[KeptSoftmax] = []
    if softmax and compiler[EXPONENTIALS]:
        softmaxes = list(exponentials(program, fused, softmax))
        for v, scores, _, row in softmaxes:
            must[v] = True
            (wide if row > softmax.longest_product_row else narrow).add(scores)
    tables = _gathered_tables(program) if compiler[IN_BOTH_TYPES] else set[int]()
    longest, sums, rounding = compiler[EPILOGUES], compiler[SUMMED_INSIDE], compiler[KEPT_WHERE_ROUNDED]
    inside, ends, twice = _epilogues(program, fused, must, longest, wide, narrow, tables, sums=sums)
    together = _come_together(program, must, ends)
    stored = [value.op < 0 for value in program.values]
    leaves: dict[int, frozenset[int]] = {wide_value: frozenset({v}) for wide_value, v in twice.items()}
    chains: dict[int, frozenset[int]] = {}  # the ops that would have to be computed again with a value
    reach = _reach(program, fused)
    long: set[int] = set()  # values that too many ops would have to be computed again for
    costly: set[int] = set()  # values on the way to which something expensive is computed
    nothing: frozenset[int] = frozenset()
    for o, op in enumerate(program.ops):
        for v in op.results:
            stored[v] = must[v] or v in ends or len(op.results) != 1
            if stored[v] or v in inside:
                continue
            read = nothing.union(*(leaves.get(a, frozenset({a}) if stored[a] else nothing) for a in op.operands))
            dear = op.kind in EXPENSIVE or any(a in costly for a in op.operands)
            shared = not together[o] and not program.free[v]
            chain = frozenset({o}).union(*(chains.get(a, nothing) for a in op.operands))
            lengthy = len(chain) > again.longest_chain or op.kind in WRITTEN_OUT or any(a in long for a in op.operands)
            rounded = op.kind in rounding and bits_of(program.values[v].dtype) < _WORD_BITS
            if (shared and (lengthy or rounded or len(read) > again.most_leaves)) or (
                lengthy and _is_spread(program, v)
            ):
                stored[v] = True
                continue
            lost = [a for a in read if not _needed_anyway(program, reach, a, v, chain)]
            inside_products = dear and _inside_products(program, v, read, compiler[INSIDE_PRODUCTS])
            if shared and not inside_products and _cheaper_kept(program, v, lost, dear, again):
                stored[v] = True
                continue
            leaves[v] = read
            chains[v] = nothing if lengthy else chain
            if lengthy:
                long.add(v)
            if dear:
                costly.add(v)
    root = list(range(len(program.ops)))
    for o in range(len(program.ops) - 1, -1, -1):
        results = program.ops[o].results
        if len(results) == 1 and not stored[results[0]] and users[results[0]]:
            root[o] = root[users[results[0]][0]]
    at = positions(program, fused, stored, root)
    for o, position in moved_early(program):
        at[o] = position
    last = list(at)
    for o in range(len(program.ops) - 1, -1, -1):
        results = program.ops[o].results
        if len(results) == 1 and not stored[results[0]] and users[results[0]]:
            at[o], last[o] = at[root[o]], max(last[u] for u in users[results[0]])
    joined = _joined(program, stored, root, softmax) if softmax else {}
    over = dict(_written_over(program, fused, stored, softmaxes))
    return Kernels(stored, root, at, last, fused, joined, twice, over)


def _written_over(
    program: Program, fused: Sequence[bool], stored: Sequence[bool], softmaxes: Iterable[KeptSoftmax]
) -> Iterator[tuple[int, int]]:
    """What products would store for softmaxes that run in their kernels, and the exponentials that they store."""
    for v, scores, product, _ in softmaxes:
        if is_with_product(program, fused, product, scores):
            kept: int | None = scores
            while kept is not None and not stored[kept]:
                kept = made_of(program, kept)
            if kept is not None:
                yield kept, v


def _leaves(program: Program, stored: Sequence[bool]) -> list[frozenset[int]]:
    """The stored values that each value is computed from, itself if it is stored."""
    found: list[frozenset[int]] = [frozenset({v}) if stored[v] else frozenset() for v in range(len(program.values))]
    for op in program.ops:
        for v in op.results:
            if not stored[v]:
                found[v] = frozenset().union(*(found[a] for a in op.operands))
    return found


@dataclass
class _Group:
    """Kernels that run as one: the position from which it needs all that it does not make, and what it makes.

    ``rows`` is whether it has found the largest entry of each row of what it goes through, so that it can go through
    the rows again while it has them. ``read`` is what it reads that is as large.
    """

    root: int
    since: int
    made: set[int]
    rows: bool = False
    read: set[int] = field(default_factory=set)


def _joined(program: Program, stored: Sequence[bool], root: Sequence[int], softmax: Softmax) -> dict[int, int]:
    """Kernels without a product that are run in the one that makes what they read, or with one that reads the same.

    Of what a kernel reads, what is as large as what it goes through counts. A reduction joins if all else that it needs
    was there before the other kernel; where that has the largest entry of each row, the rest of a softmax does as well,
    but nothing that reads another value as large.
    """
    leaves = _leaves(program, stored)
    ops_of: dict[int, list[int]] = {}
    for o, r in enumerate(root):
        ops_of.setdefault(r, []).append(o)
    groups: dict[int, _Group] = {}
    reader: dict[int, int] = {}  # the kernel that reduces a stored value first
    joined: dict[int, int] = {}
    for r in sorted(ops_of):
        op, ops = program.ops[r], [program.ops[o] for o in ops_of[r]]
        made = {v for each in ops for v in each.results if stored[v]}
        products = [o for o, each in zip(ops_of[r], ops, strict=True) if each.kind in CONTRACTIONS and each.flops]
        if products:
            groups[r] = _Group(r, products[-1], made)
            continue
        if op.regions or op.kind in ALONE or op.kind in INDEXED or not op.results:
            continue
        read = frozenset().union(*(leaves[a] for each in ops for a in each.operands)) - made
        size = max([size_of(program, v) for v in (*op.results, *(op.operands if op.kind == "reduce" else ()))])
        large = sorted(v for v in read if size_of(program, v) == size > 1)
        for group in _candidates(program, root, large, groups, joined, reader):
            if program.ops[group.root].region != op.region:
                continue
            others = [a for a in read if a not in group.made and a not in group.read]
            waits = any(size_of(program, a) > 1 and _ready(program, root, a) >= group.since for a in others)
            rows_needed = any(a in group.made and size_of(program, a) < size for a in read)
            beside = any(a not in group.made and a not in group.read for a in large)
            host = [program.ops[o] for o in ops_of[group.root]]
            if (
                waits
                or (rows_needed and (beside or not group.rows))
                or _is_long_softmax(program, stored, op, host, softmax)
            ):
                continue
            group.made |= made
            group.read.update(large)
            group.rows = group.rows or _finds_rows(program, op, [*host, *ops], softmax)
            joined[r] = group.root
            break
        if r not in joined and large and not _is_narrow_maximum(ops):
            groups[r] = _Group(r, r, made, read=set(large))
            groups[r].rows = _finds_rows(program, op, ops, softmax)
            for v in large:
                reader.setdefault(v, r)
    return _with_large_results(program, ops_of, joined)


def _candidates(
    program: Program,
    root: Sequence[int],
    values: Sequence[int],
    groups: Mapping[int, _Group],
    joined: Mapping[int, int],
    reader: Mapping[int, int],
) -> Iterator[_Group]:
    """The kernels that make values, or that reduce them first."""
    for v in values:
        maker = program.values[v].op
        host = root[maker] if maker >= 0 else -1
        for number in dict.fromkeys((joined.get(host, host), reader.get(v, -1))):
            if number in groups:
                yield groups[number]


def _with_large_results(
    program: Program, ops_of: Mapping[int, Sequence[int]], joined: dict[int, int]
) -> dict[int, int]:
    """Without sums of exponentials that nothing else needs: they are no part of a softmax, which gives rows again."""
    found = {}
    for r, host in joined.items():
        own = set(ops_of[r])
        made = [program.ops[o].results[0] for o in own if program.ops[o].kind == "exponential"]
        adds_up = program.ops[r].attributes.get("reducer") == "add" and _finds_largest(program, host)
        if not (adds_up and made and all(own.issuperset(program.users[v]) for v in made)):
            found[r] = host
    return found


def _finds_largest(program: Program, o: int) -> bool:
    return program.ops[o].attributes.get("reducer") == "maximum"


def _is_narrow_maximum(ops: Sequence[Op]) -> bool:
    """Whether a kernel finds the largest entries of something that it converts: the compiler looks before it converts.

    It does so in a kernel of its own.
    """
    *before, last = ops
    kinds = {op.kind for op in before if op.operands}
    return last.attributes.get("reducer") == "maximum" and "convert" in kinds and kinds <= {"convert", *VIEWS}


def _finds_rows(program: Program, op: Op, host: Sequence[Op], softmax: Softmax) -> bool:
    """Whether a reduction finds the largest entries of rows, or adds up exponentials, that can be gone through again.

    Where a product is among the ops of the ``host`` that makes the rows, only if it gives a narrower type than what is
    reduced, and they are masked.
    """
    if op.kind != "reduce":
        return False
    exponentials = op.attributes.get("reducer") == "add" and any(each.kind == "exponential" for each in host)
    if not exponentials and op.attributes.get("reducer") != "maximum":
        return False
    rows = op.operands[0]
    row = size_of(program, rows) // max(size_of(program, op.results[0]), 1)
    products = [each.results[0] for each in host if each.kind in CONTRACTIONS and each.flops]
    if not products:
        return row <= softmax.longest_row
    wide = program.values[rows].bytes
    masked = any(each.kind == "select" and program.values[each.results[0]].bytes == wide for each in host)
    return masked and program.values[products[-1]].bytes < wide and row <= softmax.longest_product_row


def _is_long_softmax(program: Program, stored: Sequence[bool], op: Op, host: Sequence[Op], softmax: Softmax) -> bool:
    """Whether an op finds the largest entries of rows that are too long for the product that makes them.

    That is so if the product's operands are of a narrower type than the rows, and a softmax of them is one kernel.
    """
    products = [each for each in host if each.kind in CONTRACTIONS and each.flops]
    if not products or op.attributes.get("reducer") != "maximum" or not stored[op.operands[0]]:
        return False
    rows, given = program.values[op.operands[0]], program.values[products[-1].operands[0]]
    row = size_of(program, op.operands[0]) // max(size_of(program, op.results[0]), 1)
    one_kernel = softmax.longest_product_row < row <= softmax.longest_row
    return one_kernel and bits_of(given.dtype) < bits_of(rows.dtype)


def _ready(program: Program, root: Sequence[int], v: int) -> int:
    """The position at which a value's kernel is run; an argument is there before all."""
    maker = program.values[v].op
    return root[maker] if maker >= 0 else -1


def spread_values(program: Program) -> list[bool]:
    """Values that no kernel reads, but makes where it needs them: what any device can make, and what repeats another.

    They stay so where a loop carries them unchanged.
    """
    found: list[bool] = program.free.tolist()
    for o, op in enumerate(program.ops):
        if op.kind == "broadcast_in_dim" and size_of(program, op.operands[0]) * _REPEATED <= size_of(
            program, op.results[0]
        ):
            found[op.results[0]] = True
        elif op.kind == "while":
            for region in op.regions:
                parameters, results = program.regions[region].parameters, program.regions[op.regions[-1]].results
                body = program.regions[op.regions[-1]].parameters
                for k, v in enumerate(parameters):
                    found[v] = found[v] or (found[program.ops[o].operands[k]] and results[k] == body[k])
    return found


def read_again(program: Program, kernels: Kernels, ops: Sequence[int]) -> list[int]:
    """The ops that a kernel computes again, though they count in another, as far as they read what is stored."""
    own, found, waiting = set(ops), set[int](), list(ops)
    while waiting:
        for v in program.ops[waiting.pop()].operands:
            maker = program.values[v].op
            if maker >= 0 and not kernels.stored[v] and not program.free[v] and maker not in own and maker not in found:
                found.add(maker)
                waiting.append(maker)
    return sorted(o for o in found if any(kernels.stored[v] and not program.free[v] for v in program.ops[o].operands))


def _is_one_hot(program: Program, op: Op) -> bool:
    """Whether a scatter writes no more than one entry into each row of a table of zeros."""
    if op.kind != "scatter" or len(op.operands) != 3 or not program.free[op.operands[0]]:
        return False
    table, _, written = (program.values[v].shape for v in op.operands)
    chosen = [d for d, dim in enumerate(op.rule.operands[0]) if not dim or dim[0] not in _factors(op, 2)]
    return len(chosen) == 1 and math.prod(written) * table[chosen[0]] == math.prod(table)


def _factors(op: Op, operand: int) -> set[int]:
    return {f for dim in op.rule.operands[operand] for f in dim}


def find_fused(program: Program, compiler: Compiler) -> list[bool]:
    """The ops that are computed inside others: elementwise ones, and those that only move elements around."""
    known: dict[int, bool] = {}
    one_hot = compiler[ONE_HOT]
    for op in program.ops:
        if op.signature not in known:
            scales = op.kind in PRODUCTS and not op.flops
            known[op.signature] = op.kind in MOVES_DATA or scales or (bool(op.operands) and is_elementwise(program, op))
    return [
        (known[op.signature] and op.kind not in ALONE) or (one_hot and _is_one_hot(program, op)) for op in program.ops
    ]


def _must_be_stored(program: Program, fused: Sequence[bool], compiler: Compiler) -> list[bool]:
    """Values that are stored whatever else is: not fusible, returned, used by what fuses nothing, a copied slice."""
    into = CONTRACTIONS | {"reduce"} if compiler[OPERANDS_INSIDE] else frozenset({"reduce"})
    copied = compiler[COPIED_SLICES]
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
                or (copied > 0 and is_copied_slice(program, op, copied))
            )
    return must


def is_copied_slice(program: Program, op: Op, least_dims: int) -> bool:
    """A slice that a loop takes of what it carries, of too many dimensions to be read where it lies.

    Not if it is all of it, or converted to a narrower type, which is done for the whole stack before the loop.
    """
    if op.kind != "dynamic_slice" or op.region == 0:
        return False
    v = op.results[0]
    shape = program.values[v].shape
    if shape == program.values[op.operands[0]].shape or sum(size > 1 for size in shape) < least_dims:
        return False
    while len(program.users[v]) == 1 and program.ops[program.users[v][0]].kind in VIEWS:
        v = program.ops[program.users[v][0]].results[0]
    return not all(
        program.ops[u].kind == "convert" and program.values[program.ops[u].results[0]].bytes < program.values[v].bytes
        for u in program.users[v]
    )


def _come_together(program: Program, must: Sequence[bool], ends: set[int]) -> list[bool]:
    """Whether all uses of an op's result come together again in one op, before or where something is stored.

    Then the result is computed no more often than what they come together in, and whether to keep that is the question.
    That op is the nearest common one on all ways from the result to what is stored (Cooper, Harvey and Kennedy, "A
    simple, fast dominance algorithm", 2001, with the arrows turned around).
    """
    following = [-1] * len(program.ops)  # the op in which all uses come together first; none for what is stored

    def common(a: int, b: int) -> int:
        while a != b:
            if a < 0 or b < 0:
                return -1
            a, b = (following[a], b) if a < b else (a, following[b])
        return a

    together = [True] * len(program.ops)
    for o in range(len(program.ops) - 1, -1, -1):
        op = program.ops[o]
        if len(op.results) != 1 or must[op.results[0]] or op.results[0] in ends or not program.users[op.results[0]]:
            continue
        following[o] = reduce(common, program.users[op.results[0]])
        together[o] = following[o] >= 0
    return together


def _is_spread(program: Program, v: int) -> bool:
    """Whether an op repeats a value in a larger one, in which it would be computed again at every place."""
    return any(
        program.ops[u].kind == "broadcast_in_dim"
        and math.prod(program.values[program.ops[u].results[0]].shape) > math.prod(program.values[v].shape)
        for u in program.users[v]
    )


def takes_in(op: Op, anything: bool, value: int) -> bool:
    """Whether an op computes this operand inside its own kernel."""
    if anything:
        return True
    if op.kind == "dynamic_update_slice":
        return op.operands[0] != value
    if op.kind in INDEXED:
        return op.operands[0] != value and value not in op.operands[2:]
    return False


def _reach(program: Program, fused: Sequence[bool]) -> list[int]:
    """The last op that may read each value, itself or through elementwise ops that are computed again."""
    reach = [-1] * len(program.values)
    for o in range(len(program.ops) - 1, -1, -1):
        op = program.ops[o]
        last = max([o, *(reach[v] for v in op.results)]) if fused[o] else o
        for v in op.operands:
            reach[v] = max(reach[v], last)
    return reach


def _needed_anyway(program: Program, reach: Sequence[int], leaf: int, v: int, chain: frozenset[int]) -> bool:
    """Whether what a value is computed from is kept at least as long for other reasons."""
    if reach[leaf] > reach[v]:
        return True
    others = [u for u in program.users[leaf] if u not in chain]
    return reach[leaf] == reach[v] and any(
        max([u, *(reach[r] for r in program.ops[u].results)]) >= reach[v] for u in others
    )


def _inside_products(program: Program, v: int, read: frozenset[int], most: float) -> bool:
    """Whether only products read a value, and would read no more than ``most`` times its bytes to compute it inside."""
    users = [program.ops[u] for u in program.users[v]]
    while len(users) == 1 and users[0].kind in VIEWS and not program.returned.intersection(users[0].results):
        users = [program.ops[u] for u in program.users[users[0].results[0]]]
    large = [a for a in read if size_of(program, a) >= size_of(program, v)]
    inside = bool(users) and all(op.kind in CONTRACTIONS and op.flops for op in users)
    return inside and len(large) > 1 and sum(program.values[a].bytes for a in large) <= most * program.values[v].bytes


def _cheaper_kept(program: Program, v: int, lost: Sequence[int], dear: bool, again: Recomputing) -> bool:
    """To compute a value again in each kernel keeps what it is computed from; rather keep it if that is smaller.

    What is there anyway, and for a cheap op arguments too, cost nothing.
    """
    size = program.values[v].bytes
    if dear:
        return sum(program.values[a].bytes for a in lost) > again.expensive * size
    return sum(program.values[a].bytes for a in lost if a not in program.argument_of) > again.cheap * size


def _epilogues(
    program: Program,
    fused: Sequence[bool],
    must: list[bool],
    longest: int,
    wide: set[int],
    narrow: set[int],
    tables: set[int],
    *,
    sums: bool,
) -> tuple[set[int], set[int], dict[int, int]]:
    """The values that contractions compute on the way to what they store, the latest contraction first, and the latter.

    Of the values that could be stored it is the last, but a conversion to a wider type at the end is left to the users,
    and what is only there to be added up is not stored at all, if there are ``sums`` inside.
    """
    claimed: set[int] = set()
    inside: set[int] = set()
    ends: set[int] = set()
    twice: dict[int, int] = {}
    newest = _newest(program, fused)
    for o in range(len(program.ops) - 1, -1, -1):
        op = program.ops[o]
        if op.kind not in CONTRACTIONS or fused[o]:
            continue
        must[op.results[0]] = False
        values, meetings = _meetings(program, fused, must, o, claimed, newest, longest)
        end = meetings[-1]
        if sums and values[end] == values[-1] and not must[values[-1]] and sum_of(program, values[-1], o, newest) >= 0:
            inside.update(values)
            claimed.update(program.values[v].op for v in values[1:])
            continue
        if not must[values[end]]:
            end = next((k for k in reversed(meetings) if not _widened(program, values[k])), end)
            several = values[end] in narrow or len(products_reading(program, fused, values[end])) > 1
            if several and values[end] not in wide:
                end = _narrowest(program, values, [k for k in meetings if k <= end])
        elif values[end] in tables and _widened(program, values[end]):
            kept = next((k for k in reversed(meetings) if not _widened(program, values[k])), end)
            if kept != end:
                twice[values[end]] = values[kept]
                end = kept
        inside.update(values[:end])
        ends.add(values[end])
        claimed.update(program.values[v].op for v in values[1 : end + 1])
    return inside, ends, twice


def _gathered_tables(program: Program) -> set[int]:
    """Values that are gathered from, and that other ops read as well."""
    found = {op.operands[0] for op in program.ops if op.kind == "gather"}
    return {v for v in found if len(program.users[v]) > 1}


def _narrowest(program: Program, values: Sequence[int], meetings: Sequence[int]) -> int:
    """The last of the meetings with the fewest bytes, of those after which nothing expensive follows."""
    best = last = meetings[-1]
    for k in reversed(meetings[:-1]):
        if any(program.ops[program.values[v].op].kind in EXPENSIVE for v in values[k + 1 : last + 1]):
            break
        if program.values[values[k]].bytes < program.values[values[best]].bytes:
            best = k
    return best


def _widened(program: Program, v: int) -> bool:
    """A conversion to a wider type, or a view of one."""
    op = program.ops[program.values[v].op]
    while op.kind in VIEWS and (maker := program.values[op.operands[0]].op) >= 0:
        op = program.ops[maker]
    return op.kind == "convert" and program.values[op.results[0]].bytes > program.values[op.operands[0]].bytes


def _meetings(
    program: Program,
    fused: Sequence[bool],
    must: Sequence[bool],
    contraction: int,
    claimed: set[int],
    newest: Sequence[int],
    longest: int,
) -> tuple[list[int], list[int]]:
    """The values that follow a contraction, and the numbers of those in which all before them come together.

    What needs something else that a kernel after it has to make first does not follow it: the contraction would have to
    wait, and to keep its operands for as long. Nor does what needs another contraction's result once the dimensions are
    turned around, and is for contractions alone.
    """
    op = program.ops[contraction]
    values = [op.results[0]]
    meetings = [0]
    waiting = sorted(program.users[values[0]])
    included: set[int] = set()
    turned = False
    while waiting and len(values) < longest and not must[values[-1]] and values[-1] not in program.returned:
        u = waiting.pop(0)
        if not fused[u] or u in claimed or program.ops[u].region != op.region:
            break
        others = [v for v in program.ops[u].operands if v not in values]
        if any(newest[v] > contraction for v in others):
            break
        turned = turned or (program.ops[u].kind == "transpose" and _turns(op, program.ops[u]))
        if turned and any(_is_of_product(program, v, newest) for v in others) and _is_for_products(program, u):
            break
        included.add(u)
        values.append(program.ops[u].results[0])
        waiting = sorted({*waiting, *program.users[values[-1]]} - included)
        open_values = [v for v in values if v in program.returned or not included.issuperset(program.users[v])]
        if open_values == values[-1:]:
            meetings.append(len(values) - 1)
    return values, meetings


def _turns(product: Op, transpose: Op) -> bool:
    """Whether a transposition does more with a product's result than to change which operand comes first."""
    ours, theirs = ({f for dim in operand for f in dim} for operand in product.rule.operands[:2])
    sides = [(dim[0] in ours) - (dim[0] in theirs) if dim else 0 for dim in product.rule.results[0]]
    before, after = transpose.rule.operands[0], transpose.rule.results[0]
    if len(sides) != len(before):
        return True
    order = [sides[before.index(dim)] for dim in after]
    return sum(a != b for a, b in pairwise(order)) > (2 if 0 in order else 1) or (0 in order and order[0] != 0)


def _is_of_product(program: Program, v: int, newest: Sequence[int]) -> bool:
    """Whether a value is a contraction's, with nothing that runs by itself in between."""
    return newest[v] >= 0 and program.ops[newest[v]].kind in CONTRACTIONS


def _is_for_products(program: Program, o: int) -> bool:
    """Whether only contractions read what an op gives."""
    users = program.users[program.ops[o].results[0]]
    while len(users) == 1 and program.ops[users[0]].kind in VIEWS:
        users = program.users[program.ops[users[0]].results[0]]
    return bool(users) and all(program.ops[u].kind in CONTRACTIONS for u in users)


def _newest(program: Program, fused: Sequence[bool]) -> list[int]:
    """For each value the last op, of those that are not computed inside others, that has to run before it is there."""
    newest = [-1] * len(program.values)
    for o, op in enumerate(program.ops):
        before = max((newest[v] for v in op.operands), default=-1) if fused[o] else o
        for v in op.results:
            newest[v] = -1 if program.free[v] else before
    return newest
