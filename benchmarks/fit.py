"""The largest batch by the estimate and by the TPU compiler, and what the compiler says to a quarter more.

    python benchmarks/fit.py --write docs/benchmarks/fit.md

Needs the tpu extra, and no TPU. `sw.fit` finds the largest batch of the built-in GPT's training step on 16 TPU v5e, in
steps of 16, first by the estimate and then, from there, by the compiler (`verify="tpu:v5e:4x4"`). Below each of the two
stands the smallest plan that was found for a batch that is a quarter larger, rounded up to a whole step.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import time
from datetime import date
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

import shardwright as sw
from shardwright.models import build

TARGET, DEVICE, MESH = "tpu:v5e:4x4", "tpu-v5e", {"data": 4, "model": 4}
DEVICES = math.prod(MESH.values())
MORE = 1.25


class Row(NamedTuple):
    """A batch, its plan's memory by the estimate and by the compiler, and whether the compiler accepts it."""

    batch: int
    what: str
    estimated_bytes: int
    compiled_bytes: int | None
    accepted: bool
    seconds: float


def compiled(batch: int, what: str, plan: sw.Plan) -> Row:
    started = time.perf_counter()
    verdict = plan.verify(TARGET, timeout_seconds=1800)
    needed = int(plan.estimate_cost.peak_bytes)
    row = Row(batch, what, needed, verdict.peak_bytes, verdict.ok, time.perf_counter() - started)
    print(row, verdict.message, flush=True)
    return row


def larger(batch: int, what: str) -> Row:
    """The smallest plan for a quarter more."""
    size = math.ceil(MORE * batch / DEVICES) * DEVICES
    fn, args, options = build("gpt", batch=size)
    front = sw.pareto(fn, *args, mesh=MESH, device=DEVICE, **options)
    return compiled(size, f"a quarter more than {what}", front.smallest)


def rows() -> list[Row]:
    fn, args, options = build("gpt")
    started = time.perf_counter()
    estimated = sw.fit(fn, *args, mesh=MESH, device=DEVICE, **options)
    print(estimated, f"{time.perf_counter() - started:.0f} s", sep="\n", flush=True)
    assert estimated.size is not None and estimated.plan is not None
    out = [compiled(estimated.size, "the largest by the estimate", estimated.plan)]
    out.append(larger(estimated.size, "by the estimate"))
    started = time.perf_counter()
    judged = sw.fit(fn, *args, mesh=MESH, device=DEVICE, verify=TARGET, most_devices=0, **options)
    print(judged, f"{time.perf_counter() - started:.0f} s", sep="\n", flush=True)
    assert judged.size is not None and judged.plan is not None and judged.verdict is not None
    needed = int(judged.plan.estimate_cost.peak_bytes)
    took = time.perf_counter() - started
    count = sum(tried.question == "compiled" for tried in judged.tried)
    what = f"the largest by the compiler, {count} sizes compiled"
    out.append(Row(judged.size, what, needed, judged.verdict.peak_bytes, judged.verdict.ok, took))
    out.append(larger(judged.size, "by the compiler"))
    return out


def table(found: list[Row]) -> str:
    lines = [
        "| batch | what it is | estimated GiB | compiled GiB | the compiler | took |",
        "|---|---|---|---|---|---|",
    ]
    for row in found:
        needed = f"{row.compiled_bytes / 2**30:.2f}" if row.compiled_bytes else "–"
        lines.append(
            f"| {row.batch} | {row.what} | {row.estimated_bytes / 2**30:.2f} | {needed} "
            f"| {'accepts' if row.accepted else 'refuses'} | {row.seconds:.0f} s |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    text = table(rows())
    print(text)
    if options.write:
        about = __doc__.split("\n\n")
        options.write.write_text(
            f"# {about[0].rstrip('.')}\n\n{about[-1].strip()}\n\n{text}\n\n{date.today()}, shardwright "
            f"{sw.__version__}, jax {jax.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores.\n"
        )


if __name__ == "__main__":
    main()
