"""Are the plans the same as before a change that should not change them? To the letter, and how much work it took.

    python benchmarks/same_plans.py --rows before.jsonl                        before; resumes
    python benchmarks/same_plans.py --rows after.jsonl --against before.jsonl  after: exit code 1 where any differs

Every built-in model in every preset, on three meshes, for two kinds of devices, with all of their memory and with half
of what that plan takes. Of a plan is kept what a person is shown: its decisions, the spec of every argument and result,
seconds and bytes of the estimate, its collectives; or the words of the error. The last lines compare the states that
the searches met and their processor seconds, which is a ratio of two runs: make both on one machine.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

import shardwright as sw
from shardwright.models import MODELS, build

MESHES = ({"data": 8}, {"data": 4, "model": 4}, {"x": 2, "y": 4, "z": 4})
DEVICES = ("tpu-v5e", "a100-80")
TIGHT = 0.5
Row = dict[str, Any]
_WORK = ("evaluations", "seconds")
"""Of a row, what is compared as a ratio and not to the letter."""


def cases() -> Iterator[tuple[str, str, dict[str, int], str]]:
    for name, model in MODELS.items():
        if name == model.name:  # another name of a model is not another model
            for preset in model.presets:
                yield from ((name, preset, mesh, device) for mesh in MESHES for device in DEVICES)


def planned(fn: Any, args: Any, options: Any, mesh: dict[str, int], device: str, memory: int | None) -> Row:
    """A plan in letters, and what finding it took."""
    started = time.process_time()
    try:
        plan = sw.partition(
            fn, *args, mesh=mesh, device=device, memory=memory, progress=False, ask_compiler=False, **options
        )
    except sw.InfeasibleError as error:
        return {"error": str(error), "seconds": time.process_time() - started}
    estimate = plan.estimate
    return {
        "decisions": list(map(str, plan.decisions)),
        "in_specs": [str(spec) for spec in jax.tree.leaves(plan.in_specs)],
        "out_specs": [str(spec) for spec in jax.tree.leaves(plan.out_specs)],
        "step_seconds": repr(estimate.step_seconds),
        "comm_seconds": repr(estimate.comm_seconds),
        "peak_bytes": estimate.peak_bytes,
        "collectives": [[c.kind, list(c.axes), c.total_bytes] for c in estimate.collectives],
        "evaluations": plan.search.evaluations if plan.search else 0,
        "seconds": time.process_time() - started,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True, help="a file of plans, one line of JSON each")
    parser.add_argument("--against", type=Path, help="such a file of before")
    parser.add_argument("--models", default="", help="some of them, separated by commas")
    options = parser.parse_args()
    have = read(options.rows)
    for name, preset, mesh, device in cases():
        key = f"{name} {preset} {'x'.join(map(str, mesh.values()))} {device}"
        if f"{key} tight" in have or (options.models and name not in options.models.split(",")):
            continue
        fn, args, own = build(name, preset=preset)
        ample = planned(fn, args, own, mesh, device, None)
        memory = int(TIGHT * ample["peak_bytes"]) if "peak_bytes" in ample else None
        tight = planned(fn, args, own, mesh, device, memory)
        with options.rows.open("a") as file:
            for row in ({"case": f"{key} ample", **ample}, {"case": f"{key} tight", **tight}):
                file.write(json.dumps(row) + "\n")
                have[row["case"]] = row
        print(key, flush=True)
    return compare(read(options.against), have) if options.against else 0


def compare(before: dict[str, Row], after: dict[str, Row]) -> int:
    """Print what differs, and the ratio of the work."""
    both = before.keys() & after.keys()
    differing = 0
    for case in sorted(both):
        fields = (before[case].keys() | after[case].keys()) - set(_WORK)
        wrong = [field for field in sorted(fields) if before[case].get(field) != after[case].get(field)]
        differing += bool(wrong)
        for field in wrong:
            print(f"{case}: {field}: {before[case].get(field)} became {after[case].get(field)}")
    print(f"{len(both)} plans, {differing} differ.")
    for field in _WORK:
        old, new = (sum(rows[case].get(field, 0) for case in both) for rows in (before, after))
        print(f"{field}: {new / old:.3f} of before ({old:,.0f})" if old else f"{field}: none")
    return int(differing > 0 or not both)


def read(path: Path) -> dict[str, Row]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {row["case"]: row for row in map(json.loads, lines)}


if __name__ == "__main__":
    raise SystemExit(main())
