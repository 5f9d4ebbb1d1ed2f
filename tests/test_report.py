"""The HTML report: what it says, and what a reader's browser makes of it."""

import dataclasses
import json
import os
import re
import shutil

import jax
import jax.numpy as jnp
import plotly.graph_objects as go
import pytest
from playwright.sync_api import sync_playwright

import shardwright as sw
from programs import f32
from shardwright.models import build
from shardwright.plan.verdicts import CompilerVerdict
from shardwright.price.timeline import ARGUMENTS, VALUES, Body, make_timeline
from shardwright.report.cells import seconds_text
from shardwright.report.render import render
from shardwright.report.tensor_pictures import tensor_kinds

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def plan():
    fn, args, options = build("gpt", preset="tiny")
    return sw.partition(fn, *args, mesh={"data": 2, "model": 2}, device="tpu-v5e", simulations=5, **options)


@pytest.fixture(scope="module")
def html(plan):
    return render(plan)


HOSTILE_SOURCE = """
def step(params, x):
    return jnp.tanh(x @ params[name])
"""


@pytest.fixture(scope="module")
def by_hand():
    """Made by hand, from hostile names, and does not fit."""
    names = {"jnp": jnp, "name": HOSTILE}
    exec(compile(HOSTILE_SOURCE, "/code/<i>odd.py", "exec"), names)
    return sw.evaluate(
        names["step"],
        {HOSTILE: f32(512, 1024)},
        f32(256, 512),
        mesh={"rows": 4, "columns": 2},
        device="tpu-v5e",
        decisions=[("rows", f"params.{HOSTILE}[0]"), ("columns", f"params.{HOSTILE}[1]")],
        memory=1000,
    )


def dots(x):
    return (x @ x) @ x


def doubled(x):
    return x + x


# What is in it.


def test_a_timeline_by_hand():
    """Two kernels, with 256 KiB each of argument, of the product between, and of the result, there from the start."""
    plan = sw.evaluate(dots, f32(256, 256), mesh={"x": 2}, device="a100-80", decisions=[])
    timeline = make_timeline(plan.costs, plan.partitioned.state)
    assert timeline.bytes[ARGUMENTS].tolist() == [2**18, 2**18]
    assert timeline.bytes[VALUES].tolist() == [2**19, 2**19]
    assert [source.function for source in timeline.sources] == ["dots", "dots"]
    assert timeline.bodies == ()


def test_a_loop_is_one_body():
    def looped(x):
        return jax.lax.scan(lambda c, _: (c @ c, None), x @ x, length=7)[0] @ x

    plan = sw.evaluate(looped, f32(64, 64), mesh={"x": 2}, device="a100-80", decisions=[])
    (body,) = make_timeline(plan.costs, plan.partitioned.state).bodies
    assert body.trips == 7 and body.first > 0
    assert isinstance(body, Body)


@pytest.mark.parametrize(
    ("model", "decisions"),
    [
        ("gpt", ["fsdp:data"]),
        ("gpt", ["data_parallel:data", "megatron:model"]),
        ("decode", ["fsdp:data"]),
        ("mlp", []),
    ],
)
def test_the_timeline_peaks_where_the_estimate_does(model, decisions):
    fn, args, options = build(model, preset="tiny")
    mesh = {"data": 2, "model": 2}
    found = sw.evaluate(fn, *args, mesh=mesh, device="tpu-v5e", decisions=decisions, **options)
    timeline = make_timeline(found.costs, found.partitioned.state)
    assert timeline.total[timeline.peak] == timeline.total.max() == found.estimate.peak_bytes


def test_a_picture_by_hand():
    """Columns cut by data into 4 and each of these by model into 4: 3 cuts of the one, 12 of the other."""
    mesh, decisions = {"data": 4, "model": 4}, [("data", "x[1]"), ("model", "x[1]")]
    plan = sw.evaluate(doubled, f32(2048, 2048), mesh=mesh, device="tpu-v5e", decisions=decisions)
    (kind,) = tensor_kinds(plan)
    assert (kind.type, kind.local_type, kind.copies) == ("f32[2048,2048]", "f32[2048,128]", 1)
    assert kind.spec == 'P(None, ("data", "model"))'
    picture = kind.picture
    assert [(s.axis, s.label) for s in picture.strips[:4]] == [(0, "0"), (0, "1"), (0, "2"), (0, "3")]
    assert [s.label for s in picture.strips[4:]] == ["0", "1", "2", "3"] * 4
    assert [sum(cut.axis == axis for cut in picture.cuts) for axis in (0, 1)] == [3, 12]
    assert picture.block.width == pytest.approx(picture.sheet.width / 16)
    assert picture.block.height == picture.sheet.height
    assert picture.behind == ()


