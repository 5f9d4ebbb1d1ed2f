"""Runs contenders on cases, one process at a time, and writes a row for each."""

from __future__ import annotations

import gzip
import json
import os
import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.contenders.cases import Case
from benchmarks.contenders.contender import Contender
from benchmarks.contenders.environments import Environment, child_variables, compiler_build, prepare
from benchmarks.contenders.rows import Row, Rows, fingerprint, row_key
from benchmarks.contenders.xla_result import read_xla
from shardwright._children import child_folder, run_child
from shardwright.errors import CompilerMissingError
from shardwright.models import MODELS
from shardwright.verify.compiled_before import recall, remember
from shardwright.verify.messages import last_words

_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_LOG_DIR": "disabled",
    "TPU_MIN_LOG_LEVEL": "1",
    "TPU_STDERR_LOG_LEVEL": "1",
}
_OF_XLA = (*(f"models/{name}.py" for name in ("adam", "layers", "shapes")), "benchmarks/contenders/xla_auto.py")
"""With the file of the case's model, all that a question to XLA's auto-sharding depends on."""
SAID = Path(__file__).with_name("xla_said")
"""What XLA's auto-sharding made of each case, in a folder of its name: read again by the code of today, and asked
again only where the question has changed."""
FAILURES = ("crashed", "failed", "time out")

Say = Callable[[str], None]


def run(
    cases: Sequence[Case],
    contenders: Sequence[Contender],
    rows: Rows,
    environments: Path,
    *,
    timeout: float,
    say: Say,
    retry: bool = False,
) -> None:
    """Every contender on every case, but for what the rows have already; whoever fails, the others go on.

    ``retry`` runs those again that failed before.
    """
    ready: dict[str, tuple[Path, str]] = {}
    for case in cases:
        for contender in contenders:
            key = row_key(case, contender)
            row = rows.find(key)
            if row is None or (retry and row["status"] in FAILURES):
                python, build = _prepared(contender.environment, environments, ready, say)
                found = attempt(case, contender, python, timeout)
                row = rows.add(key, {**found, "compiler": build, **circumstances()})
            say(f"{case.name}: {contender.name}: {in_words(row)}")


def _prepared(environment: Environment, folder: Path, ready: dict[str, tuple[Path, str]], say: Say) -> tuple[Path, str]:
    """An environment's Python and the build of its compiler, which must be that of all others."""
    if environment.name not in ready:
        say(f"environment {environment.name}: {' '.join(environment.packages)}")
        python = prepare(environment, folder)
        build = compiler_build(python, variables(python))
        for name, (_, other) in ready.items():
            if other != build:
                raise CompilerMissingError(
                    f"the environments {name!r} and {environment.name!r} have different TPU compilers ({other}; "
                    f"{build}), so their plans cannot be compared: remove {folder} and run again."
                )
        ready[environment.name] = python, build
    return ready[environment.name]


def variables(python: Path) -> dict[str, str]:
    """Of a process of an environment."""
    return {**child_variables(python.parents[1]), **_TPU}


def attempt(case: Case, contender: Contender, python: Path, timeout: float) -> Row:
    """Run one contender in a process of its own; what it left behind in plain figures."""
    target = case.target
    task = {
        "case": case.to_dict(),
        "contender": contender.name,
        "options": dict(contender.options),
        "timeout_seconds": timeout,
        "topology": target.topology,
        "topology_options": target.topology_options,
    }
    script = Path(__file__).with_name(f"{contender.script}.py")
    # As a file, a script does not need the rest of this package, nor the versions that it needs.
    started = [str(script)] if contender.script == "xla_auto" else ["-m", f"benchmarks.contenders.{contender.script}"]
    own = contender.script == "xla_auto"  # nothing of ours is in what it says
    question = {**task, "timeout_seconds": None, "versions": contender.environment.versions}
    question["code"] = fingerprint((*_OF_XLA, f"models/{MODELS[case.model].name}.py"))
    kept = said(case, question) if own else None
    with child_folder() as folder:
        log = recall(kept, folder)
        if log is None:
            (folder / "task.json").write_text(json.dumps(task))
            ended = run_child(
                python,
                [*started, str(folder)],
                folder=folder,
                environment=variables(python),
                timeout_seconds=timeout,
            )
            log = ended.output + ended.complaints
            if ended.code is None:
                return {"status": "time out", "message": f"it did not end within {timeout:.0f} s"}
            if not (folder / "result.json").exists():
                return {"status": "crashed", "message": last_words(log, ended.code)}
            if kept is not None:
                remember(kept, folder, log)
                (kept / "question.json").write_text(json.dumps(question, sort_keys=True, indent=1) + "\n")
        found: Row = json.loads((folder / "result.json").read_text())
        if own:
            text = folder / "hlo.txt.gz"
            hlo = gzip.decompress(text.read_bytes()).decode() if text.exists() else ""
            return read_xla(found, hlo, log, case)
        return found


def said(case: Case, question: Row) -> Path:
    """The folder of what was said of a case; what answers another question is cleared away."""
    folder = SAID / case.name.replace(" ", "_")
    asked = folder / "question.json"
    if asked.exists() and json.loads(asked.read_text()) != json.loads(json.dumps(question)):
        shutil.rmtree(folder)
    return folder


def circumstances() -> Row:
    """When and on what a row was made; the load is the mean of the last five minutes."""
    load = round(os.getloadavg()[1], 1) if hasattr(os, "getloadavg") else None
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "machine": f"{processor()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "load": load,
    }


def processor() -> str:
    """What the processor calls itself, as far as the system tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def in_words(row: Mapping[str, Any]) -> str:
    """A row in one line."""
    if row.get("step_seconds") is None:
        return f"{row['status']}: {row.get('message', '')}"
    searched = f", {row['search_seconds']:.1f} s of search" if row.get("search_seconds") is not None else ""
    fits = "" if row["fits"] else ", more than it may"
    return f"{row['step_seconds'] * 1e3:.1f} ms, {row['peak_bytes'] / 2**30:.2f} GiB{fits}{searched}"
