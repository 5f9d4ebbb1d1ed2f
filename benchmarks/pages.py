"""All pages of docs/benchmarks made anew by one state of the code, one after the other.

    python -m benchmarks.pages --folder ~/pages                        goes on where it was; many hours on two cores
    python -m benchmarks.pages --folder ~/pages --only clock,inside
    python -m benchmarks.pages --list

Needs the tpu extra, the network for libraries, and no TPU. The folder keeps what compilers said, which holds for every
state of the code, the environments of libraries, and for this state (the commit's `src` and `benchmarks`) the rows of
each benchmark. A page is written when its commands have ended well, and is not made again for the same state.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]

PAGES: dict[str, tuple[str, ...]] = {
    "calibration": ("-m benchmarks.calibrate tpu-v5e --keep {keep} --page {page}",),
    "clock": ("-m benchmarks.clock --rows {rows} --keep {keep} --cache {cache} --write {page}",),
    "inside": ("-m benchmarks.clock --rows {clock} --no-run --inside {page}",),
    "evaluate": ("benchmarks/evaluate.py --write {page}",),
    "analysis": ("benchmarks/analysis.py --write {page}",),
    "budgets": ("benchmarks/budgets.py --write {page}",),
    "bounds": ("-m benchmarks.bounds --rows {rows} --write {page}",),
    "data_parallel_tpu": ("benchmarks/data_parallel_tpu.py --write {page}",),
    "gpu_memory": ("-m benchmarks.gpu_memory --rows {rows} --write {page}",),
    "long_context": ("-m benchmarks.long_context --verify --write {page}",),
    "fit": ("benchmarks/fit.py --write {page}",),
    "offload": ("benchmarks/offload.py --rows {rows} --write {page}",),
    "kernels_at_size": ("benchmarks/kernels_at_size.py --rows {rows} --write {page}",),
    "programs": ("-m benchmarks.programs --rows {rows} --write {page}",),
    "optimum": ("-m benchmarks.optimum --write {page}",),
    "ablation": ("-m benchmarks.ablation --rows {rows} --write {page}",),
    "meshes": ("benchmarks/meshes.py --write {page}",),
    "search": (
        "-m benchmarks.search --rows {rows}",
        "-m benchmarks.search --rows {rows} --depth",
        "-m benchmarks.search --rows {rows} --no-run --write {page}",
    ),
    "obeyed": ("benchmarks/obeyed.py --rows {rows} --write {page}",),
    "memory_edge": ("benchmarks/memory_edge.py --rows {rows} --cache {cache} --write {page}",),
    "kernels": (
        "-m benchmarks.kernels --count 500 --rows {rows}",
        "-m benchmarks.kernels --shipped --rows {rows}",
        "-m benchmarks.kernels --rows {rows} --write {page}",
    ),
    "random_programs": ("-m benchmarks.random_programs --count 1000 --rows {rows} --write {page}",),
    "ecosystem": ("benchmarks/ecosystem.py --cache {cache} --rows {rows} --write {page}",),
    "tuned": ("-m benchmarks.tuned --rows {rows} --write {page}",),
    "contenders": ("-m benchmarks.contenders --rows {rows} --write {page}",),
    "miscompiled": ("-m benchmarks.miscompiled --rows {rows} --write {page}",),
}
"""The commands of each page, those that take minutes first."""


def state() -> str:
    """The code that figures come from, by git's own names of its folders; what is not committed is a mistake."""

    def said(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout

    if said("status", "--porcelain", "--", "src", "benchmarks"):
        sys.exit("src and benchmarks have changes that are not committed: a page would be of no state of the code.")
    return "-".join(said("rev-parse", f"HEAD:{folder}")[:10] for folder in ("src", "benchmarks"))


def make(name: str, folder: Path, rows: Path) -> bool:
    """Run the commands of a page; whether all of them ended well."""
    page = REPOSITORY / "docs" / "benchmarks" / f"{name}.md"
    at = {"rows": rows / f"{name}.jsonl", "page": page, "keep": folder / name, "cache": folder / "environments"}
    at["clock"] = rows / "clock.jsonl"
    known = {"JAX_PLATFORMS": "cpu", "SHARDWRIGHT_COMPILED": str(folder / "compiled"), **os.environ}
    for command in PAGES[name]:
        words = [word.format(**at) for word in shlex.split(command)]
        with (rows / f"{name}.log").open("a") as log:
            ended = subprocess.run([sys.executable, *words], cwd=REPOSITORY, env=known, stdout=log, stderr=log)
        if ended.returncode:
            return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="for rows, environments and what compilers said")
    parser.add_argument("--only", default="", help="pages, separated by commas")
    parser.add_argument("--list", action="store_true", help="the commands, and nothing is run")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(PAGES)
    if unknown := [name for name in names if name not in PAGES]:
        parser.error(f"there is no page {unknown[0]!r}; there are {', '.join(PAGES)}")
    if options.list:
        for name in names:
            print(name, *(f"  python {command}" for command in PAGES[name]), sep="\n")
        return
    if options.folder is None:
        parser.error("--folder is needed to run")
    folder = options.folder.resolve()
    rows = folder / state()
    rows.mkdir(parents=True, exist_ok=True)
    for name in names:
        done = rows / f"{name}.done"
        if done.exists():
            continue
        started = time.perf_counter()
        if ended_well := make(name, folder, rows):
            done.touch()
        how = "made" if ended_well else f"NOT made, see {rows / name}.log"
        print(f"{name}: {how}, {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
