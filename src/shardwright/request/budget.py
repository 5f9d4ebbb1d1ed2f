"""How long a search may take, as users say it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from operator import index
from typing import Any, SupportsIndex

import numpy as np

from shardwright.errors import PlanError

_LEAST_PART = 1 / 4


@dataclass(frozen=True)
class Budget:
    """How long a search may take: ``seconds``, and ``simulations`` of the tree search; with None it ends by itself.

    ``seed`` is the seed of the search's random choices. ``least_seconds`` of it are left in any case, whatever it is
    spent on before.
    """

    seconds: float | None = None
    simulations: int | None = None
    seed: int = 0
    least_seconds: float | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        seconds = self.seconds
        number = isinstance(seconds, (int, float, np.number)) and not isinstance(seconds, bool)
        if seconds is not None and not (number and seconds >= 0):  # not a number is not at least 0 either
            raise PlanError(f"seconds={seconds!r} is not a time; give a number of at least 0, or None.")
        check_count("simulations", self.simulations)

    def less(self, spent_seconds: float) -> Budget:
        """What is left of it when so much of the time is gone; a quarter in any case, so that something is tried."""
        if self.seconds is None:
            return self
        least = _LEAST_PART * self.seconds if self.least_seconds is None else self.least_seconds
        return replace(self, seconds=max(self.seconds - spent_seconds, least), least_seconds=least)


def check_count(name: str, count: Any) -> None:
    """What is counted must be a whole number of at least 0, or None."""
    if count is not None and (isinstance(count, bool) or not isinstance(count, SupportsIndex) or index(count) < 0):
        raise PlanError(f"{name}={count!r} is not a count; give a whole number of at least 0.")
