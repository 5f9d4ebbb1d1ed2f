"""The matrix of what XLA gets wrong: it sees what is wrong, goes on where it was, and outlives an abort."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def python(*arguments):
    """A fresh process in which no backend has been started: the matrix forks itself."""
    ran = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def told(row):
    """What is known of a run, or of a plan."""
    off = row.get("difference") if row["verdict"] == "wrong" else row.get("message")
    return row["key"], row["jaxlib"], row["verdict"], off


def test_a_pad_between_entries_is_wrong_where_its_operand_is_whole_and_the_table_knows(tmp_path):
    rows, page = tmp_path / "rows.jsonl", tmp_path / "page.md"
    only = "pad low=0 high=1 interior=1 14x6"
    matrix = "-m", "benchmarks.miscompiled", "--only", only
    anew = "--kept", str(tmp_path / "nothing")
    said = python(*matrix, *anew, "--rows", str(rows), "--plans", "--write", str(page))
    plans = [row for row in read(rows) if row["key"].startswith("plan of ")]
    assert plans and {row["verdict"] for row in plans} == {"right"}
    found = [row for row in read(rows) if row not in plans]
    assert {row["verdict"] for row in found if row["where"] == "both"} == {"right"}
    split_in_the_end = [row for row in found if row["where"] == "result" and "->a." in row["key"]]
    assert split_in_the_end and all(row["verdict"] != "right" for row in split_in_the_end)
    assert f"of {len([r for r in found if r['verdict'] != 'right'])} runs that failed" in said
    assert "and 0 are allowed. Of those" in said
    assert "pad low=0 high=1 interior=1 14x6" in page.read_text()
    kept, again = page.with_suffix(".jsonl"), tmp_path / "again.jsonl"
    (counts, *cases) = read(kept)
    assert counts["runs"] == len(found) and {case["case"] for case in cases} == {only}
    python(*matrix, "--kept", str(kept), "--rows", str(again), "--no-run")
    assert {told(row) for row in read(again)} == {told(row) for row in read(rows)}


ABORTING = """
import json, os, sys
from pathlib import Path
import jaxlib
from benchmarks.miscompiled import runner

def work(cases, known, say, only=""):
    for case in cases:
        for run in ("first", "second", "third"):
            key = f"{case} | {run}"
            if key in known or only not in ("", key):
                continue
            row = {"key": key, "case": case, "jaxlib": jaxlib.__version__}
            say({"start": row})
            with open(sys.argv[2], "a") as file:
                file.write(key + "\\n")
            if key == "b | second":
                os.write(2, b"F1117 22:40:41 123 handler.cc:12] Check failed: 1 == 2\\n")
                os.abort()
            say({"row": row | {"verdict": "right", "difference": 0.0}})
        say({"done": case})

runner.run_all(["a", "b", "c"], Path(sys.argv[1]), work)
"""


def test_a_run_that_ends_its_process_has_a_row_and_the_others_go_on(tmp_path):
    rows, tried = tmp_path / "rows.jsonl", tmp_path / "tried"
    python("-c", ABORTING, str(rows), str(tried))
    by_key = {row["key"]: row for row in read(rows)}
    assert len(by_key) == len(read(rows)) == 9
    aborted = by_key.pop("b | second")
    assert aborted["verdict"] == "aborts" and aborted["message"] == "handler.cc:12 Check failed: 1 == 2"
    assert {row["verdict"] for row in by_key.values()} == {"right"}

    again = len(tried.read_text().splitlines())
    rows.write_text("\n".join(rows.read_text().splitlines()[:-1]) + '\n{"key": "c | third", "cut sh')
    python("-c", ABORTING, str(rows), str(tried))
    assert tried.read_text().splitlines()[again:] == ["c | third"]
    python("-c", ABORTING, str(rows), str(tried))
    assert len(tried.read_text().splitlines()) == again + 1