def test_a_picture_of_copies_and_of_many_parts():
    plan = sw.evaluate(doubled, f32(512, 512), mesh={"a": 256, "b": 3}, device="tpu-v5e", decisions=[("a", "x[0]")])
    (kind,) = tensor_kinds(plan)
    assert (kind.copied, kind.copies, len(kind.picture.behind)) == ((1,), 3, 2)
    # 256 parts of a row would be less than a pixel each: 64 are drawn, none of them numbered.
    assert len(kind.picture.strips) == 64 and not any(strip.label for strip in kind.picture.strips)
    assert (
        kind.sentence == "f32[512,512]: dimension 0 is cut into 256 parts; each device holds f32[2,512], in 3 copies."
    )


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.3531, "353 ms"), (0.0451, "45.1 ms"), (0.0014, "1.40 ms"), (0.9999, "1.00 s"), (2e-6, "2.00 µs"), (0, "0 s")],
)
def test_seconds_have_three_digits(seconds, shown):
    assert seconds_text(seconds) == shown


def specs(page):
    return json.loads(re.search(r'<script type="application/json" id="plots">(.*?)</script>', page, re.S).group(1))


def test_plots_are_what_plotly_takes(html, by_hand):
    known = set(re.findall(r"(--[\w-]+):", html))

    def coloured(part):
        if isinstance(part, str) and part.startswith("--"):
            assert part in known
            return "black"
        if isinstance(part, dict):
            return {key: coloured(each) for key, each in part.items()}
        return [coloured(each) for each in part] if isinstance(part, list) else part

    for page in (html, render(by_hand)):
        for name, spec in specs(page).items():
            figure = go.Figure(**coloured({"data": spec["data"], "layout": spec["layout"]}))  # raises what it lacks
            assert len(figure.data) > 0, name


def test_the_same_plan_gives_the_same_page(plan, html):
    assert render(plan) == html


def test_a_report_says_how_the_plan_was_made(plan, html, by_hand):
    assert f"{plan.search.evaluations:,} evaluated states" in html
    assert "There was no search" in render(by_hand)


def test_the_compilers_figures_stand_beside_the_estimate(by_hand, html):
    found = {"compile_seconds": 3.0, "fits": True, "peak_bytes": 3 * 2**20, "step_seconds": 0.002}
    found |= {"counts": {"all-gather": 7}, "bytes": {"all-gather": 2**21}}
    verdict = CompilerVerdict.of("tpu:v5e:2x2", found, by_hand.estimate)
    page = render(dataclasses.replace(by_hand, verdict=verdict))
    compiler = re.sub(r"\s+", " ", page[page.index('id="compiler"') :])
    assert "tpu:v5e:2x2: it compiles and takes" in compiler
    assert ">3.0 MiB</td>" in compiler and ">2.00 ms</td>" in compiler and ">7</td>" in compiler
    assert 'id="compiler"' not in html


def test_nothing_is_written_where_nothing_can_be(plan, tmp_path):
    with pytest.raises(sw.PlanError, match=r"cannot write the report to .*: there is no folder .*gone\.$"):
        plan.report(tmp_path / "gone" / "plan.html")
    with pytest.raises(sw.PlanError, match=r"cannot write the report to .*: it is a folder; name a file in it\.$"):
        plan.report(tmp_path)
    with pytest.raises(sw.PlanError, match=r"cannot write the report to .*: File name too long\.$"):
        plan.report(tmp_path / ("x" * 300))
    assert list(tmp_path.iterdir()) == []


# In a browser.


@pytest.fixture(scope="module")
def browser():
    path = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if path is None:
        missing = pytest.fail if os.environ.get("CI") else pytest.skip
        missing("there is no Chromium on this machine (apt-get install chromium).")
    with sync_playwright() as playwright:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium has none for root
        browser = playwright.chromium.launch(executable_path=path, args=sandbox)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def files(plan, by_hand, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    plan.report(folder / "plan.html")
    by_hand.report(str(folder / "by_hand.html"))
    assert sorted(p.name for p in folder.iterdir()) == ["by_hand.html", "plan.html"]
    return folder


@pytest.fixture(scope="module")
def loaded(browser, files):
    """Both reports, opened without a network, each with what went wrong or was asked of the network."""
    found = {}
    for name in ("plan.html", "by_hand.html"):
        page = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True).new_page()
        page.set_default_timeout(90_000)  # a busy machine is no mistake
        complaints = []
        page.on("console", lambda message, to=complaints: to.append(message.text))
        page.on("pageerror", lambda error, to=complaints: to.append(str(error)))
        page.on("request", lambda r, to=complaints: r.url.startswith(("file:", "data:")) or to.append(r.url))
        page.goto((files / name).as_uri())
        page.wait_for_selector("html[data-plots=drawn]", state="attached")
        found[name] = page, complaints
    return found


@pytest.fixture
def opened(loaded):
    """An opened report by name; after the test nothing may have gone wrong in it."""
    yield lambda name="plan.html": loaded[name][0]
    assert [complaints for _, complaints in loaded.values()] == [[], []]


def column(page, table, title):
    titles = page.locator(f"#{table} th").all_inner_texts()
    cells = page.locator(f"#{table} tbody tr:not([hidden]) td:nth-child({titles.index(title) + 1})")
    return cells.evaluate_all("found => found.map(cell => cell.dataset.value ?? cell.textContent)")


