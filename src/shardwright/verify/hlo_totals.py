"""What XLA's final program costs by its own account: the compiler's cycles, and every collective in it.

Instructions inside a loop count as often as it runs, of a conditional the dearest branch counts. The TPU compiler puts
collectives into fusions: a reduction with the slice that follows it, or an all-gather taken apart into a start, a few
steps beside other work, and an end, each of which repeats the instruction; the start alone is counted.

A product whose partial sums are scattered it makes a loop of, in which one half of the sums goes round the ring one way
and the other half the other way, both at the same time. A link carries both ways at once, so of such a pair one takes
the time of both.

For some fusions (gathers, scatters, reductions that it found no good tiling for) the TPU compiler gives no cycles. They
are taken to read and write as much as their result, or where they write into an operand, by the compiler's own word, as
much as their other operands; whoever knows the memory's rate can make seconds of that. For
hand-written kernels there are none either: these are listed, with the functions that they are called in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from shardwright.compiler.overlapping import ASYNC_FUSIONS
from shardwright.ir.program import Source
from shardwright.price.collectives import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, PERMUTE, REDUCE_SCATTER
from shardwright.verify.device_groups import Groups, permuted_pairs, replica_groups
from shardwright.verify.hlo import Computation, HloModule, Instruction, bytes_of
from shardwright.verify.hlo_loops import trip_count

KINDS = {
    "all-gather": ALL_GATHER,
    "all-reduce": ALL_REDUCE,
    "reduce-scatter": REDUCE_SCATTER,
    "all-to-all": ALL_TO_ALL,
    "ragged-all-to-all": ALL_TO_ALL,
    "collective-permute": PERMUTE,
}
_BODIES = ("to_apply", "calls", "called_computations")
_OPERANDS_BACK = 4
_IN_PLACE = '"is_sync":true'
_CHAIN = re.compile(rf'\b{ASYNC_FUSIONS.effect.chain}="?\w')
_ASYNC_FUSION = re.compile(r"^async-collective-(start|done)")
_KERNEL = 'custom_call_target="tpu_custom_call"'
_CALLED_IN = re.compile(r"\bp?jit\(([^()]+)\)")
_INTO_FIRST = re.compile(r'"aliasing_operands":\{"lists":\[\{"indices":\["0"')
_RAGGED, _RAGGED_METADATA = "ragged-dot-", "ragged-dot-metadata"
_ASYNC_START = f'custom_call_target="{ASYNC_FUSIONS.effect.start}"'


@dataclass(frozen=True)
class HloCollective:
    """A collective in the compiled program: ``bytes`` that each device sends, once, and how often.

    ``groups`` are of logical devices; of a permute they are its pairs of source and target. ``overlapped``: the
    compiler starts it ahead of where its result is needed. ``opposite``: another that is under way at the same time
    sends as much the other way, and takes the time of both. ``name`` is the instruction's own.
    """

    kind: str
    bytes: float
    groups: Groups
    source: Source
    name: str = ""
    times: int = 1
    overlapped: bool = False
    opposite: bool = False

    @property
    def total_bytes(self) -> float:
        """Bytes that each device sends over the whole run."""
        return self.bytes * self.times


@dataclass(frozen=True)
class HloKernel:
    """A hand-written kernel: the functions that it is called in, innermost first; bytes moved, once; how often.

    ``scope`` is that of the op of which the compiler has made a kernel of its own, as it does of ``ragged_dot``.
    """

    called_in: tuple[str, ...]
    bytes: float
    times: int = 1
    scope: str = ""


@dataclass(frozen=True)
class HloTotals:
    """Cycles, collectives and hand-written kernels of a computation run once.

    ``unestimated_bytes`` are read and written by instructions for which there are no cycles. ``unknown_loops`` are
    loops whose length the text does not tell; they are counted once.
    """

    cycles: int = 0
    collectives: tuple[HloCollective, ...] = ()
    unestimated_bytes: float = 0.0
    unknown_loops: tuple[str, ...] = ()
    kernels: tuple[HloKernel, ...] = ()

    def times(self, n: int) -> HloTotals:
        """The same, run ``n`` times."""
        if n == 1:
            return self
        repeated = tuple(replace(c, times=c.times * n) for c in self.collectives if n)
        kernels = tuple(replace(k, times=k.times * n) for k in self.kernels if n)
        return HloTotals(self.cycles * n, repeated, self.unestimated_bytes * n, self.unknown_loops, kernels)

    @property
    def sent_bytes(self) -> float:
        """Bytes that each device sends in all collectives."""
        return sum(c.total_bytes for c in self.collectives)


def hlo_totals(module: HloModule) -> HloTotals:
    """The whole program, from its entry."""
    return HloCosts(module).of(module.entry)


class HloCosts:
    """What computations of a program cost, and the instructions in them, each run once."""

    def __init__(self, module: HloModule) -> None:
        self.module = module
        self._known: dict[str, HloTotals] = {}
        self._opposite = _opposite_permutes(module)

    def of(self, name: str) -> HloTotals:
        """A computation's instructions summed up."""
        if name not in self._known:
            self._known[name] = HloTotals()  # a program that called itself would end here
            computation = self.module.computations.get(name)
            if computation is not None:
                self._known[name] = _sum(self.instruction(computation, i) for i in computation.instructions.values())
        return self._known[name]

    def branch(self, i: Instruction) -> str:
        """The dearest branch of a conditional."""
        keys = ("branch_computations", "true_computation", "false_computation")
        names = [name for key in keys for name in i.called.get(key, ())]
        return max(names, key=lambda name: (self.of(name).cycles, self.of(name).sent_bytes), default="")

    def instruction(self, computation: Computation, i: Instruction) -> HloTotals:
        """One instruction with all that it calls."""
        called = i.called
        own = HloTotals(i.estimated_cycles or 0)
        if i.opcode == "while":
            trips = trip_count(self.module, computation, i)
            inside = _sum(self.of(name) for key in ("condition", "body") for name in called.get(key, ()))
            return _sum([own, inside.times(1 if trips is None else trips), _unknown(i.name if trips is None else "")])
        if i.opcode == "conditional":
            return _sum([own, self.of(self.branch(i))])
        if found := _collective(self.module, computation, i):
            return HloTotals(own.cycles, (replace(found, opposite=i.name in self._opposite),))
        base = i.opcode.removesuffix("-start")
        if base not in ("call", "async", "fusion"):
            return replace(own, unestimated_bytes=_unestimated(i), kernels=_kernels(i))
        inside = _sum(self.of(name) for key in _BODIES for name in called.get(key, ()))
        if i.opcode != base:
            inside = replace(inside, collectives=tuple(replace(c, overlapped=True) for c in inside.collectives))
        if base == "fusion":
            moved = 0.0 if inside.collectives or _ASYNC_FUSION.search(i.name) else _unestimated(i)
            if moved and _writes_into(self.module, i):
                moved = 2 * sum(bytes_of(computation.instructions[name].shape) for name in i.operands[1:])
            return HloTotals(own.cycles, inside.collectives, moved)
        return replace(inside, cycles=own.cycles or inside.cycles)


