"""What a program's prices were off by, learned from plans of it that were compiled.

For every price (``price/corrections.py``) the seconds of all compiled plans are added up, as they were estimated and as
the compiler has them, each plan by its weight. With ``c`` and ``e`` these sums and ``p`` a part of the steps' sum, for
what is small is told apart by chance alone, its factor is ``(c + p) / (e + p)``, within limits. A compiler's fusion
carries the line of one of its ops, which may be another than that of our kernel, and of some collectives it does not
say where they come from: what it has at lines where we have nothing is shared out over all of the same kind, so that
compute, sums and operands each come out right together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shardwright.plan import Plan
from shardwright.plan.tuning import Correction
from shardwright.plan.verdicts import CompilerVerdict
from shardwright.price.breakdown import RELAID
from shardwright.price.corrections import COMPUTE, COPIES, NONE, OPERANDS, SUMS, Corrections, Priced, moved_as, priced

_PRIOR = 0.004
"""The part of a step that estimate and compiler are taken to agree on at every line, whatever they say."""
_UNSEEN = 5
"""How many times that for all moves of a kind, which stand for lines at which nothing was moved yet."""
_LEAST, _MOST = 0.2, 5.0
"""Limits of factors: beyond them the two do not speak of the same."""
_SHOWN, _WORTH_SHOWING = 12, 0.002


@dataclass
class Seconds:
    """What something takes, and what of it is hidden."""

    all: float = 0.0
    hidden: float = 0.0

    def add(self, all_seconds: float, hidden_seconds: float = 0.0, weight: float = 1.0) -> None:
        """Some more."""
        self.all += weight * all_seconds
        self.hidden += weight * hidden_seconds

    @property
    def exposed(self) -> float:
        """What is waited for."""
        return self.all - self.hidden


By = Mapping[Priced, Seconds]


def estimated(plan: Plan) -> By:
    """What a plan takes by its estimate, by what the prices belong to."""
    out: dict[Priced, Seconds] = defaultdict(Seconds)
    for kernel in plan.estimate.kernels:
        out[Priced(COPIES) if kernel.kind == RELAID else priced(COMPUTE, kernel.source)].add(kernel.seconds)
    for c in plan.estimate.collectives:
        out[priced(moved_as(c.kind), c.source)].add(c.seconds, c.hidden_seconds)
    return out


def compiled(verdict: CompilerVerdict) -> By:
    """The same by the compiler."""
    out: dict[Priced, Seconds] = defaultdict(Seconds)
    for line in verdict.lines:
        out[Priced(line.what, line.line, line.backward)].add(line.seconds, line.hidden_seconds)
    return out


def learn(seen: Iterable[tuple[Plan, CompilerVerdict, float]]) -> Corrections:
    """The corrections that plans, compiled without options, teach, each by its weight."""
    ours, theirs = defaultdict[Priced, Seconds](Seconds), defaultdict[Priced, Seconds](Seconds)
    steps = 0.0
    for plan, verdict, weight in seen:
        if not verdict.lines or not verdict.step_seconds:
            continue
        steps += weight * verdict.step_seconds
        for found, into in ((estimated(plan), ours), (compiled(verdict), theirs)):
            for of, seconds in found.items():
                into[of].add(seconds.all, seconds.hidden, weight)
    if not steps:
        return NONE
    factors: dict[Priced, float] = {}
    hidden_parts: dict[Priced, float] = {}
    prior = _PRIOR * steps
    for what in dict.fromkeys(of.what for of in ours):
        mine = {of: seconds for of, seconds in ours.items() if of.what == what}
        found = {of: theirs.get(of, Seconds()) for of in mine}
        every = Seconds()
        for of, seconds in theirs.items():
            if of.what == what:
                every.add(seconds.all, seconds.hidden)
        own = {of: _factor(found[of].all, seconds.all, prior) for of, seconds in mine.items()}
        rest = _factor(every.all, sum(own[of] * seconds.all for of, seconds in mine.items()), prior)
        own = {of: factor * rest for of, factor in own.items()}
        factors |= own
        if what in (SUMS, OPERANDS):
            hidden_parts |= _hidden_more(mine, found, own, every, prior)
            # Where nothing of the kind was moved yet.
            factors[Priced(what)] = _factor(every.all, sum(seconds.all for seconds in mine.values()), _UNSEEN * prior)
    return Corrections(factors, hidden_parts)


def _factor(compiled_seconds: float, estimated_seconds: float, prior: float) -> float:
    return min(max((compiled_seconds + prior) / (estimated_seconds + prior), _LEAST), _MOST)


def _hidden_more(
    mine: By, found: By, factors: Mapping[Priced, float], every: Seconds, prior: float
) -> dict[Priced, float]:
    """What more of moves is hidden at each line; what is waited for at lines where we have nothing is shared out."""
    out = {}
    for of, ours in mine.items():
        other, total = found[of], factors[of] * ours.all
        more = other.hidden / other.all - ours.hidden / ours.all if other.all and ours.all else 0.0
        out[of] = more * total / (total + prior) if total else 0.0
    moved = sum(factors[of] * ours.all for of, ours in mine.items())
    waited = sum(factors[of] * (ours.exposed - out[of] * ours.all) for of, ours in mine.items())
    shared = (waited - every.exposed) / (moved + prior)
    return {of: part + shared for of, part in out.items()}


def largest_corrections(plan: Plan, verdict: CompilerVerdict) -> tuple[Correction, ...]:
    """Where a plan's estimate and the compiler differ most, largest first; of moves what is waited for."""
    if not verdict.lines or not verdict.step_seconds:
        return ()
    ours, theirs = estimated(plan), compiled(verdict)
    found = []
    for of in {**ours, **theirs}:
        mine, other = ours.get(of, Seconds()), theirs.get(of, Seconds())
        if abs(other.exposed - mine.exposed) >= _WORTH_SHOWING * verdict.step_seconds:
            why = _why(of, mine, other, verdict)
            found.append(Correction(of.what, of.line, of.backward, mine.exposed, other.exposed, why))
    found.sort(key=lambda c: -abs(c.compiled_seconds - c.estimated_seconds))
    return tuple(found[:_SHOWN])


