"""Sharding rules of Pallas kernels, out of their grids.

A kernel can run on a part of the grid, and on the parts of its arrays that belong to it, as long as nothing in it can
tell the difference: that is proved, or not, for each index of its grid by ``kernel_proofs.py``, with
``kernel_memory.py`` for what steps leave behind, and ``kernel_sums.py`` for results that are added up. The factors of a
kernel's rule are its grid's indices in order, then one for each dimension that stays whole, or for what of it goes to
one part as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from shardwright._kernel import Kernel
from shardwright.errors import RuleError
from shardwright.ir.kernel_memory import check_memory
from shardwright.ir.kernel_proofs import Facts, Proof, Refused, Sums
from shardwright.ir.kernel_sums import find_sums
from shardwright.ir.rules import Dims, Rule


@dataclass(frozen=True)
class GridSplit:
    """What is known of a grid index: into how many parts it goes at most, and which dimensions go with it.

    ``reason`` says why it stays whole, if it does. ``sums``: results are added up over it.
    """

    parts: int = 1
    places: frozenset[tuple[int, int]] = frozenset()
    sums: bool = False
    reason: str = ""


@lru_cache(maxsize=1024)
def grid_splits(kernel: Kernel, read: frozenset[int]) -> tuple[GridSplit, ...]:
    """How each index of a kernel's grid may be split; ``read`` are the results that somebody uses."""
    if kernel.fixed:
        return (GridSplit(reason=kernel.fixed),) * len(kernel.grid)
    facts = Facts(kernel)
    return tuple(_split(kernel, k, lambda k, ways: _proved(facts, k, ways, read)) for k in range(len(kernel.grid)))


