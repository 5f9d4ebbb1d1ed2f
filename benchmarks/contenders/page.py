"""The page of results: tables and plot from rows, and what people wrote about them, which stays."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path

from benchmarks.contenders.contender import CONTENDERS, OURS, XLA
from benchmarks.contenders.match import TOLERANCE, Match, standing
from benchmarks.contenders.rows import Row
from shardwright._files import write_whole
from shardwright.errors import CompilerMissingError, PlanError

BEGIN, END = "<!-- by hand: what stands between these two lines is kept -->", "<!-- end -->"
_CAUSES = "(Nobody has written about causes yet.)"
_ABOUT = """\
`python -m benchmarks.contenders` makes this page, with `--quick` of two small cases, in minutes. Every contender
decides the shardings of the same function on the same mesh, on the same machine, and all their programs are compiled
ahead of time by the same libtpu, the last one that still had XLA's auto-sharding. No TPU is involved. A step is the
compiled schedule replayed, for everybody alike: the compiler's own cycles, and what the device waits for collectives
that are not hidden behind them; GiB are the compiler's peak. A tight case may use only so many GiB of each device.

The time to decide is, for ours, all of `sw.partition`, with JAX's tracing; for the integer program (ours, after Alpa)
and Automap (ours, after its paper) it is without tracing, analysis and cost model. For XLA's auto-sharding it is the
time between two lines of the compiler's log, before and after it, or where these are not there the time to compile with
`AUTO(mesh)` less the time to compile the shardings that it chose. In tight cases it is told the limit, in whole GiB; in
the others it makes its own guess. Of experts' tactics the best two by our cost model are compiled, and the better one
by the compiler is shown. The physical limit is FLOPs over the peak of all chips, or the
arguments' bytes over their bandwidth, if that takes longer."""


def write_page(found: Sequence[Match], file: Path) -> None:
    """Write the page and its plot; a hand-written part of the old page is kept."""
    try:
        causes = kept(file.read_text()) if file.is_file() else _CAUSES
    except UnicodeDecodeError:
        raise PlanError(f"{file} is no text, so what people wrote there cannot be kept; name another file.") from None
    picture = file.with_suffix(".svg")
    draw(found, picture)
    write_whole(file, page_text(found, causes, picture.name), "the page")


def kept(text: str) -> str:
    """What stands between the two marks."""
    _, begun, rest = text.partition(BEGIN)
    return rest.partition(END)[0].strip() if begun else _CAUSES


def page_text(found: Sequence[Match], causes: str, picture: str) -> str:
    """The whole page."""
    lines = ["# Against others, judged by the TPU compiler", "", _ABOUT, "", "## Summary", "", *summary(found)]
    lines += [f"![step time and time to decide]({picture})", "", "## Where ours is worse", "", *losses(found), ""]
    times = deciding(found)
    lines += ["## The time to decide", "", *times] if times else []
    lines += [BEGIN, "", causes, "", END, "", "## Every case", "", *tables(found), *made_on(found)]
    return "\n".join(lines) + "\n"


def made_on(found: Sequence[Match]) -> list[str]:
    """The machine, the versions and the dates of all rows."""
    rows = [row for match in found for row in match.rows.values()]
    dates = sorted(row["date"] for row in rows)
    machines = sorted({f"{row['machine']}, Python {row['python']}" for row in rows})
    versions = sorted({f"{name} {version}" for row in rows for name, version in row["key"]["versions"].items()})
    codes = sorted({row["key"]["code"] for match in found if (row := match.ours)})
    loads = [row["load"] for row in rows if row.get("load") is not None]
    load = f" Load while they were made: {min(loads):g} to {max(loads):g}." if loads else ""
    return [
        f"Made {dates[0]} to {dates[-1]} UTC on {'; '.join(machines)}, with {', '.join(versions)}; our code "
        f"{', '.join(codes)}.{load} Seconds to decide are from one run each.",
    ]


_HEAD = "| contender | step, ms | × ours | comm, exposed | of the limit | GiB | fits | to decide, s | CPU s | what |"


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


_COMMUNICATION = ("comm_seconds", "exposed_seconds")


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
        ", ".join(f"{row[name] * 1e3:.1f}" for name in _COMMUNICATION if row.get(name) is not None),
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


_MARKERS = "o^vsDx"


def draw(found: Sequence[Match], file: Path) -> None:
    """Every contender's step and time to decide as multiples of ours, as SVG."""
    try:
        import matplotlib
    except ImportError:
        raise CompilerMissingError("drawing needs matplotlib: pip install matplotlib.") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    with matplotlib.rc_context({"svg.hashsalt": "shardwright", "svg.fonttype": "none", "font.size": 9}):
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(14, 1.8 + 0.32 * len(found)), sharey=True)
        others = [name for name in CONTENDERS if name != OURS]
        places = range(len(found))
        for k, (name, marker) in enumerate(zip(others, _MARKERS, strict=False)):
            steps = [(r, y) for y, m in zip(places, found, strict=True) if (r := m.step_ratio(name))]
            steps = [(r, y) for r, y in steps if math.isfinite(r)]
            waits = [(r, y) for y, m in zip(places, found, strict=True) if (r := m.search_ratio(name))]
            for axes, points in ((left, steps), (right, waits)):
                if points:
                    axes.scatter(*zip(*points, strict=True), s=30, marker=marker, color=f"C{k}", label=name, alpha=0.8)
        for axes, title in (
            (left, "step, as a multiple of ours (right of 1: slower); missing: does not fit"),
            (right, "time to decide, as a multiple of ours; dotted: 15 ×"),
        ):
            axes.set(xscale="log", xlabel=title)
            axes.axvline(1, color="grey", linewidth=1)
            axes.grid(axis="y", linewidth=0.3)
            axes.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
            axes.xaxis.set_minor_formatter(ticker.NullFormatter())
        right.axvline(15, color="grey", linewidth=1, linestyle=":")
        low, high = left.get_xlim()
        ticks = [t for t in (0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.5, 2, 3, 5, 10, 20) if low <= t <= high]
        left.set_xticks(ticks)
        left.set_yticks(list(places), [match.case.name for match in found])
        left.set_ylim(len(found) - 0.5, -0.5)
        figure.tight_layout(rect=(0, 0, 1, 1 - 0.3 / figure.get_figheight()))
        figure.legend(*left.get_legend_handles_labels(), loc="upper center", ncols=len(others), frameon=False)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
        pyplot.close(figure)
    write_whole(file, text.getvalue(), "the plot")
