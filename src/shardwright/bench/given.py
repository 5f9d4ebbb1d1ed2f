"""Shardings that were not decided by groups, one for each value, compiled as our own plans are."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from shardwright.analysis import analyse_program
from shardwright.apply import export_annotated
from shardwright.devices.targets import Target
from shardwright.errors import PlanError
from shardwright.ir.build import ReadModule
from shardwright.plan import Plan
from shardwright.price import DevicePrices, Partitioned, Places
from shardwright.price.assign import Assigner, Assignment, Problem
from shardwright.price.ways import Prices, candidates
from shardwright.request import MeshShape
from shardwright.space.state import Sharding, State
from shardwright.verify import compile_exported


def partition_given(places: Places, mesh: MeshShape, shardings: Sequence[Sharding], prices: Prices) -> Partitioned:
    """A program whose values have these shardings; each op runs as is cheapest with them, on any of its factors."""
    program = places.analysis.program
    free, assigner = program.free.tolist(), Assigner(mesh, prices)
    assignments: list[Assignment | None] = []
    for o, op in enumerate(program.ops):
        if not op.rule.tensors:
            assignments.append(None)
            continue
        groups = places.of_op[o]
        every = frozenset(groups) - {-1}
        problem = Problem(
            program.shape_classes[op.signature],
            program.outlooks[o],
            tuple(shardings[v] for v in op.operands),
            tuple(shardings[v] for v in op.results),
            tuple(free[v] for v in op.operands),
            tuple(candidates(op, groups, every, size, places.uniform) for size in mesh.sizes),
        )
        tensors = [(program.values[v].shape, program.values[v].dtype) for v in (*op.operands, *op.results)]
        assignments.append(assigner.assign(op, problem, tensors))
    return Partitioned(places, mesh, State(((),) * len(mesh.sizes)), tuple(shardings), tuple(assignments))


def compile_given(plan: Plan, shardings: Sequence[Sharding], target: Target, timeout_seconds: float) -> dict[str, Any]:
    """Compile a plan's program with other shardings; the figures are those of ``compile_exported``."""
    mesh, prices = plan.partitioned.mesh, DevicePrices.of(plan.device, plan.partitioned.mesh)
    shapes = [value.shape for value in plan.analysis.program.values]

    def again(module: ReadModule) -> Partitioned:
        if [value.shape for value in module.program.values] != shapes:
            raise PlanError("JAX lowers this program to other values on a mesh, so given shardings do not fit them.")
        return partition_given(Places(analyse_program(module.program)), mesh, shardings, prices)

    partitioned = partition_given(plan.partitioned.places, mesh, shardings, prices)
    sharded = dataclasses.replace(dataclasses.replace(plan, partitioned=partitioned).sharded, partition=again)
    exported, _ = export_annotated(sharded, target.platform)
    return compile_exported(exported, plan.mesh, target, plan.donate, timeout_seconds)
