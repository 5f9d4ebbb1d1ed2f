"""The page of a front: memory against time, a mark a plan, and the same as a table."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

from shardwright._amounts import exact_bytes
from shardwright._files import write_whole
from shardwright._version import __version__
from shardwright.report.cells import Cell, Table, duration, make_table, ratio, size, text
from shardwright.report.plots import Key, Plot, Spec, byte_unit, escaped, logarithmic, second_unit
from shardwright.report.render import environment, in_script, page_file, plotly

if TYPE_CHECKING:
    from shardwright.front import Front

_PIXELS, _WORDS = 420, 90
_MOST_DECISIONS = 14
_LOGARITHMIC_FROM = 4.0
_KEYS = {
    True: Key("fits", "--compute", "filled"),
    None: Key("may fit", "--comm", "open"),
    False: Key("does not fit", "--compute", "open"),
}


def write_front(front: Front, path: str | os.PathLike[str]) -> None:
    """Write the page of a front as one HTML file."""
    write_whole(path, render_front(front), "the front")


def render_front(front: Front) -> str:
    """The whole HTML file."""
    plot, first = front_plot(front), front.fastest
    return (
        environment()
        .get_template("front.html")
        .render(
            function=first.analysis.program.name,
            devices=first.partitioned.mesh.devices,
            device=first.device.name,
            axes=list(first.mesh.items()),
            limit=exact_bytes(front.memory_bytes),
            verdict=front.verdict,
            plot=plot,
            table=_table(front),
            plots_json=in_script({plot.name: plot.spec}),
            plotly=plotly(),
            version=__version__,
            style=page_file("report.css"),
            scripts=[page_file("tables.js"), page_file("plots.js")],
        )
    )


def front_plot(front: Front) -> Plot:
    """Memory along, time up; the line is what is left between plans, the dashes are what a device holds."""
    costs = [plan.estimate_cost for plan in front]
    unit, scale = byte_unit(max(cost.peak_bytes for cost in costs))
    time_unit, time_scale = second_unit(max(cost.step_seconds for cost in costs))
    memory = [cost.peak_bytes / scale for cost in costs]
    steps = [cost.step_seconds / time_scale for cost in costs]
    data: list[Spec] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": memory,
            "y": steps,
            "line": {"shape": "vh", "color": "--compute", "width": 1.5, "dash": "dot"},
            "hoverinfo": "skip",
        }
    ]
    met = [fits for fits in _KEYS if any(plan.fits is fits for plan in front)]
    for fits in met:
        chosen = [k for k, plan in enumerate(front) if plan.fits is fits]
        data.append(
            {
                "type": "scatter",
                "mode": "markers+text",
                "name": _KEYS[fits].name,
                "x": [memory[k] for k in chosen],
                "y": [steps[k] for k in chosen],
                "text": [", ".join(front.marks(front[k])) for k in chosen],
                "textposition": ["bottom left" if front[k] is front.fitting else "top right" for k in chosen],
                "hovertext": [_hover(front, k) for k in chosen],
                "marker": {
                    "size": 11,
                    "color": "--compute" if fits else "--page",
                    "line": {"width": 2, "color": _KEYS[fits].colour},
                },
                "hovertemplate": "%{hovertext}<extra></extra>",
            }
        )
    limit = front.memory_bytes / scale
    layout: Spec = {
        "hovermode": "closest",
        "xaxis": _axis(f"memory of each device in {unit}", memory),
        "yaxis": _axis(f"step in {time_unit}", steps),
    }
    if min(memory) < limit < max(memory):
        layout["shapes"] = [
            {
                "type": "line",
                "xref": "x",
                "yref": "paper",
                "x0": limit,
                "x1": limit,
                "y0": 0,
                "y1": 1,
                "line": {"color": "--soft", "width": 1, "dash": "dash"},
            }
        ]
        place = math.log10(limit) if layout["xaxis"].get("type") == "log" else limit
        words = f"a device's {exact_bytes(front.memory_bytes)}"
        layout["annotations"] = [
            {"x": place, "y": 1, "yref": "paper", "text": words, "showarrow": False, "xanchor": "left", "xshift": 5}
        ]
    label = f"{len(front)} plans, from {steps[0]:.3g} {time_unit} and {memory[0]:.3g} {unit} on."
    return Plot("front-plot", label, _PIXELS, {"data": data, "layout": layout}, tuple(_KEYS[fits] for fits in met))


def _axis(title: str, values: list[float]) -> Spec:
    """Logarithmic where values differ by much."""
    lowest, highest = min(values), max(values)
    if highest > _LOGARITHMIC_FROM * lowest > 0:
        return {"title": {"text": f"{title}, logarithmic"}, **logarithmic(lowest, highest)}
    room = 0.1 * (highest - lowest) or 0.5 * highest or 1.0
    return {"title": {"text": title}, "range": [lowest - room, highest + room]}


def _hover(front: Front, number: int) -> str:
    """Figures, names and decisions, as Plotly shows them."""
    plan, name = front[number], front.names[number]
    cost = plan.estimate_cost
    part = f"{100 * cost.peak_bytes / max(front.memory_bytes, 1):.0f}%"
    lines = [f"<b>{duration(cost.step_seconds).text}, {size(cost.peak_bytes).text}</b> ({part} of the device)"]
    lines += [escaped(line) for line in name.split("; ")]
    words = [escaped(_cut(str(decision))) for decision in plan.decisions]
    more = [f"… and {len(words) - _MOST_DECISIONS} more"] if len(words) > _MOST_DECISIONS else []
    return "<br>".join([*lines, "", *words[:_MOST_DECISIONS], *more])


def _cut(words: str) -> str:
    return words if len(words) <= _WORDS else f"{words[: _WORDS - 1]}…"


def _table(front: Front) -> Table:
    """A row a plan, as the terminal has it."""
    costs = [plan.estimate_cost for plan in front]
    slowest, largest = max(c.step_seconds for c in costs), max(c.peak_bytes for c in costs)
    rows: list[tuple[Cell, ...]] = [
        (
            duration(cost.step_seconds, slowest),
            size(cost.peak_bytes, largest),
            ratio(100 * cost.peak_bytes / max(front.memory_bytes, 1), "{:.0f}%"),
            text({True: "yes", False: "no", None: "perhaps"}[plan.fits]),
            text(name),
            text("; ".join(map(str, plan.decisions))),
            text(", ".join(front.marks(plan))),
        )
        for plan, cost, name in zip(front, costs, front.names, strict=True)
    ]
    columns = "step:number, memory:number, of the device:number, fits, what it is:words, decisions:words, "
    return make_table("plans", "The plans, fastest first", f"{columns}marks:words", rows)
