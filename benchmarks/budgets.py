"""How long planning takes where a user would notice: large models, many chips, many ops, a limit of seconds.

    python benchmarks/budgets.py                                       print the table
    python benchmarks/budgets.py --write docs/benchmarks/budgets.md
    python benchmarks/budgets.py --only unet --profile 30              one case, and the head of its profile
    python benchmarks/budgets.py --against ../before/src               as ratios to another state of the code

Each run is a process of its own, so that none knows what another found. Seconds are those of the processor, and in
brackets those of the clock on the wall, from the call of `sw.partition` to the plan; JAX's tracing and lowering are
apart. Of several runs the one that took least counts, and two states of the code take turns. No compiler is asked. The
stages: reading is the program from StableHLO with all its analysis; cost model is what is found out once for a mesh
before a state has a price; pricing is asking for the prices of states; search is all else that the search does; plan is
from the states to the plan, where Shardy ranks the best few.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import platform
import pstats
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

import shardwright as sw
from shardwright import problem, traced
from shardwright.models import build
from shardwright.price import CostModel

Row = dict[str, Any]
STAGES = ("tracing", "reading", "cost model", "pricing", "search", "plan")


@dataclass(frozen=True)
class Case:
    """A program on a mesh, what else is asked, and the seconds that it should take at most."""

    model: str
    sizes: Mapping[str, Any]
    mesh: Any
    device: str
    aim_seconds: float
    more: Mapping[str, Any] = field(default_factory=dict)


LLAMA_405B = {
    "layers": 126,
    "width": 16384,
    "heads": 128,
    "kv_heads": 8,
    "head_dim": 128,
    "hidden": 53248,
    "vocabulary": 128256,
    "gated": True,
    "batch": 2048,
    "sequence": 8192,
}
MESH = {"data": 4, "model": 4}
CASES = {
    "llama-405b": Case("gpt", LLAMA_405B, {"data": 16, "fsdp": 16, "model": 16}, "tpu-v5p", 10.0),
    "gemma-2b": Case("gpt", {"preset": "gemma-2b"}, 64, "tpu-v5e", 10.0),
    "unet": Case("unet", {}, MESH, "tpu-v5e", 5.0),
    "100,000 ops": Case("gpt", {"layers": 139, "scan": False}, MESH, "tpu-v5e", 30.0),
    "33,000 ops": Case("gpt", {"layers": 46, "scan": False}, MESH, "tpu-v5e", 1.25, {"seconds": 1}),
}
ABOUT = {
    "llama-405b": "the sizes of Llama 3.1 405B, 4,096 chips on three axes",
    "gemma-2b": "64 chips, the mesh chosen with the plan",
    "unet": "16 chips",
    "100,000 ops": "a GPT of 139 layers that are written out",
    "33,000 ops": "a GPT of 46 layers that are written out, `seconds=1`",
}


class Clock:
    """Processor's seconds of the stages that planning goes through; what runs inside of another is taken off it."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._inside: list[float] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count what runs inside for a stage."""
        began = time.process_time()
        self._inside.append(0.0)
        yield
        took, inside = time.process_time() - began, self._inside.pop()
        self.seconds[name] += took - inside
        if self._inside:
            self._inside[-1] += took

    def watch(self, owner: Any, name: str, stage: str) -> None:
        """Count the calls of a function for a stage."""
        function = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.stage(stage):
                return function(*args, **kwargs)

        setattr(owner, name, timed)


