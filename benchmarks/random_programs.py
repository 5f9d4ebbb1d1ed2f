"""Plans of random programs, really run on eight CPU devices and compared with the plain program.

    python -m benchmarks.random_programs --count 1000 --rows rows.jsonl          cases 0 to 999, three plans each
    python -m benchmarks.random_programs --count 1000 --rows rows.jsonl          goes on where it was
    python -m benchmarks.random_programs --rows rows.jsonl --again wrong,abort   runs again what came out so
    python -m benchmarks.random_programs --rows rows.jsonl --write docs/benchmarks/random_programs.md
    python -m benchmarks.random_programs --reduce 37            the steps of it that fail

A program has two to six steps of the grammar in `tests/grammar`; half of them are gradients, and then what is compared
is the derivatives themselves. Case number k is the same program everywhere. Of each, up to three plans are run: random
decisions (groups, axes and sides), specs pinned to random arguments, or a short search. Sizes are even, odd, mixed or
zero; the meshes have one to three axes and two to eight devices. A result is equal if no entry differs by more than
0.0001 of the largest. Cases run in child processes: what ends the process is an "abort" of that plan, and the run goes
on.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from datetime import date
from pathlib import Path

import shardwright as sw

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from grammar.batches import Row, read_rows, run
from grammar.smaller import reduce_case

BY_HAND = "<!-- by hand, and kept -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument(
        "--count",
        type=int,
        default=int(os.environ.get("SHARDWRIGHT_EXAMPLES", "0")),
        help="how many cases from there on; by default SHARDWRIGHT_EXAMPLES",
    )
    parser.add_argument("--rows", type=Path, help="file of rows, one JSON object a line, to go on from and to add to")
    parser.add_argument("--again", default="", help="verdicts to run again, with commas between")
    parser.add_argument("--reduce", type=int, help="number of a case to make smaller")
    parser.add_argument("--mesh", default="a=2,b=2", help="of the plan to make smaller")
    parser.add_argument("--write", type=Path, help="Markdown file to write the counts to")
    options = parser.parse_args()
    if options.reduce is not None:
        print(reduce_case(options.reduce, options.mesh))
        return
    rows, done = read_rows(options.rows)
    wanted = set(options.again.split(","))
    again = {row["case"] for row in rows if row["verdict"] in wanted}
    cases = sorted(again | set(range(options.first, options.first + options.count)) - done)
    rows = [row for row in rows if row["case"] not in cases] + run(cases, options.rows)
    print(summary(rows))
    if options.write:
        by_hand = kept(options.write.read_text()) if options.write.exists() else ""
        options.write.write_text(document(rows, by_hand))


def summary(rows: list[Row]) -> str:
    verdicts = Counter(row["verdict"] for row in rows)
    gradients = sum(row["gradient"] for row in rows)
    return f"{len(rows):,} plans, {gradients:,} of gradients: " + ", ".join(
        f"{n:,} {v}" for v, n in verdicts.most_common()
    )


def kept(text: str) -> str:
    """What people wrote at the end of the page about causes."""
    return text.partition(BY_HAND)[2].strip()


def document(rows: list[Row], by_hand: str) -> str:
    about = __doc__.partition("A program has")[2].strip()
    cases = {row["case"] for row in rows}
    padded = sum(row.get("padded", False) for row in rows)
    how = Counter(row["how"] for row in rows if "how" in row)
    lines = ["# Random programs", "", f"A program has {about}", "", f"**{summary(rows)}.**", ""]
    lines += [f"{len(cases):,} programs; {padded:,} plans pad something inside that axes do not divide. Decided by: "]
    lines[-1] += ", ".join(f"{name} {count:,}" for name, count in how.most_common()) + "."
    lines += ["", "| a step of the program | plans | of gradients | equal |", "|---|---|---|---|"]
    for kind in sorted({kind for row in rows for kind in row["kinds"]}):
        these = [row for row in rows if kind in row["kinds"]]
        equal, gradients = sum(row["verdict"] == "ok" for row in these), sum(row["gradient"] for row in these)
        lines.append(f"| {kind} | {len(these):,} | {gradients:,} | {equal:,} |")
    lines += ["", "## Not equal", ""]
    others = [row for row in rows if row["verdict"] != "ok"]
    for row in others:
        words = " ".join(row.get("message", "").split())
        lines.append(f"- case {row['case']}, plan {row['plan']}: {row['verdict']}; {words}")
    lines += ["" if others else "None.\n", made_on(rows), "", BY_HAND, "", by_hand]
    return "\n".join(lines) + "\n"


def made_on(rows: list[Row]) -> str:
    versions = ", ".join(sorted({f"jaxlib {row['jaxlib']}" for row in rows if "jaxlib" in row}))
    codes = ", ".join(f"{code} ({count:,})" for code, count in Counter(row["code"] for row in rows).most_common())
    return (
        f"{date.today()}, shardwright {sw.__version__}, {versions}; plans by commit: {codes}. "
        "Made by `python -m benchmarks.random_programs --count … --rows … --write docs/benchmarks/random_programs.md`."
    )


if __name__ == "__main__":
    main()
