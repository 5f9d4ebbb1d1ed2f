"""Rows in few bytes, to be kept with the page and gone on from: of a case that was run to its end, what was not right.

A line for each jaxlib says how many runs there were, which cases were run to their end, by a digest of their names and
their runs', and what the compiler said. A line for each case has the runs that failed, or the plans of it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from benchmarks.miscompiled.case import Case
from benchmarks.miscompiled.splits import Run, runs

Row = dict[str, Any]
PLAN = "plan of "
"""How the names of rows begin that are of plans."""


def kept(matrix: Mapping[str, Sequence[Row]], plans: Mapping[str, Sequence[Row]], every: Mapping[str, int]) -> str:
    """Rows of the matrix and of plans by jaxlib, as JSON lines; ``every`` is how many runs each case has."""
    heads: list[Row] = []
    lines: list[Row] = []
    for lib, rows in matrix.items():
        messages: dict[str, int] = {}
        by_case: dict[str, list[Row]] = {}
        for row in rows:
            by_case.setdefault(row["case"], []).append(row)
        complete = [_digest(own) for case, own in by_case.items() if len(own) == every[case]]
        for case, own in by_case.items():
            found: dict[str, dict[str, float | int]] = {}
            for row in own:
                if row["verdict"] != "right":
                    said = row.get("difference")
                    if said is None:
                        said = messages.setdefault(row.get("message", ""), len(messages))
                    found.setdefault(row["verdict"], {})[_run_of(row)] = said
            if found:
                lines.append({"jaxlib": lib, "case": case, **found})
        counts = Counter(row["verdict"] for row in rows)
        head = {"jaxlib": lib, "jax": rows[0]["jax"], "runs": len(rows), **counts}
        heads.append(head | {"messages": list(messages), "complete": " ".join(complete)})
    for lib, rows in plans.items():
        planned: dict[str, list[Row]] = {}
        for row in rows:
            if row["verdict"] == "right":
                planned.setdefault(row["case"], []).append(row)
        lines += [{"jaxlib": lib, "case": case, "plans": [_run_of(r) for r in own]} for case, own in planned.items()]
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in (*heads, *lines))


def recalled(text: str, cases: Iterable[Case]) -> Iterator[Row]:
    """The rows that were kept, of cases that are as they were."""
    lines = [json.loads(line) for line in text.splitlines()]
    heads = {line["jaxlib"]: line for line in lines if "runs" in line}
    complete = {lib: set(head.get("complete", "").split()) for lib, head in heads.items()}
    of_case = {(line["jaxlib"], line["case"]): line for line in lines if "case" in line and "plans" not in line}
    planned = {(line["jaxlib"], line["case"]): line["plans"] for line in lines if "plans" in line}
    for case in cases:
        rows = [row_of(case, run) for run in runs(case)]
        digest = _digest(rows)
        for lib, head in heads.items():
            versions = {"jax": head["jax"], "jaxlib": lib}
            if digest in complete[lib]:
                line = of_case.get((lib, case.name), {})
                failed = {run: (verdict, said) for verdict in line for run, said in _pairs(line[verdict])}
                for row in rows:
                    verdict, said = failed.get(_run_of(row), ("right", 0.0))
                    more = (
                        {"difference": said} if verdict in ("right", "wrong") else {"message": head["messages"][said]}
                    )
                    yield row | versions | {"verdict": verdict} | more
            for words in planned.get((lib, case.name), ()):
                about = {"key": f"{PLAN}{case.name} | {words}", "case": case.name, "family": case.family}
                yield about | versions | {"verdict": "right"}


def row_of(case: Case, run: Run) -> Row:
    """What a row says of a run before anything is known of it."""
    return {
        "key": f"{case.name} | {run.name}",
        "case": case.name,
        "family": case.family,
        "mesh": run.mesh,
        "devices": run.devices,
        "where": run.where,
        "even": run.even,
    }


def _pairs(found: Any) -> Iterable[tuple[str, Any]]:
    return found.items() if isinstance(found, dict) else ()


def _run_of(row: Row) -> str:
    return str(row["key"].partition(" | ")[2])


def _digest(rows: Iterable[Row]) -> str:
    return blake2b("\n".join(sorted(row["key"] for row in rows)).encode(), digest_size=5).hexdigest()
