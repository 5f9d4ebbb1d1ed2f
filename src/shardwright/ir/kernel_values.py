"""The numbers in a kernel's code that its grid alone decides, worked out for every step of the grid.

A number is an array with one dimension for each grid index, of size 1 where it does not depend on that index, so that
arrays broadcast. What a part of the grid computes can then be held against what all of it does, step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright._kernel import Atom, Code, Constant, Step

Numbers = NDArray[Any]
"""One for each step of a grid."""

# Larger arrays are not worked out: what hangs on them counts as unknown.
_MOST_STEPS = 1 << 20


def _quotient(a: Numbers, b: Numbers) -> Numbers:
    """Rounded towards zero."""
    found: Numbers = np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))
    return found


def _shifted_right(a: Numbers, b: Numbers) -> Numbers:
    if (a < 0).any():
        raise ValueError("the bits of a negative number")
    return a >> b


_OPERATIONS: dict[str, Callable[..., Numbers]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _quotient,
    "rem": np.fmod,
    "neg": np.negative,
    "sign": np.sign,
    "abs": np.abs,
    "max": np.maximum,
    "min": np.minimum,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "shift_left": np.left_shift,
    "shift_right_arithmetic": np.right_shift,
    "shift_right_logical": _shifted_right,
    "clamp": lambda low, a, high: np.minimum(np.maximum(a, low), high),
    "select_n": lambda which, *cases: _chosen(which, cases),
    "convert_element_type": lambda a: a,
    "broadcast_in_dim": lambda a: a,
    "reshape": lambda a: a,
    "squeeze": lambda a: a,
    "copy": lambda a: a,
}


def _chosen(which: Numbers, cases: Sequence[Numbers]) -> Numbers:
    if which.dtype != bool and ((which < 0) | (which >= len(cases))).any():
        raise ValueError("no such case")
    found = cases[-1]
    for n in range(len(cases) - 1):
        found = np.where(which == n, cases[n], found)
    return found


class GridNumbers:
    """The numbers of a kernel's code that are known, by variable.

    ``last`` has, for some grid indices, their last number as the code has it, and what to take it for. ``unknown`` are
    grid indices of which nothing is known.
    """

    def __init__(
        self,
        grid: Sequence[int],
        last: Mapping[int, tuple[int, int]] | None = None,
        unknown: frozenset[int] = frozenset(),
    ) -> None:
        self.grid = tuple(grid)
        self.last = last or {}
        self.unknown = unknown
        self.known: dict[int, Numbers] = {}
        self.index_of: dict[int, int] = {}

    def index(self, k: int) -> Numbers:
        """A grid index."""
        shape = [1] * len(self.grid)
        shape[k] = self.grid[k]
        return np.arange(self.grid[k], dtype=np.int32).reshape(shape)

    def give(self, variables: Iterable[int]) -> None:
        """Have the grid's indices stand under these variables, in order."""
        for k, v in enumerate(variables):
            if k not in self.unknown:
                self.known[v], self.index_of[v] = self.index(k), k

    def of(self, atom: Atom) -> Numbers | None:
        """The numbers of a variable or constant, None if they are not known."""
        if isinstance(atom, int):
            return self.known.get(atom)
        if atom.value is None or isinstance(atom.value, float):
            return None
        dtype = np.bool_ if isinstance(atom.value, bool) else np.int32
        if dtype is np.int32 and not -(2**31) <= atom.value < 2**31:
            return None
        return np.asarray(atom.value, dtype).reshape((1,) * len(self.grid))

    def work_out(self, code: Code) -> None:
        """Enter all numbers of code, those of branches too: they are what they are where the branch is taken."""
        for step in code.steps:
            for body in step.bodies:
                self.work_out(body)
            found = self._result(step)
            if found is not None and found.size <= _MOST_STEPS:
                self.known[step.outs[0]] = found

    def _result(self, step: Step) -> Numbers | None:
        if step.op == "program_id" and step.axis >= 0 and step.axis not in self.unknown:
            self.index_of[step.outs[0]] = step.axis
            return self.index(step.axis)
        if step.op == "cond" and len(step.outs) == 1:
            return self._computed("select_n", (step.ins[0], *(body.outs[0] for body in step.bodies)), "")
        if step.op in _OPERATIONS and step.dtype and len(step.outs) == 1:
            return self._computed(step.op, self._localised(step), step.dtype)
        return None

    def _localised(self, step: Step) -> tuple[Atom, ...]:
        """The operands, with the last number of a grid index in place of that of the whole grid."""
        if step.op == "eq" and len(step.ins) == 2:
            for v, c in (step.ins, step.ins[::-1]):
                k = self.index_of.get(v, -1) if isinstance(v, int) else -1
                if k in self.last and isinstance(c, Constant) and c.value == self.last[k][0]:
                    return (v, Constant(self.last[k][1]))
        return step.ins

    def _computed(self, op: str, ins: Sequence[Atom], dtype: str) -> Numbers | None:
        given = [self.of(atom) for atom in ins]
        known = [array for array in given if array is not None]
        if op in ("and", "or") and any(array.dtype == bool and (array == (op == "or")).all() for array in known):
            return np.full((1,) * len(self.grid), op == "or")
        if len(known) < len(given) or not known or (op in ("div", "rem") and not known[1].all()):
            return None
        if np.broadcast(*known).size > _MOST_STEPS:
            return None
        try:
            with np.errstate(over="ignore"):
                found = _OPERATIONS[op](*known)
        except (ValueError, TypeError):
            return None
        wanted = np.dtype(dtype) if dtype else found.dtype
        if wanted.kind not in "biu":
            return None
        return found != 0 if wanted.kind == "b" and found.dtype != bool else found.astype(wanted)


def moved(numbers: Numbers, k: int, ways: int) -> int | None:
    """By how much numbers differ from one part of a grid index to the next, if that is the same everywhere."""
    count = numbers.shape[k]
    if count == 1:
        return 0
    part = count // ways
    after, before = (
        np.take(numbers, range(*span), axis=k).astype(np.int64) for span in ((part, count), (0, count - part))
    )
    change = after - before
    first = int(change.flat[0])
    return first if (change == first).all() else None


def first_part(numbers: Numbers, k: int, ways: int) -> Numbers:
    """The numbers of the first part of a grid index."""
    count = numbers.shape[k]
    return numbers if count == 1 else np.take(numbers, range(count // ways), axis=k)