def _sum(parts: Iterable[HloTotals]) -> HloTotals:
    parts = list(parts)
    return HloTotals(
        sum(p.cycles for p in parts),
        tuple(c for p in parts for c in p.collectives),
        sum(p.unestimated_bytes for p in parts),
        tuple(name for p in parts for name in p.unknown_loops),
        tuple(k for p in parts for k in p.kernels),
    )


def _unestimated(i: Instruction) -> float:
    """Bytes that an instruction without cycles reads and writes, if it is of those that take time."""
    return 2 * bytes_of(i.shape) if i.opcode in ("fusion", "sort") and i.estimated_cycles is None else 0.0


def _writes_into(module: HloModule, i: Instruction) -> bool:
    """Whether a fusion updates a few places of its first operand, in its buffer."""
    fused = module.computations.get(next(iter(i.called.get("calls", ())), ""))
    root = fused.root if fused is not None else None
    return root is not None and root.opcode in ("scatter", "dynamic-update-slice") and bool(_INTO_FIRST.search(i.rest))


def _kernels(i: Instruction) -> tuple[HloKernel, ...]:
    """The hand-written kernel that an instruction is, if it is one."""
    if i.opcode != "custom-call" or _KERNEL not in i.rest or i.estimated_cycles is not None:
        return ()
    own = i.name.startswith(_RAGGED) and not i.name.startswith(_RAGGED_METADATA)
    called_in = tuple(reversed(_CALLED_IN.findall(i.op_name)))
    return (HloKernel(called_in, 2 * bytes_of(i.shape), scope=i.op_name.rpartition("/")[0] if own else ""),)


