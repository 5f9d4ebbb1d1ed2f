"""How close `plan.bound()` comes, and that no state that is tried takes less than it.

    python -m benchmarks.bounds --rows bounds.jsonl                    run what is not in the file yet
    python -m benchmarks.bounds --rows bounds.jsonl --write docs/benchmarks/bounds.md

Every built-in model at full size on 16 chips of TPU v5e, 4 data × 4 model. The bound is what no state takes less than
by the same prices; it has no communication in it. "at most" is by how much the plan can be slower than the best there
is. "compute" is what the plan computes beside the bound, and "waits" the part of its step in which devices wait for
communication: where that is much, the bound says little. "tried" are 500 states one decision from each other, whatever
they need of memory: the least that one of them computes, and takes, beside the bound.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from datetime import date
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

import shardwright as sw
from benchmarks.evaluate import MESH, walk
from benchmarks.search import MODELS
from shardwright.models import build

STATES = 500
Row = dict[str, Any]


def measure(name: str) -> Row:
    """A model's plan, its bound, and the least of many states."""
    model, sizes = MODELS[name]
    fn, args, options = build(model, **sizes)
    plan = sw.partition(fn, *args, mesh=MESH, device="tpu-v5e", progress=False, ask_compiler=False, **options)
    began = time.process_time()
    bound = plan.bound()
    seconds = time.process_time() - began
    costs = [plan.costs.evaluate(state) for state in walk(plan.analysis, STATES, seed=0)]
    return {
        "name": name,
        "least_seconds": bound.least_seconds,
        "step_seconds": bound.step_seconds,
        "exposed_seconds": bound.exposed_seconds,
        "tried_compute": min(cost.compute_seconds for cost in costs),
        "tried_step": min(cost.step_seconds for cost in costs),
        "seconds": seconds,
    }


def line(row: Row) -> str:
    """A row in Markdown."""
    least, step, waits = row["least_seconds"], row["step_seconds"], row["exposed_seconds"]
    return (
        f"| {row['name']} | {1e3 * least:,.2f} | {1e3 * step:,.2f} | {step / least - 1:.1%} "
        f"| {(step - waits) / least:.3f} | {waits / step:.1%} | {row['tried_compute'] / least:.3f} "
        f"| {row['tried_step'] / least:.2f} | {row['seconds']:.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True, help="a file of rows, one line of JSON each")
    parser.add_argument("--only", default=",".join(MODELS), help="models, separated by commas")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    known = {}
    if options.rows.exists():
        known = {row["name"]: row for row in map(json.loads, options.rows.read_text().splitlines())}
    for name in options.only.split(","):
        if name not in known:
            known[name] = measure(name)
            with options.rows.open("a") as file:
                file.write(json.dumps(known[name]) + "\n")
        print(line(known[name]), flush=True)
    for row in known.values():
        assert row["tried_compute"] >= row["least_seconds"], f"{row['name']}: a state takes less than the bound"
    if options.write:
        about = (__doc__ or "").split("\n\n")
        lines = [
            "| model | bound, ms | plan, ms | at most | compute | waits | tried: compute | step | the bound takes, s |",
            "|---" * 9 + "|",
            *[line(known[name]) for name in MODELS if name in known],
        ]
        options.write.write_text(
            f"# {about[0].strip().rstrip('.')}\n\n{about[-1].strip()}\n\n"
            + "\n".join(lines)
            + "\n\nNo state that was tried computes less than the bound."
            + f"\n\n{date.today()}, shardwright {sw.__version__}, jax {jax.__version__}, Python "
            f"{platform.python_version()}. Made by `python -m benchmarks.bounds --rows bounds.jsonl --write "
            "docs/benchmarks/bounds.md`.\n"
        )


if __name__ == "__main__":
    main()
