"""A long context: one batch of two sequences of 131,072 tokens on 64 chips, our plan beside every expert tactic.

    python -m benchmarks.long_context [--verify] [--write docs/benchmarks/long_context.md]

`--verify` compiles a shorter context (8,192 tokens, 16 TPU v5e) for a TPU topology, ours and the experts' best.
"""

from __future__ import annotations

import argparse
import os
import platform
from datetime import date
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

import shardwright as sw
from benchmarks.baselines import experts
from shardwright.models import build
from shardwright.search import Space, find_actions, find_keepers

SIZES: dict[str, Any] = {"batch": 2, "heads": 4, "kv_heads": 4, "head_dim": 512}
LONG = ({"sequence": 131072}, {"x": 8, "y": 8}, "tpu-v5p", "")
SHORT = ({"sequence": 8192}, {"x": 4, "y": 4}, "tpu-v5e", "tpu:v5e:4x4")


def compare(sizes: dict[str, Any], mesh: dict[str, int], device: str, target: str) -> list[str]:
    fn, args, options = build("gpt", **SIZES, **sizes)
    plan = sw.partition(fn, *args, mesh=mesh, device=device, **options)
    whole, keepers = find_keepers(plan.analysis, ())
    space = Space(plan.analysis, plan.costs, find_actions(plan.analysis, plan.partitioned.mesh), whole, keepers)
    found = experts(space, plan.costs, plan.memory_bytes)
    lines = ["| plan | step, ms | compute | communication | GiB | fits |", "|---|---|---|---|---|---|"]
    rows = [("**ours**", plan.estimate_cost)]
    rows += [((b.note and f"best combination: {b.note}") or b.name, b.cost) for b in found if b.cost]
    for name, cost in rows:
        lines.append(
            f"| {name} | {cost.step_seconds * 1e3:,.1f} | {cost.compute_seconds * 1e3:,.1f} "
            f"| {cost.comm_seconds * 1e3:,.1f} | {cost.peak_bytes / 2**30:,.1f} "
            f"| {'yes' if cost.peak_bytes <= plan.memory_bytes else 'no'} |"
        )
    lines += ["", "Ours:", "", "```text", *map(str, plan.decisions), "```"]
    lines += ["", "What moves most:", "", "```text"]
    for c in plan.estimate.costliest_collectives[:8]:
        lines.append(
            f"{c.seconds * 1e3:7.2f} ms  {c.kind:<15} over {', '.join(c.axes):<5} {c.times:>3} times  {c.tensor:<28} "
            f"{c.source}{', backward' * c.source.backward}"
        )
    lines.append("```")
    if target:
        best = sw.evaluate(fn, *args, mesh=mesh, device=device, decisions=found[-1].note.split(" + "), **options)
        for name, judged in (("ours", plan), (found[-1].note, best)):
            verdict = judged.verify(target)
            lines += ["", f"{name}, compiled for {target}:", "", "```text", str(verdict), "```"]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    parts = []
    for case in (LONG, SHORT) if options.verify else (LONG,):
        sizes, mesh, device, _ = case
        about = f"{sizes['sequence']:,} tokens on {mesh['x']} × {mesh['y']} {device}"
        parts += [f"## {about}", "", *compare(*case), ""]
    text = "\n".join(parts)
    print(text)
    if options.write:
        options.write.write_text(
            f"# A long context, measured\n\n{text}\n{date.today()}, shardwright {sw.__version__}, "
            f"jax {jax.__version__}, Python {platform.python_version()}.\n"
        )


if __name__ == "__main__":
    main()
