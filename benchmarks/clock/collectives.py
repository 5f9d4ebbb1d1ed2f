"""The collectives of one plan side by side: what the estimate has, and what the compiled program does.

    python -m benchmarks.clock.collectives "Llama, LoRA" "data parallel + megatron" --keep ~/clock
    python -m benchmarks.clock.collectives gpt "random 0" --sizes '{"layers": 2}' --keep ~/clock --compile

Models of libraries need the Python of their environment (``benchmarks/ecosystem``). The first table is by kind and
axes, the second by source line, with the largest differences first.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import shardwright as sw
from benchmarks.clock import DEVICE, MESH, SUBJECTS, TARGET
from benchmarks.clock.one import _built, _compiled, _key, _plans
from benchmarks.fidelity import random_decisions
from shardwright.plan.verdicts import CompiledCollective
from shardwright.price.estimate import CollectiveCost
from shardwright.problem import Problem
from shardwright.request.targets import parse_target
from shardwright.space import implied_decisions
from shardwright.verify.compile import kernel_seconds_of
from shardwright.verify.figures import program_figures
from shardwright.verify.hlo import parse_hlo


@dataclass
class Sum:
    """What some collectives come to: how many run, the bytes that each device sends, seconds, and those waited for."""

    count: int = 0
    bytes: float = 0.0
    seconds: float = 0.0
    exposed_seconds: float = 0.0

    def __str__(self) -> str:
        if not self.count:
            return f"{'–':>34}"
        return f"{self.count:5d} {self.bytes / 1e6:9.1f} {1e3 * self.seconds:8.2f} {1e3 * self.exposed_seconds:8.2f}"

    def add(self, c: CollectiveCost | CompiledCollective) -> None:
        """Count one more; an estimate's seconds are those of all its turns, a compiler's those of one."""
        once = isinstance(c, CompiledCollective)
        times = c.times if once else 1
        self.count += c.times
        self.bytes += c.bytes * c.times
        self.seconds += c.seconds * times
        self.exposed_seconds += (c.seconds - (c.hidden_seconds or 0.0)) * times


Key = tuple[str, ...]


def sums(found: Iterable[CollectiveCost | CompiledCollective], *, lines: bool) -> dict[Key, Sum]:
    """Collectives by kind and axes, or by source line as well."""
    out: dict[Key, Sum] = defaultdict(Sum)
    for c in found:
        key: Key = (c.kind, ",".join(sorted(c.axes)))
        out[(*key, str(c.source)) if lines else key].add(c)
    return out


def table(plan: sw.Plan, kept: Path, *, most: int) -> str:
    """The two tables of a plan whose final text is kept."""
    text = gzip.decompress(kept.with_suffix(".hlo.gz").read_bytes()).decode()
    figures = program_figures(parse_hlo(text), plan.mesh, parse_target(TARGET), kernel_seconds_of(plan))
    estimate = plan.estimate
    out = []
    for name in ("step", "compute", "comm", "exposed"):
        ours, theirs = getattr(estimate, f"{name}_seconds"), figures[f"{name}_seconds"]
        out.append(f"{name}: {1e3 * ours:.2f}, {1e3 * theirs:.2f}")
    out = ["ms, estimated and compiled: " + "; ".join(out), ""]
    head = f"{'times':>5} {'MB':>9} {'ms':>8} {'exposed':>8}"
    for lines in (False, True):
        ours, theirs = (sums(found, lines=lines) for found in (estimate.collectives, figures["collectives"]))
        keys = sorted({*ours, *theirs}, key=lambda k: -abs(ours[k].seconds - theirs[k].seconds) if lines else 0)
        out.append(f"{head} | {head}")
        out += [f"{ours[key]} | {theirs[key]} | {' '.join(key)}" for key in keys[:most]]
        out.append("")
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subject", help="; ".join(SUBJECTS))
    parser.add_argument(
        "plan", help="of benchmarks.clock.PLANS, tactics separated by commas, or the seed of a random one"
    )
    parser.add_argument("--keep", type=Path, required=True, help="a folder for what compilers said")
    parser.add_argument("--sizes", default="", help="JSON: other sizes than the subject has")
    parser.add_argument("--compile", action="store_true", help="compile what is not kept")
    parser.add_argument("--most", type=int, default=40, help="lines of a table")
    options = parser.parse_args()
    subject = SUBJECTS[options.subject]
    if options.sizes:
        subject = replace(subject, sizes=json.loads(options.sizes))
    fn, args, given = _built(subject)
    given = {key: value for key, value in given.items() if key not in ("mesh", "device")}
    problem = Problem(fn, *args, mesh=MESH, device=DEVICE, **given)
    for name in options.plan.split(";"):
        plan = _plan(problem, fn, args, given, name)
        kept = options.keep / _key(subject, plan)
        _compiled(plan, kept, compiles=options.compile, limit_seconds=900)
        print(f"{options.subject}, {name}, {kept.name}")
        print(
            table(plan, kept, most=options.most) if kept.with_suffix(".hlo.gz").exists() else "is not kept", flush=True
        )


def _plan(problem: Problem, fn, args, given, name: str) -> sw.Plan:
    if name.isdigit() or ":" in name:
        made = random_decisions(problem.analysis, MESH, int(name)) if name.isdigit() else name.split(",")
        return problem.plan_of([made, implied_decisions(problem.analysis, problem.mesh)])
    ((_, plan),) = _plans(problem, fn, args, given, [name])
    if isinstance(plan, str):
        raise SystemExit(plan)
    return plan


if __name__ == "__main__":
    main()
