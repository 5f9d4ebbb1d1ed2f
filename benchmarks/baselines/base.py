"""What every baseline returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shardwright.price import Cost
from shardwright.space.state import Sharding


@dataclass(frozen=True)
class Baseline:
    """A strategy that somebody else would have used, and its cost under the same cost model as ours.

    ``cost`` is None where there is none: it does not apply, or found nothing in its time. ``seconds`` is how long it
    took to find, ``note`` what to know about it. ``shardings`` has one for each value, where it chooses them so.
    """

    name: str
    cost: Cost | None
    seconds: float
    note: str = ""
    shardings: Sequence[Sharding] | None = field(default=None, repr=False)

    def fits(self, limit_bytes: int) -> bool:
        """There is a strategy, and a device can hold it."""
        return self.cost is not None and self.cost.peak_bytes <= limit_bytes
