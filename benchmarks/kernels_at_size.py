"""Programs with JAX's own Pallas kernels beside the same ones without: planned, and compiled for TPUs.

    python benchmarks/kernels_at_size.py --rows rows.jsonl                 resumes; some minutes for each program
    python benchmarks/kernels_at_size.py --rows rows.jsonl --only llama
    python benchmarks/kernels_at_size.py --rows rows.jsonl --no-run --write docs/benchmarks/kernels_at_size.md

Needs the tpu extra, and no TPU. Every program is planned as it is, by `sw.partition`, and compiled ahead of time. The
compiler's step is its own cycles and the collectives of its final program on the links of the topology; it has none for
kernels, which take what the plan's estimate has for a run ("of it kernels"), as often as the compiled program has one.
"Sent for kernels" are the bytes of collectives that the plan has for the operands and results of kernels. Megablox with
a rule is `benchmarks/grouped_product.py`: the same kernels in functions that say how they may be split.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp

import shardwright as sw
from shardwright.models import adam, build, layers, shapes

LLAMA = {
    "layers": 4,
    "width": 4096,
    "heads": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "hidden": 14336,
    "vocabulary": 32768,
    "batch": 32,
    "sequence": 4096,
    "gated": True,
}
Built = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """A program in several variants, the first without kernels."""

    name: str
    about: str
    variants: Mapping[str, Callable[[], Built]]
    mesh: Mapping[str, int] = field(default_factory=lambda: {"data": 4, "model": 4})
    target: str = "tpu:v5e:4x4"


def experts(kernel: str) -> Built:
    """A training step of layers of experts without dropped tokens: they are sorted, and each run meets its matrices."""
    count, top, width, hidden, batch, sequence = 8, 2, 2048, 4096, 32, 1024

    def product(rows: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
        if kernel == "ragged_dot":
            return jax.lax.ragged_dot(rows, w, sizes)
        if kernel == "megablox with a rule":
            from grouped_product import grouped_product

            return grouped_product(rows, w, sizes)
        from jax.experimental.pallas.ops.tpu.megablox import gmm

        return gmm(rows, w, sizes, preferred_element_type=rows.dtype, tiling=(512, 1024, 128))

    def mixture(x: jax.Array, layer: Any) -> jax.Array:
        tokens = layers.rms_norm(x, layer["norm"]).reshape(-1, width)
        gates, chosen = jax.lax.top_k(tokens.astype(jnp.float32) @ layer["router"], top)
        gates = jax.nn.softmax(gates, axis=-1).astype(x.dtype)
        order = jnp.argsort(chosen.reshape(-1))
        sizes = jnp.bincount(chosen.reshape(-1), length=count).astype(jnp.int32)
        rows = jnp.take(tokens, order // top, axis=0)
        up = product(rows, layer["w_up"].astype(x.dtype), sizes)
        out = product(jax.nn.gelu(up), layer["w_down"].astype(x.dtype), sizes)
        out = out * jnp.take(gates.reshape(-1), order)[:, None]
        return x + jnp.zeros_like(tokens).at[order // top].add(out).reshape(x.shape)

    def loss(params: Any, batch: Any) -> jax.Array:
        block = jax.checkpoint(mixture, prevent_cse=False)
        x, _ = jax.lax.scan(lambda x, layer: (block(x, layer), None), batch["x"].astype(jnp.bfloat16), params)
        return layers.mean_squared_error(x, batch["y"])

    layer = {
        "norm": shapes.floats(width),
        "router": shapes.floats(width, count),
        "w_up": shapes.floats(count, width, hidden),
        "w_down": shapes.floats(count, hidden, width),
    }
    data = shapes.floats(batch, sequence, width)
    args = adam.state(shapes.stacked(layer, 2)), {"x": data, "y": data}
    return adam.training(loss), args, {"donate": (0,)}


CASES = [
    Case(
        "llama",
        "A decoder's training step with Adam: layers of Llama 3 8B, 32 sequences of 4,096 tokens, on 16 v5e",
        {name: partial(build, "gpt", attention=name, **LLAMA) for name in ("plain", "flash", "splash")},
    ),
    Case(
        "experts",
        "A mixture of 8 experts without dropped tokens: a training step with Adam, 32,768 tokens, on 16 v5e",
        {name: partial(experts, name) for name in ("ragged_dot", "megablox", "megablox with a rule")},
    ),
    Case(
        "decode",
        "A decoding step of Llama 3 8B: 128 sequences of up to 2,048 tokens, on 16 v5e",
        {name: partial(build, "itx", attention=name) for name in ("plain", "paged")},
        mesh={"data": 2, "model": 8},
    ),
]


def attempt(case: Case, variant: str, keep: Path | None) -> dict[str, Any]:
    """A variant planned and compiled, as a row."""
    fn, args, options = case.variants[variant]()
    plan = sw.partition(
        fn, *args, mesh=dict(case.mesh), device="tpu-v5e", progress=False, ask_compiler=False, **options
    )
    program = plan.analysis.program
    around = [c for c in plan.collectives if "kernel" in program.ops[c.op].attributes]
    row = {
        "case": case.name,
        "variant": variant,
        "jax": jax.__version__,
        "decisions": [str(d) for d in plan.decisions],
        "estimate": [plan.estimate.step_seconds, plan.estimate.comm_seconds, plan.estimate.peak_bytes],
        "kernels": sorted({op.attributes["kernel"] for op in program.ops if "kernel" in op.attributes}),
        "whole": [[k.name, k.seconds] for k in plan.whole_kernels],
        "sent_bytes": sum(c.total_bytes for c in plan.estimate.collectives),
        "kernel_bytes": sum(c.total_bytes for c in around),
    }
    print(json.dumps(row), flush=True)
    file = keep / f"{case.name}-{variant}.txt.gz" if keep else None
    found = plan.verify(case.target, timeout_seconds=3000, keep=file)
    return row | {
        "compiled": [found.step_seconds, found.comm_seconds, found.kernel_seconds, found.peak_bytes],
        "sent": dict(found.bytes),
        "ok": found.ok,
        "message": found.message,
        "compile_seconds": found.compile_seconds,
    }


def read(rows: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The rows so far, the last of each variant."""
    lines = rows.read_text().splitlines() if rows.exists() else []
    return {(row["case"], row["variant"]): row for row in map(json.loads, lines)}


