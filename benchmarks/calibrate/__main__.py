"""The constants of a TPU by calibration: designed programs compiled, and what kernels take fitted to them.

    python -m benchmarks.calibrate tpu-v5e --keep TEXTS              compile what is not kept yet, fit, write the file
    python -m benchmarks.calibrate tpu-v6e --keep TEXTS --every 4    with a part of the programs
    python -m benchmarks.calibrate --page docs/benchmarks/calibration.md

Needs the tpu extra, and no TPU. Compiled texts are kept in a folder of the device's name, and what is there is not
compiled again; ``--no-compile`` takes what there is. The data file is src/shardwright/devices/calibrated/DEVICE.json,
which the package reads; docs/benchmarks/calibration.md is made from all such files.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from benchmarks.calibrate.fit import fitted
from benchmarks.calibrate.kept import compile_missing, refusal_file
from benchmarks.calibrate.links import link_rows
from benchmarks.calibrate.page import page
from benchmarks.calibrate.programs import Designed, designed
from benchmarks.calibrate.rows import errors, read_rows, with_costs
from shardwright.devices import PRESETS, KernelCosts

FILES = Path(__file__).parents[2] / "src" / "shardwright" / "devices" / "calibrated"
TOPOLOGIES = {
    "tpu-v5e": ("v5e:2x2", "v5e:4x4", (4, 4)),
    "tpu-v5p": ("v5p:2x2x1", "v5p:4x4x4", (4, 4, 4)),
    "tpu-v6e": ("v6e:2x2", "v6e:4x4", (4, 4)),
}
"""The smallest slice of a device, of which one chip is compiled for, and one for collectives with its lengths."""
FAST_BYTES = {"tpu-v5e": 128 * 2**20, "tpu-v5p": 128 * 2**20, "tpu-v6e": 128 * 2**20}
"""The vector memory of a chip: "How to Scale Your Model", "TPU architecture"; of v5p two cores' together."""
START = KernelCosts(
    matrix_efficiency=0.95,
    memory_efficiency=0.95,
    contraction_memory_efficiency=0.75,
    cheap_slots=0.3,
    expensive_slots=1.0,
    reduce_slots=0.5,
    entry_slots=34.0,
    read_slots=10.0,
    pack_slots=8.0,
    alone_slots=50.0,
    held_rows=60.0,
    operand_slots=10.0,
    prefetched_slots=6.0,
    sharpness=4.0,
)
"""Where the fit starts; what it does not touch stays."""
_PREFETCHED = 0.36
"""Operands of products up to this part of the vector memory are found there: of those of GPTs and a Llama compiled for
v5e, four of five up to 48 MB, half of those up to 64 MB, none above 128 MB."""
_CHILD = "benchmarks.calibrate.child"


def calibrate(name: str, keep: Path, every: int, compiles: bool, out: Path, say: Any = print) -> dict[str, Any]:
    """Compile, fit, and write the data file of a device."""
    small, large, lengths = TOPOLOGIES[name]
    start = replace(START, prefetched_bytes=float(round(_PREFETCHED * FAST_BYTES[name], -6)))
    device = replace(PRESETS[name], kernel_costs=start)
    programs, folder = _some(every), keep / name
    if compiles:
        compile_missing(_CHILD, small, folder, [p.key for p in programs], say)
    rows = read_rows(programs, folder, device)
    use = [row for row in rows if not row.program.held_out]
    say(f"{len(rows)} programs, {len(use)} of them to be fitted to")
    costs, rates = fitted(use, device, start, {"f32": 0.9}, say)
    priced = with_costs(device, costs, rates)
    found: dict[str, dict[str, Any]] = {}
    for key, held in (("fitted", False), ("held_out", True)):
        part = [row for row in rows if row.program.held_out == held]
        found[key] = errors(part, [row.ratio(priced) for row in part])
    told = {
        "device": name,
        "made": {
            "jax": metadata.version("jax"),
            "libtpu": metadata.version("libtpu"),
            "date": datetime.now(UTC).date().isoformat(),
            "programs": len(rows),
            "refused": sum(refusal_file(folder, p.key).exists() for p in programs),
        },
        "rates": rates,
        "kernel_costs": asdict(costs),
        "errors": found,
        "slice": large,
        "links": link_rows(PRESETS[name], large, lengths, keep / f"links-{name}", say, compiles),
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(told, indent=1) + "\n")
    return told


def _some(every: int) -> list[Designed]:
    """Every so many of the programs of each class, those that are held out among them."""
    taken: dict[str, int] = {}
    out = []
    for program in designed():
        number = taken.setdefault(program.group, 0)
        taken[program.group] += 1
        if every == 1 or number % every in (0, 1):
            out.append(program)
    return out


def main(argv: Sequence[str] | None = None) -> None:
    """Calibrate the devices that are named, and write the page if one is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("devices", nargs="*", choices=[*TOPOLOGIES, []], metavar="DEVICE")
    parser.add_argument("--keep", type=Path, default=Path("calibration-texts"), help="folder of compiled texts")
    parser.add_argument("--every", type=int, default=1, help="take the first two of so many programs of each class")
    parser.add_argument("--no-compile", action="store_true", help="take the texts that there are")
    parser.add_argument("--out", type=Path, default=FILES, help="folder of the data file")
    parser.add_argument("--page", type=Path, help="page to write from all data files")
    arguments = parser.parse_args(argv)
    for name in arguments.devices:
        calibrate(name, arguments.keep, arguments.every, not arguments.no_compile, arguments.out)
    if arguments.page:
        files = sorted(arguments.out.glob("*.json"))
        arguments.page.write_text(page([json.loads(file.read_text()) for file in files]))


if __name__ == "__main__":
    main()
