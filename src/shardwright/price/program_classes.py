"""What of a program does not depend on a mesh: which of its parts are priced alike, and where its memory may peak.

*Classes* are what all copies of a layer share. Two values are of one class when every state gives them the same
sharding; two ops when it gives them the same work and the same moves; two kernels when their ops are of the same
classes and hang together in the same way. A class is priced once and counted as often as it occurs, so that the price
of a state does not depend on the depth of a model.

*Points* are where memory is looked at: one for each kernel, but copies of a layer need not all be. Take a kernel that
occurs in every layer: if what lives at one occurrence is at most the mean of what lives at the one before and the one
after, whatever the sizes, then one of these two needs at least as much. Along a stack of equal layers that leaves the
first and the last.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardwright._memo import Numbers
from shardwright.compiler import Compiler
from shardwright.compiler.fusing import READ_AGAIN
from shardwright.ir.given import Given, local
from shardwright.ir.kinds import CONTRACTIONS, MANUAL
from shardwright.ir.move_terms import Addition, MoveTerms, summed
from shardwright.ir.program import Op, Program
from shardwright.price.buffers import Buffers, Form, find_buffers
from shardwright.price.kept import kept_by, stays_whole
from shardwright.price.kernels import Kernels, find_kernels, read_again, spread_values
from shardwright.price.rounded import kept_rounded
from shardwright.price.shardings import NO_BOUNDS, Bounds, Pair, Places, bounds_of
from shardwright.price.shortcuts import with_shortcuts
from shardwright.space.state import KeepWhole, Sharding, Subject

K = TypeVar("K", bound=Hashable)


class ValueClass(NamedTuple):
    """``groups`` of its dimensions; ``kept`` are the entries of a state that keep it whole.

    ``padded`` are the groups that may be split unevenly. ``fixed`` is its sharding where no state gives it, ``given``
    what the program itself says. ``on_host``: they lie in the host's memory. ``kept_as`` is the type that they are kept
    in if it is not their own.
    """

    shape: tuple[int, ...]
    dtype: str
    groups: tuple[int, ...]
    pairs: tuple[Pair, ...]
    kept: tuple[KeepWhole, ...]
    padded: tuple[int, ...] = ()
    fixed: Sharding | None = None
    given: Given | None = None
    on_host: bool = False
    kept_as: str = ""


class OpClass(NamedTuple):
    """``signature`` is that of the program's op; values are numbers of value classes."""

    signature: int
    operands: tuple[int, ...]
    results: tuple[int, ...]
    groups: tuple[int, ...]
    free: tuple[bool, ...]
    terms: MoveTerms
    bounds: Bounds = NO_BOUNDS


class KernelClass(NamedTuple):
    """Ops of one kernel in order, by class; ``operands[k]`` and ``results[k]`` tell which stored values they share.

    A stored value has a number of its own within the kernel; one that is not in memory has -1. The first ``again`` ops
    count in another kernel, and are computed again in this one.
    """

    ops: tuple[int, ...]
    operands: tuple[tuple[int, ...], ...]
    results: tuple[tuple[int, ...], ...]
    repeats: int
    again: int = 0


class UseClass(NamedTuple):
    """A value and all ops of one region that use it, by class and operand number."""

    value: int
    uses: tuple[tuple[int, int], ...]
    repeats: int


class AdditionClass(NamedTuple):
    """Sums that are added up, by the classes of the ops that make them."""

    ops: Addition
    repeats: int


class BorderClass(NamedTuple):
    """Two values that are one tensor on both sides of a loop, a branch, a barrier or a manual region.

    ``inside`` is the one of them that is local along ``manual`` axes, as it is moved; without such axes the first.
    """

    before: int
    after: int
    inside: int
    manual: frozenset[str]
    repeats: int


class Table(Generic[K]):
    """Classes by number: what each is known by, and its members."""

    def __init__(self) -> None:
        self._numbers: Numbers[K] = Numbers()
        self.keys = self._numbers.things
        self.members: list[list[int]] = []

    def add(self, key: K, member: int) -> int:
        """The number of a class, with one more member."""
        number = self._numbers[key]
        if number == len(self.members):
            self.members.append([])
        self.members[number].append(member)
        return number


