"""Programs that people run, planned at their real size and compiled at a middle one.

    python -m benchmarks.programs --rows rows.jsonl                        all; resumes; hours on two cores
    python -m benchmarks.programs --rows rows.jsonl --only dit,lora --again
    python -m benchmarks.programs --rows rows.jsonl --no-run --write docs/benchmarks/programs.md

Each is one file in `benchmarks/programs/`: training steps, a decoding step, finetuning; some have their own shardings.
"Real" is the published size on as many chips as it takes, planned but not compiled. At a "middle" size, with fewer
layers, experts or rows, the plan is compiled for 16 TPU chips, and what the estimate says stands beside what the
compiler made of it. "Small" runs on 8 CPU devices and is compared with the plain function, gradients as such. Where a
program has shardings of its own, it is also compiled as its author runs it, by plain `jax.jit`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.programs import PROGRAMS
from benchmarks.programs.page import BY_HAND, page


def run(name: str, limit_seconds: float, before: dict[str, Any]) -> dict[str, Any]:
    """What is known of a program, however its process ended; ``before`` is what was known of it."""
    command = [sys.executable, "-m", "benchmarks.programs.one", name]
    started = time.perf_counter()
    try:
        known_before = json.dumps(before)
        ended = subprocess.run(
            command, input=known_before, capture_output=True, text=True, timeout=limit_seconds, check=False
        )
        said, ending = ended.stdout, {} if ended.returncode == 0 else {"error": f"it ended with {ended.returncode}"}
    except subprocess.TimeoutExpired as late:
        said = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        ending = {"error": f"not done within {limit_seconds:.0f} seconds"}
    lines = [line for line in said.splitlines() if line.startswith('{"program"')]
    known = json.loads(lines[-1]) if lines else {"program": name}
    return {**known, **ending, "seconds": time.perf_counter() - started}


def read(rows: Path) -> dict[str, dict[str, Any]]:
    """The last that is known of each program."""
    lines = rows.read_text().splitlines() if rows.exists() else []
    return {row["program"]: row for row in map(json.loads, lines)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True, help="a file of results, one line of JSON a program")
    parser.add_argument("--only", default="", help=f"programs, separated by commas: {', '.join(PROGRAMS)}")
    parser.add_argument(
        "--again", action="store_true", help="also those in the file; what compiles the same does not again"
    )
    parser.add_argument("--limit", type=float, default=3600, help="seconds for each program")
    parser.add_argument("--no-run", action="store_true")
    parser.add_argument("--write", type=Path, help="the page with the tables")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(PROGRAMS)
    if unknown := [name for name in names if name not in PROGRAMS]:
        parser.error(f"there is no {unknown[0]!r}; there are {', '.join(PROGRAMS)}")
    for name in () if options.no_run else names:
        if options.again or name not in read(options.rows):
            row = run(name, options.limit, read(options.rows).get(name, {}))
            with options.rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(name, f"{row['seconds']:.0f} s", row.get("error", ""), file=sys.stderr, flush=True)
    if options.write:
        before = options.write.read_text() if options.write.exists() else ""
        options.write.write_text(page(__doc__ or "", read(options.rows), before.partition(BY_HAND)[2]))


if __name__ == "__main__":
    main()