def _unknown(name: str) -> HloTotals:
    return HloTotals(unknown_loops=(name,) if name else ())


def _collective(module: HloModule, computation: Computation, i: Instruction) -> HloCollective | None:
    kind = KINDS.get(i.opcode.removesuffix("-start"))
    if kind is None:
        return None
    starts = [u for u in computation.instructions.values() if i.name in u.operands and _ASYNC_START in u.rest]
    if _CHAIN.search(i.rest) and not starts:
        return None
    if kind == ALL_REDUCE and _is_reduce_scatter(computation, i):
        kind = REDUCE_SCATTER
    groups = permuted_pairs(i.rest) if kind == PERMUTE else replica_groups(i.rest, module.partitions)
    sent = sent_bytes(kind, _operand_bytes(computation, i, kind, groups), groups)
    if not sent:
        return None
    overlapped = bool(starts) or (i.opcode.endswith("-start") and _IN_PLACE not in i.rest)
    return HloCollective(kind, sent, groups, _source(module, computation, i), i.name, overlapped=overlapped)


def _opposite_permutes(module: HloModule) -> frozenset[str]:
    """Permutes that are started while another, in the opposite direction and as large, is under way.

    The compiler's last program is in the order in which it runs.
    """
    found: set[str] = set()
    for computation in module.computations.values():
        under_way: dict[str, tuple[frozenset[tuple[int, ...]], float]] = {}
        for i in computation.instructions.values():
            if i.opcode == "collective-permute-start":
                pairs, size = frozenset(permuted_pairs(i.rest)), bytes_of(i.shape)
                back = frozenset((b, a) for a, b in pairs)
                partner = next((name for name, known in under_way.items() if known == (back, size)), None)
                if partner is None:
                    under_way[i.name] = pairs, size
                else:
                    del under_way[partner]
                    found.add(i.name)
            elif i.opcode == "collective-permute-done":
                for name in i.operands:
                    under_way.pop(name, None)
    return frozenset(found)


def _is_reduce_scatter(computation: Computation, i: Instruction) -> bool:
    """The TPU compiler writes a reduce-scatter as a fusion of a sum and the slice of it that each device keeps."""
    users = [u for u in computation.instructions.values() if i.name in u.operands]
    return "all-reduce-scatter" in computation.name and bool(users) and all(u.opcode == "dynamic-slice" for u in users)


def _source(module: HloModule, computation: Computation, i: Instruction) -> Source:
    """Where a collective comes from. One combined of several has lost it, and is shown where an operand comes from."""
    own = module.source(i)
    found, front = own, [i]
    for _ in range(_OPERANDS_BACK):
        if found.file:
            return found
        names = [name for instruction in front for name in instruction.operands]
        front = [computation.instructions[name] for name in names if name in computation.instructions]
        found = next((source for source in map(module.source, front) if source.file), found)
    return found if found.file else own


def sent_bytes(kind: str, local_bytes: float, groups: Groups) -> float:
    """Bytes that each device sends of its ``local_bytes`` of operands, by the formulas of ``spmd.collectives``."""
    if kind == PERMUTE:
        return local_bytes if any(a != b for a, b in groups) else 0.0
    n = max((len(group) for group in groups), default=1)
    return local_bytes * {ALL_GATHER: n - 1, ALL_REDUCE: 2 * (n - 1) / n}.get(kind, (n - 1) / n)


def _operand_bytes(computation: Computation, i: Instruction, kind: str, groups: Groups) -> float:
    names = i.operands[:1] if i.opcode.startswith("ragged") else i.operands
    shapes = [computation.instructions[name].shape for name in names if name in computation.instructions]
    if len(shapes) == len(names) and shapes:
        return sum(map(bytes_of, shapes))
    n = max((len(group) for group in groups), default=1)
    return bytes_of(i.shape) * {ALL_GATHER: 1 / n, REDUCE_SCATTER: n}.get(kind, 1)
