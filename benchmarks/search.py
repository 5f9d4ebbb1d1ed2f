"""How good the plans are that the search finds, and how long it takes, against what else could have decided.

    python -m benchmarks.search --rows search.jsonl                    run what is not in the file yet
    python -m benchmarks.search --rows search.jsonl --depth            planning time by depth, likewise
    python -m benchmarks.search --rows search.jsonl --no-run --write docs/benchmarks/search.md
    python -m benchmarks.search --rows quick.jsonl --quick             two models on one mesh, in a minute or two

Every built-in model at full size on three meshes, each with all the memory that a device has to give ("ample") and with
less ("tight"): the geometric mean of the smallest peak that a search for memory alone finds and of our ample plan's
peak, or 1.05 times the smallest where these two are close. Everyone is priced by the same cost model, under the same
limit. "Ours" is the plan that `sw.partition` returns: of the best three states, if they are within 3%, the one whose
collectives in Shardy's hands take least. So it can be slower by the cost model than the search's own best state; where
that makes a difference it says so. "Single expert" is the best tactic on one axis, "combination" the best of all
choices of one tactic for each axis, "exhaustive" the best of all states where these are no more than 20,000 (without
the entries with exceptions that local improvement makes). The integer program follows Alpa, Automap its paper without
the learned ranker; both get a time limit.

Our seconds are from the traced function to the plan: reading, analysis, cost model, search, plan, ranking by Shardy.
JAX's own tracing is apart. The baselines' seconds do not have the reading, the analysis or the cost model in them.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import platform
import resource
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

import shardwright as sw
from benchmarks.baselines import Baseline, automap, exhaustive, experts, integer_program
from shardwright import request
from shardwright._collector import collector_paused
from shardwright.analysis import analyse_program
from shardwright.choose import FEW_EXPLICIT, by_shardy, close_to_best
from shardwright.devices import Device, find_device
from shardwright.frontend.trace import Lowering, lower, lowering_platform, read
from shardwright.models import build
from shardwright.price import Cost
from shardwright.problem import Problem
from shardwright.request import MeshShape
from shardwright.search import Outcome, Space, find_actions
from shardwright.traced import Traced

GIB = 2**30
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt": ("gpt", {}),
    "gemma-2b": ("gpt", {"preset": "gemma-2b"}),
    "gemma-7b": ("gpt", {"preset": "gemma-7b"}),
    "unet": ("unet", {}),
    "gns": ("gns", {}),
    "itx": ("itx", {}),
    "moe": ("moe", {}),
    "vit": ("vit", {}),
    "mlp": ("mlp", {}),
}
MESHES: dict[str, dict[str, int]] = {
    "tpu-v3": {"data": 8, "model": 4},
    "tpu-v5e": {"data": 4, "model": 4},
    "a100-80": {"data": 2, "model": 8},
}
AMPLE, TIGHT, LEAST = "ample", "tight", "least"
OURS, SINGLE, COMBINATION = "ours", "single expert", "best combination"
OTHERS = (SINGLE, COMBINATION, "automap", "integer program", "exhaustive")
RUN = (OURS, "experts", "automap", "integer program", "exhaustive")
AUTOMAP_SECONDS, MOST_STATES = 20.0, 20_000
CLOSE, ABOVE_LEAST = 1.1, 1.05
TOLERANCE = 1e-6
LAYERS = (6, 12, 24, 48)
DEPTH_DEVICE = "tpu-v5e"
REPEATS = 3
STAGES = ("read", "cost model", "search", "plan")
STAGE_NAMES = {"read": "reading and analysis", "cost model": "cost model", "search": "search", "plan": "plan"}

Row = dict[str, Any]


class Case(NamedTuple):
    """A model on a device's mesh, with ample or tight memory."""

    model: str
    device: str
    memory: str

    def __str__(self) -> str:
        return f"{self.model} {self.device} {self.memory}"


# Planning.


@contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - start


