"""Stacked bars, one below the other: seconds by kind, by source line, by strategy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwright._amounts import human_bytes
from shardwright.compare import Comparison
from shardwright.price.estimate import place
from shardwright.report.cells import seconds_text
from shardwright.report.plots import Key, Plot, Spec, escaped

if TYPE_CHECKING:
    from shardwright.plan import Plan

_MOST_BARS = 12
_ROW_PIXELS, _MARGIN_PIXELS = 42, 8
_ROOM = 1.3
"""How much longer an axis is than the longest bar, so that the figure behind the bar has room on a narrow page."""
_MOST_TIMES = 1.25
"""How many times longer than the longest bar of a strategy that fits another may be; it is cut off there."""
_BOUND = {"matrix": "--compute", "vector": "--other", "memory": "--memory"}
_CUT_OFF = "»"


@dataclass(frozen=True)
class Series:
    """One colour of stacked bars."""

    name: str
    colour: str


@dataclass(frozen=True)
class Row:
    """A bar: seconds by series. ``faint`` bars are hatched; ``strong`` ones have their label in bold."""

    label: str
    seconds: Mapping[str, float]
    note: str = ""
    faint: bool = False
    strong: bool = False

    @property
    def total(self) -> float:
        """Seconds of all series."""
        return sum(self.seconds.values())


def kinds_plot(plan: Plan) -> Plot:
    """Seconds of communication by kind and axes."""
    rows = _grouped((c.kind, _on(plan, c.axes), c.seconds) for c in plan.estimate.collectives)
    label = "Seconds of communication by kind of collective and mesh axes."
    return bars("kinds-plot", label, rows, axes_series(plan))


def lines_plot(plan: Plan) -> Plot:
    """Seconds of communication by source line and axes."""
    rows = _grouped((place(c.source), _on(plan, c.axes), c.seconds) for c in plan.estimate.collectives)
    label = "Seconds of communication by source line and mesh axes; the costliest lines."
    return bars("lines-plot", label, rows[:_MOST_BARS], axes_series(plan))


def kernels_plot(plan: Plan) -> Plot:
    """Seconds of compute by source line and what they wait for."""
    rows = _grouped((place(k.source), k.bound, k.seconds) for k in plan.estimate.kernels)
    series = [Series(name, colour) for name, colour in _BOUND.items()]
    label = "Seconds of compute by source line and by what they wait for; the costliest lines."
    return bars("kernels-plot", label, rows[:_MOST_BARS], series)


def comparison_plot(comparison: Comparison) -> Plot:
    """Compute and communication of the plan and of expert tactics."""
    rows = [
        Row(
            row.name if row.fits else f"✗ {row.name}",
            {
                "compute": row.compute_seconds,
                "communication": row.exposed_comm_seconds,
                **({"transfers": row.exposed_transfer_seconds} if comparison.transfers else {}),
            },
            note=f"{human_bytes(row.peak_bytes)}, {'fits' if row.fits else 'does not fit'}",
            faint=not row.fits,
            strong=row.ours,
        )
        for row in comparison.rows
    ]
    most = _MOST_TIMES * max(row.step_seconds for row in comparison.rows if row.fits or row.ours)
    series = [Series("compute", "--compute"), Series("communication", "--comm")]
    series += [Series("transfers", "--transfers")] * comparison.transfers
    label = "Compute, and communication that it does not hide, of this plan and of expert tactics. "
    label += "Those that do not fit are hatched."
    return bars("comparison-plot", label, rows, series, most)


def axes_series(plan: Plan) -> list[Series]:
    """A series for each axis, and for each set of several axes, that collectives run over."""
    names = plan.partitioned.mesh.names
    sets = dict.fromkeys(_on(plan, c.axes) for c in sorted(plan.estimate.collectives, key=lambda c: len(c.axes)))
    single = {name: f"--axis-{number % 6}" for number, name in enumerate(names)}
    mixed = {name: f"--mixed-{number % 3}" for number, name in enumerate(name for name in sets if name not in single)}
    colours = {**single, **mixed}
    return [Series(name, colours[name]) for name in colours if name in sets]


def _on(plan: Plan, axes: Sequence[str]) -> str:
    """Axes in the mesh's order, whatever order a collective has them in."""
    return ", ".join(name for name in plan.partitioned.mesh.names if name in axes)


