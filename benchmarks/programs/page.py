"""What is known of each program, as a page."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any

from benchmarks.programs import PROGRAMS

Row = Mapping[str, Any]
BY_HAND = "<!-- by hand, and kept -->"
"""What stands on the page after this is not made by the script."""
_SHORT = {"all-gather": "gather", "all-reduce": "reduce", "reduce-scatter": "scatter", "all-to-all": "to-all"}
_REAL = ("program", "mesh", "planned in, s", "what the plan is called", "step, s", "GiB", "run small")
_MIDDLE = (
    "program",
    "step, ms: estimate, compiled",
    "sent, MB: estimate, compiled",
    "ratio",
    "collectives: ours; compiled",
    "GiB: estimate, compiled",
)
_PLAIN = ("program", "step, ms: ours, plain jit", "sent, MB: ours, plain jit", "GiB: ours, plain jit")


def page(about: str, rows: Mapping[str, Row], notes: str = "") -> str:
    """The page: what the script says of itself, the tables, what went wrong, and the notes."""
    title, *_, text = about.strip().split("\n\n")
    known = {name: rows[name] for name in PROGRAMS if name in rows}
    plain = {name: row for name, row in known.items() if "plain" in row}
    wrong = [line for name, row in known.items() for line in _wrong(name, row)]
    some: Row = next(iter(known.values()), {})
    lines = [
        f"# {title.rstrip('.')}",
        text,
        "## At real size",
        _table(_REAL, [_real(name, row) for name, row in known.items()]),
        "## Compiled, at a middle size",
        _table(_MIDDLE, [_middle(name, row) for name, row in known.items()]),
        *(
            ["## Beside plain `jax.jit`", _table(_PLAIN, [_plain(name, row) for name, row in plain.items()])]
            if plain
            else []
        ),
        *(["What went wrong, in its own words:\n\n" + "\n".join(wrong)] if wrong else []),
        f"{date.today()}, shardwright {some.get('shardwright', '?')}, jax {some.get('jax', '?')}; "
        "`python -m benchmarks.programs`. Seconds of planning are of the processor.",
        BY_HAND,
        *([notes.strip()] if notes.strip() else []),
    ]
    return "\n\n".join(lines) + "\n"


def sent_bytes(figures: Row) -> float | None:
    """What each device sends in a step; None where nothing was compiled."""
    return sum(sent for _, sent in figures["collectives"].values()) if "step_seconds" in figures else None


def _real(name: str, row: Row) -> tuple[str, ...]:
    real, small = row.get("real", {}), row.get("small", {})
    mesh = " × ".join(f"{axis} {size}" for axis, size in real.get("mesh", {}).items())
    return (
        PROGRAMS[name].title,
        f"{mesh}, {real.get('device', '')}" if mesh else "",
        _number(real.get("planning_cpu_seconds"), 1, 1),
        _called(real.get("names", {})),
        _number(real.get("step_seconds"), 1, 3),
        _number(real.get("peak_bytes"), 2**30, 1),
        "equal" if small.get("ok") else "**no plan**" if "error" in small else "**differs**",
    )


def _middle(name: str, row: Row) -> tuple[str, ...]:
    ours = row.get("middle", {})
    compiled = ours.get("compiled", {})
    estimated, sent = sent_bytes(ours), sent_bytes(compiled)
    ratio = estimated / sent if estimated is not None and sent else None
    shown = _number(ratio, 1, 2)
    return (
        PROGRAMS[name].title,
        _pair(ours.get("step_seconds"), compiled.get("step_seconds"), 1e-3, 1),
        _pair(estimated, sent, 1e6, 0),
        shown if ratio is None or 0.8 <= ratio <= 1.25 else f"**{shown}**",
        f"{_kinds(ours)}; {_kinds(compiled)}",
        _pair(ours.get("peak_bytes"), compiled.get("peak_bytes"), 2**30, 2),
    )


def _plain(name: str, row: Row) -> tuple[str, ...]:
    ours, plain = (row.get(stage, {}).get("compiled", {}) for stage in ("middle", "plain"))
    return (
        PROGRAMS[name].title,
        _pair(ours.get("step_seconds"), plain.get("step_seconds"), 1e-3, 1),
        _pair(sent_bytes(ours), sent_bytes(plain), 1e6, 0),
        _pair(ours.get("peak_bytes"), plain.get("peak_bytes"), 2**30, 2),
    )


def _wrong(name: str, row: Row) -> list[str]:
    said = []
    for stage in ("small", "real", "middle", "plain"):
        found = row.get(stage, {})
        words = found.get("error") or found.get("compiled", {}).get("crash")
        if words is None and found.get("ok") is False:
            words = found.get("message")
        if words is not None:
            short = " ".join(words.split())[:400].replace("`", "'")
            said.append(f"- {PROGRAMS[name].title}, {stage}: `{short}`")
    return said


def _kinds(figures: Row) -> str:
    """How often each kind runs: "gather 24, reduce 16"."""
    found = sorted(figures.get("collectives", {}).items(), key=lambda item: -item[1][1])
    return (
        ", ".join(f"{_SHORT.get(kind, kind.removeprefix('collective-'))} {times}" for kind, (times, _) in found) or "–"
    )


def _called(names: Mapping[str, list[str]]) -> str:
    """Axes of one name together: "data, model: ZeRO-3 / FSDP"."""
    axes: dict[str, list[str]] = {}
    for axis, found in names.items():
        axes.setdefault(", ".join(found) or "no common name", []).append(axis)
    return "; ".join(f"{', '.join(group)}: {name}" for name, group in axes.items())


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def _number(value: float | None, unit: float, digits: int) -> str:
    return "–" if value is None else f"{value / unit:,.{digits}f}"


def _pair(first: float | None, second: float | None, unit: float, digits: int) -> str:
    return f"{_number(first, unit, digits)}, {_number(second, unit, digits)}"
