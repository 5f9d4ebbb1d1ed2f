"""Our plan and the best that experts' tactics can do, both judged by the TPU compiler.

    python -m benchmarks.judged --rows rows.jsonl                      compile what is not in the file yet
    python -m benchmarks.judged --rows rows.jsonl --no-compile --write docs/benchmarks/judged.md

Needs the tpu extra, and no TPU. For every built-in model, the plan that `sw.partition` finds and the best combination
of one tactic an axis (by the same cost model, of those that fit) are compiled ahead of time for 16 TPU v5e. Bytes are
the compiler's; seconds are its own cycles plus the collectives of its final program on the links of the topology.
Scanned models have their full size; those whose layers are unrolled are shorter, because they take the compiler long.
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
from benchmarks.baselines import experts
from shardwright.models import build
from shardwright.search import Space, find_actions, find_keepers

TARGET, DEVICE, MESH = "tpu:v5e:4x4", "tpu-v5e", {"data": 4, "model": 4}
LONG = {"batch": 2, "sequence": 16384, "heads": 4, "kv_heads": 4, "head_dim": 512}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt": ("gpt", {}),
    "gpt gemma-2b": ("gpt", {"preset": "gemma-2b"}),
    "gpt gemma-7b": ("gpt", {"preset": "gemma-7b"}),
    "gpt long context": ("gpt", LONG),
    "mlp": ("mlp", {}),
    "itx": ("itx", {}),
    "vit": ("vit", {}),
    "moe": ("moe", {"layers": 2}),
    "gns": ("gns", {"steps": 3}),
    "unet": ("unet", {"levels": 2, "attention_levels": 1, "blocks": 1, "width": 128, "batch": 128}),
}


def best_experts(plan: sw.Plan) -> tuple[str, list[str]]:
    """The best combination of tactics by the cost model, as its name and as decisions."""
    whole, keepers = find_keepers(plan.analysis, ())
    space = Space(plan.analysis, plan.costs, find_actions(plan.analysis, plan.partitioned.mesh), whole, keepers)
    name = experts(space, plan.costs, plan.memory_bytes)[-1].note
    return name, [] if name == "replicated" else name.split(" + ")


def judge(name: str, plan: sw.Plan, keep: Path | None) -> dict[str, Any]:
    started = time.perf_counter()
    verdict = plan.verify(TARGET, timeout_seconds=1800, keep=keep)
    return {
        "plan": name,
        "decisions": [str(d) for d in plan.decisions],
        "estimate": [plan.estimate.step_seconds, plan.estimate.comm_seconds, plan.estimate.peak_bytes],
        "compiled": [verdict.step_seconds, verdict.comm_seconds, verdict.peak_bytes],
        "fits": verdict.fits,
        "message": verdict.message,
        "seconds": time.perf_counter() - started,
    }


def run(case: str, rows: Path, keep: Path | None) -> None:
    model, sizes = CASES[case]
    fn, args, options = build(model, **sizes)
    known = {(row["case"], row["key"]): row for row in read(rows)}
    ours = sw.partition(fn, *args, mesh=MESH, device=DEVICE, **options)
    name, decisions = best_experts(ours)
    theirs = sw.evaluate(fn, *args, mesh=MESH, device=DEVICE, decisions=decisions, **options)
    for label, plan in (("ours", ours), (name, theirs)):
        key = "; ".join(map(str, plan.decisions))
        if (case, key) not in known:
            text = keep / f"{case}-{label}.txt.gz".replace(" ", "_") if keep else None
            row = {"case": case, "key": key, **judge(label, plan, text)}
            with rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(case, label, row["estimate"], row["compiled"], row["message"], flush=True)


def read(rows: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| model | plan | estimated step, ms | compiled step, ms | of it communication | compiled GiB | fits |",
        "|---|---|---|---|---|---|---|",
    ]
    summary = []
    for case in CASES:
        found = {("ours" if row["plan"] == "ours" else "experts"): row for row in rows if row["case"] == case}
        for row in found.values():
            step, comm, peak = row["compiled"]
            shown = (f"{step * 1e3:.1f}", f"{comm * 1e3:.1f}") if step else ("–", "–")
            size = f"{peak / 2**30:.2f}" if peak else "–"
            lines.append(
                f"| {case} | {row['plan']} | {row['estimate'][0] * 1e3:.1f} | {shown[0]} | {shown[1]} | {size} "
                f"| {'yes' if row['fits'] else 'no'} |"
            )
        if len(found) == 2 and found["ours"]["compiled"][0] and found["experts"]["compiled"][0]:
            ratio = found["ours"]["compiled"][0] / found["experts"]["compiled"][0]
            summary.append(f"{case} {ratio:.3f}")
        elif len(found) == 1:
            summary.append(f"{case} 1 (the same plan)")
    return "\n".join(lines) + "\n\nCompiled step, ours over the experts' best: " + ", ".join(summary) + "."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--keep", type=Path, help="a folder for the compiled programs' texts")
    parser.add_argument("--only", default="", help="cases, separated by commas")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    if not options.no_compile:
        for case in options.only.split(",") if options.only else CASES:
            run(case, options.rows, options.keep)
    text = table(read(options.rows))
    print(text)
    if options.write:
        about = __doc__.split("\n\n")
        options.write.write_text(
            f"# {about[0].rstrip('.')}\n\n{about[-1].strip()}\n\n{text}\n\n{date.today()}, shardwright "
            f"{sw.__version__}, jax {jax.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores.\n"
        )


if __name__ == "__main__":
    main()
