"""What a Pallas kernel says of itself, as plain data: its grid, the blocks of its arrays, and its code."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

TARGET = "tpu_custom_call"
"""What a kernel is called as on a TPU, whichever it is."""

ALL, SOME = ":", "?"
"""Of a dimension of memory that a step touches: all of it, or a part that is not one number."""

ROUNDED = "rounded"
"""The operation that makes floats of 16 bits or more of others."""


@dataclass(frozen=True)
class Constant:
    """A constant in a kernel's code; the value is None where it is not a single number."""

    value: bool | int | float | None


Atom = int | Constant
"""A variable, by its number, or a constant."""


@dataclass(frozen=True)
class Span:
    """So many entries of a dimension, from a variable's number on."""

    start: int
    size: int


Place = Atom | Span | str
"""Where in a dimension: at a number, in a span, ``ALL`` or ``SOME``."""


@dataclass(frozen=True)
class Access:
    """Memory that a step touches: a place in each dimension, or None if that is not known."""

    ref: int
    at: tuple[Place, ...] | None

    @property
    def atoms(self) -> tuple[Atom, ...]:
        """The numbers that say where."""
        numbers = [place.start if isinstance(place, Span) else place for place in self.at or ()]
        return tuple(number for number in numbers if not isinstance(number, str))

    @property
    def is_full(self) -> bool:
        """Whether all of the memory is touched."""
        return self.at is not None and all(place == ALL for place in self.at)


@dataclass(frozen=True)
class Step:
    """One operation of a kernel's code.

    ``ins``: what it reads besides memory and places in memory; the first is what a ``swap`` stores. ``bodies``: of
    branches and loops. ``dtype``: of a result that is a single integer or truth value. ``axis``: the grid index that
    ``program_id`` asks for. ``effect``: it does something that is not in its results. ``asked``: grid indices that are
    asked for by number somewhere in an operation that is not looked into. ``carried``: how many results of a loop's
    turn go into the next.
    """

    op: str
    ins: tuple[Atom, ...]
    outs: tuple[int, ...]
    accesses: tuple[Access, ...] = ()
    bodies: tuple[Code, ...] = ()
    dtype: str = ""
    axis: int = -1
    effect: bool = False
    asked: frozenset[int] = frozenset()
    carried: int = 0


@dataclass(frozen=True)
class Code:
    """The steps of an index map, of a kernel's body, or of a branch or loop in it.

    Calls are inlined, and a branch or a loop has the variables around it under their own numbers: ``params`` are only
    what is new in it, which are the numbers and memory that a kernel is given, and what changes from turn to turn.
    """

    params: tuple[int, ...]
    steps: tuple[Step, ...]
    outs: tuple[Atom, ...]

    @cached_property
    def _hash(self) -> int:
        return hash((self.params, self.steps, self.outs))

    def __hash__(self) -> int:
        return self._hash

    def everything(self) -> Iterator[Step]:
        """All steps in order, each before those of its bodies."""
        for step in self.steps:
            yield step
            for body in step.bodies:
                yield from body.everything()


@dataclass(frozen=True)
class Block:
    """Which part of an operand or result a step of the grid works on.

    ``sizes`` are those of the part. ``units``: what its number along a dimension counts, which is the part's size, or
    1 if elements are counted; 0 if it cannot be told. ``place`` computes these numbers from the grid's ``indices`` and
    the prefetched scalars, and has none where they are not one for each dimension. ``seen`` are the dimensions that the
    kernel sees.
    """

    shape: tuple[int, ...]
    bits: int
    sizes: tuple[int, ...]
    units: tuple[int, ...]
    place: Code
    indices: int
    seen: tuple[int, ...]

    @cached_property
    def follows(self) -> frozenset[int]:
        """The grid indices that its place depends on."""
        depends: dict[int, frozenset[int]] = {self.place.params[k]: frozenset({k}) for k in range(self.indices)}

        def of(atoms: Iterator[Atom]) -> frozenset[int]:
            found = [depends.get(atom, frozenset()) for atom in atoms if isinstance(atom, int)]
            return frozenset().union(*found)

        for step in self.place.everything():
            read = of(atom for access in step.accesses for atom in access.atoms) | of(iter(step.ins))
            read |= of(atom for body in step.bodies for atom in body.outs)
            depends.update(dict.fromkeys(step.outs, read))
        return of(iter(self.place.outs)) if self.place.outs else frozenset(range(self.indices))

    def transferred_bytes(self, grid: tuple[int, ...]) -> float:
        """Bytes that a device moves, of blocks that stay where they are while their place does not change."""
        steps = math.prod(grid[: max(self.follows) + 1]) if self.follows else 1
        return steps * math.prod(self.sizes) * self.bits / 8


@dataclass(frozen=True)
class Kernel:
    """A kernel's grid, blocks and code.

    ``scalars``: shapes of the operands that come before the blocked ones, of which the first ``bounds`` are the sizes
    of the grid indices ``dynamic``, known only when it runs, and 1 in ``grid``. ``body``: its parameters are the memory
    of the other scalars, operands and results, and scratch memory, whose types are ``scratch``. ``parallel``: grid
    indices whose steps the author declares independent, or that ``vmap`` added. ``aliases``: operands that a result is
    written over. ``fixed`` says why the grid must stay as it is altogether, if it must. ``flops`` and
    ``transcendentals`` are of all steps.
    """

    name: str
    grid: tuple[int, ...]
    scalars: tuple[tuple[int, ...], ...]
    operands: tuple[Block, ...]
    results: tuple[Block, ...]
    body: Code
    scratch: tuple[str, ...] = ()
    parallel: frozenset[int] = frozenset()
    aliases: tuple[tuple[int, int], ...] = ()
    fixed: str = ""
    flops: int = 0
    transcendentals: int = 0
    dynamic: frozenset[int] = frozenset()
    bounds: int = 0

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.grid, self.scalars, self.operands, self.results, self.body, self.aliases))

    def __hash__(self) -> int:
        return self._hash

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Of operands, then of results."""
        return self.operands + self.results

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of scalars, operands and results."""
        return self.scalars + tuple(block.shape for block in self.blocks)

    def ref(self, t: int) -> int:
        """The memory in the body for a tensor, numbered as those of ``shapes``; -1 if there is none."""
        return self.body.params[t - self.bounds] if t >= self.bounds else -1

    @cached_property
    def scratch_refs(self) -> tuple[int, ...]:
        """Memory in the body that belongs to no tensor."""
        return self.body.params[len(self.shapes) - self.bounds :]

    def tensor(self, t: int) -> str:
        """What a tensor is called, numbered as those of ``shapes``."""
        count = len(self.scalars) + len(self.operands)
        return f"operand {t}" if t < count else f"result {t - count}"
