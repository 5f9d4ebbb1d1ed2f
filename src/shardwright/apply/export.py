"""From a function and its shardings to a JAX callable that runs the annotated module."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax import export
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from shardwright import _jax
from shardwright.apply.annotate import Annotation, annotate
from shardwright.apply.specs import named, write_boundary
from shardwright.apply.split_functions import place_functions, whole_functions
from shardwright.apply.split_kernels import place_kernels, whole_kernels
from shardwright.errors import PlanError, TraceError
from shardwright.frontend.leaves import put_on_host
from shardwright.frontend.own_shardings import KEEP
from shardwright.frontend.trace import Lowering, bare, lower, read
from shardwright.ir.build import ReadModule
from shardwright.ir.given import own_mesh
from shardwright.ir.program import Program
from shardwright.price import Partitioned
from shardwright.request import MeshShape


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
    constraints: str = KEEP
    ambient: AbstractMesh | None = None
    """The mesh that was set around the function when it was planned."""
    in_kinds: Sequence[str | None] = ()
    """Where the leaves of arguments lie if that is on the host, as JAX calls it."""
    out_kinds: Sequence[str | None] = ()
    """The same of results."""

    @property
    def abstract_mesh(self) -> AbstractMesh:
        """The mesh without devices: none is needed to lower or export."""
        return AbstractMesh(self.mesh.sizes, self.mesh.names, axis_types=(AxisType.Auto,) * len(self.mesh.sizes))

    @property
    def jit_options(self) -> dict[str, Any]:
        """The planned shardings, on an abstract mesh."""
        return self.shardings_on(self.abstract_mesh)

    def shardings_on(self, mesh: Any) -> dict[str, Any]:
        """The planned shardings, as options of ``jax.jit``."""
        return {
            "in_shardings": named(mesh, self.in_specs, self.in_kinds),
            "out_shardings": named(mesh, self.out_specs, self.out_kinds),
        }

    def traced_in(self) -> AbstractContextManager[Any]:
        """The mesh that was set around the function, set again."""
        return nullcontext() if self.ambient is None else jax.sharding.use_abstract_mesh(self.ambient)

    @property
    def explicit(self) -> bool:
        """Whether shardings are part of the program's types."""
        return self.ambient is not None and AxisType.Explicit in self.ambient.axis_types

    @property
    def apart(self) -> bool:
        """Whether JAX must not see the plan's shardings while it traces: the program's own are at odds with them."""
        return self.explicit or self.constraints != KEEP


def annotated_module(
    sharded: Sharded, platform: str, **jit_options: Any
) -> tuple[Lowering, ReadModule, Partitioned, Annotation]:
    """Lower the function with the planned shardings and constrain a copy of its module to the plan."""
    shardings = {} if sharded.apart else sharded.jit_options
    try:
        options = {**shardings, **jit_options}
        lowering = lower(sharded.fn, sharded.args, platform, sharded.ambient, sharded.constraints, **options)
    except TraceError as error:  # it was traced before without shardings, so these are what JAX cannot do here
        raise PlanError(
            f"JAX cannot lower this program for a mesh ({error.__cause__ or error}), "
            "so its plan can be read but not run."
        ) from error
    module = read(sharded.fn, lowering, rules=sharded.rules, constraints=sharded.constraints)
    partitioned = sharded.partition(module)
    if sharded.apart:
        write_boundary(module.module, partitioned)
    place_kernels(module, partitioned, lowering.kernels, platform)
    place_functions(module, partitioned, lowering.functions, sharded.abstract_mesh, platform)
    all_said = sharded.explicit and sharded.constraints == KEEP
    return lowering, module, partitioned, annotate(module, partitioned, all_said=all_said)


