"""The page: a template filled with what a plan says, with all that it needs inside."""

from __future__ import annotations

import base64
import gzip
import json
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from shardwright._version import __version__
from shardwright.analysis.present import human_bytes
from shardwright.compare import compare
from shardwright.price.estimate import place
from shardwright.price.timeline import make_timeline
from shardwright.report import tables
from shardwright.report.bars import comparison_plot, kernels_plot, kinds_plot, lines_plot
from shardwright.report.headline import make_headline
from shardwright.report.memory import memory_plot
from shardwright.report.progress import search_plot
from shardwright.report.table import seconds_text
from shardwright.report.tensors import tensor_kinds

if TYPE_CHECKING:
    from shardwright.plan import Plan

_PICTURES_SHOWN = 6
"""The rest of the pictures is folded away."""


def render(plan: Plan) -> str:
    """The whole HTML file."""
    estimate = plan.estimate
    timeline = make_timeline(plan.costs, plan.partitioned.state)
    comparison = compare(plan)
    found = {"memory": memory_plot(timeline, plan.memory_bytes), "comparison": comparison_plot(comparison)}
    if estimate.collectives:
        found |= {"kinds": kinds_plot(plan), "lines": lines_plot(plan)}
    if estimate.kernels:
        found["kernels"] = kernels_plot(plan)
    if plan.search is not None and plan.search.history:
        found["search"] = search_plot(plan.search)
    kinds = tensor_kinds(plan)
    return (
        environment()
        .get_template("report.html")
        .render(
            head=make_headline(plan),
            decisions=tables.decisions_table(plan),
            kinds=kinds[:_PICTURES_SHOWN],
            more_kinds=kinds[_PICTURES_SHOWN:],
            peak_line=place(timeline.sources[timeline.peak]),
            peak_point=timeline.peak + 1,
            points=len(timeline.sources),
            loops=len(timeline.bodies),
            alive=tables.alive_table(plan),
            advice=tables.advice_table(plan),
            collectives=tables.collectives_table(plan),
            kernels=tables.kernels_table(plan),
            transfers=tables.transfers_table(plan),
            search=plan.search,
            comparison=tables.comparison_rows(plan, comparison),
            best_expert=comparison.best_expert,
            best_ratio=comparison.ratio(comparison.best_expert) if comparison.best_expert else None,
            arguments=tables.arguments_table(plan),
            verdict=plan.verdict,
            verdict_tables=[tables.verdict_table(plan.verdict), tables.compiled_table(plan.verdict)]
            if plan.verdict is not None
            else [],
            plots=found,
            plots_json=in_script({plot.name: plot.spec for plot in found.values()}),
            plotly=plotly(),
            version=__version__,
            style=page_file("report.css"),
            scripts=[page_file("tables.js"), page_file("plots.js")],
        )
    )


def environment() -> Environment:
    """What fills the templates."""
    environment = Environment(
        loader=PackageLoader("shardwright.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "bytes": human_bytes,
        "seconds": seconds_text,
        "number": "{:g}".format,
        "counted": lambda count, thing: f"{count:,} {thing}{'s' * (count != 1)}",
    }
    return environment


def page_file(name: str) -> Markup:
    """A style or script of the page's folder."""
    return Markup(resources.files("shardwright.report").joinpath("page", name).read_text(encoding="utf-8"))


def in_script(content: object) -> Markup:
    """JSON that cannot end the script element that it stands in."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


@cache
def plotly() -> str:
    """Plotly's own script, compressed to a third; the page unpacks it."""
    packed = gzip.compress(get_plotlyjs().encode(), compresslevel=9, mtime=0)
    return base64.b64encode(packed).decode("ascii")
