"""Runs cases in child processes, goes on after one that ends its process, and keeps a row of every run."""

from __future__ import annotations

import json
import os
import re
import resource
import select
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jaxlib

from benchmarks.miscompiled.child import Say
from benchmarks.miscompiled.child import work as work_of_matrix

Work = Callable[..., None]
"""What a child does: of cases, but for known runs, or one run only, it tells what comes out."""

BATCH = 40
"""Cases to a process: what XLA keeps of programs that were compiled is gone with it."""
PATIENCE_SECONDS = 300.0
"""For one run, on a machine that may be busy; collectives that wait for one another would wait for ever."""


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, without a last line that was cut short."""
    rows = []
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                continue
    return rows


def run_all(cases: Sequence[str], rows: Path, work: Work = work_of_matrix, tell: Callable[[str], None] = print) -> None:
    """Run what this jaxlib has no row for in the file yet, and add it there."""
    known: dict[str, set[str]] = {}
    for row in read_rows(rows):
        if row["jaxlib"] == jaxlib.__version__:
            known.setdefault(row["case"], set()).add(row["key"])
    cut_short = rows.exists() and not rows.read_text().endswith("\n") and rows.stat().st_size > 0
    with rows.open("a") as file:
        file.write("\n" if cut_short else "")

        def keep(row: dict[str, Any]) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()
            known.setdefault(row["case"], set()).add(row["key"])
            if row["verdict"] != "right":
                tell(f"{row['verdict']}: {row['key']} {row.get('message') or row.get('difference')}")

        left = list(cases)
        while left:
            batch = left[:BATCH]
            done, last = run_batch(partial(work, batch, set().union(*(known.get(c, ()) for c in batch))), keep)
            if last is not None and "Check failed" not in last.get("message", ""):
                # Again, alone: an earlier run may have left the memory of the process in disorder.
                _, last = run_batch(partial(work, [last["case"]], set(), only=last["key"]), keep)
            if last is not None:
                keep(last)
            left = [name for name in left if name not in done]
            tell(f"{len(cases) - len(left)} of {len(cases)} cases, {sum(map(len, known.values()))} runs")


def run_batch(
    task: Callable[[Say], None], keep: Callable[[dict[str, Any]], None]
) -> tuple[set[str], dict[str, Any] | None]:
    """One child: the cases that it finished and, where it ended before its time, the row of the run that it was in."""
    with tempfile.TemporaryFile("w+") as errors:
        reader, child = _start(errors.fileno(), task)
        done, running, hangs = _follow(reader, keep)
        os.close(reader)
        if hangs:
            os.kill(child, signal.SIGKILL)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        errors.seek(0)
        if running is not None:
            how = (
                {"verdict": "hangs"} if hangs else {"verdict": "aborts", "message": failed_check(errors.read(), ended)}
            )
            return done, running | how
        if not done:
            raise SystemExit(f"a child ended without a result:\n{errors.read()[-2000:]}")
        return done, None


def _start(errors: int, task: Callable[[Say], None]) -> tuple[int, int]:
    """A fork of this process, which has imported all but started no backend: a process that ends costs little."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # JAX has no threads before its backend is started
        child = os.fork()
    if child:
        os.close(writer)
        return reader, child
    try:
        os.close(reader)
        os.dup2(errors, 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with os.fdopen(writer, "w") as told:

            def say(line: dict[str, Any]) -> None:
                told.write(json.dumps(line) + "\n")
                told.flush()

            task(say)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _follow(reader: int, keep: Callable[[dict[str, Any]], None]) -> tuple[set[str], dict[str, Any] | None, bool]:
    """Read a child's lines to its end; also the run that it was in when it ended, and whether it has to be ended."""
    done: set[str] = set()
    running: dict[str, Any] | None = None
    rest = b""
    while True:
        ready, _, _ = select.select([reader], [], [], PATIENCE_SECONDS)
        if not ready:
            return done, running, True
        data = os.read(reader, 1 << 16)
        if not data:
            return done, running, False
        *texts, rest = (rest + data).split(b"\n")
        for text in texts:
            line = json.loads(text)
            if "start" in line:
                running = line["start"]
            elif "row" in line:
                keep(line["row"])
                running = None
            else:
                done.add(line["done"])


def failed_check(told: str, ended: int) -> str:
    """The check that ended a process, without time and addresses: ``convolution_handler.cc:123 Check failed: …``."""
    found = re.search(r"^F.*?([\w.]+\.(?:cc|h):\d+)\] (.*)", told, re.MULTILINE)
    if found:
        return f"{found[1]} {found[2]}".strip()[:300]
    heap = re.search(r"^(free|malloc|realloc|munmap|corrupted|double free|terminate)\b.*", told, re.MULTILINE)
    return heap[0] if heap else f"signal {-ended}" if ended < 0 else f"exit code {ended}"
