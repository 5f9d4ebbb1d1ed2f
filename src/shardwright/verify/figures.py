"""What a compiled program takes: bytes on each device, cycles, seconds, and collectives along the mesh's axes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardwright.compiler.invoking import CYCLES, REFUSES, STANDS_IN
from shardwright.compiler.offloading import HOST_COUNTED
from shardwright.compiler.overlapping import SCHEDULED
from shardwright.devices import AxisLink, Part, axis_links, axis_parts, joined
from shardwright.plan.verdicts import CompiledCollective, LineSeconds
from shardwright.price.collectives import PERMUTE, collective_seconds
from shardwright.price.corrections import COMPUTE, COPIES, Priced, moved_as, priced
from shardwright.request.targets import Target
from shardwright.verify.device_groups import Span, permuted_span, span
from shardwright.verify.hlo import HloModule
from shardwright.verify.hlo_totals import HloCollective, HloTotals, hlo_totals
from shardwright.verify.replay import Replay, Share, replay
from shardwright.verify.replay_steps import Prices


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
    known = seconds_of_kernels or {}
    kernel_seconds, unknown_bytes = _kernel_seconds(totals, known)
    sizes = tuple(mesh_axes.values())
    device = target.placed_device
    parts = tuple(zip(axis_parts(device, sizes), axis_links(device, sizes), strict=True))
    compiler = device.compiler
    collectives = tuple(_located(c, mesh_axes, parts) for c in totals.collectives)
    comm_seconds = None if compiler[STANDS_IN] else sum(c.seconds * c.times for c in collectives)
    compute_seconds = _compute_seconds(totals, target, known)
    found: dict[str, Any] = {"transfer_seconds": 0.0, "exposed_transfer_seconds": 0.0}
    lines: tuple[LineSeconds, ...] = ()
    if compiler[SCHEDULED] and compiler[CYCLES] and device.clock_hertz:
        prices = Prices(
            lambda cost: _compute_seconds(cost, target, known) or 0.0,
            lambda c: _placed(_located(c, mesh_axes, parts)),
            device.host_bytes_per_second or 0.0,
            device.memory_bytes_per_second,
        )
        replayed = replay(program, prices)
        collectives = tuple(
            _shared(c, replayed.shares.get(h.name)) for c, h in zip(collectives, totals.collectives, strict=True)
        )
        found = _replayed(program, prices, replayed)
        lines = _by_line(replayed, totals.collectives)
    serial_seconds = None
    step_seconds = found.pop("replayed_seconds", None)
    compute_seconds = found.pop("compute_seconds", compute_seconds)
    if comm_seconds is not None and compute_seconds is not None:
        serial_seconds = comm_seconds + compute_seconds + found["exposed_transfer_seconds"]
    counts: dict[str, int] = defaultdict(int)
    sent: dict[str, float] = defaultdict(float)
    for c in collectives:
        counts[c.kind] += c.times
        sent[c.kind] += c.total_bytes
    return {
        "cycles": totals.cycles if compiler[CYCLES] else None,
        "unestimated_bytes": totals.unestimated_bytes + unknown_bytes if compiler[CYCLES] else None,
        "unknown_loops": list(totals.unknown_loops),
        "collectives": collectives,
        "counts": dict(counts),
        "bytes": dict(sent),
        "compute_seconds": compute_seconds,
        "kernel_seconds": kernel_seconds if totals.kernels else None,
        "comm_seconds": comm_seconds,
        **found,
        "serial_seconds": serial_seconds,
        "step_seconds": serial_seconds if step_seconds is None else step_seconds,
        "lines": lines,
    }


def _replayed(program: HloModule, prices: Prices, replayed: Replay) -> dict[str, Any]:
    """What a replay says of the whole step, and of moves to and from the host were there nothing else to wait for."""
    alone = replayed
    if replayed.transfer_seconds:
        alone = replay(program, replace(prices, collective=lambda _: ((), 0.0)))
    return {
        "transfer_seconds": replayed.transfer_seconds,
        "exposed_transfer_seconds": alone.exposed_transfer_seconds,
        "replayed_seconds": replayed.replayed_seconds,
        "exposed_seconds": replayed.exposed_seconds,
        "compute_seconds": replayed.compute_seconds,
    }


def _by_line(replayed: Replay, collectives: Sequence[HloCollective]) -> tuple[LineSeconds, ...]:
    """A replay by what its parts do and where in the source they come from, largest first."""
    sums: dict[Priced, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for (source, copies), seconds in replayed.kernels.items():
        sums[Priced(COPIES) if copies else priced(COMPUTE, source)][0] += seconds
    for c in {c.name: c for c in collectives}.values():
        if (share := replayed.shares.get(c.name)) is not None:
            entry = sums[priced(moved_as(c.kind), c.source)]
            entry[0] += share.seconds
            entry[1] += share.hidden_seconds
    ordered = sorted(sums.items(), key=lambda item: -item[1][0])
    return tuple(LineSeconds(*of, *seconds) for of, seconds in ordered)


def _placed(found: CompiledCollective) -> tuple[tuple[str, ...], float]:
    return found.axes, found.seconds


def _shared(found: CompiledCollective, share: Share | None) -> CompiledCollective:
    """A collective with what of it, once, the schedule hides, and behind what."""
    if share is None or not share.times:
        return found
    behind = tuple((line, seconds / share.times) for line, seconds in share.largest())
    return replace(found, hidden_seconds=share.hidden_seconds / share.times, behind=behind)


def _compute_seconds(totals: HloTotals, target: Target, seconds_of_kernels: Mapping[str, float]) -> float | None:
    device = target.device
    if not device.clock_hertz:
        return None
    kernels, moved = _kernel_seconds(totals, seconds_of_kernels)
    moved += totals.unestimated_bytes
    return totals.cycles / device.clock_hertz + moved / device.memory_bytes_per_second + kernels


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