@dataclass(frozen=True, eq=False)
class Lowered:
    """A function as JAX lowered it for a platform, and how long that took."""

    fn: Callable[..., Any]
    lowering: Lowering
    donate: tuple[int, ...]
    platform: str
    trace_seconds: float

    @classmethod
    def of(cls, model: str, sizes: Mapping[str, Any], platform: str) -> Lowered:
        """Trace and lower a model, with JAX's caches empty."""
        fn, args, options = build(model, **sizes)
        jax.clear_caches()  # what was traced before would cost nothing
        seconds: dict[str, float] = {}
        with timed(seconds, "trace"):
            lowering = lower(fn, args, platform)
        donate = options.get("donate", ())
        return cls(fn, lowering, (donate,) if isinstance(donate, int) else tuple(donate), platform, seconds["trace"])

    def traced(self) -> Traced:
        """Read and analysed, as ``Traced.of`` does."""
        module = read(self.fn, self.lowering, donate=self.donate)
        options = {"trip_counts": None, "rules": None}
        analysis = analyse_program(module.program)
        traced = Traced(self.fn, self.lowering, module, analysis, self.donate, self.platform, options)
        _ = traced.places
        return traced

    @cached_property
    def shared(self) -> Traced:
        """For all who are not asked how long this takes."""
        return self.traced()


@lru_cache(maxsize=1)
def lowered(model: str, platform: str) -> Lowered:
    gc.collect()
    name, sizes = MODELS[model]
    return Lowered.of(name, sizes, platform)


class Setting:
    """A program on a mesh: what the contenders are given."""

    def __init__(self, traced: Traced, device: Device, mesh: MeshShape) -> None:
        self.traced, self.device, self.mesh = traced, device, mesh
        self.problem = Problem.of(traced, device, device.usable_bytes, (mesh,))
        self.whole, self.keepers = self.problem.start.state.whole, self.problem.start.keepers
        self.costs = self.problem.costs

    def search(self, limit_bytes: int, seconds: float | None) -> Outcome:
        """The search of ``sw.partition`` without pins."""
        return self.problem.within(limit_bytes).search(request.Budget(seconds), few=FEW_EXPLICIT)

    def space(self) -> Space:
        """What the search chooses from, for those who go through it another way."""
        analysis = self.traced.analysis
        return Space(analysis, self.costs, find_actions(analysis, self.mesh), self.whole, self.keepers)


def plan(
    program: Lowered, device: Device, mesh: MeshShape, limit_bytes: int, search_seconds: float | None = None
) -> Row:
    """What ``sw.partition`` does after tracing, stage by stage."""
    seconds: dict[str, float] = {}
    with timed(seconds, "read"):
        traced = program.traced()
    with collector_paused():
        with timed(seconds, "cost model"):
            setting = Setting(traced, device, mesh)
        with timed(seconds, "search"):
            outcome = setting.search(limit_bytes, search_seconds)
    cost = outcome.cost
    with timed(seconds, "plan"):
        plans = {
            state: setting.problem.within(limit_bytes).plan(state, search=outcome.search)
            for state in ((*close_to_best(setting.costs, outcome.few), outcome.simple) if outcome.few else ())
        }
        if plans:
            cost = by_shardy(traced.module, list(plans.values()), plans[outcome.simple]).estimate_cost
    total = sum(seconds.values())
    return {
        "ops": len(traced.analysis.program.ops),
        "trace_seconds": program.trace_seconds,
        "stages": seconds,
        "evaluations": outcome.search.evaluations,
        "ended": outcome.search.ended,
        "found": [result(OURS, cost, limit_bytes, total, outcome.search.ended)],
        "search_best": result("search", outcome.cost, limit_bytes, seconds["search"], ""),
    }


def result(name: str, cost: Cost | None, limit_bytes: int, seconds: float, note: str) -> Row:
    return {
        "name": name,
        "step_seconds": cost.step_seconds if cost else None,
        "peak_bytes": int(cost.peak_bytes) if cost else None,
        "fits": cost is not None and cost.peak_bytes <= limit_bytes,
        "seconds": seconds,
        "note": note,
    }


# The cases, a row for each contender.


class Budget(NamedTuple):
    """Seconds that contenders get; None is as many as they take."""

    search: float | None
    ilp: float

    def of(self, contender: str) -> float | None:
        """Of a contender whose budget can be set."""
        return {OURS: self.search, "integer program": self.ilp}.get(contender)


