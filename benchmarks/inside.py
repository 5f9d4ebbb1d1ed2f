"""What the decisions inside a program are worth: a plan obeyed everywhere, and only its specs given to plain `jax.jit`.

    python -m benchmarks.inside --rows rows.jsonl                      compile what is not in the file yet
    python -m benchmarks.inside --rows rows.jsonl --no-compile --write docs/benchmarks/inside.md

Needs the tpu extra, and no TPU. For every built-in model the plan that `sw.partition` finds is compiled for 16 TPU v5e
twice: as `plan.jit` runs it, with every value inside the program told how it lies, and as `jax.jit` with
`plan.in_specs` and `plan.out_specs` alone, where XLA's partitioner decides all that lies between. Steps are replayed
from the compiled schedules.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from datetime import date
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import shardwright as sw
from shardwright.models import build
from shardwright.verify import compile_exported

TARGET, DEVICE, MESH = "tpu:v5e:4x4", "tpu-v5e", {"data": 4, "model": 4}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt": ("gpt", {"layers": 4}),
    "gpt, long context": ("gpt", {"batch": 2, "sequence": 16384, "heads": 4, "kv_heads": 4, "head_dim": 512}),
    "mlp": ("mlp", {}),
    "vit": ("vit", {"layers": 4}),
    "itx, decoding": ("itx", {"layers": 8}),
    "moe": ("moe", {"layers": 2}),
    "gns": ("gns", {"steps": 2}),
    "unet": ("unet", {"levels": 2, "attention_levels": 1, "blocks": 1, "width": 128, "batch": 128}),
}
OBEYED, SPECS = "plan.jit", "specs alone"
_KEPT = ("step_seconds", "compute_seconds", "comm_seconds", "exposed_seconds", "peak_bytes", "fits", "crash")


def plain(plan: sw.Plan) -> jax.export.Exported:
    """The function exported for TPUs with the specs of its arguments and results, and nothing else."""
    mesh = AbstractMesh(tuple(plan.mesh.values()), tuple(plan.mesh))

    def placed(specs: Any) -> Any:
        return jax.tree.map(
            lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec)
        )

    jitted = jax.jit(plan.fn, in_shardings=placed(plan.in_specs), out_shardings=placed(plan.out_specs))
    return jax.export.export(jitted, platforms=["tpu"])(*plan.args)


def run(case: str, known: set[tuple[str, str]], rows: Path) -> None:
    """Both ways of a case, as far as they are not known."""
    model, sizes = CASES[case]
    fn, args, options = build(model, **sizes)
    plan = sw.partition(fn, *args, mesh=MESH, device=DEVICE, progress=False, **options)
    for way in (OBEYED, SPECS):
        if (case, way) in known:
            continue
        exported = plain(plan) if way == SPECS else plan.export("tpu")[0]
        found = compile_exported(exported, plan.mesh, TARGET, plan.donate, 1800)
        row = {"case": case, "way": way, **{name: found.get(name) for name in _KEPT}}
        row["estimate"] = [plan.estimate.step_seconds, plan.estimate.peak_bytes]
        with rows.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(case, way, row, flush=True)


def read(rows: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The last that is known of each."""
    lines = rows.read_text().splitlines() if rows.exists() else []
    return {(row["case"], row["way"]): row for row in map(json.loads, lines)}


def table(rows: dict[tuple[str, str], dict[str, Any]]) -> str:
    """Both ways side by side, and the geometric mean."""
    lines = [
        "| model | step, ms: `plan.jit` | specs alone | ratio | waiting for communication, ms | GiB |",
        "|---|---|---|---|---|---|",
    ]
    ratios = []
    for case in CASES:
        both = [rows.get((case, way), {}) for way in (OBEYED, SPECS)]
        steps = [row.get("step_seconds") for row in both]
        shown = [
            f"{1e3 * step:.1f}" if step else "does not fit" if row else "–"
            for step, row in zip(steps, both, strict=True)
        ]
        ratio = ""
        if all(steps):
            ratios.append(steps[1] / steps[0])
            ratio = f"{ratios[-1]:.2f}"
        waits = ", ".join(f"{1e3 * row['exposed_seconds']:.1f}" if row.get("step_seconds") else "–" for row in both)
        sizes = ", ".join(f"{row['peak_bytes'] / 2**30:.2f}" if row.get("peak_bytes") else "–" for row in both)
        lines.append(f"| {case} | {shown[0]} | {shown[1]} | {ratio} | {waits} | {sizes} |")
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 0.0
    return "\n".join(lines) + f"\n\nSpecs alone take {mean:.2f} times as long in the geometric mean."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--only", default="", help=f"cases, separated by semicolons: {'; '.join(CASES)}")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    if not options.no_compile:
        for case in [name.strip() for name in options.only.split(";")] if options.only else CASES:
            run(case, set(read(options.rows)), options.rows)
    text = table(read(options.rows))
    print(text)
    if options.write:
        about = __doc__.split("\n\n")
        options.write.write_text(
            f"# {about[0].rstrip('.')}\n\n{about[-1].strip()}\n\n{text}\n\n{date.today()}, shardwright "
            f"{sw.__version__}, jax {jax.__version__}; `python -m benchmarks.inside`.\n"
        )


if __name__ == "__main__":
    main()
