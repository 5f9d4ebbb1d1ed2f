"""Whether a kernel on a part of its grid, and on parts of its arrays, does what it does there on all of it.

Each device has its part of one grid index and counts it from zero. That is right if every number in the kernel's code
either is the same there, or is a place in an array, and further on by the same amount in each part: then the array goes
to the devices in parts as well, and the place is the right one in each. What the grid alone decides is compared step by
step (``kernel_values.py``); anything else is the same if what it is computed from is. And nothing that the steps of one
part leave in memory may be read by those of the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from shardwright._kernel import ALL, Access, Atom, Block, Code, Constant, Kernel, Step
from shardwright.ir.kernel_values import GridNumbers, Numbers, first_part, moved

_GENERATOR = -1
"""The state of a core's generator of random numbers, as if it were memory."""


class Refused(Exception):  # noqa: N818
    """A grid index cannot be split; the message says why, and follows on "grid index 2 "."""


@dataclass
class Sums:
    """Steps of a kernel that add up a result over a grid index, by their identity.

    ``guarded`` may be done by some of the index's steps only: they begin a sum or write it out. ``adds`` are what a
    step of a sum adds. ``inner`` are its other steps. ``memory`` is where it is added up.
    """

    guarded: set[int] = field(default_factory=set)
    adds: dict[int, Atom] = field(default_factory=dict)
    inner: set[int] = field(default_factory=set)
    memory: set[int] = field(default_factory=set)


class Facts:
    """What the grid decides in a kernel's code, worked out once for all of its indices."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.body = GridNumbers(kernel.grid, unknown=kernel.dynamic)
        self.body.work_out(kernel.body)
        self.places = [GridNumbers(kernel.grid, unknown=kernel.dynamic) for _ in kernel.blocks]
        for numbers, block in zip(self.places, kernel.blocks, strict=True):
            numbers.give(block.place.params[: block.indices])
            numbers.work_out(block.place)
        count = len(kernel.scalars)
        self.tensor_of = {kernel.ref(t): t for t in range(kernel.bounds, len(kernel.shapes))}
        self.held = {ref for ref, t in self.tensor_of.items() if t < count or self._is_held(t - count)}

        given = {kernel.ref(t) for t in range(kernel.bounds, count + len(kernel.operands))}
        self.written = given & {ref for step in kernel.body.everything() for ref in _written(step)}

    def is_scattered(self, ref: int) -> bool:
        """Whether the kernel stores to places in an array that it has whole."""
        touched = [a for step in self.kernel.body.everything() for a in step.accesses if a.ref == ref]
        return ref in self.held and any(isinstance(place, int) for access in touched for place in access.at or ())

    def _is_held(self, b: int) -> bool:
        """Whether every step has all of an array, and not a block of it."""
        block, numbers = self.kernel.blocks[b], self.places[b]
        found = [numbers.of(atom) for atom in block.place.outs]
        still = bool(found) and all(array is not None and not array.any() for array in found)
        return still and block.sizes == block.shape and not block.squeezed


def _written(step: Step) -> list[int]:
    """The memory that a step may change. A copy's first is what it reads."""
    first = {"get": len(step.accesses), "dma_start": 1, "dma_wait": 1}.get(step.op, 0)
    return [access.ref for access in step.accesses[first:]]