class Rows:
    """The file of rows; of rows about the same, the last counts."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.failed: set[tuple[Any, ...]] = set()
        self.known: dict[tuple[Any, ...], Row] = {}
        if file.exists():
            for line in file.read_text().splitlines():
                row = json.loads(line)
                self.known[tuple(row["key"])] = row

    def of(self, *key: Any, **must: Any) -> Row | None:
        """A row, if it was made with what it must have been made with."""
        row = self.known.get(key)
        return row if row and all(row.get(name) == value for name, value in must.items()) else None

    def add(self, key: Sequence[Any], row: Row) -> Row:
        """Write a row at once."""
        row = {"key": list(key), "date": str(date.today()), **row}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self.known[tuple(key)] = row
        return row


def usable_bytes(case: Case) -> int:
    return find_device(case.device).usable_bytes


def tight_bytes(rows: Rows, case: Case) -> int | None:
    """The tight limit; None where nothing fits even with ample memory, or it is not known yet."""
    least = rows.of(*case._replace(memory=LEAST), OURS)
    ample = rows.of(*case._replace(memory=AMPLE), OURS)
    if least is None or ample is None:
        return None
    smallest, most = least["found"][0]["peak_bytes"], usable_bytes(case)
    if smallest > most:
        return None
    peak = ample["found"][0]["peak_bytes"]
    tight = math.sqrt(smallest * peak) if peak > CLOSE * smallest else ABOVE_LEAST * smallest
    return min(int(tight), most)


def run_case(rows: Rows, case: Case, budget: Budget) -> list[str]:
    """Every contender that has no row yet. The names of those that failed."""
    ample, least = case._replace(memory=AMPLE), case._replace(memory=LEAST)
    limit_bytes: int | None = usable_bytes(case)
    needed: list[tuple[Case, int]] = [(ample, usable_bytes(case))]
    if case.memory == TIGHT:
        needed.append((least, 1))
    for before, limit in needed:
        if not attempt(rows, before, OURS, limit, budget):
            return [f"{before} {OURS}"]
    if case.memory == TIGHT:
        limit_bytes = tight_bytes(rows, case)
    if limit_bytes is None:
        print(f"{case}: does not fit even with ample memory", flush=True)
        return []
    return [f"{case} {contender}" for contender in RUN if not attempt(rows, case, contender, limit_bytes, budget)]


def attempt(rows: Rows, case: Case, contender: str, limit_bytes: int, budget: Budget) -> bool:
    """Run a contender; whether it came to an end. The others are worth having all the same."""
    if (*case, contender) in rows.failed:
        return False
    try:
        run_contender(rows, case, contender, limit_bytes, budget)
    except Exception:  # MemoryError too
        traceback.print_exc()
        print(f"{case}: {contender}: failed", flush=True)
        rows.failed.add((*case, contender))
        return False
    return True


def run_contender(rows: Rows, case: Case, contender: str, limit_bytes: int, budget: Budget) -> None:
    must: Row = {"limit_bytes": limit_bytes, "budget_seconds": budget.of(contender)}
    if rows.of(*case, contender, **must):
        return
    device, mesh = find_device(case.device), MeshShape.of(MESHES[case.device])
    program = lowered(case.model, lowering_platform(device.platform))
    gc.collect()
    if contender == OURS:
        made = plan(program, device, mesh, limit_bytes, budget.search)
    else:
        with collector_paused():
            setting = Setting(program.shared, device, mesh)
            found = compete(contender, setting, limit_bytes, budget.ilp)
            made = {"found": [result(b.name, b.cost, limit_bytes, b.seconds, b.note) for b in found]}
    row = rows.add((*case, contender), {**must, **made})
    best = best_of(row["found"])
    shown = (
        f"{1e3 * best['step_seconds']:.3f} ms, {best['peak_bytes'] / GIB:.3f} GiB" if best["step_seconds"] else "none"
    )
    fits = "" if best["fits"] or best["step_seconds"] is None or limit_bytes == 1 else ", does not fit"
    took = row["found"][-1]["seconds"]
    print(f"{case}: {contender}: {shown}{fits}, {took:.2f} s {row['found'][-1]['note']}", flush=True)


def compete(contender: str, setting: Setting, limit_bytes: int, ilp_seconds: float) -> list[Baseline]:
    costs = setting.costs
    if contender == "experts":
        return experts(setting.space(), costs, limit_bytes)
    if contender == "automap":
        return [automap(costs, limit_bytes, seconds=AUTOMAP_SECONDS)]
    if contender == "integer program":
        return [integer_program(costs, limit_bytes, seconds=ilp_seconds)]
    return [exhaustive(setting.space(), costs, limit_bytes, most=MOST_STATES)]


def best_of(found: Sequence[Row]) -> Row:
    """The fastest that fits, or the smallest where none does."""

    def rank(r: Row) -> tuple[bool, float]:
        value = r["step_seconds"] if r["fits"] else r["peak_bytes"]
        return not r["fits"], math.inf if value is None else value

    return min(found, key=rank)


# Planning time by depth.


def run_depth(rows: Rows, layers: int, scan: bool) -> None:
    if rows.of("depth", layers, scan):
        return
    device, mesh = find_device(DEPTH_DEVICE), MeshShape.of(MESHES[DEPTH_DEVICE])
    runs = []
    for _ in range(REPEATS):
        gc.collect()
        program = Lowered.of("gpt", {"layers": layers, "scan": scan}, lowering_platform(device.platform))
        runs.append(plan(program, device, mesh, device.usable_bytes))
        del program
    fastest = min(runs, key=lambda run: sum(run["stages"].values()))
    fastest["trace_seconds"] = min(run["trace_seconds"] for run in runs)
    row = rows.add(("depth", layers, scan), {"layers": layers, "scan": scan, **fastest})
    print(depth_line(row), flush=True)


def depth_line(row: Row) -> str:
    name = f"{row['layers']} layers{', scanned' if row['scan'] else ''}"
    stages = " | ".join(f"{row['stages'][stage]:.2f}" for stage in STAGES)
    return (
        f"| {name} | {row['ops']:,} | {row['trace_seconds']:.2f} | {stages} | {planning_seconds(row):.2f} "
        f"| {row['evaluations']:,} | {1e3 * row['found'][0]['step_seconds']:.1f} |"
    )


def planning_seconds(row: Row) -> float:
    return sum(row["stages"].values())


def depth_section(rows: Rows) -> list[str]:
    found = sorted((r for k, r in rows.known.items() if k[0] == "depth"), key=lambda r: (r["scan"], r["layers"]))
    if not found:
        return []
    stages = " | ".join(STAGE_NAMES[stage] for stage in STAGES)
    lines = [
        "## Planning time by depth",
        "",
        f"gpt unrolled, and scanned, on {mesh_name(DEPTH_DEVICE)}. Seconds; of {REPEATS} runs the one that planned"
        " fastest. The plan has the ranking by Shardy in it; all has not JAX's tracing.",
        "",
        f"| gpt | ops | JAX's tracing | {stages} | all | states | step, ms |",
        "|" + "---|" * (6 + len(STAGES)),
        *map(depth_line, found),
        "",
    ]
    unrolled = {r["layers"]: r for r in found if not r["scan"]}
    short, long = (12, 48) if {12, 48} <= set(unrolled) else (min(unrolled, default=0), max(unrolled, default=0))
    if short < long:
        a, b = unrolled[short], unrolled[long]
        parts = ", ".join(f"{STAGE_NAMES[s]} {b['stages'][s] / a['stages'][s]:.1f}" for s in STAGES)
        lines += [
            f"From {short} to {long} layers, {b['ops'] / a['ops']:.1f} times the ops, planning takes"
            f" {planning_seconds(b) / planning_seconds(a):.2f} times as long ({parts}), JAX's tracing"
            f" {b['trace_seconds'] / a['trace_seconds']:.1f} times.",
            "",
        ]
    return lines


# The tables.


@dataclass(frozen=True)
class Match:
    """A case that was run: our row, and the results of all contenders by name."""

    case: Case
    row: Row
    by_name: Mapping[str, Row]
    tactics: Sequence[Row]

    @property
    def ours(self) -> Row:
        """Of the plan that ``sw.partition`` returns."""
        return self.by_name[OURS]

    def other(self, name: str) -> Row | None:
        """A contender's result, if it found something."""
        found = self.by_name.get(name)
        return found if found and found["step_seconds"] is not None else None

    @property
    def best_other(self) -> tuple[str, Row] | None:
        """The fastest other contender that fits."""
        fitting = [(name, r) for name in OTHERS if (r := self.other(name)) and r["fits"]]
        return min(fitting, key=lambda pair: pair[1]["step_seconds"]) if fitting else None

    def loss(self, other: Row | None, ours: Row | None = None) -> float:
        """By what part ours is slower than another; infinite if only the other fits, at most 0 if ours is no worse."""
        ours = ours or self.ours
        if other is None or not other["fits"]:
            return 0.0
        if not ours["fits"]:
            return math.inf
        part = ours["step_seconds"] / other["step_seconds"] - 1
        return part if part > TOLERANCE else min(part, 0.0)


