"""docs/benchmarks/calibration.md: constants of calibrated devices, errors of each class, and prices of links."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.calibrate.links import link_table

_HEAD = """# Calibration

What kernels take on a TPU beyond its peaks is fitted to designed programs: small ones of one class each, products over
shapes and types, attention's batches of them, softmax and norms, elementwise chains, reductions, gathers, convolutions
and loops, compiled ahead of time for one chip. The programs that estimates are judged by
([the clock](clock.md), [models of others](ecosystem.md)) are none of them.

    python -m benchmarks.calibrate tpu-v5e --keep TEXTS          compile what is not kept yet, fit, write the data file
    python -m benchmarks.calibrate --page docs/benchmarks/calibration.md

Constants are fitted to two of three programs of each class, by least squares on the logarithms of estimate over
compiler's cycles; the third is held out, and its errors are shown beside those of the fit. An error is how many times
too large or too small, less one. The estimate's classes of kernels are as in `price/compute.py`; copies to the layouts
that a program's arguments and results have are counted on neither side.
"""

_LINKS = """## Links

Prices of collectives beside the latencies in the compiler's own schedule (`xla_dump_latency_hiding_schedule`): our
microseconds, and ours over theirs. The compiler's are the bytes over a rate, whatever the length of the axis and
whether it closes into a ring: 93.3 GB/s on v5e for what is gathered, half of that for a permute and for an
all-reduce along one dimension of the slice, the same as for a gather along two. So they agree with ours where the rate
of a ring is what there is, and differ by more than a tenth in three ways, in each of which ours stay:

- *An axis of 4 chips of a 4x4 slice has no link back from its last chip to its first.* The chip at its end receives all
  that it lacks, (n - 1)/n of the tensor, by one link, so a gather or a scatter takes at least that over one link's rate
  however it is routed along the axis: 1.56 times the compiler's figure. An all-reduce over all 16 goes through two
  links of the chip in a corner, where the compiler counts four: twice its figure. The compiler itself knows, when it
  makes the collective: on 4x4 it takes `UniDirection1DRingStrategy` with two colours, a ring folded onto a line each
  way, and on 16x16, which has that link, `StrategyRing`; the latency in its schedule is the same for both.
- *All-to-all* is counted there as twice what a chip sends over one link. Ours is what crosses the middle of a line,
  which is less for 4 chips, and one dimension after the other for 16, which is more.
- *Below some hundred kilobytes* there is no latency in its figures at all, and ours has a microsecond for every hop.
"""


def page(calibrations: Sequence[Mapping[str, Any]]) -> str:
    """The page's text."""
    lines = [_HEAD]
    for told in calibrations:
        lines += _device(told)
    linked = [told for told in calibrations if told.get("links")]
    if linked:
        lines.append(_LINKS)
    for told in linked:
        lines.append(f"### {told['device']}, {told['slice']}\n")
        lines += [*link_table(told["links"]), ""]
    return "\n".join(lines).rstrip() + "\n"


def _device(told: Mapping[str, Any]) -> Iterator[str]:
    made = told["made"]
    yield f"## {told['device']}\n"
    yield (
        f"jax {made['jax']}, libtpu {made['libtpu']}, {made['date']}; {made['programs']} programs compiled, of which "
        f"{made['refused']} refused.\n"
    )
    yield "| constant | value |\n|---|---|"
    for name, value in {**told["kernel_costs"], **{f"rate of {k}": v for k, v in told["rates"].items()}}.items():
        yield f"| {name} | {value:g} |"
    yield ""
    yield "| class | fitted | median | 90th | held out | median | 90th | estimate / compiled |"
    yield "|---|---|---|---|---|---|---|---|"
    fitted, held = told["errors"]["fitted"], told["errors"]["held_out"]
    for group in dict.fromkeys([*(g for g in fitted if g != "all"), *(g for g in held if g != "all"), "all"]):
        yield f"| {group} | {_cells(fitted.get(group))} | {_cells(held.get(group))} | {_ratio(held, fitted, group)} |"
    yield ""


def _cells(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "0 | – | –"
    return f"{row['programs']} | {_percent(row['median_error'])} | {_percent(row['p90_error'])}"


def _percent(error: float) -> str:
    return f"{100 * error:.0f}%"


def _ratio(held: Mapping[str, Any], fitted: Mapping[str, Any], group: str) -> str:
    return f"{(held.get(group) or fitted[group])['ratio']:.2f}"
