"""What came of the runs: a page, and beside it the runs that failed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import shardwright as sw
from benchmarks.miscompiled.cases import CASES
from benchmarks.miscompiled.check import Judged
from benchmarks.miscompiled.child import NOT_FINITE
from benchmarks.miscompiled.kept import PLAN, kept
from shardwright.compiler.miscompiled import TABLE

Row = dict[str, Any]
VERDICTS = ("wrong", "does not compile", "aborts", "hangs")
MADE_BY = "python -m benchmarks.miscompiled"


@dataclass(frozen=True)
class Results:
    """Rows of the matrix and of plans, by jaxlib, and what the table says of each run."""

    matrix: Mapping[str, Sequence[Row]]
    plans: Mapping[str, Sequence[Row]]
    judged: Mapping[str, Judged]

    @classmethod
    def of(cls, rows: Iterable[Row], judged: Iterable[Judged]) -> Results:
        """Rows of runs that are in the matrix as it is, the last of each."""
        by_key = {found.key: found for found in judged}
        matrix: dict[str, dict[str, Row]] = {}
        plans: dict[str, dict[str, Row]] = {}
        for row in rows:
            if row["key"] in by_key:
                matrix.setdefault(row["jaxlib"], {})[row["key"]] = row
            elif row["key"].startswith(PLAN):
                plans.setdefault(row["jaxlib"], {})[row["key"]] = row
        return cls(
            *({lib: list(found[lib].values()) for lib in sorted(found, key=_version)} for found in (matrix, plans)),
            by_key,
        )

    def failed(self, jaxlib: str) -> list[Row]:
        """The runs that were not right."""
        return [row for row in self.matrix[jaxlib] if row["verdict"] != "right"]

    def missed(self, jaxlib: str) -> list[Row]:
        """Runs that failed and that a plan may have."""
        return [row for row in self.failed(jaxlib) if self.judged[row["key"]].allowed]


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))


PAGE = """\
# What XLA's partitioner gets wrong

An op whose operands and results are constrained to shardings is partitioned by XLA, and some combinations of op,
attributes and split are computed wrongly, do not compile, or end the process. Here is a matrix of real runs on 2, 4 and
8 CPU devices. Each case is one op with its attributes and sizes, even and such that the axes do not divide them; each
factor of its sharding rule is split alone, in pairs and in threes, on meshes with and without an axis left over;
constrained are operands and result, the operands only, or the result only, whatever a plan may come to say. Results are
compared with those of the same function on one device; the inputs have no zeros and no two entries alike.

{cases:,} cases, which make {total:,} runs; of these were run:

{runs}

`docs/benchmarks/miscompiled.jsonl` has the runs that failed and the cases that were run to their end: `{made_by}
--rows rows.jsonl` goes on from there, and in the environment of another jaxlib adds its columns here.

{kinds}

*Aborts* are failed checks that end the process, and the few runs that hang.

## What is wrong, and what a plan does instead

Plans know these by a table, `src/shardwright/compiler/miscompiled.py`. *Failed* counts the runs that a record forbids
and that failed; *right* those that it forbids although they are right, the price of a condition that can be stated. In
the examples `a.,..->a. on a4` says which axis each dimension of operands and results is split by (`.`: whole, `?`:
nothing is said), and the mesh.

{records}

{verdict}

{today}, shardwright {version}. Made by `{made_by} --rows rows.jsonl --plans --write
docs/benchmarks/miscompiled.md`.
"""

ASKED = """\
## Asked of Shardwright