def matches(rows: Rows) -> list[Match]:
    out = []
    for case in all_cases():
        row = rows.of(*case, OURS)
        limit = tight_bytes(rows, case) if case.memory == TIGHT else usable_bytes(case)
        if row is None or row["limit_bytes"] != limit:
            continue
        by_name: dict[str, Row] = {OURS: row["found"][0]}
        tactics: list[Row] = []
        for contender in RUN[1:]:
            other = rows.of(*case, contender, limit_bytes=limit)
            if other and contender == "experts":
                *tactics, by_name[COMBINATION] = other["found"]
                by_name[SINGLE] = best_of(tactics)
            elif other:
                by_name[contender] = other["found"][0]
        out.append(Match(case, row, by_name, tactics))
    return out


def all_cases() -> list[Case]:
    """Devices innermost but for memory, so that what was lowered for one serves the next."""
    return [Case(model, device, memory) for model in MODELS for device in MESHES for memory in (AMPLE, TIGHT)]


def mesh_name(device: str) -> str:
    return f"{device}, {' × '.join(f'{size} {axis}' for axis, size in MESHES[device].items())}"


def milliseconds(found: Row) -> str:
    if found["fits"]:
        return f"{1e3 * found['step_seconds']:.2f}"
    return f"over: {found['peak_bytes'] / GIB:.2f} GiB"