def export_annotated(sharded: Sharded, platform: str) -> tuple[export.Exported, Annotation]:
    """The annotated module, wrapped so that ``jax.jit`` can run it.

    JAX constrains an ``Exported``'s arguments to the shardings that it was exported with, so these must be the plan's
    own; only the module inside is exchanged for the annotated one.
    """
    lowering, module, _, annotation = annotated_module(sharded, platform)
    checks = [export.DisabledSafetyCheck.custom_call(t) for t in _custom_calls(module)]
    try:
        if sharded.apart:
            exported = _wrapper(sharded, lowering, platform, sharded.jit_options, checks)
        else:
            with sharded.traced_in(), _marked(platform):
                exported = export.export(
                    jax.jit(_once(sharded.fn), **sharded.jit_options), platforms=[platform], disabled_checks=checks
                )(*bare(lowering.shapes))
    except NotImplementedError as error:
        raise PlanError(f"JAX cannot export this program ({error}), so its plan can be read but not run.") from error
    if list(exported.module_kept_var_idx) != _jax.kept_arguments(lowering.lowered):
        raise PlanError("JAX exported this program with other arguments than it lowered it with; please report this.")
    return dataclasses.replace(exported, mlir_module_serialized=_jax.serialize(module.module)), annotation


def export_plain(sharded: Sharded, platform: str, checks: Sequence[export.DisabledSafetyCheck]) -> export.Exported:
    """The function as it is, on the mesh of its own shardings where it has any.

    Arguments come as they are sharded there, or else whole.
    """
    mesh = sharded.abstract_mesh
    lowering = lower(sharded.fn, sharded.args, platform, sharded.ambient)
    module = _jax.copy_of(lowering.lowered)
    own = [
        NamedSharding(mesh, PartitionSpec() if given is None else given.spec, memory_kind=kind)
        for given, kind in zip(lowering.given, lowering.memory_kinds, strict=True)
    ]
    shardings = {"in_shardings": jax.tree.unflatten(jax.tree.structure(lowering.shapes), own)}
    if sharded.explicit:
        exported = _wrapper(sharded, lowering, platform, shardings, checks)
    else:
        fn = _once(sharded.fn)
        jitted = jax.jit(fn) if own_mesh(module) is None else jax.jit(fn, **shardings)
        with sharded.traced_in(), _marked(platform):
            exported = export.export(jitted, platforms=[platform], disabled_checks=checks)(*bare(lowering.shapes))
        if not lowering.kernels and not lowering.functions:
            return exported
    whole_kernels(module, lowering.kernels, platform)
    whole_functions(module, lowering.functions, platform)
    return dataclasses.replace(exported, mlir_module_serialized=_jax.serialize(module))


@contextmanager
def _marked(platform: str) -> Iterator[None]:
    """Kernels and functions lowered to calls that stand for them, where the module is exchanged for another anyway."""
    with _jax.kernels_marked([], platform), _jax.functions_marked([]), _jax.cudnn_assumed(platform):
        yield


def _once(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of its own that does the same: JAX keeps what it lowers by function, and kernels are marked in it."""

    def call(*args: Any) -> Any:
        return fn(*args)

    call.__name__ = getattr(fn, "__name__", "call")
    return call


def _wrapper(
    sharded: Sharded,
    lowering: Lowering,
    platform: str,
    shardings: Mapping[str, Any],
    checks: Sequence[export.DisabledSafetyCheck],
) -> export.Exported:
    """What wraps a module that JAX cannot export with these shardings: they are at odds with those in its types.

    It is of a function that takes and returns the same, and whose types have no shardings.
    """

    def fn(*_: Any) -> Any:
        leaves, structure = jax.tree.flatten(lowering.result)
        kinds = sharded.out_kinds or [None] * len(leaves)
        zeros = [put_on_host(jnp.zeros(x.shape, x.dtype), kind) for x, kind in zip(leaves, kinds, strict=True)]
        return jax.tree.unflatten(structure, zeros)

    with jax.sharding.use_abstract_mesh(sharded.abstract_mesh):
        exported = export.export(
            jax.jit(fn, **shardings, keep_unused=True), platforms=[platform], disabled_checks=checks
        )(*bare(lowering.shapes))
    return dataclasses.replace(exported, module_kept_var_idx=tuple(_jax.kept_arguments(lowering.lowered)))


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
    options = {**sharded.shardings_on(mesh), **jit_options}
    lowering, module, _, _ = annotated_module(sharded, platform, **options)
    return _jax.with_module(lowering.lowered, module.module)


def _custom_calls(module: ReadModule) -> set[str]:
    return {op.attributes["target"] for op in module.program.ops if "target" in op.attributes}