Each case that failed, put between two other ops and planned by `sw.evaluate` with every decision that can be made: each
group of dimensions on an axis of 4, every two of them on 2 × 2.
"""


def document(results: Results) -> str:
    """The page."""
    return PAGE.format(
        cases=len(CASES),
        total=len(results.judged),
        runs="\n".join(f"- {len(rows):,} with jaxlib {lib}" for lib, rows in results.matrix.items()),
        made_by=MADE_BY,
        kinds="\n".join(kinds(results)),
        records="\n".join(records(results)).strip(),
        verdict="\n".join(verdict(results)).strip(),
        today=date.today(),
        version=sw.__version__,
    )


def kinds(results: Results) -> list[str]:
    """A row for each family of cases."""
    libraries = list(results.matrix)
    head = "".join(f" {lib}: runs | wrong | no program | aborts |" for lib in libraries)
    lines = [f"| op | cases |{head}", "|---|---|" + "---|---|---|---|" * len(libraries)]
    cases = Counter(case.family for case in CASES)
    found = {lib: Counter((row["family"], row["verdict"]) for row in results.matrix[lib]) for lib in libraries}
    for family in [*cases, None]:
        cells = []
        for lib in libraries:
            counts: Counter[str] = Counter()
            for (name, outcome), count in found[lib].items():
                if family in (name, None):
                    counts[outcome] += count
            ended = counts["aborts"] + counts["hangs"]
            cells += [counts.total(), counts["wrong"], counts["does not compile"], ended]
        name, number = (family, cases[family]) if family else ("**all**", cases.total())
        lines.append(f"| {name} | {number:,} | " + " | ".join(f"{cell:,}" if cell else "·" for cell in cells) + " |")
    return lines


def records(results: Results) -> list[str]:
    """A section for each record of the table."""
    lines: list[str] = []
    for record in TABLE:
        lines += [f"### {_sentence(record.name)}", ""]
        lines += [f"{_sentence(record.what)}. Instead, {record.effect.instead}.", ""]
        for lib, rows in results.matrix.items():
            mine = [r for r in rows if record in results.judged[r["key"]].records]
            counts = Counter(r["verdict"] for r in mine)
            failed = len(mine) - counts["right"]
            words = ", ".join(f"{counts[v]:,} {v}" for v in VERDICTS if counts[v])
            lines.append(
                f"- jaxlib {lib}: {failed:,} failed{f' ({words})' if words else ''}, {counts['right']:,} right"
            )
        lines += [*examples(results, record), ""]
    return lines


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def examples(results: Results, record: Any) -> list[str]:
    """The plainest run of each verdict, and what was said."""
    lines = []
    rows = [r for found in map(results.failed, results.matrix) for r in found]
    for outcome in VERDICTS:
        mine = [r for r in rows if r["verdict"] == outcome and record in results.judged[r["key"]].records]
        if mine:
            row = min(mine, key=lambda r: (len(results.judged[r["key"]].records), *_plainness(r)))
            lines += [f"- {outcome}: `{row['key']}`{_said(row)}"]
    return lines


def _plainness(row: Row) -> tuple[Any, ...]:
    return not row["even"], len(row["mesh"]), row["devices"], len(row["key"]), row["key"]


def _said(row: Row) -> str:
    if row["verdict"] == "wrong":
        far = f"off by {100 * row['difference']:.0f}% of the largest entry"
        return f", {far}" if row["difference"] < NOT_FINITE else ", not finite"
    return f": {row['message'].replace('|', '/')}" if row.get("message") else ""


def verdict(results: Results) -> list[str]:
    """Held against the table, and asked of Shardwright."""
    lines = ["## Held against the table", ""]
    reasons: Counter[str] = Counter()
    for lib, rows in results.matrix.items():
        forbidden, never, allowed = Counter[bool](), Counter[bool](), Counter[bool]()
        for row in rows:
            found = results.judged[row["key"]]
            right = row["verdict"] == "right"
            (forbidden if found.records else never if found.reason else allowed)[right] += 1
            if not right and found.reason:
                reasons[found.reason] += 1
        failed = forbidden[False] + never[False] + allowed[False]
        lines.append(
            f"- jaxlib {lib}: of {failed:,} runs that failed, {forbidden[False]:,} are forbidden by a record, "
            f"{never[False]:,} are of a kind that no plan has, and {allowed[False]:,} are allowed. Of those that are "
            f"right, {forbidden[True]:,} are forbidden as well, {never[True]:,} are of a kind that no plan has, and "
            f"{allowed[True]:,} are allowed."
        )
    if reasons:
        lines += ["", "Of a kind that no plan has:", ""]
        lines += [f"- {reason}: {count:,} failed" for reason, count in reasons.most_common()]
    missed = [r for lib in results.matrix for r in results.missed(lib)]
    if missed:
        lines += ["", "**Failed and allowed:**", ""]
        lines += [f"- jaxlib {r['jaxlib']}: `{r['key']}`: {r['verdict']}{_said(r)}" for r in missed]
    lines += ["", ASKED]
    for lib, rows in results.plans.items():
        bad = [r for r in rows if r["verdict"] != "right"]
        lines.append(
            f"- jaxlib {lib}: {len(rows):,} plans of {len({r['case'] for r in rows}):,} cases, "
            f"{len(rows) - len(bad):,} right, {len(bad):,} not"
        )
        lines += [f"    - `{r['key']}`: {r['verdict']}{_said(r)}" for r in bad]
    return lines


def evidence(results: Results) -> str:
    """What is kept of the runs."""
    every = Counter(key.partition(" | ")[0] for key in results.judged)
    return kept(results.matrix, results.plans, every)