def cell(match: Match, name: str, *, more: Callable[[Row], str]) -> str:
    found = match.by_name.get(name)
    if found is None:
        return ""
    shown = "nothing" if found["step_seconds"] is None else milliseconds(found)
    return ", ".join(part for part in (shown, more(found)) if part)


def short_note(found: Row) -> str:
    """The integer program's note without sizes, and without what the figures say."""
    first, _, _ = found["note"].removeprefix("does not fit; ").partition(";")
    return first


HEAD = (
    "| model | limit, GiB | ours, ms | GiB | s | best single expert, ms | best combination, ms | automap, ms, s "
    "| integer program, ms, s | exhaustive, ms | ours / best other | no worse | fit |"
)


def line(match: Match) -> str:
    ours, best = match.ours, match.best_other
    ratio = f"{ours['step_seconds'] / best[1]['step_seconds']:.4f}" if best and ours["fits"] else ""
    if not ours["fits"]:
        verdict = "no" if best else "nothing fits"
    else:
        verdict = "no" if best and match.loss(best[1]) > 0 else "yes"
    cells = [
        match.case.model,
        f"{match.row['limit_bytes'] / GIB:.2f}",
        milliseconds(ours),
        f"{ours['peak_bytes'] / GIB:.2f}",
        f"{ours['seconds']:.2f}",
        cell(match, SINGLE, more=lambda r: r["name"]),
        cell(match, COMBINATION, more=lambda r: r["note"]),
        cell(match, "automap", more=lambda r: f"{r['seconds']:.1f} s"),
        cell(match, "integer program", more=lambda r: f"{r['seconds']:.1f} s, {short_note(r)}"),
        cell(match, "exhaustive", more=lambda r: r["note"]) if match.other("exhaustive") else "",
        ratio,
        verdict,
        who_fits(match),
    ]
    return f"| {' | '.join(cells)} |"


