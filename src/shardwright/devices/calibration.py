"""What was measured of a device by calibration, as ``python -m benchmarks.calibrate`` wrote it.

A device without a file in ``calibrated/`` has the default costs of kernels, which were fitted by hand to programs for
TPU v5e, and nobody has measured whether they are its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from shardwright.devices.device import KernelCosts


@dataclass(frozen=True)
class Calibration:
    """A calibration: the costs of kernels, rates of products by type as parts of bf16's, and all that is in its file.

    ``told`` has the versions that it was made with, the errors of each class of programs, of those that the costs were
    fitted to and of those that were held out, and the links' prices beside the compiler's latencies.
    """

    kernel_costs: KernelCosts
    rates: Mapping[str, float]
    told: Mapping[str, Any]


@cache
def calibration(device: str) -> Calibration | None:
    """The calibration of a device by its name, or None if there is none."""
    file = resources.files("shardwright.devices").joinpath("calibrated", f"{device}.json")
    if not file.is_file():
        return None
    told = json.loads(file.read_text())
    return Calibration(KernelCosts(**told["kernel_costs"]), told["rates"], told)