class Classes:
    """The classes of a program; ``whole`` are the sets of arguments' values that a state can keep whole.

    With ``fixed``, a sharding for each value, values of different shardings are of different classes. ``freed`` are
    values that the program gives a sharding, as if it did not.
    """

    def __init__(
        self,
        places: Places,
        whole: tuple[frozenset[int], ...],
        compiler: Compiler,
        fixed: Sequence[Sharding] | None = None,
        freed: frozenset[int] = frozenset(),
    ) -> None:
        self.places = places
        self.program: Program = _freed(with_shortcuts(places.analysis.program), freed)
        self.kernels: Kernels = find_kernels(self.program, compiler)
        self.reads_again = compiler[READ_AGAIN]
        self.buffers: Buffers = find_buffers(self.program, self.kernels)
        self.values: Table[ValueClass] = Table()
        self.ops: Table[OpClass] = Table()
        kept = [stays_whole(places.analysis.program, values) for values in whole]
        kept_as = kept_rounded(self.program, compiler)
        self.of_value = [
            self.values.add(
                ValueClass(
                    value.shape,
                    value.dtype,
                    places.of_value[v],
                    places.pairs(v),
                    kept_by(v, kept),
                    places.padded(v),
                    None if fixed is None else fixed[v],
                    value.given,
                    v in self.program.on_host,
                    kept_as[v],
                ),
                v,
            )
            for v, value in enumerate(self.program.values)
        ]
        of_value, free = self.of_value, self.program.free.tolist()
        self.of_op = [
            self.ops.add(
                OpClass(
                    op.signature,
                    tuple([of_value[v] for v in op.operands]),
                    tuple([of_value[v] for v in op.results]),
                    places.of_op[o],
                    tuple([free[v] for v in op.operands]),
                    self.program.move_terms[o],
                    bounds_of(self.program, op),
                ),
                o,
            )
            for o, op in enumerate(self.program.ops)
        ]

    def op(self, number: int) -> Op:
        """An op of a class."""
        return self.program.ops[self.ops.members[number][0]]

    @cached_property
    def groups_of_values(self) -> list[frozenset[Subject]]:
        """For each class of values the groups of a state that it sees, and what keeps it whole."""
        return [frozenset[Subject]([*c.groups, *c.kept]) - {-1} for c in self.values.keys]

    @cached_property
    def groups_of_ops(self) -> list[frozenset[Subject]]:
        """For each class of ops the groups of a state that it sees: its own, and those of its values."""
        of_value = self.groups_of_values
        return [
            frozenset[Subject]([*c.groups]).union(*[of_value[v] for v in (*c.operands, *c.results)]) - {-1}
            for c in self.ops.keys
        ]

    @cached_property
    def ops_of_kernel(self) -> dict[int, list[int]]:
        """The ops of each kernel by its root, without those that any device can make at no cost."""
        members: dict[int, list[int]] = {}
        free = self.program.free.tolist()
        joined = self.kernels.joined
        for o, root in enumerate(self.kernels.root):
            if not all(free[v] for v in self.program.ops[o].results):
                members.setdefault(joined.get(root, root), []).append(o)
        return members

    @cached_property
    def kernel_classes(self) -> Table[KernelClass]:
        """The kernels, each known by its root op."""
        table: Table[KernelClass] = Table()
        repeats, stored = self.program.repeats.tolist(), list(self.kernels.stored)
        if self.reads_again:
            stored = [kept and not spread for kept, spread in zip(stored, spread_values(self.program), strict=True)]
        hosts = set(self.kernels.joined.values())
        for root, ops in self.ops_of_kernel.items():
            numbers: dict[int, int] = {}
            inside = self._used_inside(ops) if root in hosts else frozenset[int]()

            def number(
                values: tuple[int, ...], numbers: dict[int, int] = numbers, inside: frozenset[int] = inside
            ) -> tuple[int, ...]:
                return tuple(
                    [numbers.setdefault(v, len(numbers)) if stored[v] and v not in inside else -1 for v in values]
                )

            again = read_again(self.program, self.kernels, ops) if self.reads_again else []
            found = [self.program.ops[o] for o in (*again, *ops)]
            key = KernelClass(
                tuple([self.of_op[o] for o in (*again, *ops)]),
                tuple([number(op.operands) for op in found]),
                tuple([number(op.results) for op in found]),
                repeats[root],
                len(again),
            )
            table.add(key, root)
        return table

    def _used_inside(self, ops: Sequence[int]) -> frozenset[int]:
        """What ops that run as one kernel make for each other alone, other than by a contraction."""
        program, own = self.program, set(ops)
        made = [v for o in ops if program.ops[o].kind not in CONTRACTIONS for v in program.ops[o].results]
        return frozenset(
            v for v in made if v not in program.returned and program.users[v] and own.issuperset(program.users[v])
        )

    @cached_property
    def use_classes(self) -> Table[UseClass]:
        """Values and their uses in a region; a member's number is that of its entry in ``uses``."""
        table: Table[UseClass] = Table()
        repeats = self.program.repeats.tolist()
        for index, (value, uses) in enumerate(self.uses):
            key = UseClass(self.of_value[value], tuple([(self.of_op[o], k) for o, k in uses]), repeats[uses[0][0]])
            table.add(key, index)
        return table

    @cached_property
    def uses(self) -> list[tuple[int, list[tuple[int, int]]]]:
        """For each value that may have to be moved for a use, and each region, the ops and operands that use it."""
        found: dict[tuple[int, int], list[tuple[int, int]]] = {}
        free = self.program.free.tolist()
        for o, op in enumerate(self.program.ops):
            if op.rule.tensors:
                for k, v in enumerate(op.operands):
                    if not free[v] and self.program.values[v].shape:
                        found.setdefault((op.region, v), []).append((o, k))
        return [(v, uses) for (_, v), uses in found.items()]

    @cached_property
    def addition_classes(self) -> Table[AdditionClass]:
        """Sums that are added up; a member is the number of the addition."""
        table: Table[AdditionClass] = Table()

        def classes(addition: Addition) -> Addition:
            return self.of_op[addition] if isinstance(addition, int) else tuple(map(classes, addition))

        for number, addition in enumerate(self.places.analysis.program.additions):
            repeats = int(self.program.repeats[summed(addition)[0]])
            table.add(AdditionClass(classes(addition), repeats), number)
        return table

    @cached_property
    def border_classes(self) -> Table[BorderClass]:
        """Borders of loops, branches and barriers; a member is the op's number."""
        table: Table[BorderClass] = Table()
        repeats, free = self.program.region_repeats, self.program.free.tolist()
        for o, op in enumerate(self.program.ops):
            if not op.rule.tensors:
                for a, b in self.program.ties(op):
                    if not free[a] and self.program.values[a].shape:
                        manual = op.attributes["manual"] if op.kind == MANUAL else frozenset()
                        inside = b if manual and self.program.values[b].op < 0 else a
                        before, after, moved = (self.of_value[v] for v in (a, b, inside))
                        region = self.program.values[a].region  # what a loop's body returns crosses in every trip
                        table.add(BorderClass(before, after, moved, manual, repeats[region]), o)
        return table


