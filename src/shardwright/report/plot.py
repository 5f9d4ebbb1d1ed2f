"""A plot of the report: Plotly's JSON, and what stands around it on the page.

Colours are names of CSS variables, which the page resolves, because it knows whether it is light or dark.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

Spec = dict[str, Any]


@dataclass(frozen=True)
class Key:
    """An entry of a legend. ``shape`` is "area", "hatched", "crossed", "filled" or "open"."""

    name: str
    colour: str
    shape: str = "area"


@dataclass(frozen=True)
class Plot:
    """``label`` says for those who do not see it what it shows; a legend of one entry is not shown."""

    name: str
    label: str
    height: int
    spec: Spec
    legend: tuple[Key, ...] = ()


def escaped(words: str) -> str:
    """Text for Plotly, which reads some tags."""
    return words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def byte_unit(largest: float) -> tuple[str, float]:
    """The unit in which a number of bytes is short, and how many bytes it is."""
    for unit, scale in (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)):
        if largest >= scale:
            return unit, scale
    return "B", 1.0


def second_unit(largest: float) -> tuple[str, float]:
    """The unit in which a number of seconds is short, and how many seconds it is."""
    for unit, scale in (("seconds", 1.0), ("milliseconds", 1e-3)):
        if largest >= scale:
            return unit, scale
    return "microseconds", 1e-6


def logarithmic(lowest: float, highest: float, digits: tuple[int, ...] = (1, 2, 5)) -> Spec:
    """A logarithmic axis for positive values, with round numbers on it."""
    powers = range(math.floor(math.log10(lowest)), math.ceil(math.log10(highest)) + 1)
    ticks = [digit * 10.0**power for power in powers for digit in digits]
    ends = [math.log10(lowest), math.log10(highest)]
    room = 0.06 * (ends[1] - ends[0]) or 0.5
    return {
        "type": "log",
        "range": [ends[0] - room, ends[1] + room],
        "tickvals": ticks,
        "ticktext": [f"{tick:,.10g}" for tick in ticks],
    }
