"""The plot of a search's progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.analysis.present import human_bytes
from shardwright.report.plot import Key, Plot, Spec, logarithmic, second_unit
from shardwright.report.table import seconds_text

if TYPE_CHECKING:
    from shardwright.search import Search

_PIXELS = 300
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
    return Plot("search-plot", label, _PIXELS, {"data": data, "layout": layout}, tuple(_KEYS[fits] for fits in met))
