"""Prices of links beside the TPU compiler's own latencies of the same collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.calibrate.collectives import DesignedCollective, designed_collectives
from benchmarks.calibrate.kept import compile_missing, read_text
from benchmarks.calibrate.schedule import latencies
from shardwright.devices import Device
from shardwright.price.collectives import PERMUTE, Move
from shardwright.price.prices import DevicePrices
from shardwright.request import MeshShape

_CHILD = "benchmarks.calibrate.collectives_child"


def link_rows(
    device: Device,
    topology: str,
    lengths: tuple[int, ...],
    folder: Path,
    say: Callable[[str], None],
    compiles: bool = True,
) -> list[dict[str, Any]]:
    """Every designed collective on a slice: our seconds, and the compiler's where its schedule has it."""
    found = designed_collectives({topology: (lengths,)})
    if compiles:
        compile_missing(_CHILD, topology, folder, [c.key for c in found], say)
    mesh = MeshShape.of({"xyz"[k]: n for k, n in enumerate(lengths)})
    bare = replace(device, tile=None, slice_shape=lengths)  # without copies into place, which are kernels
    prices = DevicePrices.of(bare, mesh)
    rows = []
    for c in found:
        theirs = _latency(c, folder, device)
        ours = prices.move_seconds(Move(c.kind, c.axes, c.sent_bytes))
        rows.append(
            {
                "kind": c.kind,
                "devices": c.devices,
                "axes": len(c.axes),
                "bytes": c.bytes,
                "seconds": ours,
                "compiler_seconds": theirs,
            }
        )
    return rows


def _latency(c: DesignedCollective, folder: Path, device: Device) -> float | None:
    text = read_text(folder, c.key)
    if text is None:
        return None
    of_kind = [each for each in latencies(text.splitlines()) if each.kind == c.kind]
    if c.kind == PERMUTE:  # the small one beside it is the shorter
        of_kind = sorted(of_kind, key=lambda each: each.cycles)[-1:]
    return of_kind[0].cycles / device.clock_hertz if of_kind and of_kind[0].cycles > 1 else None


def link_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The rows of one slice as a table: ours over theirs by kind and number of devices, for each size."""
    sizes = sorted({row["bytes"] for row in rows})
    lines = ["| collective | chips | " + " | ".join(_size(size) for size in sizes) + " |"]
    lines.append("|---|---|" + "---|" * len(sizes))
    for kind, devices in dict.fromkeys((row["kind"], row["devices"]) for row in rows):
        cells = []
        for size in sizes:
            row = next(r for r in rows if (r["kind"], r["devices"], r["bytes"]) == (kind, devices, size))
            theirs = row["compiler_seconds"]
            ratio = f"{row['seconds'] / theirs:.2f}" if theirs else "–"
            cells.append(f"{1e6 * row['seconds']:,.1f} µs, {ratio}")
        lines.append(f"| {kind} | {devices} | " + " | ".join(cells) + " |")
    return lines


def _size(size: int) -> str:
    return f"{size // 2**20} MiB" if size >= 2**20 else f"{size // 2**10} KiB"
