"""How close the cost model is to the compiler: memory and time of plans, predicted and compiled.

    python benchmarks/fidelity.py --rows rows.jsonl                    compile what is not in the file yet
    python benchmarks/fidelity.py --rows rows.jsonl --no-compile --write docs/benchmarks/fidelity.md
    python benchmarks/fidelity.py --gpu --rows gpu.jsonl               memory alone, on A100; needs the gpu extra

Needs the tpu extra, and no TPU. Every built-in model under tactics and random decisions, compiled ahead of time for
topologies of TPU v5e, v5p and v3. Bytes are the most that the compiler allocates at one time, arguments included; for a
program that does not fit, what it says it would need after all it tried, which is shown but not counted as an error.
Seconds are the compiler's own cycles, loops counted as often as they run, plus the collectives of its final program on
the links of the topology; the compiler gives no cycles for those. What the compiler said is kept by the shardings that
it was given, so a change of the cost model alone compiles nothing again.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import platform
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
from scipy.stats import spearmanr

import shardwright as sw
from shardwright.models import build
from shardwright.request.targets import parse_target
from shardwright.verify.compile import compile_exported
from shardwright.verify.figures import program_figures
from shardwright.verify.hlo import parse_hlo

GIB = 2**30
SIZES: dict[str, dict[str, Any]] = {
    "gpt": {},
    "vit": {},
    "itx": {},
    "mlp": {},
    "moe": {"layers": 2},
    "gns": {"steps": 3},
    "unet": {"levels": 2, "attention_levels": 1, "blocks": 1, "width": 128, "batch": 128},
}
"""Scanned models compile in the same time at any depth, so they have their full size; the others are shorter."""

Case = tuple[str, dict[str, Any], str, dict[str, int], Any]
"""Model, further sizes, topology, mesh, and tactics or the seed of random decisions."""

EIGHT, FOUR_TWO, TWO_FOUR = {"data": 8}, {"data": 4, "model": 2}, {"data": 2, "model": 4}
SIXTEEN, FOUR_FOUR = {"data": 16}, {"data": 4, "model": 4}
DP, FSDP, ZERO, MEGATRON = "data_parallel:data", "fsdp:data", "zero1:data", "megatron:model"
SEQUENCE, CONTEXT, EXPERT, SPATIAL = (
    f"{name}:model" for name in ("megatron_sequence", "context_parallel", "expert_parallel", "spatial")
)

CASES: list[Case] = [
    ("gpt", {}, "v5e:4x4", SIXTEEN, [DP]),
    ("gpt", {}, "v5e:4x4", SIXTEEN, [FSDP]),
    ("gpt", {}, "v5e:4x4", SIXTEEN, [ZERO]),
    ("gpt", {}, "v5e:4x4", FOUR_FOUR, [DP, MEGATRON]),
    ("gpt", {}, "v5e:4x4", FOUR_FOUR, [FSDP, MEGATRON]),
    ("gpt", {}, "v5e:4x4", FOUR_FOUR, [FSDP, SEQUENCE]),
    ("gpt", {}, "v5e:4x4", FOUR_FOUR, [FSDP, CONTEXT]),
    ("gpt", {}, "v5e:4x4", FOUR_FOUR, 0),
    ("gpt", {}, "v5e:4x4", FOUR_FOUR, 1),
    ("gpt", {}, "v5p:2x2x2", EIGHT, [FSDP]),
    ("gpt", {}, "v5p:2x2x2", FOUR_TWO, [DP, MEGATRON]),
    ("gpt", {}, "v3:4x4", {"data": 8, "model": 4}, [FSDP, MEGATRON]),
    ("gpt", {"batch": 128}, "v5e:4x4", SIXTEEN, [DP]),
    ("gpt", {"preset": "gemma-2b"}, "v5e:4x4", SIXTEEN, [DP]),
    ("mlp", {}, "v5e:2x4", EIGHT, [DP]),
    ("mlp", {}, "v5e:2x4", EIGHT, [FSDP]),
    ("mlp", {}, "v5e:2x4", EIGHT, [ZERO]),
    ("mlp", {}, "v5e:2x4", TWO_FOUR, [DP, MEGATRON]),
    ("mlp", {}, "v5e:2x4", FOUR_TWO, [FSDP, MEGATRON]),
    ("mlp", {}, "v5e:2x4", FOUR_TWO, 0),
    ("mlp", {}, "v5e:2x4", FOUR_TWO, 1),
    ("mlp", {}, "v5p:2x2x2", TWO_FOUR, [DP, MEGATRON]),
    ("mlp", {}, "v3:2x2", EIGHT, [FSDP]),
    ("mlp", {"layers": 24}, "v5e:2x4", EIGHT, [DP]),
    ("itx", {}, "v5e:4x4", FOUR_FOUR, [DP, MEGATRON]),
    ("itx", {}, "v5e:4x4", {"data": 2, "model": 8}, [DP, MEGATRON]),
    ("itx", {}, "v5e:4x4", FOUR_FOUR, [FSDP, MEGATRON]),
    ("itx", {}, "v5e:4x4", FOUR_FOUR, [MEGATRON]),
    ("itx", {}, "v5e:4x4", FOUR_FOUR, [FSDP, CONTEXT]),
    ("itx", {}, "v5e:4x4", SIXTEEN, [FSDP]),
    ("itx", {}, "v5e:4x4", FOUR_FOUR, 0),
    ("itx", {}, "v5p:2x2x2", EIGHT, [DP]),
    ("itx", {}, "v5p:2x2x2", TWO_FOUR, [DP, MEGATRON]),
    ("itx", {}, "v3:4x4", {"data": 8, "model": 4}, [DP, MEGATRON]),
    ("itx", {}, "v5e:4x4", SIXTEEN, [DP]),
    ("itx", {"batch": 1024}, "v5e:4x4", FOUR_FOUR, [MEGATRON]),
    ("vit", {}, "v5e:2x4", EIGHT, [DP]),
    ("vit", {}, "v5e:2x4", EIGHT, [FSDP]),
    ("vit", {}, "v5e:2x4", TWO_FOUR, [DP, MEGATRON]),
    ("vit", {}, "v5e:2x4", FOUR_TWO, [FSDP, MEGATRON]),
    ("vit", {}, "v5e:2x4", FOUR_TWO, 0),
    ("vit", {}, "v5e:8x8", {"data": 64}, [FSDP]),
    ("vit", {}, "v5p:2x2x2", EIGHT, [DP]),
    ("vit", {}, "v3:2x2", EIGHT, [FSDP]),
    ("vit", {"batch": 8192}, "v5e:2x4", EIGHT, [DP]),
    ("moe", {}, "v5e:4x4", SIXTEEN, [DP]),
    ("moe", {}, "v5e:4x4", SIXTEEN, [FSDP]),
    ("moe", {}, "v5e:4x4", FOUR_FOUR, [DP, EXPERT]),
    ("moe", {}, "v5e:4x4", FOUR_FOUR, [FSDP, EXPERT]),
    ("moe", {}, "v5e:4x4", FOUR_FOUR, [FSDP, MEGATRON]),
    ("moe", {}, "v5e:4x4", FOUR_FOUR, 0),
    ("moe", {}, "v5p:2x2x2", FOUR_TWO, [FSDP, EXPERT]),
    ("moe", {}, "v3:4x4", {"data": 8, "model": 4}, [FSDP, EXPERT]),
    ("moe", {"layers": 8}, "v5e:4x4", SIXTEEN, [DP]),
    ("gns", {}, "v5e:2x4", EIGHT, [DP]),
    ("gns", {}, "v5e:2x4", EIGHT, [FSDP]),
    ("gns", {}, "v5e:2x4", EIGHT, [ZERO]),
    ("gns", {}, "v5e:2x4", FOUR_TWO, [DP, MEGATRON]),
    ("gns", {}, "v5e:2x4", FOUR_TWO, [FSDP, MEGATRON]),
    ("gns", {}, "v5e:2x4", FOUR_TWO, 0),
    ("gns", {}, "v5p:2x2x2", EIGHT, [DP]),
    ("gns", {}, "v3:2x2", FOUR_TWO, [FSDP, MEGATRON]),
    ("unet", {}, "v5e:2x4", EIGHT, [DP]),
    ("unet", {}, "v5e:2x4", EIGHT, [FSDP]),
    ("unet", {}, "v5e:2x4", FOUR_TWO, [DP, MEGATRON]),
    ("unet", {}, "v5e:2x4", FOUR_TWO, [FSDP, SPATIAL]),
    ("unet", {"batch": 8192}, "v5e:2x4", EIGHT, [DP]),
]

GPU = "a100-80:8"
GPU_CASES: list[Case] = [
    (model, {}, GPU, mesh, tactics)
    for model, tensor in [(m, MEGATRON) for m in ("gpt", "mlp", "itx", "vit", "gns", "unet")] + [("moe", EXPERT)]
    for mesh, tactics in ((EIGHT, [DP]), (EIGHT, [FSDP]), (FOUR_TWO, [DP, tensor]), (FOUR_TWO, [FSDP, tensor]))
]


def target_of(case: Case) -> str:
    return f"{'gpu' if case[2] == GPU else 'tpu'}:{case[2]}"


def plan_of(case: Case) -> sw.Plan:
    model, more, topology, mesh, decisions = case
    fn, args, options = build(model, **({**SIZES[model], **more} if "preset" not in more else more))
    name = topology.partition(":")[0]
    device = name if topology == GPU else f"tpu-{name}"
    if isinstance(decisions, int):
        decisions = random_decisions(sw.analyse(fn, *args, **options), mesh, decisions)
    return sw.evaluate(fn, *args, mesh=mesh, device=device, decisions=decisions, **options)


def random_decisions(analysis: sw.Analysis, mesh: dict[str, int], seed: int) -> list[sw.Decision]:
    """Up to three dimensions on each axis, of those that do some work and that the axis divides."""
    choose = random.Random(seed)
    out = []
    for axis, size in mesh.items():
        able = [d for d in analysis.descriptions if d.flops and any(s % size == 0 for s in d.sizes)]
        for d in choose.sample(able, min(len(able), choose.randint(1, 3))):
            conflicts = analysis.groups[analysis.descriptions.index(d)].conflicts
            out.append(sw.Decision(axis, d.name, tuple(choose.randrange(2) for _ in conflicts)))
    return out


def name_of(case: Case) -> str:
    _, more, _, _, decisions = case
    sizes = ", ".join(f"{v}" if k == "preset" else f"{k} {v}" for k, v in more.items())
    what = f"random {decisions}" if isinstance(decisions, int) else " + ".join(d.partition(":")[0] for d in decisions)
    return f"{what} ({sizes})" if sizes else what


def key_of(case: Case, plan: sw.Plan) -> str:
    """Whatever the compiler's answer depends on."""
    p = plan.partitioned
    content = [case[:4], p.values, [a and (a.factors, a.operands, a.results) for a in p.assignments], plan.donate]
    return hashlib.sha256(repr([content, jax.__version__]).encode()).hexdigest()[:16]


