"""What a compiled program takes: bytes on each device, cycles, seconds, and collectives along the mesh's axes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shardwright.compiler.invoking import CYCLES, REFUSES, STANDS_IN
from shardwright.compiler.offloading import HOST_COUNTED
from shardwright.devices import AxisLink, Part, axis_links, axis_parts, joined
from shardwright.plan.verdicts import CompiledCollective
from shardwright.price.collectives import PERMUTE, collective_seconds
from shardwright.request.targets import Target
from shardwright.verify.device_groups import Span, permuted_span, span
from shardwright.verify.hlo import Computation, HloModule, Instruction, array_shapes, bytes_of
from shardwright.verify.hlo_loops import trip_count
from shardwright.verify.hlo_totals import HloCollective, HloTotals, hlo_totals


def program_figures(
    program: HloModule,
    mesh_axes: Mapping[str, int],
    target: Target,
    seconds_of_kernels: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Cycles, seconds and collectives of a compiled program.

    The compiler has no cycles for hand-written kernels: ``seconds_of_kernels`` are those of one run by a kernel's name,
    or by the scope of an op that the compiler makes a kernel of. Kernels that it has none of are taken to move as much
    as their results, twice.
    """
    totals = hlo_totals(program)
    kernel_seconds, unknown_bytes = _kernel_seconds(totals, seconds_of_kernels or {})
    totals = replace(totals, unestimated_bytes=totals.unestimated_bytes + unknown_bytes)
    sizes = tuple(mesh_axes.values())
    device = target.placed_device
    parts = tuple(zip(axis_parts(device, sizes), axis_links(device, sizes), strict=True))
    collectives = tuple(_located(c, mesh_axes, parts) for c in totals.collectives)
    compiler = device.compiler
    timed = not compiler[STANDS_IN]
    comm_seconds = sum(c.seconds * c.times for c in collectives) if timed else None
    compute_seconds = _compute_seconds(totals, target)
    if compute_seconds is not None:
        compute_seconds += kernel_seconds
    known = comm_seconds is not None and compute_seconds is not None
    moved = HloTransfers()
    if device.clock_hertz and device.host_bytes_per_second:
        moved = replay_transfers(program, device.clock_hertz, device.host_bytes_per_second)
    counts: dict[str, int] = defaultdict(int)
    sent: dict[str, float] = defaultdict(float)
    for c in collectives:
        counts[c.kind] += c.times
        sent[c.kind] += c.total_bytes
    return {
        "cycles": totals.cycles if compiler[CYCLES] else None,
        "unestimated_bytes": totals.unestimated_bytes if compiler[CYCLES] else None,
        "unknown_loops": list(totals.unknown_loops),
        "collectives": collectives,
        "counts": dict(counts),
        "bytes": dict(sent),
        "compute_seconds": compute_seconds,
        "kernel_seconds": kernel_seconds if totals.kernels else None,
        "comm_seconds": comm_seconds,
        "transfer_seconds": moved.transfer_seconds,
        "exposed_transfer_seconds": moved.exposed_seconds,
        "step_seconds": (comm_seconds or 0.0) + (compute_seconds or 0.0) + moved.exposed_seconds if known else None,
    }


def _compute_seconds(totals: HloTotals, target: Target) -> float | None:
    device = target.device
    if not device.clock_hertz:
        return None
    return totals.cycles / device.clock_hertz + totals.unestimated_bytes / device.memory_bytes_per_second


def _kernel_seconds(totals: HloTotals, known: Mapping[str, float]) -> tuple[float, float]:
    """What the kernels that are known take, and the bytes that the others move."""
    seconds = moved = 0.0
    for kernel in totals.kernels:
        names = kernel.called_in
        if kernel.scope:
            names = tuple(sorted((name for name in known if "/" in name and kernel.scope.endswith(name)), key=len))[-1:]
        name = next((name for name in names if name in known), None)
        if name is None:
            moved += kernel.bytes * kernel.times
        else:
            seconds += known[name] * kernel.times
    return seconds, moved


Axes = Sequence[tuple[tuple[Part, ...], AxisLink]]
"""For each axis the parts that it consists of, and one link for all of them."""


def _located(found: HloCollective, mesh_axes: Mapping[str, int], links: Axes) -> CompiledCollective:
    """A collective with the mesh's axes that it runs over, and its seconds on their links."""
    names, sizes = tuple(mesh_axes), tuple(mesh_axes.values())
    at = permuted_span(found.groups, sizes) if found.kind == PERMUTE else span(found.groups, sizes)
    seconds = 0.0 if found.opposite else _seconds(found, at, sizes, links)
    axes = tuple(names[a] for a in at.axes)
    return CompiledCollective(found.kind, axes, found.bytes, found.times, seconds, str(found.source), found.overlapped)


def _seconds(found: HloCollective, at: Span, sizes: Sequence[int], links: Axes) -> float:
    if not at.axes:
        return 0.0
    if found.kind != PERMUTE and math.prod(at.sizes) != at.size:
        # Devices that are no product of axes: as many in a row on the slowest of the links.
        slowest = min((links[a][1] for a in at.axes), key=lambda link: link.bytes_per_second)
        return collective_seconds(found.kind, found.bytes, [slowest], [at.size])
    parts: list[Part] = []
    for a, size in zip(at.axes, at.sizes, strict=True):
        parts += links[a][0] if size == sizes[a] else [Part(size, links[a][1])]
    over = joined(parts)
    return collective_seconds(found.kind, found.bytes, [part.link for part in over], [part.size for part in over])


