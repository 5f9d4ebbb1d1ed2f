"""Models that others wrote, as they are on the package index, planned and compiled for 16 TPU v5e.

    python benchmarks/ecosystem.py --cache ~/ecosystem --rows rows.jsonl      all; resumes; hours on two cores
    python benchmarks/ecosystem.py --cache ~/ecosystem --rows rows.jsonl --quick
    python benchmarks/ecosystem.py --cache ~/ecosystem --rows rows.jsonl --only bert,gemma --again
    python benchmarks/ecosystem.py --rows rows.jsonl --no-run --write docs/benchmarks/ecosystem.md

Needs the network to install libraries, and no TPU. Nothing of any library is changed, and no weights are made: shapes
are enough. `benchmarks/ecosystem/` has a file a library, each a short example of how to plan such a model. Every model
runs in a process of its own with a limit of time, and what it found is written as soon as it is known. The mesh is
data 4 × model 4 for all.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from ecosystem import ENVIRONMENTS, MODELS, QUICK
from ecosystem.environments import environment
from ecosystem.table import BY_HAND, page

TARGET, DEVICE, MESH = "tpu:v5e:4x4", "tpu-v5e", {"data": 4, "model": 4}
_CHILD = """
import sys
sys.path.append(sys.argv[1])  # last: what stands beside this script must not hide a library
from ecosystem.one import plan_and_compile
plan_and_compile(*sys.argv[2:])
"""


def run(key: str, cache: Path, limit_seconds: float) -> dict[str, Any]:
    """What is known of a model, however its process ended."""
    model = MODELS[key]
    row: dict[str, Any] = {"key": key, "package": model.package, "stage": "installing"}
    started = time.perf_counter()
    try:
        python = environment(cache, model.environment, ENVIRONMENTS[model.environment])
    except OSError as error:
        return {**row, "error": str(error)}
    task = (f"ecosystem.{model.where}", model.package, json.dumps(MESH), DEVICE, TARGET)
    command = [str(python), "-c", _CHILD, str(Path(__file__).parent), *task]
    log = cache / f"{key}.log"
    with (
        log.open("w") as file,
        subprocess.Popen(command, stdout=file, stderr=file, cwd=cache, start_new_session=True) as process,
    ):
        try:
            code = process.wait(limit_seconds)
            ending = {} if code == 0 else {"error": f"the process ended with {code}"}
        except subprocess.TimeoutExpired:
            ending = {"error": f"not done within {limit_seconds:.0f} seconds"}
        finally:
            _end(process)
    said = [line for line in log.read_text(errors="replace").splitlines() if line.startswith('{"package"')]
    return {
        **row,
        "stage": "building",
        **(json.loads(said[-1]) if said else {}),
        **ending,
        "seconds": time.perf_counter() - started,
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    """With the compiler, which is a process of its own and would go on."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def read(rows: Path) -> dict[str, dict[str, Any]]:
    """The last that is known of each model."""
    lines = rows.read_text().splitlines() if rows.exists() else []
    return {row["key"]: row for row in map(json.loads, lines)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True, help="a file of results, one line of JSON a model")
    parser.add_argument("--cache", type=Path, help="a folder for virtual environments and logs")
    parser.add_argument("--only", default="", help=f"models, separated by commas: {', '.join(MODELS)}")
    parser.add_argument("--quick", action="store_true", help=f"two small ones: {', '.join(QUICK)}")
    parser.add_argument("--again", action="store_true", help="also those that are in the file already")
    parser.add_argument("--limit", type=float, default=3600, help="seconds for each model")
    parser.add_argument("--no-run", action="store_true")
    parser.add_argument("--write", type=Path, help="the page with the table")
    options = parser.parse_args()
    keys = options.only.split(",") if options.only else list(QUICK if options.quick else MODELS)
    if unknown := [key for key in keys if key not in MODELS]:
        parser.error(f"there is no {unknown[0]!r}; there are {', '.join(MODELS)}")
    if not options.no_run:
        if options.cache is None:
            parser.error("--cache is needed to run models")
        cache = options.cache.resolve()
        cache.mkdir(parents=True, exist_ok=True)
        for key in keys:
            if options.again or key not in read(options.rows):
                row = run(key, cache, options.limit)
                with options.rows.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(key, row["stage"], row.get("message") or row.get("error"), file=sys.stderr, flush=True)
    if options.write:
        before = options.write.read_text() if options.write.exists() else ""
        options.write.write_text(page(__doc__, read(options.rows), before.partition(BY_HAND)[2]))


if __name__ == "__main__":
    main()
