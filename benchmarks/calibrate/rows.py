"""A designed program with what the compiler takes for it, priced again and again with other costs of kernels."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.calibrate.attributed import COPY, attributed
from benchmarks.calibrate.kept import read_text
from benchmarks.calibrate.programs import Designed
from shardwright.devices import Device, KernelCosts
from shardwright.price import CostModel
from shardwright.problem import Problem
from shardwright.verify.hlo import HloModule, bytes_of, parse_hlo

_FAST = "S(1)"
_PRODUCTS = ("product", "attention")
LEAST_SECONDS = 2e-6
"""Programs that the compiler takes less for say nothing."""


@dataclass
class Row:
    """A designed program, its problem on one device, and the compiler's seconds for it."""

    program: Designed
    problem: Problem
    compiled_seconds: float

    def ratio(self, device: Device) -> float:
        """The estimate's seconds on a device over the compiler's."""
        p = self.problem
        model = CostModel(p.places, p.mesh, device, p.start.state.whole, like=None)
        return model.evaluate(p.start.state).compute_seconds / self.compiled_seconds


def read_rows(programs: Iterable[Designed], folder: Path, device: Device) -> list[Row]:
    """The programs that were compiled, with the compiler's seconds.

    Copies of arguments and results are left out: they are there because both have the layouts of a program's own. So
    are programs whose only kernel finds a large operand in fast memory, brought there before anything runs: in a
    program of more than one kernel there is no room for it.
    """
    found = []
    for program in programs:
        text = read_text(folder, program.key)
        if text is None:
            continue
        module = parse_hlo(text)
        if program.group.startswith(_PRODUCTS) and _prefetched(module, device.kernel_costs.prefetched_bytes):
            continue
        kernels = attributed(module, device.clock_hertz, device.memory_bytes_per_second)
        seconds = sum(each.total_seconds for each in kernels if each.group != COPY)
        if seconds >= LEAST_SECONDS:
            found.append(Row(program, Problem(program.fn, *program.args, mesh={"x": 1}, device=device), seconds))
    return found


def _prefetched(module: HloModule, most_bytes: float) -> bool:
    """Whether a kernel has an operand in fast memory that is larger than those that are brought there."""
    body = module.computations[module.entry].instructions
    return any(
        _FAST in body[name].shape and bytes_of(body[name].shape) > most_bytes
        for i in body.values()
        if i.opcode == "fusion"
        for name in i.operands
        if name in body and body[name].opcode in ("copy-done", "slice-done", "custom-call")
    )


def with_costs(device: Device, costs: KernelCosts, rates: dict[str, float]) -> Device:
    """A device with these costs of kernels, and rates of products as parts of bf16's."""
    peak = device.flops_per_second["bf16"]
    peaks = {**device.flops_per_second, **{dtype: peak * part for dtype, part in rates.items()}}
    return replace(device, kernel_costs=costs, flops_per_second=peaks)


def errors(rows: Sequence[Row], ratios: Sequence[float]) -> dict[str, dict[str, Any]]:
    """By class: how many programs, the median of ratios, and the median and 90th percentile of errors."""
    found: dict[str, list[float]] = defaultdict(list)
    for row, ratio in zip(rows, ratios, strict=True):
        found[row.program.group].append(ratio)
        found["all"].append(ratio)
    return {group: _told(of) for group, of in sorted(found.items(), key=lambda item: (item[0] == "all", item[0]))}


def _told(ratios: Sequence[float]) -> dict[str, Any]:
    off = sorted(math.exp(abs(math.log(ratio))) - 1 if ratio > 0 else math.inf for ratio in ratios)
    return {
        "programs": len(ratios),
        "ratio": round(statistics.median(ratios), 3),
        "median_error": round(statistics.median(off), 3),
        "p90_error": round(min(off[math.ceil(0.9 * len(off)) - 1], 999.0), 3),
    }