def table(case: Case, rows: Mapping[tuple[str, str], dict[str, Any]]) -> str:
    """A case's variants, one below the other."""
    lines = [
        "| attention or product | estimated step, ms | compiled step, ms | of it communication | of it kernels "
        "| compiled GiB | sent, GiB | sent for kernels | run whole |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for variant in case.variants:
        row = rows.get((case.name, variant))
        if row is None:
            continue
        step, comm, kernels, peak = row.get("compiled", [None] * 4)
        shown = [f"{seconds * 1e3:,.1f}" if seconds is not None else "–" for seconds in (step, comm, kernels)]
        whole = ", ".join(sorted({name for name, _ in row["whole"]})) or "–"
        size = f"{peak / 2**30:.2f}" if peak else "–"
        around = f"{row['kernel_bytes'] / 2**30:.2f}" if row["kernels"] else "–"
        lines.append(
            f"| {variant} | {row['estimate'][0] * 1e3:,.1f} | {' | '.join(shown)} | {size} "
            f"| {row['sent_bytes'] / 2**30:.2f} | {around} | {whole} |"
        )
    plans = [
        f"{variant}: {'; '.join(row['decisions'])}"
        for variant in case.variants
        if (row := rows.get((case.name, variant))) is not None
    ]
    return f"## {case.about}\n\n" + "\n".join(lines) + "\n\n" + "\n".join(f"- {plan}" for plan in plans)


def page(rows: Mapping[tuple[str, str], dict[str, Any]]) -> str:
    about = __doc__.split("\n\n")
    tables = "\n\n".join(table(case, rows) for case in CASES)
    versions = ", ".join(sorted({row["jax"] for row in rows.values()}))
    return (
        f"# {about[0].rstrip('.')}\n\n{about[-1].strip()}\n\n{tables}\n\n{date.today()}, shardwright {sw.__version__}, "
        f"jax {versions}, Python {platform.python_version()}.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--keep", type=Path, help="a folder for the compiled programs' texts")
    parser.add_argument("--only", default="", help="cases, or cases and variants (llama:flash), separated by commas")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    parser.add_argument("--no-run", action="store_true")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    named = {f"{case.name}:{variant}": (case, variant) for case in CASES for variant in case.variants}
    if options.one:
        print(json.dumps(attempt(*named[options.one], options.keep)), flush=True)
        return
    wanted = options.only.split(",") if options.only else list(named)
    for name, (case, variant) in named.items() if not options.no_run else ():
        if not {name, case.name} & set(wanted) or (case.name, variant) in read(options.rows):
            continue
        command = [sys.executable, __file__, "--rows", str(options.rows), "--one", name]
        command += ["--keep", str(options.keep)] if options.keep else []
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.strip().splitlines()
        if said:  # also of one that died on the way
            print(said[-1], flush=True)
            with options.rows.open("a") as file:
                file.write(said[-1] + "\n")
    text = page(read(options.rows))
    print(text)
    if options.write:
        options.write.write_text(text)


if __name__ == "__main__":
    main()