def kernel_rule(kernel: Kernel, read: frozenset[int], splits: tuple[GridSplit, ...] | None = None) -> Rule:
    """The rule of a kernel whose results ``read`` are used; ``splits`` are those of its grid, if known."""
    splits = grid_splits(kernel, read) if splits is None else splits
    sizes = [split.parts for split in splits]
    whole = {k for k, parts in enumerate(sizes) if parts == 1}

    def own(size: int) -> int:
        sizes.append(size)
        whole.add(len(sizes) - 1)
        return len(sizes) - 1

    along = {place: k for k, split in enumerate(splits) for place in split.places}
    tensors: list[Dims] = []
    for t, shape in enumerate(kernel.shapes):
        dims: list[tuple[int, ...]] = []
        for d, size in enumerate(shape):
            k = along.get((t, d), -1)
            if k < 0:
                dims.append((own(size),))
            else:
                dims.append((k,) if size == sizes[k] else (k, own(size // sizes[k])))
        tensors.append(tuple(dims))
    count = len(kernel.scalars) + len(kernel.operands)
    sums = frozenset(k for k, split in enumerate(splits) if split.sums)
    return Rule(
        tuple(sizes),
        tuple(tensors[:count]),
        tuple(tensors[count:]),
        reduction=sums,
        whole=frozenset(whole),
        # A sum is proved for parts of one index, not for parts of parts.
        apart=tuple(combinations(sorted(sums), 2)),
    )


def split_by_user(kernel: Kernel, rule: Rule, read: frozenset[int]) -> tuple[GridSplit, ...]:
    """How a user's rule lets the grid be split: by dimensions that it has as one factor, and no others."""
    facts = Facts(kernel)

    def described(k: int, ways: int) -> GridSplit:
        proof = Proof(facts, k, ways)
        proof.arrays()
        factors = {rule.tensors[t][d][0] for t, d in proof.places}
        if len(factors) != 1 or factors & rule.reduction:
            raise Refused("is not a factor of the rule")
        (f,) = factors
        places = {(t, d) for t, dims in enumerate(rule.tensors) for d, each in enumerate(dims) if f in each}
        for t, d in places - proof.places:  # what the body reads of an array that it has whole is for the user to say
            if (t, d) in facts.held.get(kernel.ref(t), ()) and kernel.shapes[t][d] % ways == 0:
                proof.demand(t, d, kernel.shapes[t][d] // ways)
        _check_results(kernel, proof, read)
        if proof.places != places:
            raise Refused("is not a factor of the rule")
        return GridSplit(ways, proof.places)

    splits = () if kernel.fixed else tuple(_split(kernel, k, described) for k in range(len(kernel.grid)))
    if all(split.parts == 1 for split in splits):
        raise RuleError(
            f"the rule splits none of the dimensions by which the kernel {kernel.name!r} can be split; leave the rule "
            "out, and sw.analyse says which these are."
        )
    return splits


def _split(kernel: Kernel, k: int, prove: Callable[[int, int], GridSplit]) -> GridSplit:
    """The most parts that can be proved to be right, and with it all that divide their number."""
    size = kernel.grid[k]
    if k in kernel.dynamic:
        return GridSplit(reason="has a size that is known only when the kernel runs")
    if size <= 1:
        return GridSplit(reason="has a single step")
    divisors = [n for n in range(size, 1, -1) if size % n == 0]
    reason = ""
    if len(divisors) > 2:  # if not even the fewest parts are right, no others are
        primes = [n for n in divisors if all(n % m for m in divisors if m < n)]
        found = [_tried(prove, k, n) for n in (size, *primes)]
        if all(split.reason for split in found):
            return found[-1]
        if not found[0].reason:
            return found[0]
    for n in divisors:
        split = _tried(prove, k, n)
        if not split.reason:
            return split
        reason = split.reason
    return GridSplit(reason=reason)


def _tried(prove: Callable[[int, int], GridSplit], k: int, ways: int) -> GridSplit:
    try:
        return prove(k, ways)
    except Refused as refused:
        return GridSplit(reason=str(refused))


def _proved(facts: Facts, k: int, ways: int, read: frozenset[int]) -> GridSplit:
    """That a grid index can be split into so many parts, or ``Refused``."""
    kernel = facts.kernel
    proof = Proof(facts, k, ways)
    proof.arrays()
    first = len(kernel.scalars) + len(kernel.operands)
    scattered = frozenset(t for t, _ in proof.places)
    summed = [r for r in read if first + r not in scattered and not facts.is_scattered(kernel.ref(first + r))]
    if summed and len(summed) < len(read):
        raise Refused(f"has {kernel.tensor(first + min(summed))} written by all of its steps, others not")
    sums = find_sums(facts, k, ways, summed) if summed else Sums()
    relevant = facts.flow.behind(kernel.ref(first + r) for r in read)
    proof.body(sums, relevant)
    _check_results(kernel, proof, read - set(summed))
    carried = set(kernel.scratch_refs) - sums.memory
    carried |= facts.written
    carried |= {kernel.ref(first + r) for r in range(len(kernel.results)) if r not in read} - _own_memory(kernel, proof)
    check_memory(facts, k, ways, frozenset() if k in kernel.parallel else relevant & carried)
    if summed and (kernel.aliases or not proof.places):
        raise Refused(f"has {kernel.tensor(first + min(summed))} written by all of its steps, with no part of its own")
    return GridSplit(ways, proof.places, bool(summed))


def _own_memory(kernel: Kernel, proof: Proof) -> set[int]:
    """The memory of results that each part of the grid has its own of."""
    return {kernel.ref(t) for t, _ in proof.places}


def _check_results(kernel: Kernel, proof: Proof, read: frozenset[int] | set[int]) -> None:
    """That each part of the grid has its own part of the results, and of operands that they are written over."""
    first = len(kernel.scalars) + len(kernel.operands)
    if not proof.places:
        raise Refused("is the number of no block")
    for t in {t for t, _ in proof.places}:
        if len(_dimensions(proof, t)) > 1:
            raise Refused(f"is the number of a block along several dimensions of {kernel.tensor(t)}")
    for r in sorted(read):
        if not _dimensions(proof, first + r):
            raise Refused(f"has {kernel.tensor(first + r)} written by all of its steps")
    for operand, result in kernel.aliases:
        mine = _dimensions(proof, first + result)
        if operand < len(kernel.scalars) or not mine or mine != _dimensions(proof, operand):
            raise Refused(f"splits operand {operand} otherwise than result {result}, which is written over it")


def _dimensions(proof: Proof, t: int) -> set[int]:
    return {d for each, d in proof.places if each == t}


def obstacles(kernel: Kernel, read: frozenset[int]) -> Iterator[tuple[int, str]]:
    """Why the grid indices that cannot be split cannot, each in words."""
    for k, split in enumerate(grid_splits(kernel, read)):
        if split.reason and (kernel.grid[k] > 1 or k in kernel.dynamic):
            yield k, split.reason
