"""How close the estimate's bytes are to the GPU compiler's.

    python -m benchmarks.gpu_memory --rows rows.jsonl                  compile what is not in the file yet
    python -m benchmarks.gpu_memory --rows rows.jsonl --no-compile --write docs/benchmarks/gpu_memory.md

Needs the gpu extra, and no GPU. Every built-in model under four tactics, compiled ahead of time for eight A100 (80 GB).
Bytes are arguments, results that are no arguments' buffers, temporaries and code. The compiler gives no cycles for
GPUs. What it said is kept by the shardings that it was given, so a change of the cost model alone compiles nothing
again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
from collections import defaultdict
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

import shardwright as sw
from benchmarks.clock.page import GIB, quantile
from shardwright.models import build
from shardwright.verify.compile import compile_exported

DEVICE, TARGET = "a100-80", "gpu:a100-80:8"
SIZES: dict[str, dict[str, Any]] = {
    "gpt": {},
    "vit": {},
    "itx": {},
    "mlp": {},
    "moe": {"layers": 2},
    "gns": {"steps": 3},
    "unet": {"levels": 2, "attention_levels": 1, "blocks": 1, "width": 128, "batch": 128},
}
EIGHT, FOUR_TWO = {"data": 8}, {"data": 4, "model": 2}


def cases() -> list[tuple[str, dict[str, int], list[str]]]:
    """Each model with meshes and tactics."""
    found = []
    for model in SIZES:
        tensor = "expert_parallel:model" if model == "moe" else "megatron:model"
        for tactic in ("data_parallel:data", "fsdp:data"):
            found += [(model, EIGHT, [tactic]), (model, FOUR_TWO, [tactic, tensor])]
    return found


def examine(model: str, mesh: dict[str, int], tactics: list[str], known: dict[str, Any], rows: Path | None) -> Any:
    """Estimate and, unless it is known, compile; None where it is neither known nor to be compiled."""
    fn, args, options = build(model, **SIZES[model])
    plan = sw.evaluate(fn, *args, mesh=mesh, device=DEVICE, decisions=tactics, **options)
    ways = [a and (a.factors, a.operands, a.results) for a in plan.partitioned.assignments]
    content = [model, SIZES[model], mesh, plan.partitioned.values, ways, plan.donate, jax.__version__]
    key = hashlib.sha256(repr(content).encode()).hexdigest()[:16]
    if key not in known:
        if rows is None:
            return None
        found = compile_exported(plan.export("cuda")[0], plan.mesh, TARGET, plan.donate, timeout_seconds=900)
        known[key] = {"key": key, **{name: found.get(name) for name in ("peak_bytes", "fits", "crash")}}
        with rows.open("a") as file:
            file.write(json.dumps(known[key]) + "\n")
    name = " + ".join(tactic.partition(":")[0] for tactic in tactics)
    estimate = {"estimate_bytes": plan.estimate.peak_bytes, "estimate_fits": plan.estimate.fits}
    return {**known[key], "model": model, "mesh": mesh, "plan": name, **estimate}


def page(rows: Sequence[dict[str, Any]]) -> str:
    """The page: errors by model, and all pairs."""
    by_model: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_model[row["model"]].append(row)
    lines = ["| model | pairs | median error | 90th percentile | fits, right |", "|---|---|---|---|---|"]
    for model, found in [*by_model.items(), ("all", list(rows))]:
        errors = [abs(r["estimate_bytes"] / r["peak_bytes"] - 1) for r in found]
        right = sum(r["estimate_fits"] == r["fits"] for r in found)
        lines.append(
            f"| {model} | {len(found)} | {statistics.median(errors):.1%} | {quantile(errors, 0.9):.1%} "
            f"| {right} of {len(found)} |"
        )
    lines += ["", "| model | mesh | plan | GiB, estimate | compiled | ratio |", "|---|---|---|---|---|---|"]
    for r in rows:
        a, b = r["estimate_bytes"], r["peak_bytes"]
        mesh = " × ".join(map(str, r["mesh"].values()))
        lines.append(f"| {r['model']} | {mesh} | {r['plan']} | {a / GIB:.2f} | {b / GIB:.2f} | {a / b:.2f} |")
    title, _, text = (__doc__ or "").split("\n\n")
    made = f"{date.today()}, shardwright {sw.__version__}, jax {jax.__version__}; `python -m benchmarks.gpu_memory`."
    return "\n\n".join([f"# {title.rstrip('.')}", text.strip(), "\n".join(lines), made]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    lines = options.rows.read_text().splitlines() if options.rows.exists() else []
    known = {row["key"]: row for row in map(json.loads, lines)}
    found = [examine(*case, known, None if options.no_compile else options.rows) for case in cases()]
    rows = [row for row in found if row and row["peak_bytes"] and not row["crash"]]
    if options.write:
        options.write.write_text(page(rows))
    else:
        print(page(rows))


if __name__ == "__main__":
    main()
