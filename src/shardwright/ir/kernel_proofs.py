"""Whether a kernel on a part of its grid, and on parts of its arrays, does what it does there on all of it.

Each device has its part of one grid index and counts it from zero. That is right if every number in the kernel's code
either is the same there, or is a place in an array, and further on by the same amount in each part: then the array goes
to the devices in parts as well, and the place is the right one in each. What the grid alone decides is compared step by
step (``kernel_values.py``); anything else is the same if what it is computed from is. What steps leave in memory for
later ones is looked at in ``kernel_memory.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from shardwright._kernel import ALL, Access, Atom, Block, Code, Constant, Kernel, Span, Step
from shardwright.ir.kernel_flow import Flow
from shardwright.ir.kernel_values import GridNumbers, first_part, moved


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


Held = tuple[tuple[int, int] | None, ...]
"""For each dimension of memory, the array's dimension that is in it from end to end, if one is."""


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
        self.held: dict[int, Held] = {
            kernel.ref(t): tuple((t, d) for d in range(len(kernel.shapes[t]))) for t in range(kernel.bounds, count)
        }
        for b in range(len(kernel.blocks)):
            self.held[kernel.ref(count + b)] = self._held(b)
        self.flow = Flow(kernel.body)
        given = {kernel.ref(t) for t in range(kernel.bounds, count + len(kernel.operands))}
        self.written = given & {ref for step in kernel.body.everything() for ref in _written(step)}

    def is_scattered(self, ref: int) -> bool:
        """Whether the kernel works at places along dimensions that it has all of."""
        return any(
            isinstance(place, (int, Span)) and dimension is not None
            for step in self.kernel.body.everything()
            for access in step.accesses
            if access.ref == ref
            for place, dimension in zip(access.at or (), self.held[ref], strict=False)
        )

    def _held(self, b: int) -> Held:
        """For each dimension that the kernel sees of a block: which it is of which array, if all of it is there."""
        block, numbers = self.kernel.blocks[b], self.places[b]
        t = len(self.kernel.scalars) + b
        if not block.place.outs:
            return (None,) * len(block.seen)
        found = {d: numbers.of(block.place.outs[d]) for d in block.seen}
        return tuple(
            (t, d) if array is not None and not array.any() and block.sizes[d] == block.shape[d] else None
            for d, array in found.items()
        )


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
        self.first_result = len(self.kernel.scalars) + len(self.kernel.operands)

    @property
    def places(self) -> frozenset[tuple[int, int]]:
        """The dimensions that are split with the grid index."""
        return frozenset(place for place, step in self.demands.items() if step)

    def arrays(self) -> None:
        """By the index maps: which block of each array a step works on."""
        scalars = len(self.kernel.scalars)
        for b, (block, numbers) in enumerate(zip(self.kernel.blocks, self.facts.places, strict=True)):
            name = self.kernel.tensor(scalars + b)
            refs = block.place.params[block.indices :]
            held = {v: self.facts.held[self.kernel.ref(t)] for t, v in enumerate(refs, self.kernel.bounds)}
            check = _Check(self, numbers, held, Sums())
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

    def body(self, sums: Sums, relevant: frozenset[int]) -> None:
        """By what the kernel does in a step to memory that is relevant."""
        _Check(self, self.facts.body, self.facts.held, sums, relevant).walk(self.kernel.body)


class _Check:
    """Looks for what would be different on a part of the grid; ``held``: dimensions that memory has all of."""

    def __init__(
        self,
        proof: Proof,
        numbers: GridNumbers,
        held: Mapping[int, Held],
        sums: Sums,
        relevant: frozenset[int] | None = None,
    ) -> None:
        self.proof, self.numbers, self.held, self.sums, self.relevant = proof, numbers, held, sums, relevant
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
                places = [atom for access in step.accesses for atom in access.atoms]
                if any(self.differs(atom) for atom in (self.sums.adds[id(step)], *step.ins[1:], *places)):
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

    def _matters(self, step: Step) -> bool:
        """Whether a step does something that a result may hang on, besides what it returns."""
        if not step.effect or step.op == "get":
            return False
        return not step.accesses or self.relevant is None or any(a.ref in self.relevant for a in step.accesses)

    def _taint(self, step: Step, reason: str) -> None:
        if self._matters(step):
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
        held = self.held.get(access.ref, ())
        for n, there in enumerate(access.at if access.at is not None else (ALL,) * len(held)):
            place = held[n] if n < len(held) else None
            atom, extent = (there.start, there.size) if isinstance(there, Span) else (there, 1)
            if place is None or not isinstance(atom, int) or atom not in self.numbers.known:
                if self.differs(atom):
                    return self.reason(atom) or self._numbered()
                if place is not None:
                    self.proof.demand(*place, 0)
                continue
            (t, d), step = place, self.step_of(atom)
            if step is None or step < 0:
                return self._numbered()
            if step:
                mine = first_part(self.numbers.known[atom], self.proof.k, self.proof.ways)
                whole = self.proof.kernel.shapes[t][d]
                if int(mine.min()) < 0 or int(mine.max()) + extent > step or step * self.proof.ways != whole:
                    return f"does not go over dimension {d} of {self.proof.kernel.tensor(t)} evenly"
            self.proof.demand(t, d, step)
        return ""

    def _cond(self, step: Step) -> None:
        if self.differs(step.ins[0]):
            inside = [each for body in step.bodies for each in body.everything()]
            if any(self._matters(each) and id(each) not in self.sums.guarded for each in inside):
                raise Refused(self.reason(step.ins[0]) or self._numbered())
            for place in {p for each in inside for a in each.accesses for p in self.held.get(a.ref, ()) if p}:
                if place[0] < self.proof.first_result:
                    self.proof.demand(*place, 0)
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
