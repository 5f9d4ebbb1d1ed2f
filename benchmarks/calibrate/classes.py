"""Where a compiled program's cycles go by class of op, beside the estimate's kernels, and which classes lose most.

    python -m benchmarks.calibrate.classes PLAN.json=TEXT.hlo.gz ... [--lines 12]

Takes plan files of built-in models (``plan.save``, their function is built anew by the name in the file's program) with
the texts that ``plan.verify(..., keep=TEXT)`` kept. ``compared`` does the same for any plan and text.
"""

from __future__ import annotations

import argparse
import gzip
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from benchmarks.calibrate.attributed import (
    CONVOLUTION,
    COPY,
    ELEMENTWISE,
    GATHER,
    PRODUCT,
    REDUCTION,
    SCATTER,
    SLICES,
    SORT,
    attributed,
)
from shardwright.devices import Device
from shardwright.ir.kinds import CONTRACTIONS, MOVES_DATA, PRODUCTS, REDUCING
from shardwright.ir.program import Source
from shardwright.price.estimate import Estimate
from shardwright.verify.hlo import parse_hlo


class Share(NamedTuple):
    """Seconds of a class, or of a class at a line: the compiler's and the estimate's."""

    compiled_seconds: float
    estimated_seconds: float

    @property
    def lost_seconds(self) -> float:
        """How far they are apart."""
        return abs(self.compiled_seconds - self.estimated_seconds)


def kind_group(kind: str) -> str:
    """The class of an estimate's kernel."""
    if kind in PRODUCTS or kind == "ragged_dot":
        return PRODUCT
    if kind in CONTRACTIONS:
        return CONVOLUTION
    if kind.startswith(("copy", "gathered rows", "rows spread")):
        return COPY
    if kind in ("gather", "scatter", "sort"):
        return {"gather": GATHER, "scatter": SCATTER, "sort": SORT}[kind]
    if kind in REDUCING:
        return REDUCTION
    if kind in ("dynamic_slice", "dynamic_update_slice"):
        return SLICES
    return COPY if kind in MOVES_DATA else ELEMENTWISE


def compared(estimate: Estimate, text: str, device: Device) -> dict[tuple[str, str], Share]:
    """Seconds by class and source line, of a compiled text and of its estimate."""
    found: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for each in attributed(parse_hlo(text), device.clock_hertz, device.memory_bytes_per_second):
        group = f"{each.group}, alone" if each.alone and each.group != COPY else each.group
        found[group, _place(each.source)][0] += each.total_seconds
    for kernel in estimate.kernels:
        found[kind_group(kernel.kind), _place(kernel.source)][1] += kernel.seconds
    return {key: Share(*seconds) for key, seconds in found.items()}


def _place(source: Source) -> str:
    way = "recomputed" if source.recomputed else "backward" if source.backward else ""
    return f"{source.file.rsplit('/', 1)[-1]}:{source.line} {way}".strip()


def by_class(shares: dict[tuple[str, str], Share]) -> dict[str, Share]:
    """The same by class alone, those that lose most first."""
    found: dict[str, Share] = {}
    for (group, _), share in shares.items():
        before = found.get(group, Share(0.0, 0.0))
        found[group] = Share(*(a + b for a, b in zip(before, share, strict=True)))
    return dict(sorted(found.items(), key=lambda item: -item[1].lost_seconds))


def table(name: str, shares: dict[tuple[str, str], Share], lines: int = 12) -> Iterable[str]:
    """Both tables as text."""
    total = Share(*(sum(column) for column in zip(*shares.values(), strict=True)))
    yield f"{name}: compiled {_ms(total.compiled_seconds)}, estimated {_ms(total.estimated_seconds)} ms"
    for group, share in by_class(shares).items():
        yield f"  {group:<24}{_ms(share.compiled_seconds):>10}{_ms(share.estimated_seconds):>10}"
    worst = sorted(shares.items(), key=lambda item: -item[1].lost_seconds)[:lines]
    for (group, place), share in worst:
        yield f"    {group:<24}{place:<40}{_ms(share.compiled_seconds):>10}{_ms(share.estimated_seconds):>10}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3f}"


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables of each pair of a plan and a text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="+", metavar="MODEL:PLAN.json=TEXT.hlo.gz")
    parser.add_argument("--lines", type=int, default=12)
    arguments = parser.parse_args(argv)
    total: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for pair in arguments.pairs:
        plan, text = _read(pair)
        shares = compared(plan.estimate, text, plan.device)
        print("\n".join(table(pair, shares, arguments.lines)))
        for group, share in by_class(shares).items():
            total[group][0] += share.compiled_seconds
            total[group][1] += share.estimated_seconds
    everything = {(group, "all"): Share(*seconds) for group, seconds in total.items()}
    print("\n".join(table("all", everything, 0)))


def _read(pair: str) -> tuple[Any, str]:
    import json

    import shardwright as sw
    from shardwright.models import build

    named, _, text = pair.rpartition(".json=")
    named += ".json"
    model, _, file = named.partition(":")
    name, _, sizes = model.partition("@")
    sizes = dict(each.split("=") for each in sizes.split(",") if each)
    fn, args, _ = build(name, **{key: json.loads(value) for key, value in sizes.items()})
    with gzip.open(text, "rt") as kept:
        return sw.load(file, fn, *args), kept.read()


if __name__ == "__main__":
    main()
