"""The mesh's shape, chosen with the plan, against every fixed shape: how good, and how long it takes to find.

    python benchmarks/meshes.py --write docs/benchmarks/meshes.md            # about half an hour on two cores
    python benchmarks/meshes.py --only moe,nodes                             # some of the cases
    python benchmarks/meshes.py --only gpt-16 --verify                       # compiled for TPU v5e as well

For each program `sw.partition` is given the number of devices, then every shape of one or two axes and a shape of
three, each in the same process. Seconds are of the processor, JAX's tracing included, so that what else the machine
does counts little; single runs. `--verify` compiles the chosen plan and the best of the others (the tpu extra, and no
TPU). The case `nodes` has two nodes of eight A100 that are joined at 25 GB/s.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

import shardwright as sw
from shardwright.devices import axis_links, find_device
from shardwright.models import build
from shardwright.request.mesh import find_machine


@dataclass(frozen=True)
class Case:
    """A program, its devices as ``mesh=`` takes them, and a shape of three axes to compare with."""

    model: str
    mesh: Any
    device: str
    three: tuple[int, int, int]
    sizes: Mapping[str, Any] = field(default_factory=dict)

    def plan(self, mesh: Any) -> tuple[sw.Plan, float]:
        """The plan, and the processor's seconds that it took."""
        fn, args, options = build(self.model, **self.sizes)
        started = time.process_time()
        plan = sw.partition(fn, *args, mesh=mesh, device=self.device, progress=False, **options)
        return plan, time.process_time() - started


CASES = {
    "gpt-16": Case("gpt", 16, "tpu-v5e", (2, 2, 4), {"preset": "gemma-2b"}),
    "gpt-64": Case("gpt", 64, "tpu-v5e", (4, 4, 4), {"preset": "gemma-2b"}),
    "moe": Case("moe", 16, "tpu-v5e", (2, 2, 4)),
    "unet": Case("unet", 16, "tpu-v5e", (2, 2, 4)),
    "nodes": Case("gpt", "gpu:a100-80:2x8", "a100-80", (2, 2, 4), {"preset": "gemma-7b", "batch": 64}),
}


@dataclass(frozen=True)
class Row:
    """A mesh, the plan found on it, and the processor's seconds that this took."""

    mesh: dict[str, int]
    plan: sw.Plan
    seconds: float
    chosen: bool = False
    compiled: str = ""

    @property
    def key(self) -> tuple[bool, float]:
        """Lower is better."""
        return not self.plan.estimated_to_fit, self.plan.estimate.step_seconds


def run(name: str, case: Case, verify: bool) -> list[Row]:
    """The chosen mesh and the fixed ones, the chosen first."""
    plan, seconds = case.plan(case.mesh)
    rows = [Row(plan.mesh, plan, seconds, chosen=True)]
    print(name, "chosen", plan.mesh, f"{plan.estimate.step_seconds * 1e3:.3f} ms", f"{seconds:.1f} s", flush=True)
    machine = find_machine(case.mesh, case.device)
    fixed = [dict(zip(shape.names, shape.sizes, strict=True)) for shape in machine.shapes if len(shape.sizes) < 3]
    for mesh in [*fixed, dict(zip("xyz", case.three, strict=True))]:
        try:
            plan, seconds = case.plan(mesh)
        except sw.InfeasibleError as error:
            print(name, mesh, str(error)[:100], flush=True)
            continue
        rows.append(Row(mesh, plan, seconds))
        print(name, mesh, f"{plan.estimate.step_seconds * 1e3:.3f} ms", f"{seconds:.1f} s", flush=True)
    if verify:
        best = min(rows[1:], key=lambda row: row.key)
        for k, row in enumerate(rows):
            if row.chosen or row is best:
                verdict = row.plan.verify("tpu:v5e:4x4", timeout_seconds=3600)
                print(name, row.mesh, verdict.message, flush=True)
                step = f"{verdict.step_seconds * 1e3:,.1f} ms" if verdict.step_seconds else "refused"
                rows[k] = Row(row.mesh, row.plan, row.seconds, row.chosen, step)
    return rows


def table(name: str, case: Case, rows: list[Row]) -> list[str]:
    """The rows in Markdown, best first, and what they come to in a sentence."""
    chosen, fixed = rows[0], rows[1:]
    best, mean = min(fixed, key=lambda row: row.key), sum(row.seconds for row in fixed) / len(fixed)
    same = next((row for row in fixed if row.mesh == chosen.mesh), None)
    ratio = chosen.plan.estimate.step_seconds / best.plan.estimate.step_seconds
    took = f"{chosen.seconds / mean:.1f} times the mean of the fixed meshes"
    took += f", {chosen.seconds / same.seconds:.1f} times the same mesh alone" if same else ""
    lines = [
        f"## {name}: {case.model} {dict(case.sizes) or ''}, {case.mesh} × {case.device}".replace("  ", " "),
        "",
        f"Chosen: {_axes(chosen.mesh)}. Its step takes {ratio:.4f} of the best fixed mesh's; planning took {took}.",
        "",
        "| mesh | step, ms | GiB each | compiled | planning, s |",
        "|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: (not row.chosen, row.key)):
        estimate = row.plan.estimate
        mesh = f"**{_axes(row.mesh)}** (chosen)" if row.chosen else _axes(row.mesh)
        figures = f"{estimate.step_seconds * 1e3:,.2f} | {estimate.peak_bytes / 2**30:.2f}"
        lines.append(f"| {mesh} | {figures} | {row.compiled} | {row.seconds:.1f} |")
    if name == "nodes":
        lines += ["", *_by_link(chosen.plan)]
    return [*lines, ""]


def _by_link(plan: sw.Plan) -> list[str]:
    """What each axis splits, and the link that it runs on."""
    links = axis_links(plan.device, tuple(plan.mesh.values()))
    lines = ["| axis | link | splits, in order | weights split over it |", "|---|---|---|---|"]
    for (axis, size), link in zip(plan.mesh.items(), links, strict=True):
        splits = ", ".join(str(d.dimension) for d in plan.decisions if d.axis == axis and isinstance(d, sw.Decision))
        specs = jax.tree.leaves(plan.in_specs[0]["params"], is_leaf=lambda s: isinstance(s, jax.sharding.PartitionSpec))
        weights = sum(axis in str(spec) for spec in specs)
        rate = f"{link.link}, {link.bytes_per_second / 1e9:.0f} GB/s"
        lines.append(f"| {axis} {size} | {rate} | {splits or 'nothing'} | {weights} of {len(specs)} |")
    return lines


def _axes(mesh: Mapping[str, int]) -> str:
    return " × ".join(map(str, mesh.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CASES), help="Cases by name, with commas.")
    parser.add_argument("--verify", action="store_true", help="Compile the chosen plan and the best other one, too.")
    parser.add_argument("--write", type=Path, help="A Markdown file for the tables.")
    given = parser.parse_args()
    lines = [
        "# The mesh's shape, chosen and fixed",
        "",
        *(line.strip() for line in (__doc__ or "").split("\n\n")[2].splitlines()),
        "",
        f"{date.today()}, {platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}, "
        f"jax {jax.__version__}; the network between nodes has "
        f"{find_device('a100-80').links[1].bytes_per_second / 1e9:.0f} GB/s for each GPU. Regenerate with "
        "`python benchmarks/meshes.py --write docs/benchmarks/meshes.md`.",
        "",
    ]
    for name in given.only.split(","):
        lines += table(name, CASES[name], run(name, CASES[name], given.verify and CASES[name].mesh == 16))
        if given.write:
            given.write.write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
