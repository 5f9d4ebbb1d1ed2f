"""Many cases, in child processes that may die, with a file of rows to go on from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BATCH = 50
"""Cases of one child process."""
Row = dict[str, Any]
"""What became of a plan; of a case that is done, ``{"case": …, "done": True}``."""


def environment() -> dict[str, str]:
    """Eight CPU devices, and this tree's own code."""
    path = os.pathsep.join(map(str, (ROOT / "tests", ROOT / "src")))
    return os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8", "PYTHONPATH": path}


def read_rows(path: Path | None) -> tuple[list[Row], set[int]]:
    """The last row of each plan, for what was run again counts as it came out then; and the cases that are done."""
    rows: dict[tuple[int, int], Row] = {}
    done = set()
    for line in path.read_text().splitlines() if path is not None and path.exists() else ():
        row = json.loads(line)
        if row.get("done"):
            done.add(row["case"])
        else:
            rows[row["case"], row["plan"]] = row
    return list(rows.values()), done


def run(cases: Iterable[int], path: Path | None = None, show: Callable[[str], None] = print) -> list[Row]:
    """The plans of all of these cases; a row goes to the file as soon as it is known."""
    code = revision()
    out: list[Row] = []

    def note(row: Row) -> None:
        row = row | {"code": code}
        if path is not None:
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        if row.get("done"):
            return
        out.append(row)
        if row["verdict"] != "ok":
            show(f"{row['case']}:{row['plan']} {row['verdict']} {row.get('message', '')[:200]}")

    left = list(cases)
    while left:
        batch, left = left[:BATCH], left[BATCH:]
        first = 0
        while batch:
            batch, first = attempt(batch, first, note)
        show(f"{len(left)} cases left; {dict(Counter(row['verdict'] for row in out))}")
    return out


def attempt(batch: list[int], first: int, note: Callable[[Row], None]) -> tuple[list[int], int]:
    """Run a batch from a plan of its first case on; if the child died, what is left, and the plan to go on with."""
    command = [sys.executable, "-m", "grammar.batches", ",".join(map(str, batch)), str(first)]
    left, running = list(batch), None
    words: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment()
    ) as child:
        reader = threading.Thread(target=lambda: words.extend(child.stderr or ()))
        reader.start()
        for line in child.stdout or ():
            row = json.loads(line)
            if row.pop("running", False):
                running = row
                continue
            note(row)
            if row.get("done"):
                left.remove(row["case"])
        reader.join()
    if not left:
        return [], 0
    if running is None or running["case"] != left[0]:
        raise RuntimeError("a child process did not do its work:\n" + "".join(words[-20:]))
    # The compiler says which of its checks failed, or Python what was raised.
    reason = next((w for w in words if "Check failed" in w), "".join(words[-3:]))
    note(running | {"verdict": "abort", "message": reason.strip()[-500:]})
    if running["plan"] < 0:  # before there was a plan: there is none of this case to go on with
        return left[1:], 0
    return left, running["plan"] + 1


def child(cases: list[int], first: int) -> None:
    """Print a line before each plan and one for what became of it."""
    import jax
    import jaxlib

    from grammar.cases import run_case

    def tell(row: Row) -> None:
        print(json.dumps(row), flush=True)

    version = {"jaxlib": jaxlib.__version__}
    for case in cases:
        for row in run_case(case, first, before=lambda row: tell(row | version | {"running": True})):
            tell(row | version)
        tell({"case": case, "done": True})
        jax.clear_caches()
        first = 0


def revision() -> str:
    """The commit that is run, and whether files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=9"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip() or "unknown"


if __name__ == "__main__":
    child([int(k) for k in sys.argv[1].split(",")], int(sys.argv[2]))
