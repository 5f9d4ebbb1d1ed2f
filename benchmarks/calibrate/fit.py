"""Costs of kernels fitted to designed programs, by least squares on the logarithms of estimate over compiled.

Each constant is fitted to the classes that it is about, one group of constants after the other, so that a class whose
formula is wrong does not spoil the constants of others. Programs that are held out are not looked at. Of those few
whose kernels the compiler makes in another way, the loss grows no faster than the error itself beyond a tenth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

import numpy as np
from scipy.optimize import least_squares

from benchmarks.calibrate.rows import Row, with_costs
from shardwright.devices import Device, KernelCosts

_FARTHEST = math.log(100)
_TENTH = 0.1

STAGES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (
        ("entry_slots", "read_slots", "pack_slots", "alone_slots", "expensive_slots", "reduce_slots"),
        (
            "elementwise, cheap",
            "elementwise, expensive",
            "reduction, along last",
            "reduction, along first",
            "elementwise, optimizer",
            "layer norm",
            "softmax",
        ),
    ),
    (("contraction_memory_efficiency",), ("product, few columns", "product, experts")),
    (
        ("matrix_efficiency", "sharpness"),
        ("product, large", "product, shallow", "product, transposed", "product, fused"),
    ),
    (("rates.f32",), ("product, large", "product, shallow", "product, transposed")),
    (("held_rows",), ("product, few rows", "attention, one query")),
    (
        ("operand_slots", "prefetched_slots"),
        ("attention, scores", "attention, weighted sums", "attention, whole", "product, experts"),
    ),
)
"""Which constants are fitted to which classes, in this order."""

BOUNDS = {"matrix_efficiency": (0.5, 1.0), "contraction_memory_efficiency": (0.4, 1.0), "rates.f32": (0.2, 1.0)}
BOUNDS |= {"sharpness": (1.5, 16.0)}


def fitted(
    rows: Sequence[Row], device: Device, start: KernelCosts, rates: dict[str, float], say: Callable[[str], None] = print
) -> tuple[KernelCosts, dict[str, float]]:
    """The costs and rates that fit the rows best, of which none may be held out."""
    assert not any(row.program.held_out for row in rows)
    now = {**asdict(start), **{f"rates.{dtype}": part for dtype, part in rates.items()}}
    for names, groups in STAGES:
        of = [row for row in rows if row.program.group in groups]
        if not of:
            continue
        before = [now[name] for name in names]
        low, high = zip(*(BOUNDS.get(name, (1e-9, math.inf)) for name in names), strict=True)
        scale = np.array(before)

        def off(x: np.ndarray, names: tuple[str, ...] = names, of: list[Row] = of, scale: np.ndarray = scale):  # type: ignore[no-untyped-def]
            priced = _device(device, {**now, **dict(zip(names, x * scale, strict=True))})
            logs = [math.log(max(row.ratio(priced), 1e-9)) for row in of]
            return np.clip(logs, -_FARTHEST, _FARTHEST)

        found = least_squares(
            off,
            np.ones(len(names)),
            bounds=(np.array(low) / scale, np.array(high) / scale),
            loss="soft_l1",
            f_scale=_TENTH,
            diff_step=0.03,
            xtol=1e-3,
            max_nfev=12,
        )
        now.update(dict(zip(names, map(float, found.x * scale), strict=True)))
        say(f"fitted to {len(of)} programs: " + ", ".join(f"{name} {now[name]:.4g}" for name in names))
    costs = replace(start, **{name: _rounded(now[name]) for name in asdict(start)})
    return costs, {
        name.removeprefix("rates."): _rounded(part) for name, part in now.items() if name.startswith("rates.")
    }


def _device(device: Device, now: dict[str, float]) -> Device:
    rates = {name.removeprefix("rates."): part for name, part in now.items() if name.startswith("rates.")}
    costs = KernelCosts(**{name: cost for name, cost in now.items() if not name.startswith("rates.")})  # type: ignore[arg-type]
    return with_costs(device, costs, rates)


def _rounded(number: float) -> float:
    return float(f"{number:.4g}") if not isinstance(number, int) else number
