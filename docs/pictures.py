"""The pictures of these pages, drawn from what Shardwright finds: ``python docs/pictures.py``.

Needs the docs extra, and Chromium for the picture of a report. Takes a minute; the pictures are committed.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.patches import Rectangle

import shardwright as sw
from shardwright._amounts import human_bytes, human_seconds
from shardwright.models import build
from shardwright.price.timeline import make_timeline

FOLDER = Path(__file__).parent / "pictures"
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")
GREY, PALE, INK = "#999999", "#eeeeee", "#222222"
matplotlib.rcParams.update(
    {
        "svg.fonttype": "none",
        "svg.hashsalt": "shardwright",
        "font.family": "sans-serif",
        "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
)


def array(*shape: int) -> jax.ShapeDtypeStruct:
    """An argument by its shape."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def perceptron(x: Any, w1: Any, w2: Any) -> Any:
    """Two layers."""
    return jax.nn.relu(x @ w1) @ w2


def attention(x: Any, wq: Any, wk: Any, wv: Any) -> Any:
    """One head."""
    q, k, v = x @ wq, x @ wk, x @ wv
    weights = jax.nn.softmax(q @ k.T)
    return weights @ v


PERCEPTRON = (array(256, 1024), array(1024, 4096), array(4096, 512))
ATTENTION = (array(2048, 512), array(512, 64), array(512, 64), array(512, 64))


def length(size: int) -> float:
    """How long a dimension is drawn."""
    return 0.35 * size**0.16 - 0.1


def tensor(
    axes: Any,
    left: float,
    middle: float,
    shape: Sequence[int],
    title: str,
    edges: Sequence[str],
    held: Sequence[int] = (1, 1),
    scale: float = 1.0,
) -> float:
    """A matrix, its two dimensions as edges in their colours, in parts of which one device holds the first."""
    rows, columns = (scale * length(size) for size in shape)
    top = middle + rows / 2
    axes.add_patch(Rectangle((left, top - rows), columns, rows, facecolor=PALE, edgecolor="none"))
    part = (columns / held[1], rows / held[0])
    if held != (1, 1):
        axes.add_patch(Rectangle((left, top - part[1]), *part, facecolor=GREY, alpha=0.75, edgecolor="none"))
    for k in range(1, held[0]):
        axes.plot([left, left + columns], [top - k * part[1]] * 2, color="white", linewidth=1)
    for k in range(1, held[1]):
        axes.plot([left + k * part[0]] * 2, [top - rows, top], color="white", linewidth=1)
    axes.plot([left, left], [top - rows, top], color=edges[0], linewidth=4, solid_capstyle="butt")
    axes.plot([left, left + columns], [top, top], color=edges[1], linewidth=4, solid_capstyle="butt")
    axes.text(left - 0.05, middle, f"{shape[0]:,}", rotation=90, ha="right", va="center", color=edges[0], fontsize=8)
    axes.text(left + columns / 2, top + 0.05, f"{shape[1]:,}", ha="center", va="bottom", color=edges[1], fontsize=8)
    axes.text(left + columns / 2, top - rows - 0.06, title, ha="center", va="top", color=INK)
    return left + columns


def save(figure: Any, name: str) -> None:
    """Write a picture, the same each time."""
    FOLDER.mkdir(exist_ok=True)
    figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None}, facecolor="white", bbox_inches="tight")
    pyplot.close(figure)
    print(f"{name}.svg")


def draw_colours() -> None:
    """The tensors of a two-layer perceptron, each dimension in its colour."""
    analysis = sw.analyse(perceptron, *PERCEPTRON)
    program = analysis.program
    colours = {c: COLOURS[k] for k, c in enumerate(dict.fromkeys(_colours(analysis, program, range(3))))}
    products = [op for op in program.ops if op.kind == "dot_general"]
    rows = [("x", 0), ("·", None), ("w1", 1), ("=", None), ("h", products[0].results[0])]
    rows += [("relu → ·", None), ("w2", 2), ("=", None), ("y", products[1].results[0])]
    figure, axes = pyplot.subplots(figsize=(10, 2.9))
    left = 0.0
    for title, value in rows:
        if value is None:
            width = 0.1 * len(title) + 0.5
            axes.text(left + width / 2 - 0.08, 0, title, ha="center", va="center", fontsize=13, color=INK)
            left += width
        else:
            edges = [colours[int(c)] for c in analysis.colours.of_value(value)]
            left = tensor(axes, left, 0, program.values[value].shape, title, edges)
    for number, (colour, drawn) in enumerate(colours.items()):
        name = analysis.descriptions[analysis.group_of[colour]].name
        axes.text(number * left / len(colours), -1.25, f"■ {name}", color=drawn, fontsize=11)
    axes.set(xlim=(-0.3, left + 0.1), ylim=(-1.4, 0.95), aspect="equal")
    axes.axis("off")
    save(figure, "colours")


