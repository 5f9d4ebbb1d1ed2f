"""One of several processes that take three steps of a plan together: ``distributed_child.py PORT PROCESS COUNT``."""

import json
import os
import sys

os.environ.update(JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES="4" if sys.argv[3] == "2" else "8")

import jax

jax.config.update("jax_cpu_collectives_implementation", "gloo")

import numpy as np

import shardwright as sw
from shardwright.models import build


def main(port: str, process: int, count: int) -> None:
    if count > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=count, process_id=process)
    fn, args, options = build("mlp", preset="tiny")
    decisions = ["fsdp:data", "megatron:model"]
    plan = sw.evaluate(fn, *args, mesh={"data": 4, "model": 2}, decisions=decisions, **options)
    mesh = plan.make_mesh()
    step = plan.jit(mesh)
    random = np.random.default_rng(0)

    def leaf(shape):
        if np.issubdtype(shape.dtype, np.integer):
            return random.integers(0, 8, shape.shape).astype(shape.dtype)
        return (np.abs(random.normal(size=shape.shape)) * 0.05).astype(shape.dtype)

    state, batch = (plan.place(jax.tree.map(leaf, arg), mesh, argument=i) for i, arg in enumerate(args))
    losses = []
    for _ in range(3):
        state, loss = step(state, batch)
        losses.append(float(loss))
    print(json.dumps({"losses": losses, "devices": jax.device_count(), "processes": jax.process_count()}))


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