def who_fits(match: Match) -> str:
    names = [name for name in (OURS, *OTHERS) if name in (OURS, SINGLE, COMBINATION) or match.by_name.get(name)]
    names = [name for name in names if name != "exhaustive" or match.other(name)]
    fit = [name for name in names if (r := match.by_name.get(name)) and r["fits"]]
    return "all" if len(fit) == len(names) else ", ".join(fit) or "none"


def tables(rows: Rows, found: Sequence[Match]) -> list[str]:
    lines = []
    for device in MESHES:
        for memory in (AMPLE, TIGHT):
            here = {m.case.model: m for m in found if m.case.device == device and m.case.memory == memory}
            if not here:
                continue
            lines += [f"## {mesh_name(device)}, {memory} memory", "", HEAD, "|" + "---|" * (HEAD.count("|") - 1)]
            for model in MODELS:
                case = Case(model, device, memory)
                least = rows.of(*case._replace(memory=LEAST), OURS)
                if model in here:
                    lines.append(line(here[model]))
                elif least and least["found"][0]["peak_bytes"] > usable_bytes(case):
                    size = least["found"][0]["peak_bytes"] / GIB
                    lines.append(f"| {model} | not even with ample memory: {size:.2f} GiB at least" + " | " * 11 + "|")
            lines.append("")
    return lines


