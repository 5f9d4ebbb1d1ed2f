"""Advice: which ``jax.checkpoint`` to add, drop or change, and what the plan would then cost.

Each estimate is that of the changed program: a draft of it is priced by the plan's own cost model, in the plan's own
state. The user's program is never changed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwright._amounts import human_bytes, human_seconds
from shardwright._collector import collector_paused
from shardwright.advice.draft import Draft, Policy, bodies_of
from shardwright.advice.finish import finish, least_bytes, price
from shardwright.advice.numbering import Numbering, find_scans
from shardwright.advice.repeated_layers import Layers, find_layers, function_around, is_forward
from shardwright.advice.scanned import change_scan
from shardwright.advice.unrolled import keep_layers, recompute_layers
from shardwright.ir.program import Program, Source
from shardwright.plan.words import signed
from shardwright.price import Cost

if TYPE_CHECKING:
    from shardwright.plan import Plan

_MOST = 3
"""Changes that are named, and places that are tried."""
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


@dataclass(frozen=True)
class Boundary:
    """Layers and what they are: turns of a ``scan``, ``layers`` that are not recomputed, or a region of some that are.

    ``source`` is the innermost function that all of a layer is called from.
    """

    source: Source
    recomputed: bool
    flops: float
    scan: Numbering | None = None
    layers: Layers | None = None
    region: int = -1

    def change(self, draft: Draft, policy: Policy) -> bool:
        """Let a draft keep what the policy says; false if this cannot be done or changes nothing."""
        if self.scan is not None:
            return change_scan(draft, self.scan, policy)
        if self.layers is not None:
            return policy is not Policy.EVERYTHING and recompute_layers(draft, self.layers, policy)
        return policy is not Policy.NOTHING and keep_layers(draft, self.region, policy)


def find_boundaries(program: Program) -> list[Boundary]:
    """Those with the most work in the backward pass, largest first; none in a program without one."""
    if not any(op.source.backward for op in program.ops):
        return []
    found: list[Boundary] = []
    bodies = bodies_of(program)
    scanned = set()
    for scan in find_scans(program):
        body = program.regions[program.ops[scan.backward].regions[-1]]
        scanned.add(program.ops[scan.backward].regions[-1])
        inside = range(body.start, body.stop)
        recomputed = [o for o in inside if program.ops[o].source.recomputed]
        forward = program.regions[program.ops[scan.forward].regions[-1]]
        layer = range(forward.start, forward.stop)
        source = function_around(program, layer) or program.ops[scan.forward].source
        found.append(Boundary(source, bool(recomputed), _flops(program, inside), scan=Numbering(program, scan)))
    for r, body_ops in enumerate(bodies):
        if r in scanned or _computed_again(program, r):
            continue
        again = [o for o in body_ops if program.ops[o].source.recomputed]
        if again:
            source = function_around(program, _first_call(program, body_ops)) or program.ops[again[0]].source
            found.append(Boundary(source, True, _flops(program, again), region=r))
        elif _differentiates(program, body_ops) and (layers := find_layers(program, r, body_ops)) is not None:
            source = function_around(program, layers.ops[-1]) or program.ops[layers.ops[-1][0]].source
            ops = [o for layer_ops in layers.ops for o in layer_ops]
            found.append(Boundary(source, False, _flops(program, ops), layers=layers))
    return sorted((b for b in found if b.flops), key=lambda b: -b.flops)[:_MOST]


def _computed_again(program: Program, region: int) -> bool:
    """A region is inside an op that is computed again, and so is a copy of another."""
    o = program.regions[region].op
    return o >= 0 and (program.ops[o].source.recomputed or _computed_again(program, program.ops[o].region))


def _first_call(program: Program, ops: list[int]) -> list[int]:
    """What the first of several calls computes again: up to the barrier before the next."""
    found: list[int] = []
    for o in ops:
        op = program.ops[o]
        if op.source.recomputed:
            found.append(o)
        elif found and op.kind == "optimization_barrier":
            break
    return found


def _flops(program: Program, ops: Iterable[int]) -> float:
    return float(sum(program.ops[o].flops * int(program.repeats[o]) for o in ops))


def _differentiates(program: Program, ops: list[int]) -> bool:
    """There is work of a forward and of a backward pass."""
    heavy = [program.ops[o] for o in ops if program.ops[o].flops]
    return any(map(is_forward, heavy)) and any(op.source.backward for op in heavy)