def run(case: Case, profile: int = 0) -> Row:
    """Plan a case in this process, and say what it took."""
    clock, wall = Clock(), [0.0]
    lower: Callable[..., Any] = traced.lower

    def lowered(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        found = lower(*args, **kwargs)
        wall[0] += time.perf_counter() - began
        return found

    traced.lower = lowered
    clock.watch(traced, "lower", "tracing")
    clock.watch(traced.Traced, "of", "reading")
    clock.watch(CostModel, "__init__", "cost model")
    clock.watch(CostModel, "evaluate", "pricing")
    clock.watch(problem, "find_state", "search")
    fn, args, options = build(case.model, **case.sizes)
    profiler = cProfile.Profile() if profile else None
    began = time.perf_counter()
    if profiler is not None:
        profiler.enable()
    asked = {"mesh": case.mesh, "device": case.device, "progress": False, "ask_compiler": False, **case.more}
    plan, refused = None, ""
    with clock.stage("plan"):
        try:
            plan = sw.partition(fn, *args, **asked, **options)
        except sw.InfeasibleError as error:  # with so little time it may be that nothing was met that fits
            refused = str(error)
    if profiler is not None:
        profiler.disable()
        pstats.Stats(profiler).sort_stats("cumulative").print_stats(profile)
    wall_seconds = time.perf_counter() - began - wall[0]
    row = {
        "stages": clock.seconds,
        "cpu_seconds": sum(clock.seconds.values()) - clock.seconds["tracing"],
        "wall_seconds": wall_seconds,
    }
    if plan is None:
        return {**row, "ops": 0, "states": 0, "plan": refused}
    found = [plan.mesh, plan.estimate.step_seconds, plan.estimate.peak_bytes, list(map(str, plan.decisions))]
    states = plan.search.evaluations if plan.search else 0
    return {**row, "ops": len(plan.analysis.program.ops), "states": states, "plan": found}


def measured(name: str, source: Path) -> Row:
    """A run in a process of its own, by this state of the code."""
    environment = {**os.environ, "PYTHONPATH": str(source)}
    command = [sys.executable, __file__, "--run", name]
    said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    row: Row = json.loads(said.stdout.splitlines()[-1])
    return row


def best(rows: list[Row]) -> Row:
    """Of several runs the one that took the processor least."""
    return min(rows, key=lambda row: row["cpu_seconds"])


def line(name: str, row: Row) -> str:
    """A row in Markdown."""
    stages = " | ".join(f"{row['stages'][stage]:.2f}" for stage in STAGES[1:])
    seconds = f"{row['cpu_seconds']:.1f} ({row['wall_seconds']:.1f})"
    return (
        f"| {name} | {row['ops']:,} | {CASES[name].aim_seconds:g} | {seconds} | {stages} | {row['states']:,} "
        f"| {row['stages']['tracing']:.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CASES), help="cases, separated by semicolons")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--against", type=Path, help="the src of another state of the code")
    parser.add_argument("--profile", type=int, default=0, help="how many lines of each profile to print")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        print(json.dumps(run(CASES[options.run])))
        return
    names = list(CASES) if options.only == ",".join(CASES) else options.only.split(";")
    if options.profile:
        for name in names:
            run(CASES[name], options.profile)
        return
    own = Path(sw.__file__).parents[1]
    lines = [
        f"| case | ops | aim, s | planning, s | {' | '.join(STAGES[1:])} | states | JAX's tracing, s |",
        "|---" * (6 + len(STAGES[1:])) + "|",
    ]
    compared = []
    for name in names:
        rows, others = [], []
        for _ in range(options.repeats):
            if options.against:
                others.append(measured(name, options.against.resolve()))
            rows.append(measured(name, own))
        lines.append(line(name, best(rows)))
        print(lines[-1], flush=True)
        if others:
            before, after = best(others), best(rows)
            same = "the same plan" if before["plan"] == after["plan"] else "another plan"
            ratio = after["cpu_seconds"] / before["cpu_seconds"]
            compared.append(f"{name}: {ratio:.2f} of {before['cpu_seconds']:.1f} s, {same}")
            print(compared[-1], flush=True)
    if options.write:
        about = (__doc__ or "").split("\n\n")
        cases = [f"- {name}: {ABOUT[name]}" for name in names]
        note = [about[-1].strip(), "", *cases, "", *lines, ""]
        if compared:
            note += ["Beside the state of the code before: " + "; ".join(compared) + ".", ""]
        note.append(
            f"{date.today()}, shardwright {sw.__version__}, jax {jax.__version__}, Python {platform.python_version()}, "
            f"{os.cpu_count()} cores. Made by `python benchmarks/budgets.py --write docs/benchmarks/budgets.md`."
        )
        options.write.write_text(f"# {about[0].strip().rstrip('.')}\n\n" + "\n".join(note) + "\n")


if __name__ == "__main__":
    main()