def compiled(case: Case, plan: sw.Plan, keep: Path | None) -> dict[str, Any]:
    target = target_of(case)
    exported, _ = plan.export("tpu" if target.startswith("tpu") else "cuda")
    found = compile_exported(exported, plan.mesh, target, plan.donate, timeout_seconds=900, keep=keep)
    kept = ("memory", "peak_bytes", "limit_bytes", "fits", "compute_seconds", "comm_seconds", "compile_seconds")
    out = {name: found.get(name) for name in (*kept, "bytes", "counts", "crash", "error", "unknown_loops")}
    out["involuntary"] = len(found["involuntary"])
    return out


def read_again(file: Path, case: Case) -> dict[str, Any]:
    """The figures of a program that was kept, as they are read today."""
    text = gzip.decompress(file.read_bytes()).decode()
    found = program_figures(parse_hlo(text), case[3], parse_target(target_of(case)))
    return {name: found[name] for name in ("compute_seconds", "comm_seconds", "bytes", "counts", "unknown_loops")}


def peak_bytes(row: dict[str, Any]) -> float:
    of_a_tpu = row.get("memory") and row["topology"] != GPU
    return row["memory"]["peak_bytes"] if of_a_tpu else row["peak_bytes"]


def seconds(row: dict[str, Any]) -> float | None:
    known = row.get("compute_seconds") is not None
    return row["compute_seconds"] + row["comm_seconds"] if known else None