def memory_figures(memory: Mapping[str, int], target: Target) -> dict[str, Any]:
    """What the program takes of a device, and whether it fits.

    Where the compiler refuses what does not fit, what must fit is the most that is allocated at one time.
    """
    compiler = target.device.compiler
    limit = target.device.usable_bytes or target.device.memory_bytes
    if not memory:
        return {"fits": None, "peak_bytes": None, "limit_bytes": limit}
    used = ("argument_bytes", "output_bytes", "temp_bytes", "generated_code_bytes")
    peak = sum(memory[name] for name in used) - memory["alias_bytes"]
    host = sum(memory.get(f"host_{name}", 0) for name in used) - memory.get("host_alias_bytes", 0)
    if compiler[REFUSES]:
        # The most at one time counts what lies in the chip's own memory too, which small programs have all theirs in.
        most = memory.get("peak_bytes", 0)
        if compiler[HOST_COUNTED]:
            most -= host - memory.get("host_temp_bytes", 0)
        peak = min(most, peak) if most > 0 else peak
    if compiler[STANDS_IN]:
        return {"fits": None, "peak_bytes": peak, "limit_bytes": None, "host_bytes": host}
    fits = compiler[REFUSES] or peak <= limit
    return {"fits": fits, "peak_bytes": peak, "limit_bytes": limit, "host_bytes": host}


_HOST = "S(5)"
_START, _DONE = "-start", "-done"


@dataclass(frozen=True)
class HloTransfers:
    """Bytes of one device to and from the host, and what they take; ``exposed_seconds`` no other work hides."""

    to_host_bytes: float = 0.0
    to_device_bytes: float = 0.0
    transfer_seconds: float = 0.0
    exposed_seconds: float = 0.0

    def plus(self, other: HloTransfers, times: int = 1) -> HloTransfers:
        """With another's, run so many times."""
        return HloTransfers(
            self.to_host_bytes + times * other.to_host_bytes,
            self.to_device_bytes + times * other.to_device_bytes,
            self.transfer_seconds + times * other.transfer_seconds,
            self.exposed_seconds + times * other.exposed_seconds,
        )


@dataclass
class _Clock:
    """Where a replay has come to: seconds, until when the link is taken each way, and when moves will be done."""

    now: float = 0.0
    free: dict[bool, float] = field(default_factory=lambda: {True: 0.0, False: 0.0})
    done: dict[str, float] = field(default_factory=dict)
    exposed: float = 0.0


def replay_transfers(module: HloModule, clock_hertz: float, host_bytes_per_second: float) -> HloTransfers:
    """The whole program's moves."""
    seconds_of = {name: hlo_totals(module, name).cycles / clock_hertz for name in module.computations}
    known: dict[str, HloTransfers] = {}

    def of(name: str) -> HloTransfers:
        if name not in known:
            known[name] = HloTransfers()
            computation = module.computations.get(name)
            if computation is not None and any(_HOST in i.shape for i in computation.instructions.values()):
                known[name] = replay(computation)
        return known[name]

    def replay(computation: Computation) -> HloTransfers:
        clock, total = _Clock(), HloTransfers()
        for i in computation.instructions.values():
            if i.opcode == "while":
                trips = trip_count(module, computation, i) or 1
                body = i.called.get("body", ("",))[0]
                total = total.plus(of(body), trips)
                clock.now += trips * seconds_of.get(body, 0.0)
            elif (move := _move(i)) is not None:
                to_host, size = move
                seconds = size / host_bytes_per_second
                clock.free[to_host] = max(clock.free[to_host], clock.now) + seconds
                clock.done[i.name] = clock.free[to_host]
                total = total.plus(HloTransfers(size * to_host, size * (not to_host), seconds))
            elif i.opcode.endswith(_DONE) and i.operands and i.operands[0] in clock.done:
                left = clock.done.pop(i.operands[0]) - clock.now
                clock.now, clock.exposed = clock.now + max(left, 0.0), clock.exposed + max(left, 0.0)
            else:
                clock.now += (i.estimated_cycles or 0) / clock_hertz
        return total.plus(HloTransfers(exposed_seconds=clock.exposed))

    return of(module.entry)


def _move(i: Instruction) -> tuple[bool, float] | None:
    """Whether a start moves to the host, and how many bytes; None for what is no such start."""
    if not i.opcode.endswith(_START) or _HOST not in i.shape:
        return None
    arrays = [(_HOST in text, bytes_of(text)) for text in array_shapes(i.shape)]
    sizes = [size for on_host, size in arrays if not on_host and size > _SCALARS]
    if i.opcode == "copy-start":  # the result is first, then the operand
        return arrays[0][0], arrays[0][1]
    return i.opcode == "dynamic-update-slice-start", max(sizes, default=0.0)


_SCALARS = 16
"""Bytes; the indices of slices are no more."""
