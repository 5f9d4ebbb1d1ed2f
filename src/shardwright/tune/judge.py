"""Who says what a plan takes under some options of the compiler: the compiler, or what it said before."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from shardwright.compiler.invoking import CYCLES
from shardwright.errors import PlanError
from shardwright.plan import Plan
from shardwright.plan.verdicts import CompilerVerdict
from shardwright.request.targets import parse_target
from shardwright.verify.compile import require_compiler, verify_compiled
from shardwright.verify.kept_figures import KeptFigures, cache_folder

Judge = Callable[[Plan, Mapping[str, str]], CompilerVerdict]
"""What a compiler says of a plan under options of the compiler, besides the plan's own."""

_TIMEOUT_SECONDS = 900.0


def compiled_by(plan: Plan, on: str) -> Judge:
    """The compiler for a target, if it can judge plans for this one's device; ``PlanError`` where it cannot."""
    target = parse_target(on)
    target.check(math.prod(plan.mesh.values()))
    if target.device.name != plan.device.name:
        raise PlanError(
            f"the plan is for {plan.device.name}, and {on} is {target.device.name}; tuning corrects the prices of the "
            "device that it compiles for, so plan for the same."
        )
    if not target.device.compiler[CYCLES]:
        raise PlanError(
            f"the compiler for {on} tells no seconds, so there is nothing to tune by; rerank= compiles the best few "
            "plans for it and compares their memory and collectives."
        )
    require_compiler(target.platform)
    known = KeptFigures(cache_folder())

    def judge(plan: Plan, options: Mapping[str, str]) -> CompilerVerdict:
        return verify_compiled(plan, on, timeout_seconds=_TIMEOUT_SECONDS, compiler_options=dict(options), known=known)

    return judge


_UNKNOWN = ("No such compile option", "is not a known flag", "Unknown flag", "unknown option", "No such option")


def refuses_option(verdict: CompilerVerdict) -> bool:
    """Whether a compiler gave up because it does not know an option, or its value."""
    return any(words.lower() in verdict.message.lower() for words in _UNKNOWN)
