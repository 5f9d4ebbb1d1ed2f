"""Plots of the report: memory over the program, a search's progress; Plotly's JSON, and what stands around it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwright._amounts import human_bytes
from shardwright.price.estimate import place
from shardwright.price.timeline import ARGUMENTS, COPIES, UNREDUCED, VALUES, Body, Timeline
from shardwright.report.cells import seconds_text

if TYPE_CHECKING:
    from shardwright.search import Search

Spec = dict[str, Any]


@dataclass(frozen=True)
class Key:
    """An entry of a legend. ``shape`` is "area", "hatched", "crossed", "filled" or "open"."""

    name: str
    colour: str
    shape: str = "area"


@dataclass(frozen=True)
class Plot:
    """``label`` says for those who do not see it what it shows; a legend of one entry is not shown."""

    name: str
    label: str
    height: int
    spec: Spec
    legend: tuple[Key, ...] = ()


def escaped(words: str) -> str:
    """Text for Plotly, which reads some tags."""
    return words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def byte_unit(largest: float) -> tuple[str, float]:
    """The unit in which a number of bytes is short, and how many bytes it is."""
    for unit, scale in (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)):
        if largest >= scale:
            return unit, scale
    return "B", 1.0


def second_unit(largest: float) -> tuple[str, float]:
    """The unit in which a number of seconds is short, and how many seconds it is."""
    for unit, scale in (("seconds", 1.0), ("milliseconds", 1e-3)):
        if largest >= scale:
            return unit, scale
    return "microseconds", 1e-6


def logarithmic(lowest: float, highest: float, digits: tuple[int, ...] = (1, 2, 5)) -> Spec:
    """A logarithmic axis for positive values, with round numbers on it."""
    powers = range(math.floor(math.log10(lowest)), math.ceil(math.log10(highest)) + 1)
    ticks = [digit * 10.0**power for power in powers for digit in digits]
    ends = [math.log10(lowest), math.log10(highest)]
    room = 0.06 * (ends[1] - ends[0]) or 0.5
    return {
        "type": "log",
        "range": [ends[0] - room, ends[1] + room],
        "tickvals": ticks,
        "ticktext": [f"{tick:,.10g}" for tick in ticks],
    }


_MEMORY_PIXELS = 340
_ROOM = 1.3
"""Above the peak, for what is written there."""
_LIMIT_SHOWN = 2.5
"""The limit is drawn where it is no more than so many times the peak; it would flatten the plot otherwise."""
_FEW = 12
"""So many kernels are all numbered."""
_LOOKS = {
    ARGUMENTS: ("--held", "area", ""),
    VALUES: ("--compute", "area", ""),
    COPIES: ("--comm", "hatched", "/"),
    UNREDUCED: ("--other", "crossed", "x"),
}


def memory_plot(timeline: Timeline, limit_bytes: int) -> Plot:
    """Bytes alive at every kernel, by kind, with the peak marked and loops' bodies shaded."""
    total, peak = timeline.total, timeline.peak
    unit, scale = byte_unit(int(total[peak]))
    highest, limit = int(total[peak]) / scale, limit_bytes / scale
    near = limit < _LIMIT_SHOWN * highest
    points = [k + 1.0 for k in range(len(total))] if len(total) > 1 else [0.5, 1.5]
    copies = 1 if len(total) > 1 else 2  # one point makes no area
    kinds = [kind for kind, found in timeline.bytes.items() if found.any()]
    data: list[Spec] = []
    for kind in kinds:
        colour, _, pattern = _LOOKS[kind]
        filled = {"shape": pattern, "fillmode": "overlay", "fgcolor": colour, "size": 7}
        data.append(
            {
                "type": "scatter",
                "name": kind,
                "x": points,
                "y": [round(b / scale, 4) for b in timeline.bytes[kind].tolist()] * copies,
                "mode": "lines",
                "line": {"width": 0 if pattern else 1, "color": colour, "shape": "hvh"},
                "fillcolor": f"{colour}-fill",
                **({"fillpattern": filled} if pattern else {}),
                "stackgroup": "alive",
                "text": [human_bytes(b) for b in timeline.bytes[kind].tolist()] * copies,
                "hovertemplate": f"{kind} %{{text}}<extra></extra>",
            }
        )
    data.append(
        {
            "type": "scatter",
            "x": points,
            "y": [round(b / scale, 4) for b in total.tolist()] * copies,
            "mode": "lines",
            "line": {"width": 0},
            "text": [
                f"<b>{human_bytes(b)}</b> at {escaped(place(source))}"
                for b, source in zip(total.tolist(), timeline.sources, strict=True)
            ]
            * copies,
            "hovertemplate": "%{text}<extra></extra>",
        }
    )
    data.append(
        {
            "type": "scatter",
            "x": [peak + 1],
            "y": [round(highest, 4)],
            "mode": "markers+text",
            "marker": {"symbol": "diamond", "size": 11, "color": "--ink", "line": {"width": 1.5, "color": "--page"}},
            "text": [f"peak {human_bytes(int(total[peak]))}"],
            "textposition": _beside(peak, len(total)),
            "textfont": {"color": "--ink", "size": 13},
            "cliponaxis": False,
            "hoverinfo": "skip",
        }
    )
    marks = [_loop(body, len(total)) for body in timeline.bodies] + [_limit(limit, limit_bytes)] * near
    x_axis: Spec = {"title": {"text": "kernel, in program order"}, "range": [points[0], points[-1]]}
    x_axis["unifiedhovertitle"] = {"text": "kernel %{x:d}"}
    if len(total) <= _FEW:
        x_axis["dtick"] = 1
    layout: Spec = {
        "hovermode": "x unified",
        "xaxis": x_axis,
        "yaxis": {"title": {"text": unit}, "range": [0, _ROOM * max(highest, limit if near else 0.0) or 1.0]},
        "shapes": [shape for shape, _ in marks],
        "annotations": [annotation for _, annotation in marks],
    }
    label = f"Memory over {len(total):,} kernels; at most {human_bytes(int(total[peak]))}, at kernel {peak + 1:,}."
    legend = tuple(Key(kind, *_LOOKS[kind][:2]) for kind in kinds)
    return Plot("memory-plot", label, _MEMORY_PIXELS, {"data": data, "layout": layout}, legend)