def _grouped(found: Iterable[tuple[str, str, float]]) -> list[Row]:
    rows: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for label, series, seconds in found:
        rows[label][series] += seconds
    return sorted((Row(label, dict(seconds)) for label, seconds in rows.items()), key=lambda row: -row.total)


def bars(name: str, label: str, rows: Sequence[Row], series: Sequence[Series], most: float = float("inf")) -> Plot:
    """Each bar has its label above it, so that labels never make the page wide, and its figure behind it.

    Bars longer than ``most`` are cut off. ``labels`` are drawn by the page, which knows how much room there is.
    """
    longest = min(max((row.total for row in rows), default=0.0), most)
    used = [s for s in series if any(row.seconds.get(s.name) for row in rows)]
    layout: Spec = {
        "barmode": "stack",
        "hovermode": "closest",
        "xaxis": {"range": [0, longest * _ROOM or 1.0], "visible": False},
        "yaxis": {"range": [len(rows) - 0.5, -0.5], "visible": False},
        "annotations": [_figure(k, row, most) for k, row in enumerate(rows)],
    }
    labels = [{"text": row.label, "strong": row.strong, "y": k - 0.06} for k, row in enumerate(rows)]
    legend = [Key(s.name, s.colour) for s in used]
    if any(row.faint for row in rows):
        legend.append(Key("✗ does not fit", "--soft", "hatched"))
    if any(row.total > most for row in rows):
        legend.append(Key(f"{_CUT_OFF} longer than shown", ""))
    return Plot(
        name,
        label,
        _ROW_PIXELS * len(rows) + _MARGIN_PIXELS,
        {"data": _traces(rows, used, most), "layout": layout, "labels": labels},
        tuple(legend),
    )


def _traces(rows: Sequence[Row], series: Sequence[Series], most: float) -> list[Spec]:
    left = [min(row.total, most) for row in rows]
    out: list[Spec] = []
    for s in series:
        shown = [min(row.seconds.get(s.name, 0.0), room) for row, room in zip(rows, left, strict=True)]
        left = [room - used for room, used in zip(left, shown, strict=True)]
        for faint in (False, True):
            numbers = [k for k, row in enumerate(rows) if row.faint is faint]
            if numbers:
                out.append(_trace(s, faint, {k: rows[k] for k in numbers}, [shown[k] for k in numbers]))
    return out


def _trace(series: Series, faint: bool, rows: Mapping[int, Row], shown: list[float]) -> Spec:
    hatched = {"shape": "/", "fillmode": "overlay", "fgcolor": series.colour, "size": 6}
    return {
        "type": "bar",
        "orientation": "h",
        "name": series.name,
        "x": shown,
        "y": list(rows),
        "width": 0.38,
        "offset": 0.0,
        "marker": {
            "color": f"{series.colour}-fill" if faint else series.colour,
            "line": {"width": 0.5, "color": "--page"},
            **({"pattern": hatched} if faint else {}),
        },
        "text": [seconds_text(row.seconds.get(series.name, 0.0)) for row in rows.values()],
        "textposition": "none",
        "customdata": [f"{escaped(row.label)}{f' ({row.note})' if row.note else ''}" for row in rows.values()],
        "hovertemplate": f"<b>%{{customdata}}</b><br>{escaped(series.name)}: %{{text}}<extra></extra>",
    }


def _figure(k: int, row: Row, most: float) -> Spec:
    return {
        "xref": "x",
        "yref": "y",
        "x": min(row.total, most),
        "y": k + 0.19,
        "xanchor": "left",
        "yanchor": "middle",
        "xshift": 3,
        "showarrow": False,
        "text": f"{_CUT_OFF} " * (row.total > most) + seconds_text(row.total),
        "font": {"size": 12, "color": "--soft"},
    }
