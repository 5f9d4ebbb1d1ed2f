"""Strategies that experts use: every tactic on every axis, and every combination of one tactic an axis."""

from __future__ import annotations

import time

from benchmarks.baselines.base import Baseline
from shardwright.price import CostModel
from shardwright.search.game import Space
from shardwright.space.state import State


def experts(space: Space, costs: CostModel, limit_bytes: int) -> list[Baseline]:
    """One baseline for each tactic (on its best axis), and the best combination of one tactic an axis.

    Best is fastest of those that fit, or smallest where none does.
    """
    names = costs.mesh.names
    found: list[Baseline] = []
    for chosen, lists in space.combinations():
        start = time.perf_counter()
        cost = costs.evaluate(State(lists, space.whole))
        label = " + ".join(f"{tactic}:{axis}" for tactic, axis in zip(chosen, names, strict=True) if tactic)
        found.append(Baseline(label or "replicated", cost, time.perf_counter() - start))

    def rank(baseline: Baseline) -> tuple[bool, float]:
        assert baseline.cost is not None
        fits = baseline.fits(limit_bytes)
        return not fits, baseline.cost.step_seconds if fits else baseline.cost.peak_bytes

    by_tactic: dict[str, list[Baseline]] = {}
    for baseline in found:
        if " + " not in baseline.name:
            by_tactic.setdefault(baseline.name.partition(":")[0], []).append(baseline)
    best = min(found, key=rank)
    combination = Baseline("best combination", best.cost, sum(b.seconds for b in found), best.name)
    return [*(min(group, key=rank) for group in by_tactic.values()), combination]
