"""A compiled program's cycles by classes of ops: what each kernel is, where it comes from, and how often it runs.

A fusion is what is heaviest in it: a product, a convolution, a scatter, a gather, a sort, a reduction, else what its
root is. Its source is that of the heavy instruction, or its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardwright.ir.program import Source
from shardwright.verify.hlo import Computation, HloModule, Instruction
from shardwright.verify.hlo_loops import trip_count
from shardwright.verify.hlo_totals import HloCosts

PRODUCT, CONVOLUTION, REDUCTION, ELEMENTWISE = "product", "convolution", "reduction", "elementwise"
COPY, SLICES, GATHER, SCATTER, SORT, OTHER = "copy", "slices", "gather", "scatter", "sort", "other"

_HEAVY = {
    "dot": PRODUCT,
    "convolution": CONVOLUTION,
    "scatter": SCATTER,
    "gather": GATHER,
    "sort": SORT,
    "reduce-window": REDUCTION,
    "select-and-scatter": REDUCTION,
    "reduce": REDUCTION,
    "dynamic-update-slice": SLICES,
    "dynamic-slice": SLICES,
}
"""What makes a kernel what it is, heaviest first."""
_MOVING = frozenset({"copy", "transpose", "slice", "concatenate", "pad", "bitcast", "reshape", "broadcast", "reverse"})
_NOTHING = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "iota"})
_BODIES = ("to_apply", "calls", "called_computations")


@dataclass(frozen=True)
class Attributed:
    """An instruction that takes time: its class, its source, seconds of one run, and how often it runs.

    ``alone`` is whether it is no fusion; ``name`` is its own.
    """

    group: str
    source: Source
    seconds: float
    times: int
    alone: bool
    name: str
    shape: str

    @property
    def total_seconds(self) -> float:
        """Of all runs."""
        return self.seconds * self.times


def attributed(module: HloModule, clock_hertz: float, memory_bytes_per_second: float) -> list[Attributed]:
    """Every instruction of a program that takes time, collectives aside."""
    found: list[Attributed] = []
    costs = HloCosts(module)
    for computation, i, times in _run(module, costs, module.entry, 1):
        totals = costs.instruction(computation, i)
        seconds = totals.cycles / clock_hertz + totals.unestimated_bytes / memory_bytes_per_second
        if seconds:
            heavy = heaviest(module, i)
            source = module.source(heavy)
            source = source if source.file else module.source(i)
            alone = i.opcode != "fusion"
            found.append(Attributed(group_of(module, i), source, seconds, times, alone, i.name, i.shape))
    return found


def _run(module: HloModule, costs: HloCosts, name: str, times: int) -> Iterator[tuple[Computation, Instruction, int]]:
    """The instructions that are run, each with how often."""
    computation = module.computations.get(name)
    for i in computation.instructions.values() if computation is not None else ():
        assert computation is not None
        if i.opcode == "while":
            turns = trip_count(module, computation, i) or 1
            for body in (inside for key in ("condition", "body") for inside in i.called.get(key, ())):
                yield from _run(module, costs, body, times * turns)
        elif i.opcode == "conditional":
            yield from _run(module, costs, costs.branch(i), times)
        elif i.opcode.removesuffix("-start") in ("call", "async") and not i.estimated_cycles:
            for body in (inside for key in _BODIES for inside in i.called.get(key, ())):
                yield from _run(module, costs, body, times)
        else:
            yield computation, i, times


def inside(module: HloModule, i: Instruction) -> list[Instruction]:
    """The instructions that a kernel is made of, those of fusions in it too."""
    if i.opcode != "fusion":
        return [i]
    found: list[Instruction] = []
    for name in i.called.get("calls", ()):
        body = module.computations.get(name)
        for inner in body.instructions.values() if body is not None else ():
            found += inside(module, inner) if inner.opcode == "fusion" else [inner]
    return found or [i]


def heaviest(module: HloModule, i: Instruction) -> Instruction:
    """The instruction that makes a kernel what it is."""
    body = inside(module, i)
    for opcode in _HEAVY:
        found = [inner for inner in body if inner.opcode == opcode]
        if found:
            return found[-1]
    return next((inner for inner in reversed(body) if inner.root and inner.opcode not in _NOTHING), body[-1])


def group_of(module: HloModule, i: Instruction) -> str:
    """The class of a kernel."""
    heavy = heaviest(module, i)
    if heavy.opcode == "convolution" and _is_product(heavy):
        return PRODUCT
    if heavy.opcode in _HEAVY:
        return _HEAVY[heavy.opcode]
    opcodes = {inner.opcode for inner in inside(module, i)} - _NOTHING
    return COPY if opcodes <= _MOVING else ELEMENTWISE


def _is_product(i: Instruction) -> bool:
    """Whether a convolution, as the TPU compiler writes all contractions, comes from a product."""
    return "dot_general" in i.op_name or "window={size=" not in i.rest