def _why(of: Priced, mine: Seconds, other: Seconds, verdict: CompilerVerdict) -> str:
    """The reason of a difference, as far as the compiler's figures tell it."""
    if any(str(each.source) == of.line for each in verdict.involuntary):
        return "a whole tensor is gathered here to be resharded"
    if of.what == COPIES:
        return "" if other.all else "nothing is copied"
    if of.what == COMPUTE:
        if not mine.all:
            return "fused with what stands at other lines, or not priced"
        return "" if other.all else "fused with what stands at other lines"
    if not other.all:
        return "the compiler moves nothing here"
    if not mine.all:
        return "the compiler moves this besides"
    moved, hid = abs(other.all - mine.all), abs(other.hidden - mine.hidden)
    if hid > moved:
        return "less of it is hidden" if other.exposed > mine.exposed else "more of it is hidden"
    return "more is moved" if other.all > mine.all else "less is moved"


def memory_ratio(plans: Sequence[tuple[Plan, CompilerVerdict]]) -> float:
    """How much of the memory that is no argument a compiler takes, as a multiple of the estimate.

    That of the last plan, or, once plans were refused for their memory, the most of any.
    """
    ratios = []
    refused = False
    for plan, verdict in plans:
        cost = plan.estimate_cost
        held = plan.costs.held_bytes(plan.partitioned.state)
        if verdict.peak_bytes is None or cost.peak_bytes <= held:
            continue
        ratios.append(max((verdict.peak_bytes - held) / (cost.peak_bytes - held), 0.0))
        refused = refused or verdict.fits is False
    if not ratios:
        return 1.0
    return max(ratios) if refused else ratios[-1]
