"""A plan checked by others: by running it, and by the compiler's own partitioner."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shardwright.errors import PlanError
from shardwright.verify.report import Verdict
from shardwright.verify.run import verify_run
from shardwright.verify.shardy import verify_shardy

if TYPE_CHECKING:
    from shardwright.plan import Plan

__all__ = ["Verdict", "verify"]


def verify(plan: Plan, on: str, **options: Any) -> Verdict:
    """Check a plan on "run" or "shardy"."""
    checks: dict[str, Callable[..., Verdict]] = {"run": verify_run, "shardy": verify_shardy}
    if on not in checks:
        raise PlanError(f"a plan is verified on {' or '.join(map(repr, checks))}, not on {on!r}.")
    return checks[on](plan, **options)
