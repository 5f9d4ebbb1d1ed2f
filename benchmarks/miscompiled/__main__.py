"""What XLA's partitioner computes wrongly, does not compile, or aborts on: every kind of op, every split, really run.

    python -m benchmarks.miscompiled --rows rows.jsonl                 run what is not in the file, with this jaxlib
    python -m benchmarks.miscompiled --rows rows.jsonl --only 'pad;fft'   a part: cases whose names begin so
    python -m benchmarks.miscompiled --rows rows.jsonl --plans         then ask Shardwright for plans of what failed
    python -m benchmarks.miscompiled --rows rows.jsonl --no-run --write docs/benchmarks/miscompiled.md

At the end all runs are held against the table in ``shardwright.compiler.miscompiled``; where one failed that a plan may
have, or a plan is not right, the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.miscompiled import plans
from benchmarks.miscompiled.cases import CASES, spread
from benchmarks.miscompiled.check import judge
from benchmarks.miscompiled.kept import recalled
from benchmarks.miscompiled.page import Results, document, evidence, verdict
from benchmarks.miscompiled.runner import read_rows, run_all

KEPT = Path(__file__).parents[2] / "docs" / "benchmarks" / "miscompiled.jsonl"


def main() -> int:
    """Run, hold against the table, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True, help="JSON lines, to go on from and to add to")
    parser.add_argument("--kept", type=Path, default=KEPT, help="what a rows file that is not there begins with")
    parser.add_argument("--only", default="", help="beginnings of the names of cases, separated by semicolons")
    parser.add_argument("--no-run", action="store_true", help="only look at the rows")
    parser.add_argument("--plans", action="store_true", help="ask Shardwright for plans of what failed, and run them")
    parser.add_argument("--write", type=Path, help="Markdown file; what is kept of the runs goes beside it as .jsonl")
    options = parser.parse_args()
    beginnings = tuple(options.only.split(";"))
    cases = [case for case in CASES if case.name.startswith(beginnings)]
    chosen = [case.name for case in spread(cases)]
    if not options.rows.exists() and options.kept.exists():
        begun = recalled(options.kept.read_text(), cases)
        options.rows.write_text("".join(json.dumps(row) + "\n" for row in begun))
    if not options.no_run:
        run_all(chosen, options.rows)
    if options.plans:
        failed = {row["case"] for row in read_rows(options.rows) if row["verdict"] != "right"}
        run_all([name for name in chosen if name in failed], options.rows, plans.work)
    results = Results.of(read_rows(options.rows), judge(cases))
    print("\n".join(verdict(results)))
    if options.write:
        options.write.write_text(document(results))
        options.write.with_suffix(".jsonl").write_text(evidence(results))
    bad_plans = any(row["verdict"] != "right" for rows in results.plans.values() for row in rows)
    return int(bad_plans or any(map(results.missed, results.matrix)))


if __name__ == "__main__":
    raise SystemExit(main())