def _colours(analysis: Any, program: Any, values: Sequence[int]) -> list[int]:
    return [int(c) for v in values for c in analysis.colours.of_value(v) if program.values[v].shape]


def draw_conflict() -> None:
    """Both resolutions of attention's conflict: what each device holds, and what moves."""
    figure, rows = pyplot.subplots(2, 1, figsize=(12, 4.9))
    titles = ("Side 0: the queries are split", "Side 1: the keys are split")
    for axes, side, title in zip(rows, (0, 1), titles, strict=True):
        plan = sw.evaluate(attention, *ATTENTION, mesh={"d": 4}, device="tpu-v5e", decisions=[("d", "x[0]", (side,))])
        _resolution(axes, plan, title)
    figure.subplots_adjust(hspace=0.0)
    save(figure, "conflict")


def _resolution(axes: Any, plan: sw.Plan, title: str) -> None:
    analysis, program = plan.analysis, plan.analysis.program
    products = [o for o, op in enumerate(program.ops) if op.kind == "dot_general"]
    scores, out = products[3], products[4]
    sequence = int(analysis.colours.of_value(0)[0])

    def draw(left: float, value: int, name: str, sharding: Any) -> float:
        colours = [COLOURS[1] if int(c) == sequence else GREY for c in analysis.colours.of_value(value)]
        held = tuple(4 if axes_of else 1 for axes_of in sharding)
        return tensor(axes, left, 0, program.values[value].shape, name, colours, held, scale=1.0)

    left = 0.0
    for number, names in ((scores, ("q", "kᵀ", "scores")), (out, ("softmax(scores)", "v", "result"))):
        op, assignment = program.ops[number], plan.partitioned.assignments[number]
        assert assignment is not None
        for k, (value, wanted) in enumerate(zip(op.operands, assignment.operands, strict=True)):
            left = draw(left, value, _moved(names[k], assignment.before[k]), wanted) + 0.18
            axes.text(left, 0, "·" if k == 0 else "=", ha="center", va="center", fontsize=15)
            left += 0.42
        result = op.results[0]
        left = draw(left, result, _moved(names[2], assignment.after[0]), plan.partitioned.values[result]) + 0.6
    axes.text(0, 0.95, title, fontsize=12, fontweight="bold", color=INK)
    seconds = human_seconds(plan.estimate.comm_seconds)
    lines = [f"{seconds} of communication:", *_moves(plan)]
    axes.text(left - 0.2, 0.55, "\n".join(lines), fontsize=9, color=INK, va="top", linespacing=1.6)
    axes.set(xlim=(-0.3, left + 2.2), ylim=(-1.05, 1.1), aspect="equal")
    axes.axis("off")


def _moved(name: str, moves: Sequence[Any]) -> str:
    """A tensor's name, with what was done to it before it came to look so."""
    done = {"all-gather": "gathered", "reduce-scatter": "reduce-scattered"}
    return "\n".join([name, *(done.get(move.kind, move.kind) for move in moves)])


def _moves(plan: sw.Plan) -> list[str]:
    """The collectives in words, those of one kind and tensor together, largest first."""
    found: Counter[tuple[float, str, str]] = Counter()
    for c in plan.estimate.collectives:
        found[-c.bytes, c.kind, c.tensor] += c.times
    return [
        f"{kind}, {tensor}: {human_bytes(-sent)}" + (f", {times} times" if times > 1 else "")
        for (sent, kind, tensor), times in sorted(found.items())
    ]


