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
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BATCH = 50
"""Cases of one child process."""
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--count", type=int, default=0, help="how many cases from there on")
    parser.add_argument("--rows", type=Path, help="file of rows, one JSON object a line, to go on from and to add to")
    parser.add_argument("--again", default="", help="verdicts to run again, with commas between")
    parser.add_argument("--reduce", type=int, help="number of a case to make smaller")
    parser.add_argument("--write", type=Path, help="Markdown file to write the counts to")
    parser.add_argument("--mesh", default="a=2,b=2", help="of the plan to make smaller")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--child", nargs=2, metavar=("CASES", "PLAN"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_here([int(k) for k in options.child[0].split(",")], int(options.child[1]))
    elif options.part is not None:
        reduce_here(options.reduce, options.mesh, options.part)
    elif options.reduce is not None:
        reduce_case(options.reduce, options.mesh)
    else:
        rows = read_rows(options.rows)
        wanted = set(options.again.split(",")) - {""}
        again = {r["case"] for r in rows if r["verdict"] in wanted}
        done = {r["case"] for r in rows if r.get("last")} - again
        cases = sorted(again | set(range(options.first, options.first + options.count)) - done)
        rows = [r for r in rows if r["case"] not in cases] + run(cases, options.rows)
        print(summary(rows))
        if options.write:
            from benchmarks.random_page import document

            options.write.write_text(document(rows))


def read_rows(path: Path | None) -> list[Row]:
    """The last row of each plan: what was run again counts as it came out then."""
    if path is None or not path.exists():
        return []
    rows: dict[tuple[int, int], Row] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        rows[row["case"], row["plan"]] = row
    return list(rows.values())


def run(cases: list[int], path: Path | None) -> list[Row]:
    """All of these cases, in child processes; a row goes to the file as soon as it is known."""
    code = revision()
    out: list[Row] = []
    count: Counter[str] = Counter()

    def note(row: Row) -> None:
        row = row | {"code": code}
        out.append(row)
        if path is not None:
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        if not row.get("last"):
            count[row["verdict"]] += 1
            if row["verdict"] != "ok":
                print(f"{row['case']}:{row['plan']} {row['verdict']} {row.get('message', '')[:200]}", flush=True)

    while cases:
        batch, cases = cases[:BATCH], cases[BATCH:]
        first = 0
        while batch:
            batch, first = attempt(batch, first, note)
        print(f"{len(cases)} cases left; {dict(count)}", flush=True)
    return out


def attempt(batch: list[int], first: int, note: Any) -> tuple[list[int], int]:
    """Run a batch from a plan of its first case on; what is left of it, if the child died."""
    command = [sys.executable, "-m", "benchmarks.random_programs", "--child", ",".join(map(str, batch)), str(first)]
    left, running = list(batch), None
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment()
    ) as child:
        words: list[str] = []
        reader = threading.Thread(target=lambda: words.extend(child.stderr or ()))
        reader.start()
        for line in child.stdout or ():
            row = json.loads(line)
            if row.pop("running", False):
                running = row
                continue
            note(row)
            if row.get("last"):
                left.remove(row["case"])
        reader.join()
    if not left:
        return [], 0
    if running is None:
        raise SystemExit("a child did not start:\n" + "".join(words[-20:]))
    reason = next((w for w in words if "Check failed" in w or "F0" in w[:2]), "".join(words[-3:]))
    note(running | {"verdict": "abort", "message": reason.strip()[-500:]})
    return left, running["plan"] + 1


def run_here(cases: list[int], first: int) -> None:
    import jax

    from grammar.cases import run_case

    def tell(row: Row) -> None:
        print(json.dumps(row), flush=True)

    version = {"jaxlib": jax.lib.__version__}
    for case in cases:
        for row in run_case(case, first, before=lambda row: tell(row | version | {"running": True})):
            tell(row | version)
        tell({"case": case, "plan": 99, "verdict": "done", "last": True})
        jax.clear_caches()
        first = 0


def reduce_case(case: int, mesh: str) -> None:
    """Print the first few steps of a case that fail, and what ended the process if that is how."""
    command = [sys.executable, "-m", "benchmarks.random_programs", "--reduce", str(case), "--mesh", mesh, "--part", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment())
    rows = [json.loads(line) for line in ended.stdout.splitlines()]
    failed = [r for r in rows if "verdict" in r]
    for name, value in (failed[-1] if failed else rows[-1]).items():
        print(f"{name}: {value}")
    print("plain jax.jit with the same specs:", rows[-1].get("plain", "?") if failed else "?")
    checks = [line for line in ended.stderr.splitlines() if "Check failed" in line]
    print("\n".join(checks) or f"exit {ended.returncode} {ended.stderr[-300:] if ended.returncode else ''}")


def reduce_here(case: int, mesh: str, part: int) -> None:
    from grammar.smaller import smaller

    sizes = {axis: int(size) for axis, _, size in (entry.partition("=") for entry in mesh.split(","))}
    smaller(case, sizes, part, lambda row: print(json.dumps(row), flush=True))


def environment() -> dict[str, str]:
    """Eight CPU devices, and this tree's own code."""
    path = os.pathsep.join(map(str, (ROOT / "tests", ROOT / "src")))
    return os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8", "PYTHONPATH": path}


def revision() -> str:
    """The commit that is run, and whether files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=9"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip() or "unknown"


def summary(rows: list[Row]) -> str:
    plans = [r for r in rows if not r.get("last")]
    verdicts = Counter(r["verdict"] for r in plans)
    gradients = sum(bool(r["gradient"]) for r in plans)
    return f"{len(plans)} plans, {gradients} of gradients: " + ", ".join(f"{n} {v}" for v, n in verdicts.most_common())


if __name__ == "__main__":
    main()