def sorted_by(page, table, title):
    header = page.locator(f"#{table} th", has=page.get_by_text(title, exact=True))
    header.get_by_role("button").click()
    return header.get_attribute("aria-sort")


def test_plots_are_drawn(opened):
    page = opened()
    plots = page.locator("[data-plot]")
    assert sorted(plots.evaluate_all("found => found.map(plot => plot.dataset.plot)")) == [
        *("comparison-plot", "kernels-plot", "kinds-plot", "lines-plot", "memory-plot", "search-plot")
    ]
    marks = plots.evaluate_all("found => found.map(p => p.querySelectorAll('.point path, .js-line, .js-fill').length)")
    assert min(marks) >= 1, marks
    labels = page.locator("#comparison .annotation-text").all_text_contents()
    strategies = column(page, "comparison-table", "strategy")
    assert strategies[0] == "this plan" and set(strategies) < {label.removeprefix("✗ ") for label in labels}
    assert page.locator("#comparison .point path").count() >= len(strategies)


def test_tables_sort_both_ways(opened, plan):
    page = opened()
    seconds = [float(s) for s in column(page, "collectives-table", "time")]
    assert len(seconds) > 3 and seconds == sorted(seconds, reverse=True)
    assert sum(seconds) == pytest.approx(plan.estimate.comm_seconds)
    assert sorted_by(page, "collectives-table", "bytes") == "descending"
    sizes = [float(s) for s in column(page, "collectives-table", "bytes")]
    assert sizes == sorted(sizes, reverse=True) and sizes != sorted(map(str, sizes), reverse=True)
    assert sorted_by(page, "collectives-table", "bytes") == "ascending"
    assert [float(s) for s in column(page, "collectives-table", "bytes")] == sorted(sizes)
    assert page.locator("#collectives-table th[aria-sort=none]").count() == 7
    assert sorted_by(page, "collectives-table", "kind") == "ascending"
    assert column(page, "collectives-table", "kind") == sorted(column(page, "collectives-table", "kind"))


def test_tables_filter(opened, plan):
    page = opened()
    box = page.locator("#arguments-table")
    every = column(page, "arguments-table", "argument")
    assert len(every) == len(plan.analysis.program.arguments)
    box.get_by_label("Filter").fill("EMBED params")
    wanted = [path for path in every if "embed" in path and "params" in path]
    assert column(page, "arguments-table", "argument") == wanted and 0 < len(wanted) < len(every)
    assert box.locator("output").inner_text() == f"{len(wanted)} of {len(every)} rows"
    box.get_by_label("Filter").fill("nothing like it")
    assert box.get_by_text("No row matches.").is_visible()
    box.get_by_label("Filter").fill("")
    assert column(page, "arguments-table", "argument") == every


@pytest.mark.parametrize("name", ["plan.html", "by_hand.html"])
def test_a_narrow_window_is_enough(opened, name):
    page = opened(name)
    page.set_viewport_size({"width": 360, "height": 800})
    page.wait_for_function("[...document.querySelectorAll('[data-plot]')].every(p => p.layout.width <= 360)")
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    widths = page.evaluate("[document.documentElement.scrollWidth, document.body.scrollWidth, innerWidth]")
    # Labels of bars are as wide as the plot at most.
    over = "found => found.filter(label => label.getBoundingClientRect().right > innerWidth).length"
    too_long = page.locator(".annotation-text").evaluate_all(over)
    page.set_viewport_size({"width": 1280, "height": 900})
    assert max(widths) == 360
    assert too_long == 0


def colours(page):
    return page.evaluate(
        """[getComputedStyle(document.body).backgroundColor,
            getComputedStyle(document.querySelector('#comparison .point path')).fill,
            getComputedStyle(document.querySelector('#comparison .annotation-text')).fill]"""
    )


def test_dark_mode_reaches_the_plots(opened):
    page = opened()
    light = colours(page)
    for scheme in ("dark", "light"):
        before = colours(page)
        page.emulate_media(color_scheme=scheme)
        changed = "before => getComputedStyle(document.querySelector('#comparison .point path')).fill !== before"
        page.wait_for_function(changed, arg=before[1])
        assert all(a != b for a, b in zip(before, colours(page), strict=True))
    assert colours(page) == light


def test_hostile_names_are_text(opened):
    page = opened("by_hand.html")
    assert page.locator("#arguments-table").get_by_text(f"params.{HOSTILE}", exact=True).is_visible()
    labels = page.locator("#communication .annotation-text").all_text_contents()
    assert "<i>odd.py:3 (step)" in labels and page.locator("main i:not(.key)").count() == 0
    assert page.locator("script").count() == 5  # ours, the plots' data, and Plotly packed and unpacked
    assert "✗ does not fit" in page.locator(".tiles").inner_text()


def test_headings_and_captions_are_in_order(opened):
    page = opened()
    levels = page.locator("h1, h2, h3").evaluate_all("found => found.map(h => h.tagName)")
    assert levels == ["H1"] + ["H2"] * 8
    assert page.locator("table").count() == page.locator("table > caption:first-child").count() > 5
    assert page.locator("[role=img]:not([aria-label]), input:not(label input)").count() == 0
