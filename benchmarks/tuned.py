"""Tuned by the compiler: the plan of the search, the best of a few that were compiled, and tuned plans with options.

    python -m benchmarks.tuned --rows rows.jsonl                          all; resumes; about two hours on two cores
    python -m benchmarks.tuned --rows rows.jsonl --only "decode; gpt v5p"
    python -m benchmarks.tuned --rows rows.jsonl --no-run --write docs/benchmarks/tuned.md

Needs the tpu extra, and no TPU. Every case is a training step (of `decode` and `paged decode` a decoding step) with few
layers, so that a compilation takes well under a minute on an idle machine. Steps are replayed from the compiled
schedules. `rerank` compiles up to five plans; tuning compiles at most six programs, options included.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

import shardwright as sw
from benchmarks.programs import PROGRAMS
from shardwright.errors import ShardwrightError
from shardwright.models import build
from shardwright.plan import Plan
from shardwright.plan.tuning import Compiled
from shardwright.request.targets import parse_target

COMPILES = 6
GIB = 2**30
KEPT = Path(__file__).parents[1] / "docs" / "benchmarks" / "tuned.jsonl"
"""The rows of the page as it is."""
V5E, V5P, V6E = "tpu:v5e:4x4", "tpu:v5p:2x2x4", "tpu:v6e:4x4"
_GPT = {
    "layers": 2,
    "width": 1024,
    "heads": 8,
    "kv_heads": 8,
    "hidden": 4096,
    "vocabulary": 16384,
    "batch": 32,
    "sequence": 1024,
}
_MLP = {"layers": 4, "inputs": 4096, "width": 4096, "outputs": 4096, "batch": 8192}
_ITX = {"layers": 4, "batch": 64}
_UNET = {"levels": 2, "attention_levels": 1, "blocks": 1, "width": 128, "batch": 128, "image": 32}


@dataclass(frozen=True)
class Case:
    """A program of some sizes, or one of ``benchmarks/programs`` at its middle size, and the target."""

    name: str
    model: str
    sizes: Mapping[str, Any] = field(default_factory=dict)
    target: str = V5E
    mesh: Mapping[str, int] = field(default_factory=lambda: {"data": 4, "model": 4})

    def built(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """The function, its arguments, and what ``sw.partition`` is told."""
        device = parse_target(self.target).device.name
        if self.model in PROGRAMS:
            fn, args, options = PROGRAMS[self.model].module.build("middle")
            return fn, args, dict(options)
        fn, args, options = build(self.model, **self.sizes)
        return fn, args, {**options, "mesh": dict(self.mesh), "device": device}


_ALL = (
    Case("mlp", "mlp", _MLP),
    Case("decode", "itx", _ITX),
    Case("gpt", "gpt", _GPT),
    Case("mlp v5p", "mlp", _MLP, V5P),
    Case("decode v6e", "itx", _ITX, V6E),
    Case("gpt v5p", "gpt", _GPT, V5P),
    Case("graph network", "gns", {"steps": 2, "latent": 512, "hidden": 512, "nodes": 8192, "edges": 65536}),
    Case("vit", "vit", {"layers": 2, "batch": 256}),
    Case("unet", "unet", _UNET),
    Case(
        "moe",
        "moe",
        {**_GPT, "experts": 16, "batch": 16},
    ),
    Case("paged decode", "paged_decode", target=V6E),
    Case("llama, constraints", "constraints_p"),
    Case("llama, GRPO", "grpo"),
    Case("long context", "gpt", {**_GPT, "batch": 2, "sequence": 8192, "heads": 4, "kv_heads": 4, "head_dim": 256}),
    Case("DiT", "dit"),
)
CASES: Mapping[str, Case] = {case.name: case for case in _ALL}
"""In the order in which they run, those first that take least."""

Row = dict[str, Any]


def tuned_row(case: Case) -> Row:
    """What tuning makes of a case: the plan that it begins with, the best without options, and the best."""
    fn, args, options = case.built()
    started = time.perf_counter()
    plan = sw.partition(fn, *args, **options, tune=case.target, compiles=COMPILES)
    tuning = plan.tuning
    assert tuning is not None
    plain = [c for c in tuning.compiled if not c.options and c.fits and c.step_seconds is not None]
    best = min(plain, key=lambda c: c.step_seconds or math.inf)
    return {
        "default": _figures(tuning.compiled[0]),
        "tuned": _figures(best),
        "options": {
            "step_seconds": tuning.step_seconds,
            "peak_bytes": plan.verdict.peak_bytes if plan.verdict is not None else None,
            "kept": {kept.name: kept.saved for kept in tuning.options},
        },
        "compiled": [dataclasses.asdict(c) for c in tuning.compiled],
        "ended": tuning.ended,
        "notes": list(tuning.notes),
        "seconds": time.perf_counter() - started,
        "compile_seconds": sum(c.compile_seconds or 0.0 for c in tuning.compiled),
        "corrections": [dataclasses.asdict(c) for c in tuning.corrections],
    }


def rerank_row(case: Case) -> Row:
    """What ranking a few plans again makes of it."""
    fn, args, options = case.built()
    started = time.perf_counter()
    plan = sw.partition(fn, *args, **options, rerank=case.target)
    return {"rerank": {**_of_plan(plan), "compiles": 1 + len(plan.alternatives)}, "rerank_seconds": _since(started)}


def _of_plan(plan: Plan) -> Row:
    assert plan.verdict is not None
    return {"step_seconds": plan.verdict.step_seconds, "peak_bytes": plan.verdict.peak_bytes}


def _figures(compiled: Compiled) -> Row:
    return {"step_seconds": compiled.step_seconds, "peak_bytes": compiled.peak_bytes}


def _since(started: float) -> float:
    return time.perf_counter() - started


STAGES: Mapping[str, Callable[[Case], Row]] = {"tuned": tuned_row, "rerank": rerank_row}


def read(path: Path) -> dict[str, Row]:
    """What is known of each case."""
    rows: dict[str, Row] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        row = json.loads(line)
        if row["case"] in CASES:
            rows[row["case"]] = {**rows.get(row["case"], {}), **row}
    return rows


def run(names: Sequence[str], stages: Iterable[str], path: Path) -> None:
    """Run what is not known yet, stage by stage, and write it down as it comes."""
    for stage in stages:
        for name in names:
            if stage in read(path).get(name, {}):
                continue
            try:
                found = STAGES[stage](CASES[name])
            except ShardwrightError as error:
                found = {f"{stage}_unable": str(error)}
            row = {"case": name, **found, "jax": jax.__version__, "libtpu": version("libtpu")}
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{name}: {stage}: {_told(found)}", file=sys.stderr, flush=True)


def _told(found: Row) -> str:
    steps = {name: found[name]["step_seconds"] for name in ("default", "tuned", "options", "rerank") if name in found}
    return ", ".join(f"{name} {_ms(s)}" for name, s in steps.items()) or str(found)


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{1e3 * seconds:,.2f}"


def _gib(size: float | None) -> str:
    return "–" if size is None else f"{size / GIB:,.2f}"


def page(rows: Mapping[str, Row]) -> str:
    """The page, of what is known."""
    known = {name: rows[name] for name in CASES if "tuned" in rows.get(name, {})}
    text = [
        "# Tuned by the compiler, measured",
        "",
        __doc__ or "",
        "Milliseconds of a step and GiB of a device, as the compiler has them; *left* is the part of the default "
        "plan's step that is left, and the last column the seconds of the compilations, with others on the machine. "
        f"Of {len(CASES)} cases {len(known)} were run.",
        "",
        "| case | on | default, ms | GiB | rerank | tuned | with options, ms | GiB | left | compiles | s |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in known.items():
        default, options = row["default"]["step_seconds"], row["options"]["step_seconds"]
        left = f"{options / default:.3f}" if default and options else "–"
        cells = [
            name,
            CASES[name].target,
            _ms(default),
            _gib(row["default"]["peak_bytes"]),
            _ms(row.get("rerank", {}).get("step_seconds")),
            _ms(row["tuned"]["step_seconds"]),
            _ms(options),
            _gib(row["options"]["peak_bytes"]),
            left,
            str(len(row["compiled"])),
            f"{row['compile_seconds']:.0f}",
        ]
        text.append(f"| {' | '.join(cells)} |")
    text += ["", *_means(known), "", "## Options that were kept", ""]
    for name, row in known.items():
        if kept := row["options"]["kept"]:
            text.append(f"- {name}: {', '.join(f'{o}, {100 * saved:.1f}% less' for o, saved in kept.items())}")
    if unable := {n: r for n, r in rows.items() if any(key.endswith("_unable") for key in r)}:
        text += ["", "## Not done", ""]
        text += [f"- {n}: {v}" for n, r in unable.items() for key, v in r.items() if key.endswith("_unable")]
    versions = f"jax {jax.__version__}, libtpu {version('libtpu')}, Python {platform.python_version()}"
    return "\n".join([*text, "", f"{date.today()}, shardwright {sw.__version__}, {versions}.", ""])


def _means(known: Mapping[str, Row]) -> list[str]:
    """The geometric means of what is left of the default plan's step."""
    out = []
    for what, words in (
        ("rerank", "the best of those that `rerank` compiles"),
        ("tuned", "tuned, without options"),
        ("options", "tuned, with options"),
    ):
        left = [
            row[what]["step_seconds"] / row["default"]["step_seconds"]
            for row in known.values()
            if row.get(what, {}).get("step_seconds") and row["default"]["step_seconds"]
        ]
        if left:
            mean = math.exp(sum(map(math.log, left)) / len(left))
            out.append(
                f"- {words}: {mean:.3f} of the default plan's step in the geometric mean of {len(left)} cases, "
                f"{max(left):.3f} at most, {min(left):.3f} at least"
            )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, default=KEPT, help="a file of results, one line of JSON a case and stage")
    parser.add_argument("--only", default="", help=f"cases, separated by semicolons: {'; '.join(CASES)}")
    parser.add_argument("--stages", default=",".join(STAGES), help="what is run, in this order")
    parser.add_argument("--no-run", action="store_true")
    parser.add_argument("--write", type=Path, help="the page; the rows are kept beside it")
    options = parser.parse_args()
    names = [name.strip() for name in options.only.split(";")] if options.only else list(CASES)
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"there is no {unknown[0]!r}; there are {'; '.join(CASES)}")
    if not options.no_run:
        run(names, options.stages.split(","), options.rows)
    rows = read(options.rows)
    if options.write:
        options.write.write_text(page(rows))
        lines = [json.dumps(rows[name]) + "\n" for name in CASES if name in rows]
        options.write.with_suffix(".jsonl").write_text("".join(lines))
    else:
        print(page(rows))


if __name__ == "__main__":
    main()
