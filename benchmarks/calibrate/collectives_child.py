"""The process that compiles collectives: ``python -m benchmarks.calibrate.collectives_child TOPOLOGY FOLDER KEY...``.

Of each it keeps the compiler's schedule, which has one only where something is started ahead of its end: so a small
permute is run beside it.
"""

from __future__ import annotations

import gzip
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.calibrate.collectives import (
    DesignedCollective,
    body_of,
    collective_of,
    element,
    local_shape,
)
from benchmarks.calibrate.kept import refusal_file, text_file


def main(topology: str, folder: str, keys: list[str]) -> None:
    """Compile these collectives, and keep the schedules."""
    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    placed = sorted(devices, key=lambda device: tuple(device.coords))
    for key in keys:
        print(key, flush=True)
        try:
            schedule = compiled_schedule(collective_of(key), placed)
        except Exception as error:
            refusal_file(Path(folder), key).write_text(str(error)[:2000])
            continue
        with gzip.open(text_file(Path(folder), key), "wt") as file:
            file.write(schedule)


def compiled_schedule(collective: DesignedCollective, devices: list[Any]) -> str:
    """The text of the schedule."""
    mesh = Mesh(np.array(devices).reshape(collective.mesh), tuple("xyz"[: len(collective.mesh)]))
    spec, body = P(mesh.axis_names, None), body_of(collective)

    def both(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return body(x), lax.ppermute(y, collective.names[:1], [(0, 1), (1, 0)])

    mapped = jax.shard_map(both, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    (rows, lanes), count = local_shape(collective), math.prod(collective.mesh)
    shapes = [
        jax.ShapeDtypeStruct((n * count, lanes), element(), sharding=NamedSharding(mesh, spec)) for n in (rows, 8)
    ]
    with tempfile.TemporaryDirectory() as folder:
        options = {"xla_dump_to": folder, "xla_dump_latency_hiding_schedule": True}
        jax.jit(mapped).lower(*shapes).compile(compiler_options=options)
        return next(Path(folder).glob("*.schedule.txt")).read_text()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
