"""Holds every run against the table of ``shardwright.compiler.miscompiled``: what fails must be forbidden."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

from benchmarks.miscompiled.case import Case
from benchmarks.miscompiled.splits import Run, operation, runs
from shardwright.compiler import miscompiled
from shardwright.compiler.miscompiled import TABLE, Miscompiled, Site
from shardwright.ir.rules import Rule
from shardwright.price.uneven import paddable, splits_factor

ALIKE = ("both", "operands")
"""Where operands and results are split by the same factors."""
UNEVEN = "no plan splits such an op, or such a factor, into uneven parts"
BLOCKED = "no plan splits a dimension of an operand along which the op is computed whole"
APART = (
    "plans say how a convolution, or an op with a record, reads its operands and makes its result, whatever comes then"
)


@dataclass(frozen=True)
class Judged:
    """A run, and why no plan has it: the records that forbid it, or ``reason``; neither where a plan may have it."""

    key: str
    run: Run
    records: tuple[Miscompiled, ...]
    reason: str

    @property
    def allowed(self) -> bool:
        """Whether a plan may split the op so."""
        return not self.records and not self.reason


def judge(cases: Iterable[Case]) -> Iterator[Judged]:
    """What the table, and the way plans are made, say of every run of these cases."""
    for case in cases:
        sites: list[Site] = []

        def see(site: Site, sites: list[Site] = sites) -> Any:
            sites.append(site)
            return miscompiled.forbid(site)

        with mock.patch("shardwright.ir.classes.forbid", see):
            _, op = operation(case, allowed=True)
        site = next((s for s in sites if s.kind == case.op), None)
        for run in runs(case):
            records = () if site is None else tuple(r for r in TABLE if case.op in r.ops and _forbids(r, site, run))
            yield Judged(f"{case.name} | {run.name}", run, records, "" if records else _reason(op, run))


def _forbids(record: Miscompiled, site: Site, run: Run) -> bool:
    """Whether a record keeps plans from a split: of these factors at all, or of one side only."""
    chosen = set(run.split)
    if chosen & set(record.effect.whole(site)):
        return True
    if any({a, b} <= chosen for a, b in record.effect.apart(site)):
        return True
    exact = chosen & set(record.effect.exact(site))
    if any(size % run.mesh[run.split[f]] for f in exact for size in site.sizes(f)):
        return True
    if any(run.mesh[run.split[f]] < run.devices for f in chosen & set(record.effect.spread(site))):
        return True
    return run.where not in ALIKE and bool(chosen & set(record.effect.guarded(site)))


def _reason(op: Any, run: Run) -> str:
    """Why no plan has a split that no record forbids."""
    rule: Rule = op.rule
    told = op.kind == "convolution" or (rule.records and run.where != "sums scattered")
    if told and run.where not in ALIKE:
        return APART
    if not rule.tensors:
        return ""
    if run.on_operands & rule.whole:
        return BLOCKED
    loose = paddable(op)
    if not all(splits_factor(rule, f, run.mesh[run.split[f]], padded=f in loose) for f in run.on_operands):
        return UNEVEN
    return ""
