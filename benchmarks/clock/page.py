"""The clock's tables: errors by subject, both of those that the model was developed on and of those that judge it."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any

import jax
from scipy.stats import spearmanr

import shardwright as sw
from benchmarks.clock import DEVELOPED, JUDGED, OURS, SPECS, SUBJECTS

GIB = 2**30
BY_HAND = "<!-- by hand, and kept -->"
"""What stands on the page after this is not made by the script."""
Row = Mapping[str, Any]


def summary(row: Row) -> str:
    """A row in a line."""
    if "unable" in row:
        return f"{row['subject']}, {row['plan']}: {row['unable'][:120]}"
    e, c = row["estimate"], row["compiled"]
    said = f"{row['subject']}, {row['plan']}:"
    if e:
        said += f" {1e3 * e['step_seconds']:.1f} ms, {e['peak_bytes'] / GIB:.2f} GiB"
    if row.get("same_as"):
        said += f", the same as {row['same_as']}"
    if c.get("step_seconds"):
        said += f"; compiled {1e3 * c['step_seconds']:.1f} ms, {c['peak_bytes'] / GIB:.2f} GiB"
    elif c.get("fits") is False:
        said += f"; compiled: does not fit, {(c.get('peak_bytes') or 0) / GIB:.2f} GiB"
    else:
        said += f"; {c.get('crash', 'not compiled')}"
    return said


def page(about: str, rows: Mapping[tuple[str, str], Row], notes: str = "") -> str:
    """The whole page, with notes that were written by hand."""
    by_subject: dict[str, list[Row]] = defaultdict(list)
    planned = {key: row for key, row in rows.items() if key[1] != SPECS}
    for (subject, _), row in planned.items():
        by_subject[subject].append(row)
    title, _, rest = about.partition("\n")
    needs = "Needs the tpu extra" + rest.partition("Needs the tpu extra")[2]
    parts = [f"# {title.rstrip('.')}", " ".join(needs.split())]
    for kind in (JUDGED, DEVELOPED):
        found = {name: by_subject[name] for name in SUBJECTS if SUBJECTS[name].kind == kind and name in by_subject}
        if found:
            parts += [f"## Programs that the model {'was' if kind == DEVELOPED else 'is'} {kind}"]
            parts += ["\n".join(_totals(found)), "\n".join(_by_subject(found))]
    parts += ["## All plans", "\n".join(_all(planned.values())), _made()]
    parts += [BY_HAND, *([notes.strip()] if notes.strip() else [])]
    return "\n\n".join(parts) + "\n"


def _made() -> str:
    return f"{date.today()}, shardwright {sw.__version__}, jax {jax.__version__}; `python -m benchmarks.clock`."


def inside_page(rows: Mapping[tuple[str, str], Row]) -> str:
    """What the decisions inside programs are worth: ours as it is, and its specs alone."""
    lines = [
        "| program | step, ms: `plan.jit` | specs alone | ratio | waiting for communication, ms | GiB |",
        "|---|---|---|---|---|---|",
    ]
    ratios = []
    for name in SUBJECTS:
        both = [rows.get((name, plan), {}).get("compiled", {}) for plan in (OURS, SPECS)]
        steps = [found.get("step_seconds") for found in both]
        if not steps[0] or not both[1]:
            continue
        shown = [
            f"{1e3 * step:.1f}" if step else "does not fit" if found.get("fits") is False else "not compiled"
            for step, found in zip(steps, both, strict=True)
        ]
        ratio = ""
        if steps[1]:
            ratios.append(steps[1] / steps[0])
            ratio = f"{ratios[-1]:.2f}"
        waits = ", ".join(f"{1e3 * c['exposed_seconds']:.1f}" if c.get("step_seconds") else "–" for c in both)
        sizes = ", ".join(f"{c['peak_bytes'] / GIB:.2f}" if c.get("peak_bytes") else "–" for c in both)
        lines.append(f"| {name} | {shown[0]} | {shown[1]} | {ratio} | {waits} | {sizes} |")
    total = (
        f"Specs alone take {statistics.geometric_mean(ratios):.2f} times as long in the geometric mean of "
        f"{len(ratios)} programs, {min(ratios):.2f} times at least and {max(ratios):.2f} times at most."
        if ratios
        else ""
    )
    return "\n\n".join([_INSIDE, "\n".join(lines), total, _made()]) + "\n"


_INSIDE = """# What the decisions inside a program are worth

Each program's plan, compiled for 16 TPUs twice: as `plan.jit` runs it, with values inside the program told how they
lie where XLA would not find that by itself, and by plain `jax.jit` with `plan.in_specs` and `plan.out_specs` alone,
where XLA's partitioner decides all that lies between. Steps are replayed from the compiled schedules. [The
clock](clock.md) has the programs' other plans."""


def quantile(numbers: Sequence[float], part: float) -> float:
    """The smallest number that at least this part of them does not exceed."""
    ordered = sorted(numbers)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def timed(rows: Iterable[Row]) -> list[Row]:
    """Those that were compiled, each program once."""
    return [r for r in rows if "unable" not in r and not r.get("same_as") and r["compiled"].get("step_seconds")]