def _freed(program: Program, values: frozenset[int]) -> Program:
    """The program without the shardings that it gives to some values."""
    if not values:
        return program
    changed = list(program.values)
    for v in values:
        given = changed[v].given
        changed[v] = changed[v]._replace(given=local(len(changed[v].shape), given.local) if given else None)
    return replace(
        program, values=tuple(changed), told_move_terms=program.move_terms, told_shape_classes=program.shape_classes
    )


Counts = NDArray[np.int64]
"""At each point of a program how many tensors are alive, or how many bytes."""


class Points(NamedTuple):
    """Where memory is looked at: the positions, which class of kernel runs there, and how many buffers are alive.

    Buffers are counted by the class of their value and their form.
    """

    at: NDArray[np.int64]
    kinds: NDArray[np.int64]
    columns: dict[tuple[int, Form], Counts]


def find_points(classes: Classes) -> Points:
    """Where the memory of a program is looked at: at every kernel, and where what is run with it stores its own."""
    kinds, roots = [], []
    for k, members in enumerate(classes.kernel_classes.members):
        kinds += [k] * len(members)
        roots += members
    joined = sorted(classes.kernels.joined)
    kinds, roots = [*kinds, *[-1] * len(joined)], [*roots, *joined]
    if not roots:  # nothing runs, but arguments are held all the same
        kinds, roots = [-1], [-1]
    at = np.array([classes.kernels.at[root] if root >= 0 else 0 for root in roots], np.int64)
    columns: dict[tuple[int, Form], list[tuple[int, int]]] = {}
    for buffer in (*classes.buffers.temporary, *classes.buffers.on_host):
        columns.setdefault((classes.of_value[buffer.value], buffer.form), []).append((buffer.start, buffer.end))
    counts = [coverage(at, *zip(*spans, strict=True)) for spans in columns.values()]
    left = extreme_points(at, kinds, counts)
    alive = {key: column[left] for key, column in zip(columns, counts, strict=True)}
    return Points(at[left], np.array(kinds)[left], alive)


def coverage(at: NDArray[np.int64], starts: Iterable[int], ends: Iterable[int]) -> Counts:
    """How many of the intervals ``[start, end]`` hold each of the positions."""
    begun = np.searchsorted(np.sort(np.fromiter(starts, np.int64)), at, side="right")
    gone = np.searchsorted(np.sort(np.fromiter(ends, np.int64)), at, side="left")
    return (begun - gone).astype(np.int64)


def extreme_points(at: NDArray[np.int64], kinds: Sequence[int], columns: Sequence[Counts]) -> NDArray[np.int64]:
    """Numbers of the points that are left; ``columns`` are counts of each kind of buffer at every point."""
    order = np.lexsort((at, np.asarray(kinds)))
    kind = np.asarray(kinds)[order]
    inner = np.zeros(len(order), dtype=bool)
    inner[1:-1] = (kind[:-2] == kind[1:-1]) & (kind[2:] == kind[1:-1])
    for column in columns:
        if not inner.any():
            break
        c = column[order]
        inner[1:-1] &= 2 * c[1:-1] <= c[:-2] + c[2:]
    return np.sort(order[~inner])
