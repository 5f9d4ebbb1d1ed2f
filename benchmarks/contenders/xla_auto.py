"""The process of XLA's own auto-sharding, in the environment that still has it: ``python xla_auto.py FOLDER``.

It reads ``task.json`` from the folder and writes ``result.json`` and ``hlo.txt.gz`` there. Of Shardwright it takes the
models alone, which any JAX can run; the rest of the package is not even imported.

The compiler's log says when it begins to decide and when it has; the processor's time is sampled for that. Where the
log does not say it, what it chose is compiled again, and the difference is the time that it took to decide.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
import threading
import time
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from jax.experimental import mesh_utils, topologies
from jax.sharding import Mesh

STAGES = ("tpu_spmd_partitioner.cc", "sharding_propagation.cc")
"""Whose lines in the log stand before and after auto-sharding."""
_MEMORY = ("argument", "output", "alias", "temp", "generated_code")
_BUDGET = "xla_tpu_auto_spmd_partitioning_memory_budget_gb"

Result = dict[str, Any]


def main(folder: str) -> None:
    """Compile, and write down what came of it; an error of the compiler is an answer too."""
    task = json.loads(Path(folder, "task.json").read_text())
    result = Path(folder, "result.json")
    found: Result = {}
    try:
        jax.config.update("jax_use_shardy_partitioner", False)  # auto-sharding is part of GSPMD
        run(folder, task, found)
    except Exception as error:
        found |= {"error": str(error), "error_type": type(error).__name__}
    result.write_text(json.dumps(found))


def run(folder: str, task: Mapping[str, Any], found: Result) -> None:
    """Fill in what becomes known; what is there when it fails is kept."""
    # Private, and gone from later versions: there is no other way to ask for auto-sharding.
    from jax._src.sharding_impls import AUTO  # type: ignore[attr-defined,unused-ignore]

    fn, args, donate = program(task["case"])
    mesh = device_mesh(task["topology"], task["topology_options"], task["case"]["mesh"])
    options = {"donate_argnums": donate}
    auto = jax.jit(fn, in_shardings=AUTO(mesh), out_shardings=AUTO(mesh), **options).lower(*args)
    tight = task["case"]["tight_gib"]  # where it is not told how much there is, it makes a guess
    compiler_options = {_BUDGET: tight} if tight else None
    found["stage"] = "auto-sharding"
    before, samples = clock(), Samples()
    try:
        compiled = auto.compile(compiler_options=compiler_options)
    finally:
        found["auto_seconds"], found["auto_cpu_seconds"] = since(before)
        found["cpu_samples"] = samples.end()
    found["memory"] = memory(compiled)
    with gzip.open(Path(folder, "hlo.txt.gz"), "wt") as file:
        file.write(compiled.as_text() or "")
    inputs, outputs = compiled.input_shardings[0], compiled.output_shardings
    found["specs"] = specs(args, inputs)
    log = Path(folder, "log")
    if log.exists() and all(stage in log.read_text(errors="replace") for stage in STAGES):
        found["stage"] = "done"
        return
    found["stage"] = "again"
    chosen = jax.jit(fn, in_shardings=inputs, out_shardings=outputs, **options).lower(*args)
    before = clock()
    chosen.compile()
    found["again_seconds"], found["again_cpu_seconds"] = since(before)
    found["stage"] = "done"


def program(case: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """The model's function, arguments and donated positions, without importing all of the package."""
    found = importlib.util.find_spec("shardwright")  # which does not import it
    assert found is not None
    package = types.ModuleType("shardwright")
    package.__path__ = found.submodule_search_locations or []
    sys.modules["shardwright"] = package
    from shardwright.models import build

    fn, args, options = build(case["model"], **case["sizes"])
    return fn, args, options.get("donate", ())


def device_mesh(topology: str, options: Mapping[str, Any], axes: Mapping[str, int]) -> Mesh:
    """The topology's devices, laid out as those of all other contenders."""
    devices = list(topologies.get_topology_desc(platform="tpu", topology_name=topology, **options).devices)
    sizes = tuple(axes.values())
    try:
        laid_out = mesh_utils.create_device_mesh(sizes, devices)
    except (NotImplementedError, ValueError, AssertionError):
        laid_out = mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    return Mesh(laid_out, tuple(axes))


def clock() -> tuple[float, float]:
    """On the wall, and of this process."""
    return time.perf_counter(), time.process_time()


def since(before: tuple[float, float]) -> tuple[float, float]:
    """Seconds of both clocks."""
    wall, cpu = clock()
    return wall - before[0], cpu - before[1]


class Samples:
    """Seconds of this process's processor time by the time of day, as logs have it, once a second."""

    def __init__(self) -> None:
        self._taken: list[tuple[float, float]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(1.0):
            self._take()

    def _take(self) -> None:
        now = time.time()
        day = time.localtime(now)
        seconds = 3600 * day.tm_hour + 60 * day.tm_min + day.tm_sec + now % 1
        self._taken.append((round(seconds, 3), round(time.process_time(), 3)))

    def end(self) -> list[tuple[float, float]]:
        """All that was taken, and one more."""
        self._ended.set()
        self._thread.join()
        self._take()
        return self._taken


def memory(compiled: Any) -> dict[str, int]:
    """Bytes on one device by what they are for."""
    analysis = compiled.memory_analysis()
    found = {f"{name}_bytes": int(getattr(analysis, f"{name}_size_in_bytes")) for name in _MEMORY}
    peak = getattr(analysis, "peak_memory_in_bytes", None)
    return found if peak is None else {**found, "peak_bytes": int(peak)}


def specs(args: Any, shardings: Any) -> dict[str, str]:
    """The chosen spec of every argument by its path."""
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(args)]
    return {path: str(getattr(s, "spec", s)) for path, s in zip(paths, jax.tree.leaves(shardings), strict=True)}


if __name__ == "__main__":
    main(sys.argv[1])
