"""What the rows of ``memory_edge.py`` amount to: margins, who is called what, and the page."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import shardwright as sw
from shardwright.compiler.margins import FORWARD, KINDS, LOOPED, UNROLLED, Margin

Row = dict[str, Any]
WIDER = 1.05
"""Margins are wider than the extremes that were measured by this factor."""
FEWEST = 3
_WORDS = {True: "fits", False: "too large", None: "nobody knows"}


def kind(row: Row) -> str:
    """As ``shardwright.price.estimate`` tells kinds apart."""
    return FORWARD if not row["backward"] else LOOPED if row["looped"] >= 0.5 else UNROLLED


def rest(row: Row) -> float:
    """What the compiler takes beside the arguments, as a multiple of the estimate of it."""
    return float((row["compiled_bytes"] - row["argument_bytes"]) / (row["estimate_bytes"] - row["argument_bytes"]))


def limit_of(row: Row) -> int:
    """What a device may hold: all that it has, or what ``memory=`` said."""
    return int(row["limit_bytes"])


def taken(row: Row) -> bool:
    """By the compiler, within the limit."""
    return bool(row["compiled_fits"])


def distinct(rows: Iterable[Row]) -> list[Row]:
    """Without plans that were met twice under one limit."""
    return list({(r["case"], r["size"], r["estimate_bytes"], r["limit_bytes"]): r for r in rows}.values())


def program(row: Row) -> str:
    """Variants of a built-in model in other sizes are one program."""
    return str(row["case"]).partition("-")[0] if row["sizes"] else str(row["case"])


def measured(rows: Sequence[Row]) -> dict[str, Margin]:
    """For each kind of program the least and the most that was seen, and a twentieth more.

    A kind of which too few programs were measured has what was seen of all.
    """
    found = {}
    for name in KINDS:
        of = [row for row in rows if kind(row) == name]
        enough = len(set(map(program, of))) >= FEWEST
        ratios = [rest(row) for row in (of if enough else rows)]
        low, high = min((1.0, *ratios)) / WIDER, max((1.0, *ratios)) * WIDER
        found[name] = Margin(round(low, 2), round(high, 2), len(of), len({program(row) for row in of}))
    return found


def judged(rows: Sequence[Row], margin_of: Callable[[Row], Margin | None]) -> Counter[tuple[str, bool]]:
    """How many plans are called what, and are taken by the compiler or not; without margins, by the estimate."""
    count: Counter[tuple[str, bool]] = Counter()
    for row in rows:
        margin, limit = margin_of(row), limit_of(row)
        needed, held = row["estimate_bytes"], row["argument_bytes"]
        fits = needed <= limit if margin is None else margin.fits(needed, held, limit)
        count[_WORDS[fits], taken(row)] += 1
    return count


def write_margins(rows: Sequence[Row]) -> None:
    """Those of TPUs from rows; GPUs and CPUs, where nothing was compiled at the edge, get the widest of them."""
    file = Path(sw.__file__).parent / "compiler" / "margins.json"
    found = measured(rows)
    widest = Margin(min(m.low for m in found.values()), max(m.high for m in found.values()), 0, 0)
    versions = ", ".join(sorted({f"jax {row['jax']}" for row in rows}))
    content = {
        "evidence": {
            "tpu": f"docs/benchmarks/memory_edge.jsonl: {len(rows)} plans of {len(set(map(program, rows)))} programs, "
            f"compiled for v5e by {versions}; the extremes, and a twentieth more.",
            "gpu": "None at the edge: the widest margin of TPUs.",
            "cpu": "None: the widest margin of TPUs.",
        },
        "margins": {
            "tpu": {name: vars(margin) for name, margin in found.items()},
            "gpu": {name: vars(widest) for name in KINDS},
            "cpu": {name: vars(widest) for name in KINDS},
        },
    }
    file.write_text(json.dumps(content, indent=1) + "\n")


def page(about: str, rows: Sequence[Row]) -> str:
    """What was found, the margins, and all plans."""
    margins = measured(rows)
    versions = ", ".join(sorted({f"jax {row['jax']}" for row in rows}))
    needs = "Needs the tpu extra"
    lines = [
        "# The edge of memory",
        "",
        f"`python benchmarks/memory_edge.py`. {needs}{' '.join(about.split(needs)[1].split())}",
        "",
        *_judgements(rows, margins),
        "",
        *_margins(margins),
        "",
        *_plans(rows, margins),
        "",
        f"{date.today()}, shardwright {sw.__version__}, {versions}, {os.cpu_count()} cores.",
    ]
    return "\n".join(lines) + "\n"


def _judgements(rows: Sequence[Row], margins: dict[str, Margin]) -> list[str]:
    def of_others(row: Row) -> Margin:
        return measured([other for other in rows if program(other) != program(row)])[kind(row)]

    ways = {
        "the estimate alone": judged(rows, lambda _: None),
        "margins measured on all": judged(rows, lambda row: margins[kind(row)]),
        "margins measured on the other programs": judged(rows, of_others),
    }
    lines = [
        f"{len(rows)} plans of {len(set(map(program, rows)))} programs, within 10% of the limit on either side:",
        "",
        "| by | fits, but refused | too large, but taken | fits, and taken | too large, and refused | nobody knows |",
        "|---|---|---|---|---|---|",
    ]
    for name, count in ways.items():
        wrong = f"**{count['fits', False]}** | **{count['too large', True]}**"
        unknown = f"{count['nobody knows', True]} taken, {count['nobody knows', False]} refused"
        right = f"{count['fits', True]} | {count['too large', False]}"
        lines.append(f"| {name} | {wrong} | {right} | {unknown} |")
    lines += ["", "In the last row each program is judged by margins that were measured on others.", *_asked(rows)]
    return lines


def _asked(rows: Sequence[Row]) -> list[str]:
    """What ``sw.partition`` said where it could ask the compiler, which had been given the plan of the row as well."""
    said = Counter((_WORDS[row["asked"]["fits"]], taken(row)) for row in rows if "asked" in row)
    if not said:
        return []
    fits, unknown = (said[word, True] + said[word, False] for word in ("fits", "nobody knows"))
    return [
        f"Where the compiler is installed it is asked. `sw.partition` under the same limits, for {said.total()} of the",
        f"plans, returned a plan that fits by the compiler's word {fits} times ({said['fits', False]} times where the",
        f"plan of the row is refused), refused {said['too large', False]} times where the compiler refuses the plan of",
        f"the row as well and {said['too large', True]} times where it takes it, and could not tell {unknown} times.",
    ]


def _margins(margins: dict[str, Margin]) -> list[str]:
    lines = [
        "## Margins",
        "",
        "What a program takes beside its arguments, as a multiple of the estimate of that: the least and the most",
        "that was seen, widened by a twentieth; a kind with fewer than three programs goes by all. The last column is",
        "what they cost where nobody can be asked: the part of the limit that is left free by a plan that is just",
        "called fitting, for plans of which arguments are nothing, and half.",
        "",
        "| kind of program | programs | plans | least | most | left free |",
        "|---|---|---|---|---|---|",
    ]
    for name, margin in margins.items():
        costs = [1 - 1 / (part + (1 - part) * margin.high) for part in (0.0, 0.5)]
        free = ", ".join(f"{cost:.0%}" for cost in costs)
        lines.append(f"| {name} | {margin.programs} | {margin.plans} | {margin.low} | {margin.high} | {free} |")
    return lines


def _plans(rows: Sequence[Row], margins: dict[str, Margin]) -> list[str]:
    lines = [
        "## All plans",
        "",
        "| program | kind | mesh | size | arguments, GiB | estimate | limit | compiler | beside arguments | called "
        "| compiler |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda r: (KINDS.index(kind(r)), r["case"], r["part"])):
        held, needed, limit = row["argument_bytes"], row["estimate_bytes"], limit_of(row)
        shown = " | ".join(f"{figure / 2**30:.2f}" for figure in (held, needed, limit, row["compiled_bytes"]))
        mesh = " × ".join(map(str, row["mesh"].values()))
        size = f"{row['size']:,}" if row["size"] else "as given"
        called = _WORDS[margins[kind(row)].fits(needed, held, limit)]
        verdict = "takes it" if taken(row) else "refuses it"
        first = f"| {row['case']} | {kind(row)} | {mesh} | {size} | {shown} | {rest(row):.2f}"
        lines.append(f"{first} | {called} | {verdict} |")
    return lines