def quantile(numbers: Sequence[float], part: float) -> float:
    ordered = sorted(numbers)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = [
        "| model | pairs | memory, median error | 90th percentile | step, Spearman | median ratio | fits, right |",
        "|---|---|---|---|---|---|---|",
    ]
    by_model: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_model[row["model"]].append(row)
    for model, found in [*by_model.items(), ("all", list(rows))]:
        errors = [abs(r["estimate_bytes"] / peak_bytes(r) - 1) for r in found if r["fits"] or r.get("memory")]
        timed = [(r["estimate_seconds"], seconds(r)) for r in found if seconds(r) is not None]
        rank = spearmanr(*zip(*timed, strict=True)).statistic if model != "all" and len(timed) > 2 else None
        ratio = f"{statistics.median(a / b for a, b in timed):.2f}" if timed else ""  # type: ignore[operator]
        right = sum(r["estimate_fits"] == r["fits"] for r in found)
        lines.append(
            f"| {model} | {len(found)} | {statistics.median(errors):.1%} | {quantile(errors, 0.9):.1%} "
            f"| {'' if rank is None else f'{rank:.3f}'} | {ratio} | {right} of {len(found)} |"
        )
    return lines


def table(rows: Iterable[dict[str, Any]]) -> list[str]:
    lines = [
        "| model | topology | mesh | plan | GiB, estimate | compiled | ratio | ms, estimate | compiled | ratio "
        "| of these communication | fits: estimate, compiled | compile, s |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        mesh = " × ".join(map(str, r["mesh"].values()))
        a, b = r["estimate_bytes"], peak_bytes(r)
        s, t = r["estimate_seconds"], seconds(r)
        times = f"{1e3 * s:.1f} | {1e3 * t:.1f} | {s / t:.2f}" if t else f"{1e3 * s:.1f} | | "
        comm = f"{1e3 * r['estimate_comm']:.1f}, {1e3 * r['comm_seconds']:.1f}" if t else ""
        verdicts = ", ".join("yes" if fits else "no" for fits in (r["estimate_fits"], r["fits"]))
        took = f"{r['compile_seconds']:.0f}" if r.get("compile_seconds") else ""
        lines.append(
            f"| {r['model']} | {r['topology']} | {mesh} | {r['plan']} | {a / GIB:.2f} | {b / GIB:.2f} | {a / b:.2f} "
            f"| {times} | {comm} | {verdicts} | {took} |"
        )
    return lines


def plots(rows: Sequence[dict[str, Any]], folder: Path, stem: str) -> None:
    """Two scatter plots, predicted against compiled."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    for what, unit, pairs in (
        ("memory", "GiB", [(r["model"], peak_bytes(r) / GIB, r["estimate_bytes"] / GIB) for r in rows]),
        (
            "seconds",
            "ms",
            [(r["model"], 1e3 * (seconds(r) or 0), 1e3 * r["estimate_seconds"]) for r in rows if seconds(r)],
        ),
    ):
        if not pairs:
            continue
        figure, axes = pyplot.subplots(figsize=(6, 5.5))
        for model in SIZES:
            found = [(x, y) for m, x, y in pairs if m == model]
            if found:
                axes.scatter(*zip(*found, strict=True), s=22, label=model, alpha=0.85)
        low, high = min(min(x, y) for _, x, y in pairs) * 0.8, max(max(x, y) for _, x, y in pairs) * 1.25
        axes.plot([low, high], [low, high], color="grey", linewidth=1)
        axes.fill_between([low, high], [low * 0.75, high * 0.75], [low * 1.25, high * 1.25], color="grey", alpha=0.12)
        axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
        axes.set_xlabel(f"compiler, {unit}")
        axes.set_ylabel(f"estimate, {unit}")
        axes.set_title("Peak memory of a device" if what == "memory" else "Seconds of a step")
        axes.legend(frameon=False)
        figure.tight_layout()
        figure.savefig(folder / f"{stem}_{what}.svg", metadata={"Date": None})
        pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true", help="memory alone, on A100")
    parser.add_argument("--models", default=",".join(SIZES))
    parser.add_argument("--rows", type=Path, default=Path("fidelity.jsonl"))
    parser.add_argument("--keep", type=Path, help="a folder for the compiled programs' text")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    known: dict[str, dict[str, Any]] = {}
    if options.rows.exists():
        known = {row["key"]: row for row in map(json.loads, options.rows.read_text().splitlines())}
    rows = []
    for case in GPU_CASES if options.gpu else CASES:
        model, _, topology, mesh, _ = case
        if model not in options.models.split(","):
            continue
        plan = plan_of(case)
        key = key_of(case, plan)
        if key not in known:
            if options.no_compile:
                print(f"not compiled: {model} {topology} {name_of(case)}", flush=True)
                continue
            start = time.perf_counter()
            keep = options.keep / f"{key}.hlo.gz" if options.keep else None
            known[key] = {"key": key, **compiled(case, plan, keep)}
            with options.rows.open("a") as file:
                file.write(json.dumps(known[key]) + "\n")
            print(f"compiled in {time.perf_counter() - start:.0f} s: {model} {topology} {name_of(case)}", flush=True)
        if options.keep and (options.keep / f"{key}.hlo.gz").exists():
            known[key].update(read_again(options.keep / f"{key}.hlo.gz", case))
        estimate = plan.estimate
        row = {
            **known[key],
            "model": model,
            "topology": topology,
            "mesh": mesh,
            "plan": name_of(case),
            "estimate_bytes": estimate.peak_bytes,
            "estimate_seconds": estimate.step_seconds,
            "estimate_comm": estimate.comm_seconds,
            "estimate_fits": estimate.fits,
        }
        if row.get("crash") or (row["fits"] is None):
            print(f"no answer: {row['plan']}: {row.get('crash')}", flush=True)
            continue
        rows.append(row)
        print(table([row])[-1], flush=True)
    print("\n".join(summary(rows)))
    if options.write:
        options.write.parent.mkdir(parents=True, exist_ok=True)
        options.write.write_text(report(rows, options.write, gpu=options.gpu))


NOTES = """## What the largest differences are due to

- Decoding (itx), fsdp + megatron, time: the plan moves activations, but the compiler gathers the weights of two of the
  products all the same (0.9 GB instead of 0.03).
- Decoding on v3, time: the compiler gives the cache a layout there that is cheap to copy back into; the estimate has
  the dear copy that v5e and v5p make.
- vit, time: products of short sequences (196) and narrow heads (64) with a softmax fused into them take the compiler
  three to four times as long as their FLOPs; the estimate takes the longer of the two. It is low by the same part for
  all plans, which leaves their order.
- gns, data parallel, time: the compiler adds two partial sums before it reduces them (0.83 GB instead of 1.18).
- moe, random 0, memory: close to the limit, where this is, the compiler was seen (on gpt with growing batches) to need
  less than its growth so far would give; the estimate does not know of the limit. That may also be why what it says it
  would need for a program that does not fit is less than the estimate (moe, data parallel; gpt, random 1).
- Gathered weights (mlp, fsdp), memory: the estimate keeps each from its first use to its last, which is more than the
  compiler does.
- v3, memory: the compiler holds less than on the other generations (gpt, mlp, gns); why was not found out. Nor was it
  for gpt, fsdp + megatron_sequence, and for mlp, zero1 and random 0, where it holds more.
"""


def report(rows: Sequence[dict[str, Any]], file: Path, *, gpu: bool) -> str:
    plots(rows, file.parent, file.stem)
    pictures = [f"![{what}]({file.stem}_{what}.svg)" for what in ("memory", *(() if gpu else ("seconds",)))]
    about = " ".join(__doc__.split("Needs the tpu extra")[1].split())
    if gpu:
        about = (
            " `--gpu` (the gpu extra), and no GPU: memory alone, every built-in model under four tactics on eight A100"
            " of 80 GB. Bytes are arguments, results that are no arguments' buffers, temporaries and code. The compiler"
            " gives no cycles for GPUs."
        )
    return (
        f"# How close the cost model is to the {'GPU' if gpu else 'TPU'} compiler\n\n`python benchmarks/fidelity.py`"
        f"{'' if gpu else ' needs the tpu extra'}{about}\n\n"
        + "\n".join(summary(rows))
        + f"\n\n{' '.join(pictures)}\n\n"
        + ("" if gpu else f"{NOTES}\n## All pairs\n\n")
        + "\n".join(table(rows))
        + f"\n\n{date.today()}, shardwright {sw.__version__}, jax {jax.__version__}, Python "
        f"{platform.python_version()}, {os.cpu_count()} cores.\n"
    )


if __name__ == "__main__":
    main()
