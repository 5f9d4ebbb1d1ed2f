"""Whether the search finds the best state, where every state can be tried.

    python -m benchmarks.optimum [--seeds 10] [--most 20000] [--write docs/benchmarks/optimum.md]

Small programs (`tests/small.py`) on three meshes of TPU v5e, with the device's memory and with 0.45 and 0.2 of what the
unsharded program takes. All states are priced, then the search runs with each seed; it counts as found if it is as fast
as the best state that fits to one part in 10⁹, or as small as the smallest where none fits. The search may use
decisions with exceptions, which the enumeration does not have, so it is sometimes better.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from datetime import date
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import jax

import shardwright as sw
from benchmarks.baselines import exhaustive
from shardwright.devices import find_device
from shardwright.price import CostModel, Places
from shardwright.request import MeshShape
from shardwright.search import Space, find_actions, find_keepers, find_state
from shardwright.space.state import State
from small import MESHES, SMALL

DEVICE = find_device("tpu-v5e")
SAME = 1e-9


def measure(name: str, mesh_name: str, seeds: int, most: int) -> list[str]:
    fn, args, donate = SMALL[name]
    analysis = sw.analyse(fn, *args, donate=donate)
    mesh = MeshShape.of(MESHES[mesh_name])
    whole, keepers = find_keepers(analysis, ())
    costs = CostModel(Places(analysis), mesh, DEVICE, whole)
    space = Space(analysis, costs, find_actions(analysis, mesh, matters=0.0), whole, keepers)
    root = State(space.root, whole)
    unsharded = costs.evaluate(root).peak_bytes
    lines = []
    for memory, limit in (
        ("ample", DEVICE.usable_bytes),
        ("0.45", int(0.45 * unsharded)),
        ("0.2", int(0.2 * unsharded)),
    ):
        best = exhaustive(space, costs, limit, most=most)
        if best.cost is None:
            return []
        hits = better = 0
        started, evaluations = time.perf_counter(), 0
        for seed in range(seeds):
            found = find_state(analysis, costs, root, limit, keepers=keepers, seed=seed)
            evaluations += found.search.evaluations
            if best.fits(limit):
                fits = found.cost.peak_bytes <= limit
                hits += fits and found.cost.step_seconds <= best.cost.step_seconds * (1 + SAME)
                better += fits and found.cost.step_seconds < best.cost.step_seconds * (1 - SAME)
            else:
                hits += found.cost.peak_bytes <= best.cost.peak_bytes
                better += found.cost.peak_bytes < best.cost.peak_bytes
        seconds = (time.perf_counter() - started) / seeds
        states = best.note.removesuffix(" states")
        lines.append(
            f"| {name} | {mesh_name} | {memory} | {states} | {evaluations // seeds:,} | {hits} of {seeds} | {better} "
            f"| {best.seconds:.2f} | {seconds:.2f} |"
        )
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--most", type=int, default=20_000)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    lines = [line for m in MESHES for name in SMALL for line in measure(name, m, options.seeds, options.most)]
    tried = len(lines) * options.seeds
    found = sum(int(line.split("|")[6].split()[0]) for line in lines)
    programs = {line.split("|")[1].strip() for line in lines}
    by_mesh = {m: len({line.split("|")[1] for line in lines if line.split("|")[2].strip() == m}) for m in MESHES}
    summary = (
        f"{len(programs)} programs ({', '.join(f'{n} on {m}' for m, n in by_mesh.items())}), {len(lines)} cases: the "
        f"optimum was found in {found:,} of {tried:,} searches."
    )
    print(summary)
    if options.write:
        about = __doc__.split("\n\n")
        head = "| program | mesh | memory | states | states searched | found | better | all states, s | search, s |"
        options.write.write_text(
            f"# {about[0]}\n\n{about[-1].strip()}\n\n{summary}\n\n{head}\n|{'---|' * 9}\n"
            + "\n".join(lines)
            + f"\n\n{date.today()}, shardwright {sw.__version__}, jax {jax.__version__}, Python "
            f"{platform.python_version()}, {os.cpu_count()} cores.\n"
        )


if __name__ == "__main__":
    main()
