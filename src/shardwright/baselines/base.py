"""What every baseline returns."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.cost import Cost


@dataclass(frozen=True)
class Baseline:
    """A strategy that somebody else would have used, and its cost under the same cost model as ours.

    ``cost`` is None where there is none: it does not apply, or found nothing in its time. ``seconds`` is how long it
    took to find, ``note`` what to know about it.
    """

    name: str
    cost: Cost | None
    seconds: float
    note: str = ""

    def fits(self, limit_bytes: int) -> bool:
        """There is a strategy, and a device can hold it."""
        return self.cost is not None and self.cost.peak_bytes <= limit_bytes
