"""What happened with each model, as a page."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any

from ecosystem import MODELS

Row = Mapping[str, Any]
_HEAD = (
    "model",
    "library",
    "parameters",
    "step",
    "ops",
    "planned in, s",
    "what the plan is called",
    "step, ms: estimate, compiled",
    "GiB: estimate, compiled",
    "verdict",
)


BY_HAND = "<!-- by hand, and kept -->"
"""What stands on the page after this is not made by the script."""


def page(about: str, rows: Mapping[str, Row], notes: str = "") -> str:
    """The page: what the script says of itself, the table, what went wrong, and the notes."""
    title, *_, text = about.strip().split("\n\n")
    known = {key: rows[key] for key in MODELS if key in rows}
    good = [row for row in known.values() if row.get("ok")]
    packages = {row["package"] for row in good}
    lines = [
        f"# {title.rstrip('.')}",
        text,
        f"Planned, fitting and compiled: {len(good)} of the {len(known)} models that were run, "
        f"from {len(packages)} of {len({row['package'] for row in known.values()})} libraries.",
        _table([_HEAD, *(_cells(key, row) for key, row in known.items())]),
        *([_failures(known)] if len(good) < len(known) else []),
        *([_not_run(known)] if len(known) < len(MODELS) else []),
        _made(known),
        BY_HAND,
        *([notes.strip()] if notes.strip() else []),
    ]
    return "\n\n".join(lines) + "\n"


def _cells(key: str, row: Row) -> tuple[str, ...]:
    compiled = row.get("ok")
    return (
        MODELS[key].name,
        f"{row['package']} {row.get('version', '')}".strip(),
        _count(row.get("parameters")),
        row.get("step", "").rstrip("."),
        f"{row['ops']:,}" if "ops" in row else "",
        f"{row['planning_cpu_seconds']:.0f}" if "planning_cpu_seconds" in row else "",
        _called(row.get("names", {})),
        _pair(row.get("estimated_seconds"), row.get("compiled_seconds"), 1e-3, 1),
        _pair(row.get("estimated_bytes"), row.get("compiled_bytes"), 2**30, 2),
        "fits" if compiled else f"**{_where(row)}**",
    )


def _table(cells: list[tuple[str, ...]]) -> str:
    rows = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join([rows[0], "|" + "---|" * len(_HEAD), *rows[1:]])


def _called(names: Mapping[str, list[str]]) -> str:
    """Axes of one name together: "data, model: ZeRO-3 / FSDP"."""
    axes: dict[str, list[str]] = {}
    for axis, found in names.items():
        axes.setdefault(", ".join(found) or "no common name", []).append(axis)
    return "; ".join(f"{', '.join(group)}: {name}" for name, group in axes.items())


def _where(row: Row) -> str:
    """How far a model came that did not come to the end."""
    if row["stage"] == "done":
        return "does not fit" if row.get("fits") is False else "not compiled"
    return {"installing": "not installed", "building": "not built", "planning": "no plan"}.get(row["stage"], "planned")


def _failures(rows: Mapping[str, Row]) -> str:
    words = {key: row.get("error") or row.get("message") for key, row in rows.items() if not row.get("ok")}
    return "What went wrong, in its own words:\n\n" + "\n".join(
        f"- {MODELS[key].name} ({rows[key]['package']}), while {rows[key]['stage']}: `{_short(said)}`"
        for key, said in words.items()
    )


def _not_run(rows: Mapping[str, Row]) -> str:
    rest = [f"{model.name} ({model.package})" for key, model in MODELS.items() if key not in rows]
    return f"Written, but not run: {', '.join(rest)}."


def _short(said: str | None) -> str:
    line = " ".join((said or "it did not say").split())
    return (line if len(line) <= 500 else f"{line[:500]} …").replace("`", "'")


def _made(rows: Mapping[str, Row]) -> str:
    some = next(iter(rows.values()), {})
    versions = f"shardwright {some.get('shardwright', '?')}, jax {some.get('jax', '?')}"
    return f"{date.today()}, {versions}; `benchmarks/ecosystem.py`. Seconds of planning are of the processor."


def _count(number: int | None) -> str:
    if number is None:
        return ""
    scale, unit = (1e9, "B") if number >= 1e9 else (1e6, "M") if number >= 1e6 else (1e3, "k")
    return f"{number / scale:.3g} {unit}"


def _pair(estimate: float | None, compiled: float | None, unit: float, digits: int) -> str:
    return ", ".join(f"{value / unit:,.{digits}f}" if value is not None else "–" for value in (estimate, compiled))
