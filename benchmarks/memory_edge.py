"""Plans within 10% of a device's memory: on which side of the limit the compiler finds them, and margins from that.

    python benchmarks/memory_edge.py --rows rows.jsonl --cache ~/ecosystem     resumes; hours on two cores
    python benchmarks/memory_edge.py --rows rows.jsonl --only mlp,itx
    python benchmarks/memory_edge.py --rows rows.jsonl --no-run --margins --write docs/benchmarks/memory_edge.md

Needs the tpu extra, and no TPU; the network for programs of `benchmarks/ecosystem/`. A program is made larger, by its
batch, until the plan that is found nearly fills the memory of a v5e, a little less or a little more by the estimate,
and is compiled for it. Where no size comes near, the limit is moved to within 10% of the plan instead. `--margins`
writes the margins of the package anew.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from ecosystem import ENVIRONMENTS, MODELS
from ecosystem.environments import environment
from memory_edge_page import distinct, page, write_margins

_CHILD = """
import sys
sys.path.append(sys.argv[1])  # last: what stands beside this script must not hide a library
from memory_edge_child import main
main(sys.argv[2])
"""
EIGHT, FOUR_TWO, SIXTEEN, FOUR_FOUR = {"data": 8}, {"data": 4, "model": 2}, {"data": 16}, {"data": 4, "model": 4}
PARTS = (0.925, 0.965, 1.0, 1.04, 1.09)
TIGHTER = (1.0, 0.85, 0.7, 0.6, 0.5)


@dataclass(frozen=True)
class Case:
    """A program, by a built-in model or a key of the ecosystem's, and the mesh that it is planned for."""

    name: str
    where: str
    mesh: dict[str, int] = field(default_factory=lambda: dict(FOUR_TWO))
    sizes: dict[str, Any] = field(default_factory=dict)
    dimension: list[str] | None = None
    parts: tuple[float, ...] = PARTS

    @property
    def target(self) -> str:
        """The topology of as many v5e as the mesh has."""
        devices = 1
        for size in self.mesh.values():
            devices *= size
        return {4: "tpu:v5e:2x2", 8: "tpu:v5e:2x4", 16: "tpu:v5e:4x4"}[devices]


FEW = (0.925, 1.0, 1.04, 1.09)
CASES = [
    Case("mlp", "mlp", sizes={"layers": 4}),
    Case("mlp-bf16", "mlp", sizes={"layers": 6, "width": 4096, "inputs": 4096, "dtype": "bfloat16"}),
    Case("mlp-deep", "mlp", EIGHT, {"layers": 12, "width": 2048, "inputs": 2048, "outputs": 256}),
    Case("mlp-wide", "mlp", {"data": 2, "model": 4}, {"layers": 3, "width": 24576}),
    Case("mlp-narrow", "mlp", sizes={"layers": 8, "width": 2048, "outputs": 2048}),
    Case("mlp-bf16-deep", "mlp", EIGHT, {"layers": 10, "dtype": "bfloat16"}, parts=FEW),
    Case("itx", "itx", FOUR_FOUR),
    Case("itx-long", "itx", {"data": 2, "model": 8}, {"context": 8192, "layers": 16}, parts=FEW),
    Case("gpt", "gpt", FOUR_FOUR, {"layers": 8, "width": 1024, "heads": 8, "kv_heads": 8, "hidden": 4096}),
    Case("gpt-unrolled", "gpt", EIGHT, {"layers": 3, "scan": False, "remat": False, "width": 1024, "hidden": 4096}),
    Case("gns", "gns", sizes={"steps": 2}, dimension=["batch.edges[0]"], parts=FEW),
    Case("vit", "vit", sizes={"layers": 6}, parts=FEW),
    Case("moe", "moe", FOUR_FOUR, {"layers": 1}, parts=FEW),
    Case("unet", "unet", sizes={"levels": 2, "attention_levels": 1, "blocks": 1, "width": 128}, parts=FEW),
    Case("gemma-flax", "gemma-flax", FOUR_FOUR, parts=FEW),
    Case("qwen3", "qwen3", FOUR_FOUR, parts=FEW),
    Case("t5", "t5", FOUR_FOUR, parts=FEW),
    Case("ppo", "ppo", FOUR_FOUR, parts=FEW),
    Case("ode", "ode", FOUR_FOUR, dimension=[], parts=FEW),
    Case("levanter", "levanter", FOUR_FOUR, parts=FEW),
    Case("llama3", "llama3", FOUR_FOUR, parts=FEW),
    Case("vit-kauldron", "vit-kauldron", FOUR_FOUR, parts=FEW),
    Case("bert", "bert", FOUR_FOUR, parts=FEW),
]


def run(case: Case, parts: list[float], cache: Path | None, rows: Path, timeout_seconds: float) -> None:
    """Add rows for the parts that are missing; whatever becomes of the process, what it printed is kept."""
    python, where = Path(sys.executable), case.where
    if case.where in MODELS and not case.sizes and case.name not in ("gpt",):
        model = MODELS[case.where]
        where = f"ecosystem.{model.where}"
        if cache is None:
            return
        python = environment(cache, model.environment, ENVIRONMENTS[model.environment])
    task = {
        "where": where,
        "sizes": case.sizes,
        "mesh": case.mesh,
        "target": case.target,
        "dimension": case.dimension,
        "parts": parts,
        "tighter": [TIGHTER[PARTS.index(part)] for part in parts],
        "timeout_seconds": timeout_seconds,
    }
    command = [str(python), "-c", _CHILD, str(Path(__file__).parent), json.dumps(task)]
    log = rows.with_suffix(f".{case.name}.log")
    with (
        log.open("w") as file,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True, start_new_session=True) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith('{"part"'):
                    row = {"case": case.name, "sizes": case.sizes, **json.loads(line)}
                    with rows.open("a") as out:
                        out.write(json.dumps(row) + "\n")
                    print(case.name, row["part"], row["size"], row["message"], flush=True)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True, help="a file of results, one line of JSON a plan")
    parser.add_argument("--cache", type=Path, help="a folder for virtual environments")
    parser.add_argument("--only", default="", help="programs, separated by commas")
    parser.add_argument("--limit", type=float, default=600, help="seconds for each compilation")
    parser.add_argument("--no-run", action="store_true")
    parser.add_argument("--margins", action="store_true", help="write the margins of the package anew")
    parser.add_argument("--write", type=Path, help="the page")
    options = parser.parse_args()
    named = {case.name: case for case in CASES}
    cases = [named[name] for name in options.only.split(",")] if options.only else CASES
    for case in cases if not options.no_run else []:
        have = {(row["case"], row["part"]) for row in read(options.rows)}
        missing = [part for part in case.parts if (case.name, part) not in have]
        if missing:
            run(case, missing, options.cache, options.rows, options.limit)
    rows = distinct(row for row in read(options.rows) if row["compiled_bytes"])
    if options.margins:
        write_margins(rows)
    if options.write:
        options.write.write_text(page(__doc__, rows))


def read(file: Path) -> list[dict[str, Any]]:
    """The rows of a file."""
    return list(map(json.loads, file.read_text().splitlines())) if file.exists() else []


if __name__ == "__main__":
    main()
