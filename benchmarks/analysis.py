"""How long the analysis takes, JAX's own tracing and lowering apart, and how it grows with the depth of the model.

    python benchmarks/analysis.py                      print the table
    python benchmarks/analysis.py --write docs/benchmarks/analysis.md

Each row analyses an unrolled GPT training step (Adam, remat). "Analysis" is all that Shardwright does after JAX's
lowering: copying the module, Shardy's rules, reading the program, names, colours, conflicts, groups, descriptions. Each
figure is the median over repeated runs on one lowering.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from datetime import date
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

import shardwright
from shardwright import _jax
from shardwright.analysis import analyse_program
from shardwright.frontend.trace import lower
from shardwright.ir.build import read_module
from shardwright.models import build

LAYERS = (6, 12, 24, 48, 96)
STAGES = ("module", "program", "analysis", "descriptions")


def measure(layers: int, repeats: int) -> dict[str, float]:
    fn, args, _ = build("gpt", scan=False, layers=layers)
    begin = time.perf_counter()
    lowered = lower(fn, args, "tpu").lowered
    row: dict[str, float] = {"layers": layers, "lowering": time.perf_counter() - begin}
    times: dict[str, list[float]] = {stage: [] for stage in STAGES}
    for _ in range(repeats):
        marks = [time.perf_counter()]
        module = _jax.copy_of(lowered)
        marks.append(time.perf_counter())
        program = read_module(module).program
        marks.append(time.perf_counter())
        analysis = analyse_program(program)
        marks.append(time.perf_counter())
        groups = len(analysis.descriptions)
        marks.append(time.perf_counter())
        for stage, start, stop in zip(STAGES, marks, marks[1:], strict=False):
            times[stage].append(stop - start)
    row |= {stage: statistics.median(found) for stage, found in times.items()}
    row["total"] = statistics.median(map(sum, zip(*times.values(), strict=True)))
    return row | {"ops": len(program.ops), "colours": analysis.colours.count, "groups": groups}


def table(rows: list[dict[str, float]]) -> str:
    lines = [
        "| layers | ops | colours | groups | JAX's lowering, s | analysis, s | ms per 1,000 ops |"
        " of that: module | program | analysis | descriptions |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        per = [1e6 * row[k] / row["ops"] for k in ("total", *STAGES)]
        lines.append(
            f"| {row['layers']} | {row['ops']:,} | {row['colours']} | {row['groups']} | {row['lowering']:.2f} "
            f"| {row['total']:.3f} | " + " | ".join(f"{p:.1f}" for p in per) + " |"
        )
    return "\n".join(lines)


def growth(rows: list[dict[str, float]]) -> float:
    """Slope of log(seconds) over log(ops): 1 is linear."""
    ops, seconds = (np.log([row[k] for row in rows]) for k in ("ops", "total"))
    return float(np.polyfit(ops, seconds, 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--write", type=Path, help="Markdown file to write the results to")
    options = parser.parse_args()
    rows = []
    for layers in LAYERS:
        rows.append(measure(layers, options.repeats))
        print(table(rows[-1:]).splitlines()[-1], flush=True)
    result = (
        f"{table(rows)}\n\nGrowth: seconds ~ ops^{growth(rows):.2f} (1 is linear). "
        f"Largest: {max(1e6 * r['total'] / r['ops'] for r in rows):.1f} ms per 1,000 ops.\n"
    )
    print(result)
    if options.write:
        options.write.write_text(
            "# Time of the analysis\n\n"
            f"{__doc__.split('    python')[0].strip()}\n\n{__doc__.split('analysis.md')[1].strip()}\n\n{result}\n"
            f"{date.today()}, shardwright {shardwright.__version__}, jax {jax.__version__}, "
            f"Python {platform.python_version()}, {os.cpu_count()} cores ({platform.machine()}). "
            "Made by `python benchmarks/analysis.py --write docs/benchmarks/analysis.md`.\n"
        )


if __name__ == "__main__":
    main()
