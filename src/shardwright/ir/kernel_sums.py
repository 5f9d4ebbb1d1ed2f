"""Results that a kernel provably adds up over a grid index, so that parts of the sum can be added by all devices.

Three ways of writing it are known. A result that is set to zero in the first step and added to in each; a result that
is a copy of scratch memory in the last step, which is set to zero in the first and added to in each; and a result that
takes such a copy where a mask says so, and stays what it was elsewhere. A copy may be rounded to floats of 16 bits or
more, as XLA rounds each device's part of a product before it adds them up. In the steps of a sum are those of all grid
indices that the result's place does not depend on; with a mask, or where some sizes of the grid are known only when it
runs, those of the last index alone, whatever the others are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from shardwright._kernel import ROUNDED, SOME, Access, Atom, Code, Constant, Step
from shardwright.ir.kernel_memory import used_in
from shardwright.ir.kernel_proofs import Facts, Refused, Sums
from shardwright.ir.kernel_values import GridNumbers, Numbers

_ADDITIONS = frozenset({"add", "add_any"})
_SHAPING = frozenset({"broadcast_in_dim", "convert_element_type", ROUNDED, "reshape", "squeeze", "expand_dims", "copy"})
_MOST_BLOCKS = 1 << 18


class _Touch(NamedTuple):
    """A step that touches memory, its number in order, and the branches that it is in."""

    order: int
    step: Step
    access: Access
    branches: tuple[tuple[Atom, int], ...]
    repeated: bool


class _Copy(NamedTuple):
    """A step that writes out what was added up: where, the step that reads it there, those between, and the mask."""

    touch: _Touch
    source: int
    read: Step
    between: tuple[Step, ...]
    mask: Atom | None


def find_sums(facts: Facts, k: int, ways: int, results: Iterable[int]) -> Sums:
    """The steps that add these results up over a grid index that is split into so many parts."""
    finder = _Finder(facts, k, ways)
    for result in results:
        finder.find(result)
    return finder.sums


class _Finder:
    def __init__(self, facts: Facts, k: int, ways: int) -> None:
        kernel = self.kernel = facts.kernel
        self.facts, self.k = facts, k
        grid = list(kernel.grid)
        grid[k] //= ways
        self.part = GridNumbers(grid, {k: (kernel.grid[k] - 1, grid[k] - 1)}, kernel.dynamic)
        self.part.work_out(kernel.body)
        self.sums = Sums()
        self.touches: dict[int, list[_Touch]] = {}
        self.made: dict[int, Step] = {}
        self.uses: Counter[Atom] = Counter(kernel.body.outs)
        self.count = 0
        self.scratch = kernel.scratch_refs
        self.read = used_in(kernel.body)
        self._gather(kernel.body, (), repeated=False)

    def _gather(self, code: Code, branches: tuple[tuple[Atom, int], ...], *, repeated: bool) -> None:
        for step in code.steps:
            self.count += 1
            self.made.update(dict.fromkeys(step.outs, step))
            self.uses.update(step.ins)
            self.uses.update(atom for body in step.bodies for atom in body.outs)
            for access in step.accesses:
                self.uses.update(access.atoms)
                self.touches.setdefault(access.ref, []).append(_Touch(self.count, step, access, branches, repeated))
            for n, body in enumerate(step.bodies):
                inside = (*branches, (step.ins[0], n)) if step.op == "cond" else branches
                self._gather(body, inside, repeated=repeated or step.op == "loop")

    def find(self, result: int) -> None:
        """Find how a result is added up."""
        kernel = self.kernel
        t = len(kernel.scalars) + len(kernel.operands) + result
        name = kernel.tensor(t)
        ref = kernel.ref(t)
        touches = self.touches.get(ref, [])
        copies = [self._copy(touch) for touch in touches if touch.step.op == "swap"]
        found = [copy for copy in copies if copy is not None and copy.source in self.scratch]
        known = {id(step) for copy in found for step in (copy.touch.step, *copy.between)}
        if not found or len({copy.source for copy in found}) > 1 or any(id(t.step) not in known for t in touches):
            found = []
        masked = any(copy.mask is not None for copy in found)
        if masked and len(found) > 1:  # where the mask is not, what another copied stays, which is no sum
            found = []
        over = self._alone(result, name) if kernel.dynamic or masked else self._indices(result, name)
        self._total(found[0].source if found else ref, over, name, found)

    def _alone(self, result: int, name: str) -> tuple[int, ...]:
        """The grid index that is split, if a block of the result stays while just this one goes on."""
        kernel, k = self.kernel, self.k
        others = range(k + 1, len(kernel.grid))
        if k in kernel.results[result].follows or any(kernel.grid[j] > 1 or j in kernel.dynamic for j in others):
            raise Refused(f"has {name} written by all of its steps, and is not provably added up")
        return (k,)

    def _indices(self, result: int, name: str) -> tuple[int, ...]:
        """The grid indices that a result's place does not depend on; there is a block for each step of the others."""
        kernel = self.kernel
        block = kernel.results[result]
        numbers = self.facts.places[len(kernel.operands) + result]
        found = [numbers.of(atom) for atom in block.place.outs]
        known = [array for array in found if array is not None]
        over = tuple(k for k, size in enumerate(kernel.grid) if size > 1 and all(_is_still(a, k) for a in known))
        rest = [1 if k in over else size for k, size in enumerate(kernel.grid)]
        if not known or len(known) < len(found) or math.prod(rest) > _MOST_BLOCKS:
            raise Refused(f"has {name} written by all of its steps, at places that are looked up")
        first = [a[tuple(slice(0, 1) if k in over else slice(None) for k in range(a.ndim))] for a in known]
        places = np.stack([np.broadcast_to(a, rest).ravel() for a in first])
        if np.unique(places, axis=1).shape[1] != math.prod(rest):
            raise Refused(f"has {name} written by all of its steps, and so have others")
        return over

    def _copy(self, touch: _Touch) -> _Copy | None:
        """How a step writes out what is in other memory, if that is all that it does."""
        if not touch.access.is_full or touch.repeated:
            return None
        between: list[Step] = []
        made = self._rounded(touch.step.ins[0], between)
        mask = None
        if made is not None and made.op == "select_n" and len(made.ins) == 3 and self.uses[made.outs[0]] == 1:
            between.append(made)
            mask = made.ins[0]
            sides = [self._rounded(atom, between) for atom in made.ins[1:]]
            before = [side for side in sides if side is not None and self._reads_all(side, touch.access.ref)]
            if len(before) != 1 or not self._is_still(mask):
                return None
            between.append(before[0])
            made = sides[1 - sides.index(before[0])]
        if made is None or not self._reads_all(made, made.accesses[0].ref if made.accesses else -1):
            return None
        return _Copy(touch, made.accesses[0].ref, made, tuple(between), mask)

    def _rounded(self, atom: Atom, between: list[Step]) -> Step | None:
        """The step that made a value, before it was rounded, for this use alone."""
        while isinstance(atom, int) and (made := self.made.get(atom)) is not None and self.uses[atom] == 1:
            if made.op != ROUNDED:
                return made
            between.append(made)
            atom = made.ins[0]
        return None

    def _reads_all(self, step: Step, ref: int) -> bool:
        return step.op == "get" and step.accesses[0].ref == ref and step.accesses[0].is_full

    def _is_still(self, atom: Atom) -> bool:
        """Whether a value provably is the same in all steps of the index that is split."""
        if isinstance(atom, Constant):
            return True
        if (numbers := self.facts.body.of(atom)) is not None:
            return _is_still(numbers, self.k)
        step = self.made.get(atom)
        if step is None or step.bodies or step.asked:
            return False
        if step.op == "program_id":
            return step.axis not in (self.k, -1)
        if step.op == "get":
            read = [*step.ins, *step.accesses[0].atoms]
            return self._stays(step.accesses[0].ref) and all(self._is_still(atom) for atom in read)
        return not step.effect and step.op != "num_programs" and all(self._is_still(atom) for atom in step.ins)

    def _stays(self, ref: int) -> bool:
        """Whether memory is of a prefetched scalar or an operand, and the same in all steps of the index."""
        kernel, count = self.kernel, len(self.kernel.scalars)
        if ref in self.facts.written:
            return False
        if ref in (kernel.ref(t) for t in range(kernel.bounds, count)):
            return True
        return any(
            ref == kernel.ref(count + b) and self.k not in block.follows for b, block in enumerate(kernel.operands)
        )

    def _total(self, ref: int, over: tuple[int, ...], name: str, copies: Sequence[_Copy]) -> None:
        """That memory is set to zero in the first step, added to in each, and copied, if at all, in the last."""
        plainly = f"has {name} written by all of its steps"
        begins: list[_Touch] = []
        ends: list[_Touch] = []
        adds: list[tuple[int, Step, Atom, tuple[Step, Step] | None]] = []
        reads = {id(copy.read) for copy in copies}
        for touch in self.touches.get(ref, ()):
            step = touch.step
            if id(step) in reads:
                ends.append(touch)
            elif step.op == "swap" and not self.read.intersection(step.outs):
                if touch.access.is_full and self._is_zero(step.ins[0]) and not touch.repeated:
                    begins.append(touch)
                else:
                    adds.append((touch.order, *self._added(touch, plainly)))
            elif step.op == "addupdate" and touch.access.at is not None:
                adds.append((touch.order, step, step.ins[0], None))
            elif step.op != "get":
                raise Refused(plainly)
        gets = {id(inner[0]) for *_, inner in adds if inner} | {id(touch.step) for touch in ends}
        if any(t.step.op == "get" and id(t.step) not in gets for t in self.touches.get(ref, ())) or not begins:
            raise Refused(f"{plainly}, and is not provably added up")
        last = max(touch.order for touch in begins)
        finish = min((touch.order for touch in ends), default=self.count + 1)
        if any(not last < order < finish for order, *_ in adds):
            raise Refused(f"{plainly}, and is not provably added up")
        self._at_first(begins, over, plainly)
        if copies:
            if any(j > min(over) for j, size in enumerate(self.kernel.grid) if size > 1 and j not in over):
                raise Refused(f"{plainly}, and the steps of others are between them")
            self._at_last([copy.touch for copy in copies], over, plainly)
        self.sums.memory.add(ref)
        self.sums.guarded.update(id(touch.step) for touch in (*begins, *ends))
        for copy in copies:
            self.sums.guarded.update(map(id, (copy.touch.step, *copy.between)))
        for _, step, addend, inner in adds:
            self.sums.adds[id(step)] = addend
            self.sums.inner.update(map(id, inner or ()))

    def _added(self, touch: _Touch, plainly: str) -> tuple[Step, Atom, tuple[Step, Step]]:
        """What a step adds to the memory that it stores to, and the steps that read that memory and add to it."""
        value = touch.step.ins[0]
        addition = self.made.get(value) if isinstance(value, int) else None
        if addition is not None and addition.op in _ADDITIONS and self.uses[value] == 1:
            for mine, addend in (addition.ins, addition.ins[::-1]):
                get = self.made.get(mine) if isinstance(mine, int) else None
                if (
                    get is not None
                    and get.op == "get"
                    and get.accesses == (touch.access,)
                    and touch.access.at is not None
                    and SOME not in touch.access.at
                    and self.uses[mine] == 1
                ):
                    return touch.step, addend, (get, addition)
        raise Refused(f"{plainly}, and is not provably added up")

    def _is_zero(self, atom: Atom) -> bool:
        if isinstance(atom, Constant):
            return atom.value is not None and atom.value == 0
        made = self.made.get(atom)
        return made is not None and made.op in _SHAPING and len(made.ins) == 1 and self._is_zero(made.ins[0])

    def _at_first(self, touches: Sequence[_Touch], over: tuple[int, ...], plainly: str) -> None:
        for numbers in (self.facts.body, self.part):
            first = _all_of(numbers, over, [0] * len(over))
            for touch in touches:
                done = self._done(touch, numbers)
                if done is None or (done != first).any():
                    raise Refused(f"{plainly}, and is not set to zero by just the first of them")

    def _at_last(self, touches: Sequence[_Touch], over: tuple[int, ...], plainly: str) -> None:
        for numbers in (self.facts.body, self.part):
            last = _all_of(numbers, over, [numbers.grid[k] - 1 for k in over])
            done = [self._done(touch, numbers) for touch in touches if not touch.repeated]
            if not any(each is not None and (each | ~last).all() for each in done):
                raise Refused(f"{plainly}, and is not provably written by the last of them")

    def _done(self, touch: _Touch, numbers: GridNumbers) -> Numbers | None:
        """In which steps of the grid something in branches is done, None if that is not known."""
        done: Numbers = np.ones((1,) * len(numbers.grid), bool)
        for which, n in touch.branches:
            found = numbers.of(which)
            if found is None:
                return None
            done = done & (found == n)
        return done


def _all_of(numbers: GridNumbers, indices: Sequence[int], wanted: Sequence[int]) -> Numbers:
    """In which steps of the grid these indices are what is wanted."""
    found: Numbers = np.ones((1,) * len(numbers.grid), bool)
    for k, number in zip(indices, wanted, strict=True):
        found = found & (numbers.index(k) == number)
    return found


def _is_still(numbers: Numbers, k: int) -> bool:
    return bool((numbers == np.take(numbers, [0], axis=k)).all())
