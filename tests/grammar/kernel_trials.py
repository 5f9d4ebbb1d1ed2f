"""Which splits of a random kernel's grid are right, by trying them; and whether those that are derived are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product
from typing import Any

import jax
import numpy as np

import shardwright as sw
from grammar.kernels import Array, Case

_MOST_TRIED, _DEVICES, _DRAWS = 96, 8, 3
_ROUNDED = 0.02  # eight parts, each rounded to bfloat16, and their sums again


@dataclass(frozen=True)
class Verdict:
    """Of a case: grid indices with the numbers of parts that are right, and those that were derived.

    ``ran`` are the plans that were run, each by its grid indices and parts, ``wrong`` those with another result.
    """

    case: int
    right: tuple[frozenset[int], ...]
    derived: tuple[frozenset[int], ...]
    ran: int
    wrong: tuple[str, ...]
    sums: int

    @property
    def is_complete(self) -> bool:
        """Whether all that is right was derived."""
        return all(right <= derived for right, derived in zip(self.right, self.derived, strict=True))


def judge(case: Case) -> Verdict:
    """Derive the rule of a case, run plans that split each of its factors, alone and in pairs, and try all others."""
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), case.arrays())
    plain = sw.evaluate(case.run, shapes, mesh={"a": 2}, device="tpu-v5e", decisions=[])
    program = plain.analysis.program
    (o,) = [o for o, op in enumerate(program.ops) if "facts" in op.attributes]
    rule, groups = program.ops[o].rule, plain.partitioned.places.of_op[o]
    count = len(program.ops[o].attributes["facts"].kernel.grid)
    parts = [rule.sizes[k] if k not in rule.whole else 1 for k in range(count)]
    expected = jax.jit(partial(case.run, interpret=True))(case.arrays())
    wrong, ran = [], 0
    found = [k for k in range(count) if parts[k] > 1]
    for indices in [*((k,) for k in found), *combinations(found, 2)]:
        ways = _ways([parts[k] for k in indices])
        if not ways or (len(indices) == 2 and not rule.allows(indices, ways)):
            continue
        names = [plain.analysis.descriptions[groups[k]].name for k in indices]
        mesh = dict(zip("ab", ways, strict=False))
        decisions = list(dict.fromkeys(zip(mesh, names, strict=True)))
        plan = sw.evaluate(case.run, shapes, mesh=mesh, device="tpu-v5e", decisions=decisions)
        split = plan.partitioned.assignments[o].factors
        ran += 1
        if not _same(plan.jit()(case.arrays()), expected):
            wrong.append(f"{dict(zip(indices, ways, strict=True))} as {split}")
        elif len(indices) == 1 and split != indices:
            wrong.append(f"{indices[0]} was not split but {split}")
    right = list(map(frozenset, right_splits(case.alone)))
    if case.batch:
        right.insert(0, frozenset(n for n in range(2, case.batch + 1) if case.batch % n == 0))
    derived = [frozenset(n for n in range(2, size + 1) if size % n == 0) for size in parts]
    wrong += [
        f"{k} in {sorted(mine - all_right)} parts"
        for k, (mine, all_right) in enumerate(zip(derived, right, strict=True))
        if not mine <= all_right
    ]
    return Verdict(case.number, tuple(right), tuple(derived), ran, tuple(wrong), len(rule.reduction))


def _ways(parts: list[int]) -> tuple[int, ...]:
    """Into how many parts to split: the most that there are devices for."""
    choices = [[n for n in range(2, size + 1) if size % n == 0] for size in parts]
    fitting = [ways for ways in product(*choices) if math.prod(ways) <= _DEVICES]
    return max(fitting, key=math.prod, default=())


def _same(got: Any, expected: Any) -> bool:
    for mine, wanted in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        wanted = np.asarray(wanted)
        near = _ROUNDED if wanted.dtype == jax.numpy.bfloat16 else 1e-4
        mine, wanted = (np.asarray(x, np.float32) for x in (mine, wanted))
        largest = float(np.nanmax(np.abs(wanted), initial=1.0))
        if not np.allclose(mine, wanted, rtol=near, atol=1e-5 * largest, equal_nan=True):
            return False
    return True


def right_splits(case: Case) -> list[set[int]]:
    """For each grid index of a case, without the one that ``vmap`` adds, into how many parts it can be split: tried.

    The kernel runs on every part of the grid, with each array whole or in parts along some dimension, in all
    combinations that bring the right blocks; it is right if the parts of all results are those of the whole kernel's,
    or add up to them, whichever numbers the operands have.
    """
    found: list[set[int]] = [set() for _ in case.grid]
    shapes = [r.shape for r in case.results]
    given = [list(case.alone.arrays(draw).values()) for draw in range(_DRAWS)]
    expected = [case.simulated(case.grid, data, shapes, case.grid) for data in given]
    draws = list(zip(given, expected, strict=True))
    for k, size in enumerate(case.grid):
        for ways in range(2, size + 1):
            if size % ways == 0 and all(_Trial(case, data, whole, k, ways).succeeds() for data, whole in draws):
                found[k].add(ways)
    return found


class _Trial:
    def __init__(self, case: Case, data: list[Any], whole: list[Any], k: int, ways: int) -> None:
        self.case, self.data, self.whole, self.k, self.ways = case, data, whole, k, ways
        self.grid = tuple(n // ways if i == k else n for i, n in enumerate(case.grid))
        self.shapes = [x.shape for x in data] + [r.shape for r in case.results]

    def succeeds(self) -> bool:
        count = len(self.case.scalars)
        tried = 0
        for tables in product(*(self._choices(t) for t in range(count))):
            blocks = []
            for n, array in enumerate((*self.case.operands, *self.case.results)):
                choices = self._choices(count + n)
                blocks.append([d for d in choices if array.held or self._fits(array, count + n, d, tables)])
            for rest in product(*blocks):
                tried += 1
                if tried > _MOST_TRIED:
                    return False
                if self._is_right((*tables, *rest)):
                    return True
        return False

    def _choices(self, t: int) -> list[int]:
        return [-1] + [d for d, size in enumerate(self.shapes[t]) if size % self.ways == 0]

    def _part(self, array: Any, d: int, p: int) -> Any:
        return array if d < 0 else np.split(array, self.ways, axis=d)[p]

    def _fits(self, array: Array, t: int, d: int, tables: Any) -> bool:
        """Whether the blocks of the parts are those of the whole kernel."""
        scalars = self.data[: len(tables)]
        for p in range(self.ways):
            mine = [self._part(x, each, p) for x, each in zip(scalars, tables, strict=True)]
            for index in product(*map(range, self.grid)):
                there = tuple(i + p * self.grid[self.k] if n == self.k else i for n, i in enumerate(index))
                try:
                    here = array.starts(index, mine)
                except IndexError:
                    return False
                if d >= 0:
                    part = self.shapes[t][d] // self.ways
                    if not 0 <= here[d] <= part - array.sizes[d]:
                        return False
                    here[d] += p * part
                if here != array.starts(there, scalars):
                    return False
        return True

    def _is_right(self, choice: tuple[int, ...]) -> bool:
        case, count = self.case, len(self.data)
        for operand, result in case.aliases.items():
            if choice[len(case.scalars) + operand] != choice[count + result]:
                return False
        along = [choice[count + r] for r in case.read]
        if all(d < 0 for d in choice) or (any(d < 0 for d in along) and any(d >= 0 for d in along)):
            return False
        shapes = [
            tuple(n // self.ways if i == d else n for i, n in enumerate(shape))
            for shape, d in zip(self.shapes[count:], choice[count:], strict=True)
        ]
        for counts in dict.fromkeys((self.grid, case.grid)):
            try:
                parts = [
                    case.simulated(
                        self.grid,
                        [self._part(x, d, p) for x, d in zip(self.data, choice, strict=False)],
                        shapes,
                        counts,
                    )
                    for p in range(self.ways)
                ]
            except IndexError:
                continue
            for r, d in zip(case.read, along, strict=True):
                got = sum(part[r] for part in parts) if d < 0 else np.concatenate([part[r] for part in parts], d)
                near = _ROUNDED if case.stores[r].rounds else 1e-6
                if not np.allclose(got, self.whole[r], rtol=near, atol=1e-6, equal_nan=True):
                    break
            else:
                return True
        return False
