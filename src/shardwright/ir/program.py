"""The program: values, ops, regions and loops, as plain immutable data.

Values, ops and regions are numbered, and refer to one another by number. Calls are inlined: the value that a called
function sees *is* the caller's value. Ops stand in program order, an op with regions before the ops inside it, so a
region's ops are one contiguous stretch. Values and ops are named tuples: there are tens of thousands of them, and a
frozen dataclass takes four times as long to make.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwright.ir.given import Given, order_of
from shardwright.ir.kinds import CARRIES, CONSTRAINT, FREE_OF_FREE, MADE, MANUAL
from shardwright.ir.memory import PINNED
from shardwright.ir.rules import Rule

if TYPE_CHECKING:
    from shardwright.ir.move_terms import Addition, MoveTerms

NO_ATTRIBUTES: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Source:
    """A place in the user's code. ``scope`` is JAX's name stack (``named_scope``, transforms).

    ``callers`` are the frames around it, innermost first: file, line and function of each.
    """

    file: str = ""
    line: int = 0
    function: str = ""
    scope: str = ""
    callers: tuple[tuple[str, int, str], ...] = field(default=(), compare=False, repr=False)

    def __str__(self) -> str:
        if not self.file:
            return self.scope or "?"
        where = self.file.rsplit("/", 1)[-1] + (f":{self.line}" if self.line else "")
        return f"{where} ({self.function})" if self.function and not self.function.startswith("<") else where

    @property
    def backward(self) -> bool:
        """Made by ``grad``'s transposition rather than written by the user."""
        return "transpose(" in self.scope

    @property
    def recomputed(self) -> bool:
        """Made by ``jax.checkpoint``: the forward pass once more, for the backward pass."""
        return "rematted_computation" in self.scope


