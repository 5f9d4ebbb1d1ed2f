"""How many states a second the cost model prices, each one decision away from the last.

    python benchmarks/evaluate.py                                      print the table
    python benchmarks/evaluate.py --write docs/benchmarks/evaluate.md

A walk of random single-decision changes: a group is put on an axis's list at a random place, with random sides in its
conflicts, or taken off. "cold" is the walk as it is made, with all that it meets for the first time; "first" the first
tenth of it, where that is most; "warm" the same walk again from the start. Rates are of this machine; the ratio of 96
layers to 12 is what counts.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

import shardwright as sw
from shardwright.devices import find_device
from shardwright.models import build
from shardwright.price import CostModel, Places
from shardwright.request import MeshShape
from shardwright.space.state import Entry, State

CASES = {
    "gpt, scanned": ("gpt", {}),
    "gpt, 12 layers": ("gpt", {"layers": 12, "scan": False}),
    "gpt, 48 layers": ("gpt", {"layers": 48, "scan": False}),
    "gpt, 96 layers": ("gpt", {"layers": 96, "scan": False}),
    "unet": ("unet", {}),
    "gns": ("gns", {}),
}
MESH = {"data": 4, "model": 4}
MOST_ON_A_LIST = 4


def walk(analysis: sw.Analysis, steps: int, seed: int) -> Iterator[State]:
    """States, each one decision away from the one before."""
    choose = random.Random(seed)
    lists: list[list[Entry]] = [[] for _ in MESH]
    for _ in range(steps):
        entries = choose.choice(lists)
        if entries and (len(entries) >= MOST_ON_A_LIST or choose.random() < 0.5):
            entries.pop(choose.randrange(len(entries)))
        else:
            left = [g for g in range(len(analysis.groups)) if all(entry.group != g for entry in entries)]
            group = choose.choice(left)
            sides = tuple(choose.randrange(2) for _ in analysis.groups[group].conflicts)
            entries.insert(choose.randrange(len(entries) + 1), Entry(group, sides))
        yield State(tuple(map(tuple, lists)))


def measure(name: str, steps: int) -> dict[str, object]:
    model, sizes = CASES[name]
    fn, args, options = build(model, **sizes)
    analysis = sw.analyse(fn, *args, **options)
    start = time.perf_counter()
    costs = CostModel(Places(analysis), MeshShape.of(MESH), find_device("tpu-v5e"))
    build_seconds = time.perf_counter() - start
    states = list(walk(analysis, steps, seed=0))
    seconds = []
    first = 0.0
    for _ in range(2):
        start = time.perf_counter()
        for k, state in enumerate(states, 1):
            costs.evaluate(state)
            if k == steps // 10:
                first = first or time.perf_counter() - start
        seconds.append(time.perf_counter() - start)
    return {
        "name": name,
        "ops": len(analysis.program.ops),
        "groups": len(analysis.groups),
        "families": len(costs.families),
        "points": len(costs.at),
        "build": build_seconds,
        "first": (steps // 10) / first,
        "cold": steps / seconds[0],
        "warm": steps / seconds[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20000)
    parser.add_argument("--only", default="", help="part of a case's name")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    lines = [
        "| program | ops | groups | families | points | set-up, s | states a second, cold | first | warm |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    rates = {}
    for name in CASES:
        if options.only not in name:
            continue
        row = measure(name, options.steps)
        rates[name] = row["cold"]
        lines.append(
            f"| {name} | {row['ops']:,} | {row['groups']} | {row['families']} | {row['points']:,} "
            f"| {row['build']:.2f} | {row['cold']:,.0f} | {row['first']:,.0f} | {row['warm']:,.0f} |"
        )
        print(lines[-1], flush=True)
    note = ""
    if "gpt, 12 layers" in rates and "gpt, 96 layers" in rates:
        note = f"96 layers go at {rates['gpt, 96 layers'] / rates['gpt, 12 layers']:.2f} of the rate of 12 layers."
        print(note)
    if options.write:
        about = __doc__.split("\n\n")
        options.write.write_text(
            f"# {about[0].rstrip('.')}\n\n{about[-1].strip()} {options.steps:,} steps on a mesh of 4 × 4 TPU v5e.\n\n"
            + "\n".join(lines)
            + f"\n\n{note}\n\n{date.today()}, shardwright {sw.__version__}, jax {jax.__version__}, Python "
            f"{platform.python_version()}, {os.cpu_count()} cores.\n"
        )


if __name__ == "__main__":
    main()
