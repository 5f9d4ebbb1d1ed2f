"""Advice: which ``jax.checkpoint`` to add, drop or change, and what the plan would then cost.

Each estimate is that of the changed program: a draft of it is priced by the plan's own cost model, in the plan's own
state. The user's program is never changed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwright._collector import collector_paused
from shardwright.advice.boundaries import Boundary, find_boundaries
from shardwright.advice.draft import Draft
from shardwright.advice.finish import finish
from shardwright.advice.policy import Policy
from shardwright.advice.price import least_bytes, price
from shardwright.analysis.present import human_bytes
from shardwright.ir.program import Source
from shardwright.plan.words import signed
from shardwright.price import Cost
from shardwright.price.estimate import human_seconds

if TYPE_CHECKING:
    from shardwright.plan import Plan

_MOST = 3
_SECONDS_WORTH, _BYTES_WORTH = 0.02, 0.05
"""Parts of the step and of the peak that are worth a sentence."""
_EQUAL = 0.005
"""Of the step: less than that is no reason to prefer what needs more memory."""
_TIGHT = 0.9
"""Of the limit: from there on memory is short although the plan fits."""


@dataclass(frozen=True)
class Advice:
    """What the plan would cost if the program were written differently.

    Attributes:
        change: ``"add"``, ``"remove"`` or ``"move"`` a ``jax.checkpoint``.
        source: the function that it is or would be around.
        policy: what it would keep, by its name in ``jax.checkpoint_policies``; "" for its inputs alone.
        saved_bytes: of the peak; negative if it needs more.
        saved_seconds: of the step; negative if it takes longer.
        peak_bytes: the estimate's after it.
        step_seconds: the estimate's after it.
        limit_bytes: what a device may hold.

    """

    change: str
    source: Source
    policy: str
    saved_bytes: int
    saved_seconds: float
    peak_bytes: int
    step_seconds: float
    limit_bytes: int

    @property
    def fits(self) -> bool:
        """The peak is then within the limit."""
        return self.peak_bytes <= self.limit_bytes

    @property
    def action(self) -> str:
        """What the program would have, in a few words."""
        around = f"jax.checkpoint around {self.source}"
        if self.change == "remove":
            return f"no {around}"
        return f"{around} with {self.policy}" if self.policy else around

    @property
    def text(self) -> str:
        """One sentence."""
        fits = "fits" if self.fits else "still too much"
        action = self.action.replace(f"with {self.policy}", f"with policy=jax.checkpoint_policies.{self.policy}")
        return (
            f"{action}: {human_bytes(self.peak_bytes)} on each device ({fits}; "
            f"{signed(-self.saved_bytes, human_bytes)}) and a step of {human_seconds(self.step_seconds)} "
            f"({signed(-self.saved_seconds, human_seconds)})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Of JSON's types alone."""
        return {
            "change": self.change,
            "source": str(self.source),
            "policy": self.policy or None,
            "text": self.text,
            "saved_bytes": self.saved_bytes,
            "saved_seconds": self.saved_seconds,
            "peak_bytes": self.peak_bytes,
            "step_seconds": self.step_seconds,
            "fits": self.fits,
        }

    def __str__(self) -> str:
        return self.text


def give_advice(plan: Plan) -> tuple[Advice, ...]:
    """The best changes, best first: those that fit, then the fastest; none where nothing matters."""
    try:
        with collector_paused():
            found = [
                advice
                for boundary in find_boundaries(plan.analysis.program)
                for advice in _undominated(list(_about(plan, boundary)))
            ]
    except Exception as error:  # a remark beside the plan, which is none the worse for it
        warnings.warn(
            f"what another jax.checkpoint would gain could not be worked out for {plan.analysis.program.name} "
            f"({type(error).__name__}: {error}); the plan itself is complete.",
            stacklevel=2,
        )
        return ()
    return tuple(sorted(found, key=lambda a: (not a.fits, a.step_seconds if a.fits else a.peak_bytes))[:_MOST])


def _undominated(found: list[Advice]) -> list[Advice]:
    """Those than which no other is smaller without being noticeably slower."""
    return [
        a
        for a in found
        if not any(b.peak_bytes < a.peak_bytes and b.step_seconds < (1 + _EQUAL) * a.step_seconds for b in found)
    ]


def _about(plan: Plan, boundary: Boundary) -> Iterator[Advice]:
    now = plan.estimate_cost
    short = now.peak_bytes > _TIGHT * plan.memory_bytes
    for policy in _policies(boundary, fits=plan.estimated_to_fit, short=short):
        advice = _advice(plan, boundary, policy, now)
        if advice is None:
            continue
        faster = advice.fits and advice.saved_seconds > _SECONDS_WORTH * now.step_seconds
        smaller = advice.saved_bytes > _BYTES_WORTH * now.peak_bytes
        if faster or (short and smaller):
            yield advice
        if faster and policy is Policy.EVERYTHING:  # nothing is faster than what computes nothing again
            return


def _policies(boundary: Boundary, *, fits: bool, short: bool) -> list[Policy]:
    """What is worth trying, the most promising first."""
    if boundary.recomputed:
        more = [Policy.EVERYTHING, Policy.PLAIN_DOTS, Policy.DOTS] if fits else []
        return [*more, Policy.NOTHING] if short and boundary.scan is not None else more
    return [Policy.NOTHING, Policy.PLAIN_DOTS]


def _advice(plan: Plan, boundary: Boundary, policy: Policy, now: Cost) -> Advice | None:
    draft = Draft(plan.partitioned.places)
    if not boundary.change(draft, policy):
        return None
    state = plan.partitioned.state
    if policy is Policy.EVERYTHING and least_bytes(plan.costs, draft, state) > plan.memory_bytes:
        return None
    then = price(plan.costs, finish(draft), state)
    change = "remove" if policy is Policy.EVERYTHING else "move" if boundary.recomputed else "add"
    return Advice(
        change,
        boundary.source,
        "" if policy is Policy.EVERYTHING or (policy is Policy.NOTHING and change == "add") else policy.value,
        now.peak_bytes - then.peak_bytes,
        now.step_seconds - then.step_seconds,
        then.peak_bytes,
        then.step_seconds,
        plan.memory_bytes,
    )