def summary(found: Sequence[Match]) -> list[str]:
    """In how many cases ours is no worse than each of the others, and where it is."""
    lines = [
        "| against | compared | ours no worse | without the ranking by Shardy | the other has nothing that fits "
        "| other / ours, median | most |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in OTHERS:
        there = [m for m in found if name in m.by_name and (name != "exhaustive" or m.other(name))]
        there = [m for m in there if m.ours["fits"] or m.by_name[name]["fits"]]
        if not there:
            continue
        good = sum(m.loss(m.by_name[name]) <= 0 for m in there)
        before = sum(m.loss(m.by_name[name], m.row["search_best"]) <= 0 for m in there)
        misfits = sum(not m.by_name[name]["fits"] for m in there)
        ratios = [
            m.by_name[name]["step_seconds"] / m.ours["step_seconds"]
            for m in there
            if m.by_name[name]["fits"] and m.ours["fits"]
        ]
        shown = f"{statistics.median(ratios):.3f} | {max(ratios):.2f}" if ratios else " | "
        lines.append(f"| {name} | {len(there)} | {good} | {before} | {misfits} | {shown} |")
    some_fits = [m for m in found if m.ours["fits"] or m.best_other]
    fit = sum(m.ours["fits"] for m in some_fits)
    good = sum(m.loss(m.best_other[1] if m.best_other else None) <= 0 for m in some_fits)
    lines += [
        "",
        f"Ours is no worse than the best of all others in {good} of {len(some_fits)} cases (to {TOLERANCE:g} of the"
        f" time), and fits in {fit} of the {len(some_fits)} in which any does; {len(found) - len(some_fits)} further"
        " cases fit nobody.",
        "",
    ]
    lost = [losses for m in some_fits if (losses := lost_lines(m))]
    if lost:
        lines += ["Where ours is worse:", "", *(text for losses in lost for text in losses), ""]
    return lines


def lost_lines(match: Match) -> list[str]:
    out = []
    for name in OTHERS:
        other = match.by_name.get(name)
        loss = match.loss(other)
        if other is None or loss <= 0:
            continue
        if math.isinf(loss):
            out.append(f"- {match.case}: {name} fits, ours does not")
            continue
        before = match.loss(other, match.row["search_best"])
        why = "; by the ranking by Shardy alone" if before <= 0 else ""
        out.append(f"- {match.case}: {loss:.4%} slower than {name}{why}")
    return out


def tactic_table(found: Sequence[Match]) -> list[str]:
    names = list(dict.fromkeys(t["name"].partition(":")[0] for m in found for t in m.tactics))
    if not names:
        return []
    lines = [
        "## Every tactic",
        "",
        "Step time of each tactic alone, on its best axis, as a multiple of ours; in brackets where it does not fit.",
        "",
        f"| case | {' | '.join(names)} |",
        "|" + "---|" * (1 + len(names)),
    ]
    for match in found:
        by_name = {t["name"].partition(":")[0]: t for t in match.tactics}
        cells = []
        for name in names:
            if name not in by_name:
                cells.append("")
                continue
            ratio = f"{by_name[name]['step_seconds'] / match.ours['step_seconds']:.2f}"
            cells.append(ratio if by_name[name]["fits"] else f"({ratio})")
        lines.append(f"| {match.case} | {' | '.join(cells)} |")
    return [*lines, ""]


def ilp_table(rows: Rows, found: Sequence[Match]) -> list[str]:
    """How much longer the integer program takes than we do."""
    lines, of_planning, of_search, cut = [], [], [], 0
    for match in found:
        row = rows.of(*match.case, "integer program", limit_bytes=match.row["limit_bytes"])
        if row is None:
            continue
        took, search = row["found"][0]["seconds"], match.row["stages"]["search"]
        at_least = "≥ " if took >= row["budget_seconds"] else ""
        cut += bool(at_least)
        of_planning.append(took / match.ours["seconds"])
        of_search.append(took / search)
        lines.append(
            f"| {match.case} | {took:.1f} | {match.ours['seconds']:.2f} | {search:.2f} "
            f"| {at_least}{of_planning[-1]:.1f} | {at_least}{of_search[-1]:.1f} "
            f"| {match.row['evaluations']:,} | {row['found'][0]['note']} |"
        )
    if not lines:
        return []
    return [
        "## Time against the integer program",
        "",
        f"The integer program takes {statistics.median(of_planning):.1f} times as long as all of our planning (median;"
        f" {min(of_planning):.1f} to {max(of_planning):.1f}), and {statistics.median(of_search):.1f} times as long as"
        f" our search ({min(of_search):.1f} to {max(of_search):.1f}). In {cut} of {len(lines)} cases it used up its"
        " time limit: there the ratio is a lower bound (≥).",
        "",
        "| case | integer program, s | our planning, s | of it search, s | ratio to planning | ratio to search "
        "| states | integer program |",
        "|---|---|---|---|---|---|---|---|",
        *lines,
        "",
    ]


def plot(found: Sequence[Match], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(15, 6), width_ratios=(2.2, 1))
    markers = dict(zip(OTHERS, "o^sDx", strict=True))
    for name, marker in markers.items():
        points = [
            (x, r["step_seconds"] / m.ours["step_seconds"])
            for x, m in enumerate(found)
            if (r := m.other(name)) and r["fits"] and m.ours["fits"]
        ]
        if points:
            left.scatter(*zip(*points, strict=True), s=24, marker=marker, label=name, alpha=0.8)
    left.axhline(1, color="grey", linewidth=1)
    starts = [x for x, m in enumerate(found) if not x or m.case.model != found[x - 1].case.model]
    for x in starts[1:]:
        left.axvline(x - 0.5, color="grey", linewidth=0.5, alpha=0.5)
    ends = [*starts[1:], len(found)]
    left.set_xticks([(a + b - 1) / 2 for a, b in zip(starts, ends, strict=True)])
    left.set_xticklabels([found[x].case.model for x in starts])
    left.set(yscale="log", xlim=(-0.5, len(found) - 0.5), ylabel="step time, as a multiple of ours")
    low, high = left.get_ylim()
    ticks = [t for t in (0.5, 0.7, 0.9, 1, 1.2, 1.5, 2, 3, 5, 10, 20, 50) if low <= t <= high]
    left.set_yticks(ticks)
    left.set_title("Step time of what fits; cases by device and memory within a model")
    left.legend(frameon=False)

    there = [m for m in found if "integer program" in m.by_name]
    pairs = [(m.case.model, m.ours["seconds"], m.by_name["integer program"]["seconds"]) for m in there]
    for model in MODELS:
        points = [(x, y) for name, x, y in pairs if name == model]
        if points:
            right.scatter(*zip(*points, strict=True), s=24, label=model, alpha=0.8)
    low = min((min(x, y) for _, x, y in pairs), default=1) * 0.6
    high = max((max(x, y) for _, x, y in pairs), default=1) * 1.6
    for times in (1, 10, 100):
        right.plot([low, high], [low * times, high * times], color="grey", linewidth=0.8, linestyle=":")
        if low * times < high / 2:
            right.annotate(f"{times} ×", (low * 1.1, low * times * 1.4), color="grey", fontsize=8)
    right.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    right.set(xlabel="our planning, s", ylabel="integer program, s", title="Planning time")
    for axis in (left.yaxis, right.xaxis, right.yaxis):
        axis.set_major_formatter(ticker.FormatStrFormatter("%g"))
        axis.set_minor_formatter(ticker.NullFormatter())
    right.legend(frameon=False, fontsize=8, loc="lower right")
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)


