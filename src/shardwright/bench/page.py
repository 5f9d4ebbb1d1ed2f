"""The page of results: tables and plot from rows, and what people wrote about them, which stays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shardwright._files import write_whole
from shardwright.bench.match import Match
from shardwright.bench.plot import draw
from shardwright.bench.table import deciding, losses, summary, tables
from shardwright.errors import PlanError

BEGIN, END = "<!-- by hand: what stands between these two lines is kept -->", "<!-- end -->"
_CAUSES = "(Nobody has written about causes yet.)"
_ABOUT = """\
`shardwright bench` makes this page; `shardwright bench --quick` runs two small cases, in minutes. Every contender
decides the shardings of the same function on the same mesh, on the same machine, and all their programs are compiled
ahead of time by the same libtpu, the last one that still had XLA's auto-sharding. No TPU is involved. A step is the
compiler's own cycles plus the collectives of its final program on the links of the topology, one after the other; GiB
are the compiler's peak. A tight case may use only so many GiB of each device.

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