def verdicts(rows: Iterable[Row]) -> list[tuple[bool, bool]]:
    """Whether each fits, by the estimate and by the compiler."""
    asked = [r for r in rows if "unable" not in r and not r.get("same_as") and r["compiled"].get("fits") is not None]
    return [(r["estimate"]["fits"], r["compiled"]["fits"]) for r in asked]


def step_error(row: Row) -> float:
    """The estimate over the compiled step, less one."""
    return row["estimate"]["step_seconds"] / row["compiled"]["step_seconds"] - 1


def memory_error(row: Row) -> float:
    """The same of bytes."""
    return row["estimate"]["peak_bytes"] / row["compiled"]["peak_bytes"] - 1


def regret(rows: Iterable[Row]) -> float | None:
    """The compiled step of our plan over the best that was compiled, less one."""
    steps = {
        r["plan"]: r["compiled"]["step_seconds"]
        for r in rows
        if "unable" not in r and r["compiled"].get("step_seconds")
    }
    return steps[OURS] / min(steps.values()) - 1 if OURS in steps else None


def rank(rows: Sequence[Row]) -> float | None:
    """Spearman's correlation of estimated and compiled steps."""
    pairs = [(r["estimate"]["step_seconds"], r["compiled"]["step_seconds"]) for r in timed(rows)]
    return float(spearmanr(*zip(*pairs, strict=True)).statistic) if len(pairs) > 2 else None


def _totals(found: Mapping[str, Sequence[Row]]) -> list[str]:
    every = [r for rows in found.values() for r in timed(rows)]
    steps, sizes = ([abs(error(r)) for r in every] for error in (step_error, memory_error))
    regrets = [x for x in (regret(rows) for rows in found.values()) if x is not None]
    ranks = [x for x in (rank(rows) for rows in found.values()) if x is not None]
    judged = [pair for rows in found.values() for pair in verdicts(rows)]
    if not every:
        return []
    return [
        f"{len(every)} plans of {len(found)} programs. Step: {statistics.median(steps):.1%} off at the median, "
        f"{quantile(steps, 0.9):.1%} at the 90th percentile. Memory: {statistics.median(sizes):.1%} and "
        f"{quantile(sizes, 0.9):.1%}. Whether it fits: {sum(a == b for a, b in judged)} of {len(judged)} right, "
        f"{sum(a and not b for a, b in judged)} called fitting that the compiler refuses. Spearman: least "
        f"{min(ranks, default=0):.2f}, mean {statistics.mean(ranks or [0]):.2f}. "
        + (f"Regret: mean {statistics.mean(regrets):.1%}, worst {max(regrets):.1%}." if regrets else "")
    ]


def _by_subject(found: Mapping[str, Sequence[Row]]) -> list[str]:
    lines = [
        "| program | plans | step, median error | worst | Spearman | regret | memory, median error | worst "
        "| fits, right |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, rows in found.items():
        every, judged = timed(rows), verdicts(rows)
        if not every:
            continue
        steps, sizes = ([error(r) for r in every] for error in (step_error, memory_error))
        lost, order = regret(rows), rank(rows)
        lines.append(
            f"| {name} | {len(every)} | {statistics.median(map(abs, steps)):.1%} | {max(steps, key=abs):+.1%} "
            f"| {'' if order is None else f'{order:.2f}'} | {'' if lost is None else f'{lost:.1%}'} "
            f"| {statistics.median(map(abs, sizes)):.1%} | {max(sizes, key=abs):+.1%} "
            f"| {sum(a == b for a, b in judged)} of {len(judged)} |"
        )
    return lines


def _all(rows: Iterable[Row]) -> list[str]:
    lines = [
        "| program | plan | step, ms: estimate | compiled | ratio | compute: estimate, compiled "
        "| communication | exposed | GiB: estimate | compiled | ratio |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        if "unable" in r or r.get("same_as"):
            continue
        e, c = r["estimate"], r["compiled"]
        first = f"| {r['subject']} | {r['plan']} | {1e3 * e['step_seconds']:.1f} "
        if not c.get("step_seconds"):
            what = "does not fit" if c.get("fits") is False else "not compiled"
            most = f"{c['peak_bytes'] / GIB:.2f}" if c.get("peak_bytes") else ""
            lines.append(f"{first}| {what} | | | | | {e['peak_bytes'] / GIB:.2f} | {most} | |")
            continue

        def pair(name: str, e: Row = e, c: Row = c) -> str:
            return ", ".join(f"{1e3 * x[name]:.1f}" if x.get(name) is not None else "–" for x in (e, c))

        lines.append(
            f"{first}| {1e3 * c['step_seconds']:.1f} | {1 + step_error(r):.2f} | {pair('compute_seconds')} "
            f"| {pair('comm_seconds')} | {pair('exposed_seconds')} | {e['peak_bytes'] / GIB:.2f} "
            f"| {c['peak_bytes'] / GIB:.2f} | {1 + memory_error(r):.2f} |"
        )
    return lines
