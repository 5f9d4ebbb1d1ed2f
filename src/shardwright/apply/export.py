"""From a function and its shardings to a JAX callable that runs the annotated module."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
from jax import export
from jax.sharding import AbstractMesh, AxisType, Mesh

from shardwright import _jax
from shardwright.apply.annotate import Annotation, annotate
from shardwright.apply.specs import named
from shardwright.errors import PlanError, TraceError
from shardwright.frontend.trace import Lowering, lower, read
from shardwright.ir.build import ReadModule
from shardwright.ir.program import Program
from shardwright.spmd import MeshShape, Partitioned


@dataclass(frozen=True)
class Sharded:
    """A function with the shardings of its arguments and results, and how to partition its inside."""

    fn: Callable[..., Any]
    args: Sequence[Any]
    in_specs: Any
    out_specs: Any
    mesh: MeshShape
    partition: Callable[[ReadModule], Partitioned]
    """Derives the plan's state again on the module at hand."""
    rules: Mapping[str, str] | None = None

    @property
    def jit_options(self) -> dict[str, Any]:
        """Shardings on an abstract mesh: no device is needed to lower or export."""
        abstract = AbstractMesh(self.mesh.sizes, self.mesh.names, axis_types=(AxisType.Auto,) * len(self.mesh.sizes))
        return {"in_shardings": named(abstract, self.in_specs), "out_shardings": named(abstract, self.out_specs)}


def annotated_module(
    sharded: Sharded, platform: str, **jit_options: Any
) -> tuple[Lowering, ReadModule, Partitioned, Annotation]:
    """Lower the function with the planned shardings and constrain a copy of its module to the plan."""
    try:
        lowering = lower(sharded.fn, sharded.args, platform, **{**sharded.jit_options, **jit_options})
    except TraceError as error:  # it was traced before without shardings, so these are what JAX cannot do here
        raise PlanError(
            f"JAX cannot lower this program for a mesh ({error.__cause__ or error}), "
            "so its plan can be read but not run."
        ) from error
    module = read(sharded.fn, lowering, rules=sharded.rules)
    partitioned = sharded.partition(module)
    return lowering, module, partitioned, annotate(module, partitioned)


def export_annotated(sharded: Sharded, platform: str) -> tuple[export.Exported, Annotation]:
    """The annotated module, wrapped so that ``jax.jit`` can run it.

    JAX constrains an ``Exported``'s arguments to the shardings that it was exported with, so these must be the plan's
    own; only the module inside is exchanged for the annotated one.
    """
    lowering, module, _, annotation = annotated_module(sharded, platform)
    try:
        exported = export.export(
            jax.jit(sharded.fn, **sharded.jit_options),
            platforms=[platform],
            disabled_checks=[export.DisabledSafetyCheck.custom_call(t) for t in _custom_calls(module)],
        )(*lowering.shapes)
    except NotImplementedError as error:
        raise PlanError(f"JAX cannot export this program ({error}), so its plan can be read but not run.") from error
    if list(exported.module_kept_var_idx) != _jax.kept_arguments(lowering.lowered):
        raise PlanError("JAX exported this program with other arguments than it lowered it with; please report this.")
    return dataclasses.replace(exported, mlir_module_serialized=_jax.serialize(module.module)), annotation


class Lowered:
    """A step that is lowered already, which is compiled when it is first called."""

    def __init__(self, lowered: jax.stages.Lowered) -> None:
        self._lowered = lowered

    def __call__(self, *args: Any) -> Any:
        """Run it."""
        return self._compiled(*args)

    def lower(self, *_: Any) -> jax.stages.Lowered:
        """As ``lower`` of ``jax.jit``, for the shapes of the plan."""
        return self._lowered

    @cached_property
    def _compiled(self) -> jax.stages.Compiled:
        return self._lowered.compile()


def calls_python(program: Program) -> bool:
    """Whether a program calls back into Python while it runs, as ``jax.debug.print`` does: JAX exports none such."""
    return any(op.kind in ("send", "recv") or "callback" in op.attributes.get("target", "") for op in program.ops)


def lower_annotated(sharded: Sharded, mesh: Mesh, platform: str, **jit_options: Any) -> jax.stages.Lowered:
    """The annotated module on devices that are there, for what cannot be exported."""
    shardings = {"in_shardings": named(mesh, sharded.in_specs), "out_shardings": named(mesh, sharded.out_specs)}
    lowering, module, _, _ = annotated_module(sharded, platform, **shardings, **jit_options)
    return _jax.with_module(lowering.lowered, module.module)


def _custom_calls(module: ReadModule) -> set[str]:
    return {op.attributes["target"] for op in module.program.ops if "target" in op.attributes}
