"""Rows of one case side by side, and what becomes of them over all cases."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.contenders.cases import Case
from benchmarks.contenders.contender import OURS
from benchmarks.contenders.rows import Row
from shardwright.devices import Device
from shardwright.ir.program import Program

TOLERANCE = 1e-3
"""Of the step: what is no difference. Two compilations of one program differ by less."""


@dataclass(frozen=True)
class Match:
    """A case, and the row of every contender that has one."""

    case: Case
    rows: Mapping[str, Row]

    @property
    def ours(self) -> Row | None:
        """Our own row."""
        return self.rows.get(OURS)

    @property
    def bound(self) -> Bound | None:
        """How fast it could be; our row says what there is to do."""
        row = self.ours
        if row is None or "flops" not in row:
            return None
        work = Work(row["flops"], row["argument_bytes"])
        return physical_bound(work, self.case.target.device, math.prod(self.case.mesh.values()))

    def fraction(self, name: str) -> float | None:
        """The part of the physical limit's rate that a contender's plan reaches."""
        step, bound = self.step(name), self.bound
        return bound.seconds / step if bound and step else None

    def step(self, name: str) -> float | None:
        """A contender's step, if its plan compiled and fits."""
        row = self.rows.get(name)
        return row["step_seconds"] if row and row.get("fits") and row.get("step_seconds") else None

    def step_ratio(self, name: str) -> float | None:
        """A contender's step as a multiple of ours; infinite where it has nothing that fits."""
        ours, theirs = self.step(OURS), self.step(name)
        if ours is None or name not in self.rows:
            return None
        return theirs / ours if theirs else math.inf

    def search_ratio(self, name: str, clock: str = "search_seconds") -> float | None:
        """A contender's time to decide as a multiple of ours."""
        ours, theirs = self.ours, self.rows.get(name)
        if not ours or not theirs or not ours.get(clock) or theirs.get(clock) is None:
            return None
        return float(theirs[clock] / ours[clock])


def matches(rows: Iterable[Row], cases: Sequence[Case]) -> list[Match]:
    """The cases that have rows, in order; of rows about the same case and contender the last counts."""
    by_case: dict[str, dict[str, Row]] = {}
    settings = {case.name: case.to_dict() for case in cases}
    for row in rows:
        key = row["key"]
        if settings.get(key["case"]["name"]) == key["case"]:
            by_case.setdefault(key["case"]["name"], {})[key["contender"]] = row
    return [Match(case, by_case[case.name]) for case in cases if case.name in by_case]


@dataclass(frozen=True)
class Standing:
    """How we stand against one contender over all cases that both were run on.

    ``misfits`` are those in which it has nothing that fits and we have. The ratios are theirs over ours, of the cases
    in which both fit; ``search`` those of the times to decide.
    """

    name: str
    compared: int
    no_worse: int
    misfits: int
    steps: tuple[float, ...]
    search: tuple[float, ...]

    @property
    def step_mean(self) -> float | None:
        """The geometric mean of the steps' ratios."""
        return statistics.geometric_mean(self.steps) if self.steps else None

    @property
    def search_median(self) -> float | None:
        """The median of the ratios of times to decide."""
        return statistics.median(self.search) if self.search else None


def standing(found: Sequence[Match], name: str) -> Standing:
    """Against a contender; where we have nothing that fits and it has, we are worse."""
    there = [m for m in found if name in m.rows and m.ours and (m.step(OURS) or m.step(name))]
    ratios = [m.step_ratio(name) for m in there]
    steps = tuple(r for r in ratios if r is not None and math.isfinite(r))
    searches = tuple(r for m in there if (r := m.search_ratio(name)) is not None)
    return Standing(
        name,
        len(there),
        sum(r is not None and r >= 1 - TOLERANCE for r in ratios),
        sum(r is not None and math.isinf(r) for r in ratios),
        steps,
        searches,
    )


@dataclass(frozen=True)
class Work:
    """What every partitioning of a program has to do: operations of its contractions, and bytes of its arguments."""

    flops: float
    argument_bytes: float

    @classmethod
    def of(cls, program: Program) -> Work:
        """Of a whole program, loops and recomputation counted as often as they run."""
        flops = sum(op.flops * int(n) for op, n in zip(program.ops, program.repeats, strict=True))
        held = sum(program.values[argument.value].bytes for argument in program.arguments)
        return cls(float(flops), float(held))


@dataclass(frozen=True)
class Bound:
    """Seconds that no plan can beat, and what they are for: "FLOPs" or "bytes"."""

    seconds: float
    kind: str


def physical_bound(work: Work, device: Device, devices: int) -> Bound:
    """The longer of two times.

    ``FLOPs / (devices · peak)``, by the peak of bf16, and ``bytes / (devices · bandwidth)`` of reading every argument
    once. The first bounds training, the second decoding, where every parameter and the whole cache is read for a token.
    """
    peak = device.flops_per_second.get("bf16") or max(device.flops_per_second.values())
    by_flops = work.flops / (devices * peak)
    by_bytes = work.argument_bytes / (devices * device.memory_bytes_per_second)
    return Bound(by_flops, "FLOPs") if by_flops >= by_bytes else Bound(by_bytes, "bytes")
