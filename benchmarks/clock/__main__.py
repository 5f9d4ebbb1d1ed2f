"""How far the estimate's seconds and bytes are from the TPU compiler's, and which plan it would choose.

    python -m benchmarks.clock --cache ~/ecosystem --keep ~/clock --rows rows.jsonl           all; resumes; hours
    python -m benchmarks.clock --cache ~/ecosystem --keep ~/clock --rows rows.jsonl --only "Conformer" --again
    python -m benchmarks.clock --keep ~/clock --rows rows.jsonl --again --no-compile          the estimates anew
    python -m benchmarks.clock --rows rows.jsonl --no-run --write docs/benchmarks/clock.md
    python -m benchmarks.clock --rows rows.jsonl --no-run --inside docs/benchmarks/inside.md

Needs the tpu extra, the network to install libraries, and no TPU. Every subject is planned by the search, by experts'
tactics and at random, on a mesh of data 4 × model 4, and all plans are compiled for 16 TPUs, v5e unless it says
otherwise. Steps are replayed from the compiled schedules. What the compiler said is kept, here and beside the page, so
that a change of the model compiles nothing again but plans that are new.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.clock import PLANS, SUBJECTS
from benchmarks.clock.page import BY_HAND, inside_page, page, summary
from benchmarks.ecosystem import ENVIRONMENTS
from benchmarks.ecosystem.environments import environment

HERE = Path(__file__).parents[1]
KNOWN = HERE.parent / "docs" / "benchmarks" / "clock.jsonl"
"""The rows of the page as it is: what was compiled for it is not compiled again."""
_CHILD = """
import sys
from pathlib import Path
here = Path(sys.argv[1])
sys.path.insert(0, str(here.parent))
sys.path.append(str(here))  # last: what stands there must not hide a library
from benchmarks.clock.one import examine
name, folder, plans, known, compiles, limit = sys.argv[2:]
plans, compiles = plans.split(";"), compiles == "compile"
examine(name, Path(folder), plans, Path(known), compiles=compiles, limit_seconds=float(limit))
"""

Rows = dict[tuple[str, str], dict[str, Any]]


def run(name: str, plans: Sequence[str], options: argparse.Namespace) -> bool:
    """Examine some plans of a subject and write their rows as they come; whether all came."""
    needed = SUBJECTS[name].environment
    python = environment(options.cache.resolve(), needed, ENVIRONMENTS[needed]) if needed else Path(sys.executable)
    folder, compiles = options.keep.resolve(), "no" if options.no_compile else "compile"
    task = [name, str(folder), ";".join(plans), str(KNOWN), compiles, str(options.limit)]
    command = [str(python), "-c", _CHILD, str(HERE), *task]
    known = {"JAX_PLATFORMS": "cpu", **os.environ}
    with (
        log_of(name, options.keep).open("w") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=known) as process,
    ):
        for line in process.stdout or ():
            if line.startswith('{"subject"'):
                with options.rows.open("a") as file:
                    file.write(line)
                print(summary(json.loads(line)), file=sys.stderr, flush=True)
    return process.returncode == 0


def log_of(name: str, folder: Path) -> Path:
    """What a subject's process complained of."""
    return folder / f"{name.replace('/', ' ')}.log"


def read(rows: Path) -> Rows:
    """The last that is known of each subject and plan."""
    lines = rows.read_text().splitlines() if rows.exists() else []
    return {(row["subject"], row["plan"]): row for row in map(json.loads, lines) if row["subject"] in SUBJECTS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True, help="a file of results, one line of JSON a plan")
    parser.add_argument("--keep", type=Path, help="a folder for what compilers said")
    parser.add_argument("--cache", type=Path, help="a folder for virtual environments")
    parser.add_argument("--only", default="", help=f"subjects, separated by semicolons: {'; '.join(SUBJECTS)}")
    parser.add_argument("--plans", default="", help=f"plans, separated by semicolons: {'; '.join(PLANS)}")
    parser.add_argument("--again", action="store_true", help="also those that are in the file already")
    parser.add_argument("--limit", type=float, default=900, help="seconds for each compilation")
    parser.add_argument("--no-compile", action="store_true", help="the estimates, and what is kept")
    parser.add_argument("--no-run", action="store_true")
    parser.add_argument("--write", type=Path, help="the page with the tables")
    parser.add_argument("--inside", type=Path, help="the page of plans beside their specs alone")
    options = parser.parse_args()
    names = [name.strip() for name in options.only.split(";")] if options.only else list(SUBJECTS)
    plans = [plan.strip() for plan in options.plans.split(";")] if options.plans else list(PLANS)
    for asked, known in ((names, list(SUBJECTS)), (plans, list(PLANS))):
        if unknown := [name for name in asked if name not in known]:
            parser.error(f"there is no {unknown[0]!r}; there are {'; '.join(known)}")
    if not options.no_run:
        if options.keep is None or (options.cache is None and any(SUBJECTS[name].environment for name in names)):
            parser.error("--keep, and --cache for the models of libraries, are needed to run")
        options.keep.mkdir(parents=True, exist_ok=True)
        for name in names:
            done = [] if options.again else [plan for subject, plan in read(options.rows) if subject == name]
            wanted = [plan for plan in plans if plan not in done]
            if wanted and not run(name, wanted, options):
                print(f"{name}: it did not come to its end; see {log_of(name, options.keep)}", file=sys.stderr)
    if options.write:
        before = options.write.read_text() if options.write.exists() else ""
        rows = read(options.rows)
        options.write.write_text(page(__doc__ or "", rows, before.partition(BY_HAND)[2]))
        options.write.with_suffix(".jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows.values()))
    if options.inside:
        options.inside.write_text(inside_page(read(options.rows)))
    if not (options.write or options.inside):
        print(page(__doc__ or "", read(options.rows)))


if __name__ == "__main__":
    main()