class Value(NamedTuple):
    """One tensor. ``op`` is -1 and ``region`` tells whose parameter it is when no op defines it.

    ``given`` is the sharding that the program itself has for it, if it has one.
    """

    shape: tuple[int, ...]
    dtype: str
    op: int
    region: int
    given: Given | None = None

    @property
    def bytes(self) -> int:
        """Size of the whole, unsharded tensor."""
        return _bytes(self.shape, self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


class Op(NamedTuple):
    """One operation. ``flops`` counts contractions (dot, convolution) only, once through.

    ``kind``: the op's name without its dialect. ``operands``, ``results``: values. ``region``: where it stands.
    ``regions``: those it has itself. ``signature``: number of its class, shared by all ops that are alike.
    """

    kind: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    rule: Rule
    region: int
    source: Source
    signature: int
    regions: tuple[int, ...] = ()
    flops: int = 0
    attributes: Mapping[str, Any] = NO_ATTRIBUTES


@dataclass(frozen=True, slots=True)
class Region:
    """A body: the program's own (0), a loop's condition or body, a branch, a region that is manual (``shard_map``).

    ``op`` owns it (-1 for the program's). ``parameters`` are its block arguments, ``results`` what it returns, and
    its ops, with everything nested in them, are ``start`` up to ``stop``.
    """

    op: int
    role: str
    parameters: tuple[int, ...]
    results: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop and how often it runs.

    ``known`` is "exact", "at most" (a bound was found next to another condition), "set" (by the user) or "unknown"
    (then ``trips`` is 1).
    """

    op: int
    trips: int
    known: str


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of the user's function: its path as a person writes it, and the value it is.

    ``memory_kind`` is where it lies, as JAX calls it, if that is not the device's own memory.
    """

    path: str
    value: int
    donated: bool = False
    memory_kind: str | None = None


@dataclass(frozen=True)
class Program:
    """A whole program.

    ``unused_arguments`` are the paths of arguments that the result does not depend on; ``results`` those of what the
    function returns, in the order of region 0's results. ``own_mesh`` is the mesh that shardings in the program are on.
    """

    name: str
    values: tuple[Value, ...]
    ops: tuple[Op, ...]
    regions: tuple[Region, ...]
    loops: tuple[Loop, ...]
    arguments: tuple[Argument, ...]
    unused_arguments: tuple[str, ...]
    results: tuple[str, ...]
    own_mesh: Mapping[str, int] | None = None
    told_result_kinds: tuple[str | None, ...] = ()
    """Where results lie if that is on the host, as far as the module or JAX's types tell."""
    one_memory: bool = False
    """Whether host and device are one memory, as on a CPU: kinds are kept, but nothing is moved."""
    typed: bool = False
    """Every type says how its value lies (explicit mode), and a compiler is told nothing else."""
    told_move_terms: Sequence[MoveTerms] | None = field(default=None, compare=False, repr=False)
    """The terms of the program that this one was made from, where they stand."""
    told_shape_classes: Mapping[int, int] | None = field(default=None, compare=False, repr=False)
    """The same of its shape classes."""

    @cached_property
    def is_sharded(self) -> bool:
        """Whether the program has shardings of its own."""
        return any(value.given is not None for value in self.values)

    @cached_property
    def axis_order(self) -> tuple[str, ...]:
        """The order in which its own shardings split one dimension by several axes; nothing if it is the mesh's."""
        given = ((value.given, value.bytes) for value in self.values if value.given is not None)
        return order_of(given, tuple(self.own_mesh or ()))

    @cached_property
    def repeats(self) -> NDArray[np.int64]:
        """How often each op runs: the product of the trip counts around it."""
        return np.array([self.region_repeats[op.region] for op in self.ops], dtype=np.int64)

    @cached_property
    def region_repeats(self) -> Sequence[int]:
        """The same of each region."""
        trips = {loop.op: loop.trips for loop in self.loops}
        found = [1] * len(self.regions)
        for r, region in enumerate(self.regions[1:], 1):
            found[r] = found[self.ops[region.op].region] * trips.get(region.op, 1)
        return found

    @cached_property
    def bytes_of(self) -> NDArray[np.int64]:
        """Size of each whole, unsharded value."""
        return np.array([v.bytes for v in self.values], dtype=np.int64)

    @cached_property
    def dim_sizes(self) -> NDArray[np.int64]:
        """The size of every dimension of every value, one value after the other."""
        return np.array([size for v in self.values for size in v.shape], dtype=np.int64)

    @cached_property
    def argument_of(self) -> Mapping[int, Argument]:
        """Arguments by their value."""
        return {argument.value: argument for argument in self.arguments}

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """The ops that use each value, in order, each once; returning it from a region is no use."""
        found: list[list[int]] = [[] for _ in self.values]
        for o, op in enumerate(self.ops):
            for v in op.operands:
                if not found[v] or found[v][-1] != o:
                    found[v].append(o)
        return tuple(map(tuple, found))

    @cached_property
    def shape_classes(self) -> Mapping[int, int]:
        """For each signature a number that ops of other kinds with the same rule, types and FLOPs have too."""
        if self.told_shape_classes is not None:
            return self.told_shape_classes
        numbers: dict[Any, int] = {}
        out: dict[int, int] = {}
        for op in self.ops:
            if op.signature not in out:
                types = tuple((self.values[v].shape, self.values[v].dtype) for v in (*op.operands, *op.results))
                key = (op.rule, types, op.flops, op.kind if "over" in op.attributes else "", op.attributes.get("over"))
                out[op.signature] = numbers.setdefault(key, len(numbers))
        return out

    @cached_property
    def move_terms(self) -> Sequence[MoveTerms]:
        """What becomes of the results of each op."""
        if self.told_move_terms is not None:
            return self.told_move_terms
        from shardwright.ir.move_terms import find_move_terms  # it is found by walking a whole program

        return find_move_terms(self)

    @cached_property
    def additions(self) -> Sequence[Addition]:
        """Sums that are added up before anything else is done with them."""
        from shardwright.ir.move_terms import find_additions

        return find_additions(self)

    @cached_property
    def awaited(self) -> Sequence[bool]:
        """Values that a contraction or a loop needs."""
        from shardwright.ir.move_terms import find_awaited

        return find_awaited(self)

    @cached_property
    def on_host(self) -> frozenset[int]:
        """The values that lie in the host's memory."""
        from shardwright.ir.memory import find_on_host

        return find_on_host(self)

    @cached_property
    def returned(self) -> frozenset[int]:
        """What the program, a loop's body or a branch returns."""
        return frozenset(v for region in self.regions for v in region.results)

    @cached_property
    def donations(self) -> Mapping[int, int]:
        """Results that take over a donated argument's buffer, paired as JAX does: in order, by type and memory."""
        waiting: dict[tuple[tuple[int, ...], str, bool], list[int]] = defaultdict(list)
        for argument in self.arguments:
            if argument.donated:
                value = self.values[argument.value]
                waiting[value.shape, value.dtype, argument.value in self.on_host].append(argument.value)
        pairs: dict[int, int] = {}
        for v in self.regions[0].results:
            found = waiting[self.values[v].shape, self.values[v].dtype, v in self.on_host]
            if found and v not in pairs:
                pairs[v] = found.pop(0)
        return pairs

    @cached_property
    def free(self) -> NDArray[np.bool_]:
        """Values that any device can make in any sharding at no cost: see ``_free_values``."""
        return _free_values(self)

    def ties(self, op: Op) -> Iterator[tuple[int, int]]:
        """Pairs of values that are one tensor on both sides of an op: a loop's carries, a branch's results, a barrier.

        Such an op has no factors of its own (``rules.NONE``): each pair is sharded for itself. Of a manual region, the
        side that is inside has the shape of one device's part along the manual axes.
        """
        if op.kind in CARRIES:
            yield from zip(op.operands, op.results, strict=True)
        if op.kind == MANUAL:
            yield from zip(op.operands, self.regions[op.regions[0]].parameters, strict=True)
        for r in op.regions:
            region = self.regions[r]
            if op.kind == "while":
                yield from zip(region.parameters, op.results, strict=True)
            if region.role != "condition":
                yield from zip(region.results, op.results, strict=True)

    @property
    def result_kinds(self) -> tuple[str | None, ...]:
        """Where each result lies, as JAX calls it; None for the device's own memory."""
        results = self.regions[0].results
        kinds = {argument.value: argument.memory_kind for argument in self.arguments}
        told = self.told_result_kinds or (None,) * len(results)
        return tuple(
            kinds.get(v) or kind or (PINNED if v in self.on_host else None)
            for v, kind in zip(results, told, strict=True)
        )

    def name_of(self, value: int) -> str:
        """What a person would call a value: its argument's path, or the line that makes it."""
        argument = self.argument_of.get(value)
        return argument.path if argument else str(self.source_of(value))

    def source_of(self, value: int) -> Source:
        """The line that defines a value; for a loop's parameter, the loop's."""
        v = self.values[value]
        op = v.op if v.op >= 0 else self.regions[v.region].op
        return self.ops[op].source if op >= 0 else Source()

    def __str__(self) -> str:
        from shardwright.ir.text import program_text  # printing is optional; the data does not need it

        return program_text(self)


def _free_values(program: Program) -> NDArray[np.bool_]:
    """Constants, iotas, what is computed elementwise from them alone, and broadcasts of a scalar.

    Shardy copies such a sub-computation for each of its uses before it propagates (its ``constant-or-scalar-splitter``
    pass), so two uses of one table of zeros do not tie what they are used with.
    """
    free = np.zeros(len(program.values), dtype=bool)
    constant = np.zeros(len(program.values), dtype=bool)
    for op in program.ops:
        # A constraint or a move says where its result lies, and a kernel is not copied.
        if op.regions or not op.results or op.kind == CONSTRAINT or op.attributes.keys() & {"kernel", "to"}:
            continue
        made = op.kind in MADE or (
            bool(op.operands)
            and all(constant[v] for v in op.operands)
            and (op.kind in FREE_OF_FREE or is_elementwise(program, op))
        )
        scalar = op.kind == "broadcast_in_dim" and not program.values[op.operands[0]].shape
        for v in op.results:
            constant[v] = made
            free[v] = made or scalar
    return free


def is_elementwise(program: Program, op: Op) -> bool:
    """One result, every operand of its shape, and each dimension a factor of its own."""
    if len(op.results) != 1 or not op.rule.results or op.rule.whole or op.rule.reduction or op.rule.halo:
        return False
    shape = program.values[op.results[0]].shape
    dims = op.rule.results[0]
    return all(
        program.values[v].shape == shape and mapping == dims
        for v, mapping in zip(op.operands, op.rule.operands, strict=True)
    )


@cache
def _bytes(shape: tuple[int, ...], dtype: str) -> int:
    return math.prod(shape) * bits_of(dtype) // 8


def bits_of(dtype: str) -> int:
    """Bits of one element: ``bf16`` 16, ``i1`` 8 (a byte in memory), ``complex<f32>`` 64, tokens none."""
    if dtype.startswith("complex<"):
        return 2 * bits_of(dtype[8:-1])
    digits = dtype.lstrip("abcdefghijklmnopqrstuvwxyz").split("E")[0].split("e")[0].split("M")[0]
    if not digits.isdigit():
        return 0
    return 8 if digits == "1" else int(digits)
