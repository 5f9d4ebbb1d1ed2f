"""Compiles and runs a StableHLO module as it stands, by XLA alone: what is not in the file has no effect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax._src.lib import xla_client
from jax.sharding import NamedSharding

from shardwright import Plan, _jax


def run_sharded(data: bytes, plan: Plan, inputs: Sequence[Any]) -> list[np.ndarray]:
    """The results of a module on the plan's mesh of CPU devices; inputs and results are laid out by the plan."""
    mesh = plan.make_mesh()
    devices = list(mesh.devices.flat)
    options = xla_client.CompileOptions()
    options.num_partitions = len(devices)
    options.device_assignment = xla_client.DeviceAssignment.create(np.array([[d.id for d in devices]]))
    options.env_option_overrides = [("xla_backend_optimization_level", "0")]  # they take longer than the run
    build = options.executable_build_options
    build.num_partitions = len(devices)
    build.use_spmd_partitioning = build.use_shardy_partitioner = True
    program = devices[0].client.compile_and_load(
        _jax.bytecode(_jax.parse_module(data)), xla_client.DeviceList(tuple(devices)), options
    )
    given = jax.tree.leaves(plan.in_specs)
    placed = [jax.device_put(x, NamedSharding(mesh, s)) for x, s in zip(inputs, given, strict=True)]
    parts = program.execute_sharded(placed).disassemble_into_single_device_arrays()
    results = zip(jax.tree.leaves(plan.result), jax.tree.leaves(plan.out_specs), parts, strict=True)
    return [
        np.asarray(jax.make_array_from_single_device_arrays(r.shape, NamedSharding(mesh, s), p)) for r, s, p in results
    ]
