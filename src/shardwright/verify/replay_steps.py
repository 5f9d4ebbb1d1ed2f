"""A compiled program as what a replay of its schedule has to do: run, start moves, wait for them, and loop."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shardwright.compiler.overlapping import ASYNC_FUSIONS
from shardwright.ir.program import Source
from shardwright.verify.hlo import Computation, HloModule, Instruction, array_shapes, bytes_of
from shardwright.verify.hlo_loops import trip_count
from shardwright.verify.hlo_totals import HloCollective, HloCosts, HloTotals

Link = tuple[str, str]
"""What a move occupies: ("axis", its name), ("host", which way), or ("memory", "") of the device itself."""

_CHAIN = re.compile(rf'\b{ASYNC_FUSIONS.effect.chain}="?(\w+)')
_TARGET = re.compile(r'custom_call_target="(\w+)"')
_SAME = ("get-tuple-element", "bitcast", "optimization-barrier")
_HOST, _ON_CHIP = "S(5)", "S(1)"
_COPIES = ("copy-start", "slice-start", "dynamic-slice-start", "dynamic-update-slice-start")
_LAYS_OUT = ("copy", "transpose")
_START, _DONE, _UPDATE = "-start", "-done", "-update"
_SCALARS = 16
"""Bytes; the indices of slices are no more."""


@dataclass(frozen=True)
class Prices:
    """Seconds of what a program does: its compute, a collective with the axes that it runs over, bytes of memories.

    A rate of 0 means that moves of that memory take no time.
    """

    compute_seconds: Callable[[HloTotals], float]
    collective: Callable[[HloCollective], tuple[tuple[str, ...], float]]
    host_bytes_per_second: float = 0.0
    memory_bytes_per_second: float = 0.0


@dataclass(frozen=True)
class Run:
    """Compute, of the source line that is its label; ``copies``: entries are only laid out anew."""

    seconds: float
    label: str
    source: Source
    copies: bool = False


@dataclass(frozen=True)
class Move:
    """A collective, or a move of the host: the links that it takes, and for how long."""

    name: str
    links: tuple[Link, ...]
    seconds: float
    label: str


@dataclass(frozen=True)
class Begin:
    """Moves that are started."""

    key: str
    moves: tuple[Move, ...]


@dataclass(frozen=True)
class End:
    """Where the device waits for what was started by that key."""

    key: str


@dataclass(frozen=True)
class Loop:
    """Computations that run one after the other, so many times."""

    bodies: tuple[str, ...]
    turns: int


Step = Run | Begin | End | Loop


class Steps:
    """A program's computations as what the clock has to do, each read once."""

    def __init__(self, module: HloModule, prices: Prices) -> None:
        self._module, self._prices = module, prices
        self._costs = HloCosts(module)
        self._known: dict[str, tuple[Step, ...]] = {}

    def of(self, name: str) -> tuple[Step, ...]:
        """One computation's, in their order."""
        if name not in self._known:
            self._known[name] = ()  # a program that called itself would end here
            computation = self._module.computations.get(name)
            if computation is not None:
                found = (step for i in computation.instructions.values() for step in self._steps(computation, i))
                self._known[name] = tuple(found)
        return self._known[name]

    def _steps(self, computation: Computation, i: Instruction) -> Iterable[Step]:
        label = str(self._module.source(i))
        if i.opcode in ("while", "conditional", "call") and (i.opcode != "call" or i.estimated_cycles is None):
            bodies = [name for key in ("to_apply", "condition", "body") for name in i.called.get(key, ())]
            if i.opcode == "conditional":
                bodies = [self._costs.branch(i)]
            turns = trip_count(self._module, computation, i) if i.opcode == "while" else 1
            yield from self._run(HloTotals(i.estimated_cycles or 0), i)
            yield Loop(tuple(bodies), 1 if turns is None else turns)
        elif i.opcode.endswith(_DONE):
            yield End(_origin(computation, i))
        elif (move := self._host_move(i, label) or self._inner_move(i, label)) is not None:
            yield Begin(i.name, (move,))
        else:
            cost = self._costs.instruction(computation, i)
            starts, dones = self._chains(computation, i)
            early = tuple(self._move(c) for c in cost.collectives if c.overlapped)
            if early:
                yield Begin(starts[0] if starts else i.name, early)
            yield from self._run(cost, i)
            if late := tuple(self._move(c) for c in cost.collectives if not c.overlapped):
                yield Begin(i.name, late)
                yield End(i.name)
            yield from map(End, dones)

    def _run(self, cost: HloTotals, i: Instruction) -> Iterable[Step]:
        if seconds := self._prices.compute_seconds(cost):
            source = self._module.source(i)
            copies = i.opcode in _LAYS_OUT or (i.opcode == "fusion" and i.name.startswith(_LAYS_OUT))
            yield Run(seconds, str(source), source, copies)

    def _move(self, found: HloCollective) -> Move:
        axes, seconds = self._prices.collective(found)
        return Move(found.name, tuple(("axis", axis) for axis in axes), seconds, f"{found.kind} at {found.source}")

    def _host_move(self, i: Instruction, label: str) -> Move | None:
        """A start that moves between the memories of host and device."""
        rate = self._prices.host_bytes_per_second
        if not rate or not i.opcode.endswith(_START) or _HOST not in i.shape:
            return None
        arrays = [(_HOST in text, bytes_of(text)) for text in array_shapes(i.shape)]
        if i.opcode == "copy-start":  # the result is first, then the operand
            to_host, size = arrays[0]
        else:
            to_host = i.opcode == "dynamic-update-slice-start"
            size = max((size for on_host, size in arrays if not on_host and size > _SCALARS), default=0.0)
        way = ("host", "to it" if to_host else "from it")
        return Move(i.name, (way,), size / rate, f"{i.opcode.removesuffix(_START)} of the host at {label}")

    def _inner_move(self, i: Instruction, label: str) -> Move | None:
        """A start that moves between the device's memory and that on its chip: ahead of a use, or out of the way."""
        rate = self._prices.memory_bytes_per_second
        if not rate or i.opcode not in _COPIES:
            return None
        first, second, *_ = (*array_shapes(i.shape), "", "")
        if (_ON_CHIP in first) == (_ON_CHIP in second):
            return None
        size = min(map(bytes_of, (first, second)))
        return Move(i.name, (("memory", ""),), size / rate, f"{i.opcode.removesuffix(_START)} at {label}")

    def _chains(self, computation: Computation, i: Instruction) -> tuple[list[str], list[str]]:
        """The chains that a fusion starts, and those that it ends."""
        found: dict[str, list[str]] = {ASYNC_FUSIONS.effect.start: [], ASYNC_FUSIONS.effect.done: []}
        fused = (
            self._module.computations.get(next(iter(i.called.get("calls", ())), "")) if i.opcode == "fusion" else None
        )
        for inner in fused.instructions.values() if fused is not None else ():
            target = _TARGET.search(inner.rest) if inner.opcode == "custom-call" else None
            if target is None or target[1] not in found or fused is None:
                continue
            collectives = [fused.instructions[name] for name in inner.operands if name in fused.instructions]
            chain = next((c[1] for c in (_CHAIN.search(o.rest) for o in collectives) if c), "")
            found[target[1]].append(f"{computation.name} {chain}")
        return found[ASYNC_FUSIONS.effect.start], found[ASYNC_FUSIONS.effect.done]


def _origin(computation: Computation, done: Instruction) -> str:
    """The start that a done belongs to, through what passes it on."""
    name = done.operands[0] if done.operands else ""
    while (at := computation.instructions.get(name)) is not None and at.operands:
        if at.opcode not in _SAME and not at.opcode.endswith(_UPDATE):
            break
        name = at.operands[0]
    return name
