"""The process that compiles a plan ahead of time: ``python -m shardwright.verify.compile_child FOLDER``.

It reads ``exported`` and ``task.json`` from the folder and writes ``result.json`` and ``hlo.txt.gz`` there. What the
compiler prints goes to standard error as it likes.
"""

from __future__ import annotations

import gzip
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export
from jax.experimental import topologies
from jax.sharding import Mesh

from shardwright.plan.placement import arranged

_MEMORY = ("argument", "output", "alias", "temp", "generated_code")


def main(folder: str) -> None:
    """Compile, and write down what came of it; an error of the compiler is an answer too."""
    task = json.loads(Path(folder, "task.json").read_text())
    stage = "topology"
    try:
        devices = target_devices(task)
        stage = "compilation"
        found = compile_task(folder, task, devices)
    except OSError:  # the disk is full, which is no answer
        raise
    except Exception as error:
        found = {"error": str(error), "error_type": type(error).__name__, "stage": stage}
    written = Path(folder, "result.part")
    written.write_text(json.dumps(found))
    written.rename(Path(folder, "result.json"))


def compile_task(folder: str, task: dict[str, Any], devices: Sequence[Any]) -> dict[str, Any]:
    """The figures of the compiled program; its text is written beside them."""
    program = export.deserialize(bytearray(Path(folder, "exported").read_bytes()))
    sizes = tuple(task["mesh"].values())
    if len(devices) != int(np.prod(sizes)):
        return {"devices": len(devices)}
    mesh = Mesh(arranged(sizes, devices), tuple(task["mesh"]))
    lowered = lower(program, mesh, task["donate"])
    start = time.perf_counter()
    compiled = lowered.compile(compiler_options=task["compiler_options"] or None)
    seconds = time.perf_counter() - start
    with gzip.open(Path(folder, "hlo.txt.gz"), "wt") as file:
        file.write(compiled.as_text() or "")
    return {"devices": len(devices), "compile_seconds": seconds, "memory": memory(compiled)}


def target_devices(task: dict[str, Any]) -> Sequence[Any]:
    """The devices of the topology, none of which need exist; for CPU those of this process."""
    if task["local"]:
        return jax.devices()
    options: dict[str, Any] = dict(task["topology_options"])
    name = task["topology"]
    if task["target_config"]:
        options |= {"target_config": task["target_config"], "topology": task["topology"]}
        name = "shardwright"
    description = topologies.get_topology_desc(platform=task["platform"], topology_name=name, **options)
    return list(description.devices)


def lower(program: export.Exported, mesh: Mesh, donate: Sequence[int]) -> jax.stages.Lowered:
    """Lower a program of flat arguments for a mesh, with the shardings that it was exported with."""
    arguments = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in program.in_avals]
    jitted = jax.jit(
        program.call,
        in_shardings=tuple(program.in_shardings_jax(mesh)),
        out_shardings=tuple(program.out_shardings_jax(mesh)),
        donate_argnums=tuple(donate),
    )
    return jitted.lower(*arguments)


def memory(compiled: jax.stages.Compiled) -> dict[str, int]:
    """Bytes on one device by what they are for, as far as the compiler tells."""
    analysis: Any = compiled.memory_analysis()
    if analysis is None:
        return {}
    names = [*_MEMORY, *(f"host_{name}" for name in _MEMORY)]
    found = {f"{name}_bytes": int(getattr(analysis, f"{name}_size_in_bytes", 0)) for name in names}
    peak = getattr(analysis, "peak_memory_in_bytes", None)
    return found if peak is None else {**found, "peak_bytes": int(peak)}


if __name__ == "__main__":
    main(sys.argv[1])