class Proof:
    """That a grid index can be split into so many parts; ``places`` are the dimensions that go with it.

    A dimension is a number of an array, scalars, operands and results counted through, and its own.
    """

    def __init__(self, facts: Facts, k: int, ways: int) -> None:
        self.facts, self.kernel, self.k, self.ways = facts, facts.kernel, k, ways
        self.demands: dict[tuple[int, int], int] = {}

    @property
    def places(self) -> frozenset[tuple[int, int]]:
        """The dimensions that are split with the grid index."""
        return frozenset(place for place, step in self.demands.items() if step)

    def arrays(self) -> None:
        """By the index maps: which block of each array a step works on."""
        scalars = len(self.kernel.scalars)
        for b, (block, numbers) in enumerate(zip(self.kernel.blocks, self.facts.places, strict=True)):
            name = self.kernel.tensor(scalars + b)
            check = _Check(
                self,
                numbers,
                {v: t for t, v in enumerate(block.place.params[block.indices :], self.kernel.bounds)},
                Sums(),
            )
            check.walk(block.place)
            if self.k not in block.follows:
                continue
            if not block.place.outs:
                raise Refused(f"does not say where a block of {name} is by one number for each dimension")
            for d, atom in enumerate(block.place.outs):
                self._place(scalars + b, d, block, atom, check, name)

    def _place(self, t: int, d: int, block: Block, atom: Atom, check: _Check, name: str) -> None:
        found = check.numbers.of(atom)
        if found is None:
            if check.differs(atom):
                raise Refused(f"has the blocks of {name} looked up: {check.reason(atom)}")
            return
        step = moved(found, self.k, self.ways)
        if step is None or step < 0 or (step and not block.units[d]):
            raise Refused(
                f"is not just the number of a block of {name}: its index map computes with it for dimension {d}"
            )
        if not step:
            return
        extent = 1 if block.units[d] == block.sizes[d] else block.sizes[d]
        mine = first_part(found, self.k, self.ways)
        if int(mine.min()) < 0 or int(mine.max()) + extent > step:
            raise Refused(f"has blocks of {name} from all over dimension {d}")
        if step * block.units[d] * self.ways != block.shape[d]:
            raise Refused(f"does not go over dimension {d} of {name} in whole blocks")
        self.demand(t, d, step * block.units[d])

    def demand(self, t: int, d: int, step: int) -> None:
        """Have a dimension advance by so much from part to part, 0 if all of it is needed everywhere."""
        known = self.demands.setdefault((t, d), step)
        if known != step:
            raise Refused(f"has dimension {d} of {self.kernel.tensor(t)} used in several ways")

    def body(self, sums: Sums) -> None:
        """By what the kernel does in a step."""
        check = _Check(self, self.facts.body, {ref: self.facts.tensor_of[ref] for ref in self.facts.held}, sums)
        check.walk(self.kernel.body)

    def memory(self, refs: Iterable[int]) -> None:
        """That nothing is left in memory for the next part: every first step of one writes it before it reads it."""
        part = self.kernel.grid[self.k] // self.ways
        first = tuple(
            slice(0, 1) if k > self.k else slice(None, None, part if k == self.k else 1)
            for k in range(len(self.kernel.grid))
        )
        numbers = self.facts.body
        if self.kernel.dynamic:  # those after the one that is split are 0 as well
            unknown = frozenset(k for k in self.kernel.dynamic if k < self.k)
            numbers = GridNumbers(self.kernel.grid, unknown=unknown)
            numbers.work_out(self.kernel.body)
        _Fresh(numbers, first, frozenset(refs), self.kernel.body).walk(self.kernel.body, set())


class _Check:
    """Looks for what would be different on a part of the grid; ``held`` are arrays that are in memory as a whole."""

    def __init__(self, proof: Proof, numbers: GridNumbers, held: Mapping[int, int], sums: Sums) -> None:
        self.proof, self.numbers, self.held, self.sums = proof, numbers, held, sums
        self.other: dict[int, str] = {}
        self.steps: dict[int, int | None] = {}

    def step_of(self, atom: Atom) -> int | None:
        """By how much a known number advances from part to part; None if not evenly."""
        if isinstance(atom, Constant):
            return 0
        if atom not in self.steps:
            found = self.numbers.known[atom]
            self.steps[atom] = moved(found, self.proof.k, self.proof.ways)
        return self.steps[atom]

    def differs(self, atom: Atom | str) -> bool:
        """Whether a value may be another on a part of the grid."""
        if not isinstance(atom, int):
            return False
        return self.step_of(atom) != 0 if atom in self.numbers.known else atom in self.other

    def reason(self, *atoms: Atom | str) -> str:
        """Why the first of the values that differ does."""
        found = next(atom for atom in atoms if self.differs(atom))
        return self.other.get(found, "") if isinstance(found, int) else ""

    def walk(self, code: Code) -> None:
        for step in code.steps:
            if id(step) in self.sums.adds:
                if self.differs(self.sums.adds[id(step)]):
                    raise Refused(self._numbered())
            elif id(step) not in self.sums.guarded and id(step) not in self.sums.inner:
                self._look(step)

    def _numbered(self) -> str:
        return "is asked for by number in the kernel"

    def _look(self, step: Step) -> None:
        k = self.proof.k
        if k in step.asked or -1 in step.asked or (step.op == "num_programs" and step.axis in (k, -1)):
            self._taint(step, self._numbered())
        elif step.op == "program_id":
            if step.outs[0] not in self.numbers.known and step.axis in (k, -1):
                self._taint(step, self._numbered())
        elif step.op == "cond":
            self._cond(step)
        elif step.op == "loop":
            self._loop(step)
        elif step.op == "scoped":
            self.walk(step.bodies[0])
            self._merge(step, step.bodies[0].outs)
        else:
            self._plain(step)

    def _taint(self, step: Step, reason: str) -> None:
        if step.effect and step.op != "get":
            raise Refused(reason)
        self.other.update({v: reason for v in step.outs if v not in self.numbers.known})

    def _merge(self, step: Step, outs: Iterable[Atom]) -> None:
        for v, atom in zip(step.outs, outs, strict=False):
            if self.differs(atom) and v not in self.numbers.known:
                self.other[v] = self._numbered()

    def _plain(self, step: Step) -> None:
        if any(self.differs(atom) for atom in step.ins):
            self._taint(step, self.reason(*step.ins) or self._numbered())
            return
        for access in step.accesses:
            reason = self._touch(access)
            if reason:
                self._taint(step, reason)

    def _touch(self, access: Access) -> str:
        """Why what is touched is another on a part of the grid, if it is."""
        t = self.held.get(access.ref, -1)
        if t < 0:
            return self._numbered() if any(self.differs(atom) for atom in access.at or ()) else ""
        shape = self.proof.kernel.shapes[t]
        for d, atom in enumerate(access.at if access.at is not None else (ALL,) * len(shape)):
            known = isinstance(atom, int) and atom in self.numbers.known
            if not known:
                if self.differs(atom):
                    return self.reason(atom) or self._numbered()
                self.proof.demand(t, d, 0)
                continue
            assert isinstance(atom, int)
            step = self.step_of(atom)
            if step is None or step < 0:
                return self._numbered()
            if step:
                mine = first_part(self.numbers.known[atom], self.proof.k, self.proof.ways)
                if int(mine.min()) < 0 or int(mine.max()) >= step or step * self.proof.ways != shape[d]:
                    return f"does not go over dimension {d} of {self.proof.kernel.tensor(t)} evenly"
            self.proof.demand(t, d, step)
        return ""

    def _cond(self, step: Step) -> None:
        if self.differs(step.ins[0]):
            inside = [each for body in step.bodies for each in body.everything()]
            if any(each.effect and id(each) not in self.sums.guarded for each in inside):
                raise Refused(self.reason(step.ins[0]) or self._numbered())
            self._taint(step, self._numbered())
            return
        for body in step.bodies:
            self.walk(body)
            self._merge(step, body.outs)

    def _loop(self, step: Step) -> None:
        changed = True
        differing = {n for n, atom in enumerate(step.ins) if self.differs(atom)}
        while changed:
            for body in step.bodies:
                for n in differing:
                    self.other[body.params[n]] = self._numbered()
            for body in step.bodies:
                self.walk(body)
            body = step.bodies[0]
            found = {n for n, atom in enumerate(body.outs[: step.carried]) if self.differs(atom)}
            changed = not found <= differing
            differing |= found
        if len(step.bodies) > 1 and self.differs(step.bodies[1].outs[0]):
            raise Refused(self._numbered())
        self._merge(step, step.bodies[0].outs)
        for n in differing:
            if n < min(step.carried, len(step.outs)):
                self.other[step.outs[n]] = self._numbered()