def _loop(body: Body, points: int) -> tuple[Spec, Spec]:
    ends = {"x0": max(body.first + 0.5, 1), "x1": min(body.last + 1.5, points), "y0": 0, "y1": 1}
    style = {"layer": "below", "line": {"width": 0}, "fillcolor": "--shade"}
    shape = {"type": "rect", "xref": "x", "yref": "paper", **ends, **style}
    return shape, {
        "xref": "x",
        "yref": "paper",
        "x": (body.first + body.last) / 2 + 1,
        "y": 1,
        "yanchor": "top",
        "text": f"loop × {body.trips:,}",
        "showarrow": False,
        "font": {"size": 12, "color": "--soft"},
    }


def _limit(at: float, limit_bytes: int) -> tuple[Spec, Spec]:
    line = {"color": "--bad", "width": 1.5, "dash": "dash"}
    shape = {"type": "line", "xref": "paper", "yref": "y", "x0": 0, "x1": 1, "y0": at, "y1": at, "line": line}
    return shape, {
        "xref": "paper",
        "yref": "y",
        "x": 0,
        "y": at,
        "xanchor": "left",
        "yanchor": "bottom",
        "text": f"limit {human_bytes(limit_bytes)}",
        "showarrow": False,
        "font": {"color": "--bad", "size": 12},
    }


def _beside(point: int, points: int) -> str:
    """Where text at a point has room."""
    at = (point + 0.5) / points
    return "top right" if at < 0.2 else "top left" if at > 0.8 else "top center"


_SEARCH_PIXELS = 300
_LOGARITHMIC_FROM = 3.0
_KEYS = {True: Key("fits", "--compute", "filled"), False: Key("does not fit", "--compute", "open")}


def search_plot(search: Search) -> Plot:
    """The best step over the states that the search had met; open marks do not fit."""
    history = search.history
    steps = [m.step_seconds for m in history]
    unit, scale = second_unit(max(steps, default=0.0))
    last = max(search.evaluations, *(m.evaluations for m in history))
    data: list[Spec] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [*(m.evaluations for m in history), last],
            "y": [s / scale for s in [*steps, *steps[-1:]]],
            "line": {"shape": "hv", "color": "--compute", "width": 2},
            "hoverinfo": "skip",
        }
    ]
    met = [fits for fits in _KEYS if any(m.fits is fits for m in history)]
    for fits in met:
        found = [m for m in history if m.fits is fits]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": _KEYS[fits].name,
                "x": [m.evaluations for m in found],
                "y": [m.step_seconds / scale for m in found],
                "text": [
                    f"<b>{seconds_text(m.step_seconds)}</b>, {human_bytes(m.peak_bytes)}<br>"
                    f"state {m.evaluations:,}, after {seconds_text(m.seconds)}"
                    for m in found
                ],
                "marker": {
                    "size": 9,
                    "color": "--compute" if fits else "--page",
                    "line": {"width": 2, "color": "--compute"},
                },
                "hovertemplate": "%{text}<extra></extra>",
            }
        )
    lowest, highest = min(steps) / scale, max(steps) / scale
    layout: Spec = {
        "hovermode": "closest",
        "xaxis": {"title": {"text": "states evaluated, logarithmic"}, **logarithmic(1, last, (1,))},
        "yaxis": {"title": {"text": f"step in {unit}"}, "rangemode": "tozero"},
    }
    if highest > _LOGARITHMIC_FROM * lowest > 0:
        title = {"text": f"step in {unit}, logarithmic"}
        layout["yaxis"] = {"title": title, **logarithmic(lowest, highest)}
    label = f"Best step over {search.evaluations:,} evaluated states."
    return Plot(
        "search-plot", label, _SEARCH_PIXELS, {"data": data, "layout": layout}, tuple(_KEYS[fits] for fits in met)
    )
