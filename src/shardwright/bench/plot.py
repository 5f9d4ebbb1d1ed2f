"""Step times and times to decide, drawn."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path

from shardwright._files import write_whole
from shardwright.bench.contenders import CONTENDERS, OURS
from shardwright.bench.match import Match
from shardwright.errors import CompilerMissingError

_MARKERS = "o^vsDx"


def draw(found: Sequence[Match], file: Path) -> None:
    """Every contender's step and time to decide as multiples of ours, as SVG."""
    try:
        import matplotlib
    except ImportError:
        raise CompilerMissingError("drawing needs matplotlib: pip install 'shardwright[bench]'.") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    with matplotlib.rc_context({"svg.hashsalt": "shardwright", "svg.fonttype": "none", "font.size": 9}):
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(14, 1.8 + 0.32 * len(found)), sharey=True)
        others = [name for name in CONTENDERS if name != OURS]
        places = range(len(found))
        for k, (name, marker) in enumerate(zip(others, _MARKERS, strict=False)):
            steps = [(r, y) for y, m in zip(places, found, strict=True) if (r := m.step_ratio(name))]
            steps = [(r, y) for r, y in steps if math.isfinite(r)]
            waits = [(r, y) for y, m in zip(places, found, strict=True) if (r := m.search_ratio(name))]
            for axes, points in ((left, steps), (right, waits)):
                if points:
                    axes.scatter(*zip(*points, strict=True), s=30, marker=marker, color=f"C{k}", label=name, alpha=0.8)
        for axes, title in (
            (left, "step, as a multiple of ours (right of 1: slower); missing: does not fit"),
            (right, "time to decide, as a multiple of ours; dotted: 15 ×"),
        ):
            axes.set(xscale="log", xlabel=title)
            axes.axvline(1, color="grey", linewidth=1)
            axes.grid(axis="y", linewidth=0.3)
            axes.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
            axes.xaxis.set_minor_formatter(ticker.NullFormatter())
        right.axvline(15, color="grey", linewidth=1, linestyle=":")
        low, high = left.get_xlim()
        ticks = [t for t in (0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.5, 2, 3, 5, 10, 20) if low <= t <= high]
        left.set_xticks(ticks)
        left.set_yticks(list(places), [match.case.name for match in found])
        left.set_ylim(len(found) - 0.5, -0.5)
        figure.tight_layout(rect=(0, 0, 1, 1 - 0.3 / figure.get_figheight()))
        figure.legend(*left.get_legend_handles_labels(), loc="upper center", ncols=len(others), frameon=False)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
        pyplot.close(figure)
    write_whole(file, text.getvalue(), "the plot")
