"""The page: a template filled with what a plan says, with all that it needs inside."""

from __future__ import annotations

import base64
import gzip
import json
import os
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from shardwright._amounts import human_bytes
from shardwright._files import write_whole
from shardwright._version import __version__
from shardwright.compare import compare
from shardwright.plan.plan_text import kernels_text, own_text
from shardwright.plan.strategy_names import common_names
from shardwright.plan.tuning import tuning_lines
from shardwright.price.collectives import local_bytes
from shardwright.price.estimate import host_text, place
from shardwright.price.timeline import make_timeline
from shardwright.report import tables
from shardwright.report.bars import comparison_plot, kernels_plot, kinds_plot, lines_plot
from shardwright.report.cells import seconds_text
from shardwright.report.plots import memory_plot, search_plot
from shardwright.report.tensor_pictures import tensor_kinds

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
            tuning=tuning_lines(plan.tuning) if plan.tuning is not None else [],
            tuning_tables=tables.tuning_tables(plan.tuning) if plan.tuning is not None else [],
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


_FITS = {True: "✓ fits", False: "✗ does not fit", None: "? may fit: too close to the limit to tell"}


@dataclass(frozen=True)
class Axis:
    """An axis of the mesh, and what its decisions are commonly called."""

    number: int
    name: str
    size: int
    called: tuple[str, ...]


@dataclass(frozen=True)
class Headline:
    """Figures as they are shown; parts are between 0 and 1."""

    function: str
    device: str
    devices: int
    axes: tuple[Axis, ...]
    fits: bool | None
    fits_words: str
    peak: str
    limit: str
    memory_part: float
    step: str
    compute: str
    comm: str
    """What no compute hides of communication."""
    hidden: str
    """What compute hides of it; empty where there is nothing of it."""
    compute_part: float
    peak_percent: str
    sent: str
    collectives: int
    arguments: str
    arguments_whole: str
    own: str
    """What is kept of the program's own shardings; empty where it has none."""
    whole_kernels: str
    """The kernels that every device runs all of; empty where there are none."""
    exposed: str
    """What no compute hides of transfers between host and device; empty where there is nothing of it."""
    comm_part: float
    on_host: str
    """What lies on the host, and the moves there and back; empty where nothing does."""


def make_headline(plan: Plan) -> Headline:
    """The headline of a plan."""
    estimate, mesh, program = plan.estimate, plan.partitioned.mesh, plan.analysis.program
    called = common_names(plan)
    held = [
        (program.values[a.value].bytes, plan.partitioned.values[a.value], a.memory_kind is None)
        for a in program.arguments
    ]
    step, limit, peak = estimate.step_seconds, estimate.limit_bytes, estimate.peak_bytes
    if plan.fits_by == "compiler" and plan.verdict is not None and plan.verdict.peak_bytes is not None:
        peak = plan.verdict.peak_bytes
    return Headline(
        function=program.name,
        device=plan.device.name,
        devices=mesh.devices,
        axes=tuple(
            Axis(number, name, size, called.get(name, ()))
            for number, (name, size) in enumerate(zip(mesh.names, mesh.sizes, strict=True))
        ),
        fits=plan.fits,
        fits_words=_FITS[plan.fits] + (", says the compiler" if plan.fits_by == "compiler" else ""),
        peak=human_bytes(peak),
        limit=human_bytes(limit),
        memory_part=min(peak / limit, 1.0) if limit else 1.0,
        step=seconds_text(step),
        compute=seconds_text(estimate.compute_seconds),
        comm=seconds_text(estimate.exposed_comm_seconds),
        hidden=seconds_text(estimate.hidden_seconds) if estimate.hidden_seconds else "",
        compute_part=estimate.compute_seconds / step if step else 0.0,
        peak_percent=f"{100 * estimate.peak_fraction:.0f}",
        sent=human_bytes(sum(c.total_bytes for c in estimate.collectives)),
        collectives=sum(c.times for c in estimate.collectives),
        arguments=human_bytes(sum(local_bytes(whole, sharding, mesh) for whole, sharding, here in held if here)),
        arguments_whole=human_bytes(sum(whole for whole, *_ in held)),
        own=own_text(plan) if plan.own_shardings else "",
        whole_kernels=kernels_text(plan) if plan.whole_kernels else "",
        exposed=seconds_text(estimate.exposed_transfer_seconds) if estimate.exposed_transfer_seconds else "",
        comm_part=estimate.exposed_comm_seconds / step if step else 0.0,
        on_host=host_text(estimate),
    )


def write_report(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write the report of a plan as one HTML file."""
    write_whole(path, render(plan), "the report")
