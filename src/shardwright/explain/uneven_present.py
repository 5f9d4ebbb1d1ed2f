"""Uneven dimensions in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from shardwright.analysis.present import human_bytes
from shardwright.explain.uneven import Padded, Uneven
from shardwright.price.estimate import human_seconds

if TYPE_CHECKING:
    from shardwright.explain.explanation import Explanation

_MOST_PADDED = 4


def uneven_text(u: Uneven, e: Explanation) -> Text:
    """What an argument's dimension misses for its size."""
    text = Text(f"{u.devices} devices do not divide {u.size:,}", style="yellow")
    where = f"[{u.dimension}] is whole on {' and '.join(u.axes)}"
    if u.padded_size:
        where += f", though padded to {u.padded_size:,} inside of the program"
    text.append(f": {where}. ", style="default")
    more = f"With {u.better_size:,} ({u.better_size - u.size:,} more){f', and {u.change},' if u.change else ''}"
    now = e.tensors[0].device_bytes
    size = human_bytes(u.device_bytes)
    held = size + " of it" if size == human_bytes(now) else f"{size} of it in place of {human_bytes(now)}"
    text.append(f"{more} each device would hold {held}{_cost(u, e)}.", style="default")
    return text


def _cost(u: Uneven, e: Explanation) -> str:
    if u.step_seconds is None or u.peak_bytes is None:
        return ""
    step = _change(human_seconds(u.step_seconds), human_seconds(e.step_seconds))
    peak = _change(human_bytes(u.peak_bytes), human_bytes(e.peak_bytes))
    verdict = "; that would be no better" if u.step_seconds >= e.step_seconds and u.peak_bytes >= e.peak_bytes else ""
    return f", and a step would take {step} with {peak}{verdict}"


def _change(then: str, now: str) -> str:
    return f"{then} as now" if then == now else f"{then} in place of {now}"


def padded_text(padded: Sequence[Padded]) -> Text:
    """The tensors of a line that are padded."""
    shown = [
        f"{p.type} {' and '.join(f'in [{d}] from {size:,} to {to:,}' for d, size, to in p.dimensions)}"
        for p in padded[:_MOST_PADDED]
    ]
    rest = f"; and {len(padded) - _MOST_PADDED} more" if len(padded) > _MOST_PADDED else ""
    return Text(f"Padded, as the devices do not divide it: {'; '.join(shown)}{rest}.")