class _Fresh:
    """Looks for memory that is read before it is written, in the ``first`` steps of the parts of a grid."""

    def __init__(self, numbers: GridNumbers, first: tuple[slice, ...], refs: frozenset[int], body: Code) -> None:
        self.numbers, self.first = numbers, first
        self.used = used_in(body)
        self.refs = refs & {
            access.ref for step in body.everything() if not self._only_writes(step) for access in step.accesses
        }

    def _only_writes(self, step: Step) -> bool:
        return step.op == "swap" and not self.used.intersection(step.outs)

    def walk(self, code: Code, written: set[int]) -> None:
        for step in code.steps:
            if step.op == "cond":
                self._cond(step, written)
                continue
            for body in step.bodies:  # of a loop, which may have no turn at all
                self.walk(body, written if step.op == "scoped" else set(written))
            overwrites = self._only_writes(step)
            for access in step.accesses:
                if access.ref in self.refs and access.ref not in written:
                    if not (overwrites and access.is_full):
                        raise Refused("is not declared parallel, and the kernel has memory that outlives a step")
                    written.add(access.ref)
            if step.op == "prng_seed":
                written.add(_GENERATOR)
            elif step.op.startswith("prng_") and _GENERATOR not in written:
                raise Refused("shares a generator of random numbers with the steps before it")

    def _cond(self, step: Step, written: set[int]) -> None:
        found = self.numbers.of(step.ins[0])
        taken = range(len(step.bodies))
        if found is not None:
            first: Numbers = found[self.first]
            if (first == first.flat[0]).all():
                taken = range(int(first.flat[0]), int(first.flat[0]) + 1)
        results = []
        for n in taken:
            results.append(set(written))
            self.walk(step.bodies[min(max(n, 0), len(step.bodies) - 1)], results[-1])
        written |= set.intersection(*results)


def used_in(code: Code) -> set[int]:
    """The variables that are read anywhere."""
    found: set[Atom | str] = set(code.outs)
    for step in code.everything():
        found.update(step.ins)
        found.update(atom for body in step.bodies for atom in body.outs)
        found.update(atom for access in step.accesses for atom in access.at or ())
    return {atom for atom in found if isinstance(atom, int)}