def draw_search(model: str, mesh: Mapping[str, int]) -> None:
    """The best step time over the states met, from tactics and from nothing."""
    from shardwright.search import find_state

    fn, args, options = build(model)
    plan = sw.partition(fn, *args, mesh=mesh, device="tpu-v5e", **options)
    assert plan.search is not None
    comparison = sw.compare(plan)
    state = sw.evaluate(fn, *args, mesh=mesh, device="tpu-v5e", **options).partitioned.state
    alone = find_state(plan.analysis, plan.costs, state, plan.memory_bytes, use_tactics=False).search
    figure, axes = pyplot.subplots(figsize=(8, 3.6))
    runs = ((plan.search, COLOURS[0], "starting from tactics"), (alone, COLOURS[1], "starting from nothing"))
    for found, colour, label in runs:
        fitting = [m for m in found.history if m.fits]
        x = [m.evaluations for m in fitting] + [found.evaluations]
        y = [1e3 * m.step_seconds for m in fitting] + [1e3 * fitting[-1].step_seconds]
        axes.step(x, y, where="post", color=colour, label=label)
    best = comparison.best_expert
    if best is not None:
        label = f"best of the tactics: {best.name}"
        axes.axhline(1e3 * best.step_seconds, color=GREY, linestyle="--", linewidth=1, label=label)
    axes.set(xscale="log", yscale="log", xlabel="states met", ylabel="step of the best that fits, ms")
    ticks = [
        t for t in (50, 100, 150, 200, 300, 500, 1000, 2000, 5000) if axes.get_ylim()[0] <= t <= axes.get_ylim()[1]
    ]
    axes.set_yticks(ticks, [f"{t:,}" for t in ticks])
    axes.minorticks_off()
    axes.legend(frameon=False)
    save(figure, "search")


def draw_memory(model: str, mesh: Mapping[str, int]) -> None:
    """What a device holds at every kernel, under two tactics."""
    fn, args, options = build(model)
    figure, both = pyplot.subplots(1, 2, figsize=(10, 3.4), sharey=True)
    tactics = (("data parallel", "data_parallel"), ("FSDP", "fsdp"))
    for axes, (title, name) in zip(both, tactics, strict=True):
        decisions = [f"{name}:{axis}" for axis in mesh]
        plan = sw.evaluate(fn, *args, mesh=mesh, device="tpu-v5e", decisions=decisions, **options)
        timeline = make_timeline(plan.costs, plan.partitioned.state)
        kinds = [kind for kind, held in timeline.bytes.items() if held.any()]
        x = range(len(timeline.sources))
        layers = [timeline.bytes[kind] / 2**30 for kind in kinds]
        axes.stackplot(x, *layers, labels=kinds, colors=COLOURS, step="mid", linewidth=0)
        axes.axhline(plan.memory_bytes / 2**30, color=INK, linestyle="--", linewidth=1)
        for body in timeline.bodies:
            axes.axvspan(body.first, body.last, color=INK, alpha=0.06, linewidth=0)
            middle = (body.first + body.last) / 2
            axes.text(
                middle, plan.memory_bytes / 2**30 - 0.3, f"loop × {body.trips}", ha="center", va="top", fontsize=8
            )
        axes.set(title=f"{title}: {human_bytes(plan.estimate.peak_bytes)}", xlabel="kernels, in order", xmargin=0)
    both[0].set_ylabel("GiB on each device")
    both[1].legend(frameon=False, loc="center right", fontsize=9, bbox_to_anchor=(1, 0.6))
    save(figure, "memory")


def take_report() -> None:
    """The first screen of the report on the plan of "Reading a plan"."""
    page = (FOLDER.parent / "reading_a_plan.md").read_text()
    names: dict[str, Any] = {}
    exec(compile(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], "example.py", "exec"), names)
    with tempfile.TemporaryDirectory() as folder:
        names["plan"].report(f"{folder}/plan.html")
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--virtual-time-budget=4000"]
        target = [f"--screenshot={FOLDER / 'report.png'}", "--window-size=1280,1400", f"file://{folder}/plan.html"]
        subprocess.run(["chromium", *options, *target], check=True, capture_output=True)
    print("report.png")


if __name__ == "__main__":
    take_report()
    draw_colours()
    draw_conflict()
    draw_memory("gpt", {"data": 4, "model": 4})
    draw_search("moe", {"data": 4, "model": 4})