def report(rows: Rows, found: Sequence[Match], file: Path) -> str:
    first, _, about = __doc__.split("\n\n", 2)
    picture = []
    if found:
        plot(found, file.with_suffix(".svg"))
        picture = [f"![step time and planning time]({file.stem}.svg)", ""]
    budgets = sorted({row["budget_seconds"] for key, row in rows.known.items() if key[-1] == "integer program"})
    limits = " or ".join(f"{seconds:g}" for seconds in budgets) or "none"
    searches = {row["budget_seconds"] for key, row in rows.known.items() if key[-1] == OURS} - {None}
    cut = f" Our search: {' or '.join(f'{seconds:g}' for seconds in sorted(searches))} s." if searches else ""
    last = max((row["date"] for row in rows.known.values()), default=str(date.today()))
    body = [
        f"# {first.rstrip('.')}",
        "",
        about.strip(),
        "",
        f"Time limits: integer program {limits} s, Automap {AUTOMAP_SECONDS:g} s.{cut}",
        "",
        *(["## Summary", "", *summary(found)] if found else []),
        *picture,
        *tables(rows, found),
        *ilp_table(rows, found),
        *tactic_table(found),
        *depth_section(rows),
        f"{last}, shardwright {sw.__version__}, jax {jax.__version__}, Python {platform.python_version()},"
        f" {os.cpu_count()} cores. The machine is small and others use it: seconds are from one run each and may be"
        " off by tens of per cent; step times and peaks do not depend on it, but for the two that are cut by time.",
    ]
    return "\n".join(body) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, default=Path("search.jsonl"))
    parser.add_argument("--only", default="", help='part of a case\'s name, such as "gemma-2b tpu-v5e tight"')
    parser.add_argument("--quick", action="store_true", help="mlp and itx on v5e alone")
    parser.add_argument("--depth", action="store_true", help="planning time by depth in place of the cases")
    parser.add_argument("--layers", default=",".join(map(str, LAYERS)), help="of --depth, unrolled")
    parser.add_argument("--ilp-seconds", type=float, default=60.0)
    parser.add_argument("--search-seconds", type=float, help="of our search, at most; by default it ends by itself")
    parser.add_argument("--memory", type=float, default=0.8, help="of the machine's, that this process may take")
    parser.add_argument("--no-run", action="store_true", help="tables of the rows that are there")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    rows = Rows(options.rows)
    failed: list[str] = []
    if not options.no_run:
        limit_memory(options.memory)
        warm_up()
        if options.depth:
            for layers in map(int, options.layers.split(",")):
                run_depth(rows, layers, scan=False)
            run_depth(rows, 12, scan=True)
        for case in [] if options.depth else all_cases():
            quick = case.model in ("mlp", "itx") and case.device == "tpu-v5e"
            if options.only in str(case) and (quick or not options.quick):
                failed += run_case(rows, case, Budget(options.search_seconds, options.ilp_seconds))
    found = matches(rows)
    print("\n".join([*summary(found), *depth_section(rows)] if found else depth_section(rows)))
    if options.write:
        options.write.parent.mkdir(parents=True, exist_ok=True)
        options.write.write_text(report(rows, found, options.write))
    if failed:
        sys.exit(f"failed: {', '.join(dict.fromkeys(failed))}")


def limit_memory(part: float) -> None:
    """A contender that takes too much memory fails alone, in place of the system ending the process."""
    most = int(part * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def warm_up() -> None:
    """What Python and JAX do once in a process would count for the first case."""
    device = find_device(DEPTH_DEVICE)
    program = Lowered.of("mlp", {"preset": "tiny"}, lowering_platform(device.platform))
    plan(program, device, MeshShape.of({"data": 2, "model": 2}), device.usable_bytes)


if __name__ == "__main__":
    main()
