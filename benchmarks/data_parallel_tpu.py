"""Does annotating a program cost anything? Plain data parallelism, compiled for a TPU, with and without Shardwright.

    python benchmarks/data_parallel_tpu.py [v5e:2x4]               needs the tpu extra, and no TPU
    python benchmarks/data_parallel_tpu.py --write docs/benchmarks/data_parallel_tpu.md

Both programs are compiled ahead of time for the same topology with the same shardings of arguments and results: once by
``plan.jit``, once by plain ``jax.jit``. Compared are the compiler's own ``estimated_cycles``, of all fusions, and its
peak of temporary memory.
"""

from __future__ import annotations

import argparse
import os
import re
from datetime import date
from pathlib import Path

os.environ.update(JAX_PLATFORMS="cpu", TPU_SKIP_MDS_QUERY="1", ALLOW_MULTIPLE_LIBTPU_LOAD="1")

import jax
from jax.experimental import topologies
from jax.sharding import NamedSharding

import shardwright as sw
from shardwright.models import build

CASES = {
    "gpt": {"layers": 2, "width": 512, "heads": 4, "kv_heads": 4, "hidden": 2048, "vocabulary": 4096, "sequence": 512},
    "mlp": {"layers": 4, "width": 2048, "batch": 4096},
}


def cycles(compiled: jax.stages.Compiled) -> list[int]:
    return sorted(int(n) for n in re.findall(r'"estimated_cycles":"(\d+)"', compiled.as_text() or ""))


def measure(model: str, topology: str) -> str:
    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    fn, args, options = build(model, **CASES[model])
    mesh_axes = {"data": len(devices)}
    plan = sw.evaluate(fn, *args, mesh=mesh_axes, decisions="data_parallel:data", platform="tpu", **options)
    mesh = plan.make_mesh(devices)
    specs = [jax.tree.map(lambda s: NamedSharding(mesh, s), tree) for tree in (plan.in_specs, plan.out_specs)]
    plain = jax.jit(fn, in_shardings=specs[0], out_shardings=specs[1], donate_argnums=plan.donate)
    ours, theirs = (jitted.lower(*args).compile() for jitted in (plan.jit(mesh), plain))
    constraints = plan.export("tpu")[1]
    a, b = cycles(ours), cycles(theirs)
    memory = [compiled.memory_analysis().temp_size_in_bytes for compiled in (ours, theirs)]
    return (
        f"| {model} | {topology} | {constraints.on_definitions + constraints.on_uses} | {sum(a):,} | {sum(b):,} "
        f"| {sum(a) / sum(b):.4f} | {memory[0] / memory[1]:.4f} | {'yes' if a == b else 'no'} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("topology", nargs="?", default="v5e:2x4")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    lines = [
        "| model | topology | constraints | cycles, plan | cycles, plain jit | ratio | memory, ratio | same fusions |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for model in CASES:
        lines.append(measure(model, options.topology))
        print(lines[-1], flush=True)
    if options.write:
        about = __doc__.split("Both programs", 1)[1].strip()
        options.write.write_text(
            f"# The cost of annotation\n\nPlain data parallelism, compiled for a TPU. Both programs {about}\n\n"
            + "\n".join(lines)
            + f"\n\n{date.today()}, shardwright {sw.__version__}, jax {jax.__version__}.\n"
        )


if __name__ == "__main__":
    main()
