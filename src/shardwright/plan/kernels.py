"""The kernels, and functions with a rule of their own, that a plan runs whole on every device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardwright.plan.plan import Plan


@dataclass(frozen=True)
class WholeKernel:
    """A kernel at a source line that no axis splits, and what its runs take in all."""

    name: str
    source: str
    seconds: float


def whole_kernels(plan: Plan) -> tuple[WholeKernel, ...]:
    """Those of a plan on several devices, the longest first."""
    if plan.partitioned.mesh.devices == 1:
        return ()
    program = plan.analysis.program
    whole = {
        (op.attributes["kernel"], op.source)
        for op, assignment in zip(program.ops, plan.partitioned.assignments, strict=True)
        if ("facts" in op.attributes or "function" in op.attributes)
        and (assignment is None or max(assignment.factors, default=-1) < 0)
    }
    seconds = dict.fromkeys(whole, 0.0)
    for cost in plan.estimate.kernels:
        if (cost.kind, cost.source) in seconds:
            seconds[cost.kind, cost.source] += cost.seconds
    found = [WholeKernel(name, str(source), taken) for (name, source), taken in seconds.items()]
    return tuple(sorted(found, key=lambda kernel: (-kernel.seconds, kernel.name, kernel.source)))
