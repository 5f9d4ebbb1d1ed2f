"""The process that compiles designed programs: ``python -m benchmarks.calibrate.child TOPOLOGY FOLDER KEY...``.

It writes the final text of each program into the folder, and for one that the compiler refuses the reason. Before each
it says on standard output which one is next, so that whoever started it knows at which one it died.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from benchmarks.calibrate.kept import refusal_file, text_file
from benchmarks.calibrate.programs import Designed, designed


def main(topology: str, folder: str, keys: list[str]) -> None:
    """Compile these programs, each for one device of the topology."""
    programs = {program.key: program for program in designed()}
    described = topologies.get_topology_desc(platform="tpu", topology_name=topology)
    for key in keys:
        print(key, flush=True)
        try:
            text = compiled_text(programs[key], described.devices[0])
        except Exception as error:
            refusal_file(Path(folder), key).write_text(str(error)[:2000])
            continue
        written = text_file(Path(folder), key).with_suffix(".part")
        with gzip.open(written, "wt") as file:
            file.write(text)
        written.rename(text_file(Path(folder), key))


def compiled_text(program: Designed, device: Any) -> str:
    """The final text of a program on one device."""
    sharding = SingleDeviceSharding(device)
    jitted = jax.jit(program.fn, in_shardings=sharding, out_shardings=sharding)
    return jitted.lower(*program.args).compile().as_text() or ""


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
