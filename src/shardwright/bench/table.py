"""Rows as tables in Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardwright.bench.contenders import CONTENDERS, OURS, XLA
from shardwright.bench.match import TOLERANCE, Match, standing
from shardwright.bench.rows import Row

_HEAD = (
    "| contender | step, ms | × ours | of it communication | of the limit | GiB | fits | to decide, s | CPU s | what |"
)


def summary(found: Sequence[Match]) -> list[str]:
    """A row for each contender: in how many cases ours is no worse, and by how much."""
    lines = [
        "| against | cases | ours no worse | it has nothing that fits | its step / ours, geometric mean | least | most "
        "| its time to decide / ours, median | least |",
        "|" + "---|" * 9,
    ]
    for name in CONTENDERS:
        at = standing(found, name)
        if name == OURS or not at.compared:
            continue
        steps = (at.step_mean, min(at.steps, default=None), max(at.steps, default=None))
        search = (at.search_median, min(at.search, default=None))
        shown = [*(_ratio(value, 3) for value in steps), *(_ratio(value, 1) for value in search)]
        lines.append(f"| {name} | {at.compared} | {at.no_worse} | {at.misfits} | {' | '.join(shown)} |")
    return [*lines, ""]


def losses(found: Sequence[Match]) -> list[str]:
    """Every case in which somebody's plan is faster than ours, or fits where ours does not, or is found sooner."""
    lines = []
    for match in found:
        for name, row in match.rows.items():
            if name == OURS or match.ours is None:
                continue
            ratio, waited = match.step_ratio(name), match.search_ratio(name)
            if match.step(name) and match.step(OURS) is None:
                lines.append(f"- {match.case.name}: {name} has a plan that fits, ours does not")
            elif ratio is not None and ratio < 1 - TOLERANCE:
                lines.append(f"- {match.case.name}: ours is {1 / ratio - 1:.1%} slower than {name}")
            if waited is not None and waited < 1:
                ours = match.ours["search_seconds"]
                lines.append(
                    f"- {match.case.name}: {name} decides in {row['search_seconds']:.1f} s, ours in {ours:.1f} s"
                )
    return lines or ["Nowhere in these cases."]


def deciding(found: Sequence[Match], against: str = XLA) -> list[str]:
    """The time to decide in each case, ours and XLA's.

    XLA's begins with a program that JAX has traced and lowered; ours does that itself, so it is shown with and without.
    """
    lines = [
        f"| case | ours, s | of it JAX's tracing and lowering | {against}, s | × ours | × without that | × in CPU s |",
        "|" + "---|" * 7,
    ]
    for match in found:
        ours, theirs, ratio = match.ours, match.rows.get(against), match.search_ratio(against)
        if ours is None or theirs is None or ratio is None:
            continue
        own = ours.get("lowering_seconds")
        alone = None if own is None else theirs["search_seconds"] / (ours["search_seconds"] - own)
        cpu = match.search_ratio(against, "search_cpu_seconds")
        shown = [_seconds(seconds) for seconds in (ours["search_seconds"], own, theirs["search_seconds"])]
        ratios = [_ratio(value, 1) for value in (ratio, alone, cpu)]
        lines.append(f"| {match.case.name} | {' | '.join([*shown, *ratios])} |")
    return [*lines, ""] if len(lines) > 2 else []


def tables(found: Sequence[Match]) -> list[str]:
    """A table for each case."""
    lines = []
    for match in found:
        lines += [f"### {match.case.name}", "", _about(match), "", _HEAD, "|" + "---|" * (_HEAD.count("|") - 1)]
        lines += [_line(match, name, match.rows[name]) for name in CONTENDERS if name in match.rows]
        lines.append("")
    return lines


def _about(match: Match) -> str:
    case = match.case
    sizes = ", ".join(f"{name} {value}" for name, value in case.sizes.items())
    mesh = " × ".join(f"{name} {size}" for name, size in case.mesh.items())
    parts = [f"`{case.model}`{f' ({sizes})' if sizes else ''} on `{case.target_name}`, mesh {mesh}"]
    parts.append(f"{case.limit_bytes / 2**30:.2f} GiB{' (tight)' if case.tight_gib else ''} a device")
    if bound := match.bound:
        parts.append(f"physical limit {bound.seconds * 1e3:.1f} ms ({bound.kind})")
    return "; ".join(parts) + "."


def _line(match: Match, name: str, row: Row) -> str:
    step, peak = row.get("step_seconds"), row.get("peak_bytes")
    ratio = match.step_ratio(name)
    bound = match.bound
    cells = [
        f"**{name}**" if name == OURS else name,
        f"{step * 1e3:.1f}" if step else "–",
        f"{ratio:.3f}" if ratio is not None and math.isfinite(ratio) else "",
        f"{row['comm_seconds'] * 1e3:.1f}" if row.get("comm_seconds") is not None else "",
        f"{bound.seconds / step:.0%}" if bound and step else "",
        f"{peak / 2**30:.2f}" if peak else "–",
        "yes" if row.get("fits") else "no",
        _seconds(row.get("search_seconds")),
        _seconds(row.get("search_cpu_seconds")),
        _what(row),
    ]
    return f"| {' | '.join(cells)} |"


def _what(row: Row) -> str:
    said = row.get("plan") or ""
    if row["status"] != "compiled":
        said = f"{row['status']}: {row.get('message', '')}" if row.get("message") else row["status"]
    return said.replace("|", "/").replace("\n", " ")[:160]


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _ratio(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
