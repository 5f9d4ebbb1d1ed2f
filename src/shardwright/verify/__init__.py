"""A plan checked by others: by running it, by the compiler's own partitioner, and by whole compilers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardwright.errors import PlanError
from shardwright.plan.verdicts import CompiledCollective, CompilerVerdict, Verdict
from shardwright.request.targets import is_target
from shardwright.verify.compile import compile_exported, verify_compiled
from shardwright.verify.run import verify_run
from shardwright.verify.shardy import verify_shardy

if TYPE_CHECKING:
    from shardwright.plan import Plan

__all__ = ["CompiledCollective", "CompilerVerdict", "Verdict", "compile_exported", "verify"]


def verify(plan: Plan, on: str, **options: Any) -> Verdict:
    """Check a plan on "run" or "shardy", or compile it for "tpu:v5e:4x4", "gpu:a100-80:8", "cpu" and the like."""
    if is_target(on):
        return verify_compiled(plan, on, **options)
    if on == "run":
        return verify_run(plan, **options)
    if on == "shardy":
        return verify_shardy(plan, **options)
    raise PlanError(
        f"a plan is verified on 'run' or 'shardy', or compiled for 'cpu', 'tpu:v5e:4x4', 'gpu:a100-80:8' and the like, "
        f"not on {on!r}."
    )
