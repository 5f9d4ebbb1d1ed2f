"""How a plan runs: its function with every decision inside, by ``jax.jit``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import Mesh

from shardwright.analysis import analyse_program
from shardwright.apply import Lowered, Sharded, calls_python, lower_annotated
from shardwright.frontend.calls import as_step
from shardwright.frontend.names import function_name
from shardwright.frontend.trace import lowering_platform
from shardwright.ir.build import ReadModule
from shardwright.plan.placement import check_mesh
from shardwright.price import DevicePrices, Partitioned, Places, partition_program
from shardwright.space import resolve

if TYPE_CHECKING:
    from shardwright.plan.plan import Plan


def jit_plan(plan: Plan, mesh: Mesh, jit_options: Mapping[str, Any]) -> Any:
    """``plan.jit`` on a mesh."""
    check_mesh(plan.partitioned.mesh, mesh)
    platform = lowering_platform(str(mesh.devices.flat[0].platform))
    options = {"donate_argnums": plan.donate, **jit_options}
    if platform == plan.device.platform and plan.compiler_options:
        options["compiler_options"] = {**plan.compiler_options, **(jit_options.get("compiler_options") or {})}
    if calls_python(plan.analysis.program):
        return as_step(Lowered(lower_annotated(plan.sharded, mesh, platform, **options)), plan.fn)
    exported, _ = plan.export(platform)

    def planned(*args: Any) -> Any:
        return exported.call(*args)

    planned.__name__ = planned.__qualname__ = function_name(plan.fn)
    return as_step(jax.jit(planned, **plan.sharded.shardings_on(mesh), **options), plan.fn)


def sharded_function(plan: Plan) -> Sharded:
    """A plan's function with its planned shardings, ready to be annotated."""
    mesh = plan.partitioned.mesh
    traced = {name: plan.options[name] for name in ("rules", "constraints", "ambient") if name in plan.options}

    def again(module: ReadModule) -> Partitioned:
        """The plan's state on another lowering of the same function."""
        analysis = analyse_program(module.program)
        state = resolve(analysis, mesh, plan.decisions)
        return partition_program(Places(analysis), mesh, state, DevicePrices.of(plan.device, mesh))

    return Sharded(
        plan.fn,
        plan.args,
        plan.argument_specs,
        plan.result_specs,
        mesh,
        again,
        in_kinds=plan.argument_kinds,
        out_kinds=plan.analysis.program.result_kinds,
        **traced,
    )
