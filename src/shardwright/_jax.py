"""The only file that touches what JAX does not promise to keep, and why it must.

- ``jaxlib.mlir.ir``, ``passmanager``, ``dialects``: the Python bindings of MLIR, Shardy
  and StableHLO. There is no public way to read a module's ops, or to ask Shardy for an op's sharding rule.
- ``jax._src.interpreters.mlir.make_ir_context``: an MLIR context that knows every dialect JAX emits; needed to parse
  a StableHLO file (a lowering brings its own context).
- ``jax._src.export._export._module_to_bytecode``: the form in which an ``Exported`` holds its module.
- ``Lowered._lowering.compile_args["kept_var_idx"]``: which arguments are left in the module.
- ``jax._src.mesh.thread_resources``: the mesh of a ``with mesh:`` around the caller, which has no public way to ask.
- ``Traced.jaxpr``, and of its only equation ``params["in_shardings"]`` and ``["jaxpr"]``: the shardings that a function
  was jitted with; and the types of its results, which alone tell on every platform what lies on the host.
- ``jax._src.shard_map.shard_map_p.bind``, ``jax._src.config.auto_pcast`` and ``.jax_xla_profile_version``: the place
  where every ``shard_map`` passes with its function still a function, which alone can be traced on other shapes, there
  without casts along axes; and a way to trace apart from caches.
- ``jax.jit(f)._jit_info.static_argnames``: which arguments a function was jitted with as static; there is no public way
  to ask, and traced, they fail in the user's code. Where it is missing, none are static but those that the user names.
- ``Lowered._lowering._hlo``: the module that a lowering compiles. A program that calls back into Python cannot be
  exported, so its annotated module takes the place of this one, beside the callbacks that the lowering holds.
- ``jax._src.interpreters.mlir._lowerings`` and the parameters of ``pallas_call`` with its grid and block mappings: a
  kernel says by them how it may be split, but not in the module, where it is bytes. It stands there by number instead,
  until it is known on which part of its grid each device runs it; then it is bound again with that grid.
- ``jax._src.custom_partitioning.custom_partitioning_p`` and its parameters, how JAX writes its ``sharding_rule`` down,
  and ``jax._src.dispatch.prim_requires_devices_during_lowering``, by which it asks for devices: without these JAX puts
  the function in the place of its call, and the rule is lost. It stands there by number, too, until its ``partition``
  can be asked what each device runs.
- ``jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version``: attention by cuDNN cannot be traced without one.
- ``Lowered.compiler_ir``: public, but it hands out the module that JAX keeps in its own lowering cache, hence
  ``copy_of``.

``frontend/parse_child.py`` uses ``jaxlib.mlir`` as well, in a process that is to start quickly.

Tested on the versions in ``TESTED``; where an interface is missing, importing this file says which versions work.
"""

from __future__ import annotations

import contextlib
import copy
import io
import math
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jaxlib
from jax.extend.core import jaxpr_as_fun
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jaxlib.version import __version__ as _jaxlib_version

from shardwright import _function
from shardwright._function import Function
from shardwright._kernel import TARGET, Kernel
from shardwright._kernel_code import CUDNN_PRODUCTS, open_jaxpr, read_kernel, work_of
from shardwright._kernel_parts import part_params
from shardwright.compiler import of as compiler_of
from shardwright.compiler.invoking import CUDNN_ABSENT, STANDS_IN
from shardwright.errors import ModuleError, UnsupportedJaxError

TESTED = ("0.10.2", "0.12.0.1")


def _unsupported(missing: str) -> UnsupportedJaxError:
    return UnsupportedJaxError(
        f"jax {jax.__version__} with jaxlib {_jaxlib_version} lacks what shardwright needs: {missing}; "
        f"install one of the tested versions: {', '.join(TESTED)}."
    )


try:
    from jax._src import config as _config
    from jax._src import core as _core
    from jax._src import custom_partitioning as _custom_partitioning
    from jax._src import custom_partitioning_sharding_rule as _sharding_rule
    from jax._src import dispatch as _dispatch
    from jax._src import mesh as _mesh
    from jax._src import shard_map as _shard_map
    from jax._src.export import _export
    from jax._src.interpreters import mlir as _jax_mlir
    from jaxlib.mlir import ir, passmanager
    from jaxlib.mlir.dialects import chlo, sdy, stablehlo

    _make_context = _jax_mlir.make_ir_context
    _export._module_to_bytecode  # noqa: B018 (is it there?)
    _mesh.thread_resources.env.physical_mesh  # noqa: B018
    _config.auto_pcast, _config.jax_xla_profile_version, _shard_map.shard_map_p  # noqa: B018
    _jax_mlir._lowerings, _jax_mlir.aval_to_ir_type, _jax_mlir.lower_fun  # noqa: B018
    _dispatch.prim_requires_devices_during_lowering  # noqa: B018
    _custom_partitioning.custom_partitioning_p, _sharding_rule.sdy_sharding_rule_to_mlir  # noqa: B018
    _core.ShapedArray, jax.memory.Space.Host  # noqa: B018
except (ImportError, AttributeError) as error:
    raise _unsupported(str(error)) from error

__all__ = [
    "BYTECODE",
    "FUNCTION_MARK",
    "MARK",
    "FunctionCall",
    "PallasCall",
    "ambient_mesh",
    "artifact_version",
    "bytecode",
    "chlo",
    "copy_of",
    "cudnn_assumed",
    "functions_marked",
    "host_shape",
    "installed_package_folders",
    "ir",
    "is_jitted",
    "kept_arguments",
    "kernels_marked",
    "lowered_function",
    "lowered_kernel",
    "lowered_part",
    "own_shardings",
    "parse_module",
    "populate_rules",
    "portable",
    "put_on_host_by_jit",
    "regions_replaced",
    "results_on_host",
    "run_passes",
    "sdy",
    "serialize",
    "stablehlo",
    "static_names",
    "walk",
    "with_module",
]

MARK = "shardwright.kernel"
"""Attribute with the number of the kernel that a custom call stands for."""
FUNCTION_MARK = "shardwright.function"
"""Attribute with the number of the function that a custom call stands for."""
_CUDNN_VERSION = 91000
"""9.10, the first that has all that JAX asks for by version."""
BYTECODE = b"ML\xefR"
"""What MLIR's bytecode begins with."""
_ARTIFACT = re.compile(rb"ML\xefR.{1,2}StableHLO_v(\d+\.\d+\.\d+)\0", re.DOTALL)

# First every call gets a callee of its own, so that one op of the module is one op of the program; then Shardy writes
# down, for each op it knows, which dimensions belong together.
_RULES_PIPELINE = "sdy-flatten-call-graph,func.func(sdy-populate-op-sharding-rules)"


def copy_of(lowered: jax.stages.Lowered) -> Any:
    """The StableHLO module of a lowering, as a copy of our own.

    JAX caches lowerings and would hand the very same module to a later ``jit(f).lower(...)`` of the user.
    """
    module = lowered.compiler_ir("stablehlo")
    if module is None:
        raise ModuleError("JAX returned no StableHLO module for this lowering.")
    return module.operation.clone()


def bytecode(module: Any) -> bytes:
    """A module operation as plain MLIR bytecode."""
    output = io.BytesIO()
    module.operation.write_bytecode(output)
    return output.getvalue()


def serialize(module: Any) -> bytes:
    """A module operation as the portable artifact that ``jax.export`` stores in an ``Exported``."""
    with module.context:
        return bytes(_export._module_to_bytecode(ir.Module.parse(bytecode(module))))


def artifact_version(data: bytes) -> str | None:
    """The version of StableHLO for which a portable artifact was written; None if it is none."""
    found = _ARTIFACT.match(data)
    return found.group(1).decode() if found else None


def portable(module: Any, version: str | None) -> bytes:
    """A module operation as a portable artifact for a version of StableHLO, else as ``jax.export`` writes it."""
    with module.context:
        if version is not None:
            copy = ir.Module.parse(bytecode(module))
            with contextlib.suppress(Exception):  # a version that can still be read, but no longer be written
                return bytes(stablehlo.serialize_portable_artifact(copy, version, allow_other_dialects=True))
        return serialize(module)


def run_passes(module: Any, pipeline: str) -> None:
    """Run Shardy's passes on a module operation, in place."""
    with module.context:
        try:
            passmanager.PassManager.parse(f"builtin.module({pipeline})").run(module.operation)
        except ValueError as error:
            raise _unsupported(f"Shardy's passes ({error})") from error


def kept_arguments(lowered: jax.stages.Lowered) -> list[int]:
    """Which flat arguments are left in the module: ``jax.jit`` drops those that the result does not depend on."""
    try:
        kept = lowered._lowering.compile_args["kept_var_idx"]
    except (AttributeError, KeyError, TypeError) as error:
        raise _unsupported(f"the arguments kept in a lowering ({error})") from error
    return sorted(kept)


def ambient_mesh() -> AbstractMesh | None:
    """The mesh that is set around the caller, by ``jax.set_mesh`` or by ``with mesh:``; None where there is none."""
    abstract = jax.sharding.get_abstract_mesh()
    if not abstract.empty:
        return abstract
    physical = _mesh.thread_resources.env.physical_mesh
    return None if physical.empty else physical.abstract_mesh


@contextlib.contextmanager
def regions_replaced(replace: Callable[..., Any]) -> Iterator[None]:
    """Have ``replace`` called for each traced ``shard_map``, with what it is given: see ``frontend/own_shardings.py``.

    Where that fails, because the region names an axis, or is the transpose of one that does and says so in its types,
    the region stays. Functions that were jitted inside are traced anew, and what comes of it is not kept for others:
    the version of a profile, which below 0 means none, is part of the key of JAX's caches.
    """
    primitive: Any = _shard_map.shard_map_p

    def bind(*args: Any, subfuns: Any, mesh: Any, in_specs: Any, newly_manual_axes: Any, **params: Any) -> Any:
        def body(*parts: Any) -> tuple[Any, Any]:
            tree, out_specs = subfuns[0](*parts).unpack_aux()
            return tree.unflatten(), out_specs

        if all(isinstance(spec, PartitionSpec) for spec in in_specs):
            # What is the user's own fault comes again below. On blocks, no value varies along an axis.
            with contextlib.suppress(Exception), _config.auto_pcast(False):
                return _Unflattened(replace(body, args, dict(mesh.shape), in_specs, newly_manual_axes))
        params |= {"subfuns": subfuns, "mesh": mesh, "in_specs": in_specs, "newly_manual_axes": newly_manual_axes}
        return type(primitive).bind(primitive, *args, **params)

    primitive.bind = bind
    try:
        with _config.jax_xla_profile_version(-1):
            yield
    finally:
        del primitive.bind


@dataclass(frozen=True)
class _Unflattened:
    """A tree in the place of one that JAX has flattened."""

    tree: Any

    def unflatten(self) -> Any:
        return self.tree


def own_shardings(traced: jax.stages.Traced) -> list[NamedSharding | None]:
    """The ``in_shardings`` that a function was jitted with, of its flat arguments; None where it has none.

    The function that is traced does nothing but call another one, if that was jitted with shardings of its own.
    """
    jaxpr: Any = traced.jaxpr.jaxpr
    arguments = list(jaxpr.invars)
    given: list[NamedSharding | None] = [None] * len(arguments)
    while len(jaxpr.eqns) == 1 and "in_shardings" in jaxpr.eqns[0].params:
        (call,) = jaxpr.eqns
        shardings = {id(var): of for var, of in zip(call.invars, call.params["in_shardings"], strict=True)}
        for k, var in enumerate(arguments):
            found = shardings.get(id(var))
            if given[k] is None and isinstance(found, NamedSharding):
                given[k] = found
        jaxpr = call.params["jaxpr"].jaxpr
        inside = {id(outer): var for outer, var in zip(call.invars, jaxpr.invars, strict=True)}
        arguments = [inside.get(id(var)) for var in arguments]
    return given


def put_on_host_by_jit(traced: jax.stages.Traced) -> list[bool]:
    """Which flat results go to the host by nothing but the ``out_shardings`` that the function was jitted with.

    JAX does as these say where such a function is called alone, and not where it is called in another.
    """
    on_host = results_on_host(traced)
    jaxpr: Any = traced.jaxpr.jaxpr
    if len(jaxpr.eqns) != 1 or "out_shardings" not in jaxpr.eqns[0].params:
        return [False] * len(on_host)
    (call,) = jaxpr.eqns
    kinds = {
        id(var): getattr(of, "memory_kind", None)
        for var, of in zip(call.outvars, call.params["out_shardings"], strict=True)
    }
    return [
        kinds.get(id(var)) == "pinned_host" and not typed for var, typed in zip(jaxpr.outvars, on_host, strict=True)
    ]


def results_on_host(traced: jax.stages.Traced) -> list[bool]:
    """Which of a function's flat results lie in the host's memory."""
    types: Any = traced.jaxpr.out_avals
    return [getattr(type_, "memory_space", None) == jax.memory.Space.Host for type_ in types]


def host_shape(shape: Sequence[int], dtype: Any, *, weak_type: bool = False) -> Any:
    """An argument's type that lies in the host's memory, to trace with."""
    return _core.ShapedArray(tuple(shape), dtype, weak_type=weak_type, memory_space=jax.memory.Space.Host)


def is_jitted(fn: Any) -> bool:
    """Whether a function is a ``jax.jit``."""
    return hasattr(fn, "_jit_info")


def static_names(fn: Any) -> tuple[str, ...]:
    """Names of the arguments that ``fn`` takes as static if it is a ``jax.jit``."""
    return tuple(getattr(getattr(fn, "_jit_info", None), "static_argnames", ()))


def with_module(lowered: jax.stages.Lowered, module: Any) -> jax.stages.Lowered:
    """A lowering that compiles a module operation in place of its own."""
    out, inside = copy.copy(lowered), copy.copy(lowered._lowering)
    if not hasattr(inside, "_hlo"):
        raise _unsupported("the module of a lowering")
    with module.context:
        inside._hlo = ir.Module.parse(bytecode(module))
    out._lowering = inside
    return out


def parse_module(data: bytes) -> Any:
    """A module operation from StableHLO text, MLIR bytecode or a portable artifact; raises ``ValueError``."""
    context: Any = _make_context()
    complaints: list[str] = []

    def listen(diagnostic: Any) -> bool:
        complaints.append(str(diagnostic.message))
        return True  # or MLIR prints it

    with context, context.attach_diagnostic_handler(listen) as handler:
        if data[:4] == BYTECODE:
            try:
                return stablehlo.deserialize_portable_artifact(context, data).operation
            except Exception:  # not a portable artifact: plain bytecode is read by the general parser below
                pass
        try:
            return ir.Module.parse(data).operation
        except ir.MLIRError as error:
            if handler.had_error:  # MLIR prints and forgets what is raised in the handler, which can only be Ctrl-C
                raise KeyboardInterrupt from None
            raise ValueError(complaints[0] if complaints else str(error)) from error


def walk(operation: Any, look: Callable[[Any], Any], *order: Any) -> None:
    """Have every operation in an operation looked at.

    MLIR makes a RuntimeError of whatever is raised meanwhile; Ctrl-C stays what it is.
    """
    try:
        operation.walk(look, *order)
    except RuntimeError as error:
        if KeyboardInterrupt.__name__ in str(error):
            raise KeyboardInterrupt from None
        raise


def populate_rules(module: Any) -> None:
    """Give every op of the module (in place) the sharding rule that Shardy knows for it."""
    run_passes(module, _RULES_PIPELINE)


def installed_package_folders() -> tuple[str, ...]:
    """Folders whose frames never interest a user: JAX's own."""
    return tuple(os.path.dirname(module.__file__) + os.sep for module in (jax, jaxlib) if module.__file__)


@dataclass(frozen=True)
class PallasCall:
    """A kernel as JAX calls it: its parameters, the types of its operands, and what these say of it."""

    params: Mapping[str, Any]
    operands: tuple[Any, ...]
    kernel: Kernel


@contextlib.contextmanager
def kernels_marked(found: list[PallasCall] | None, platform: str) -> Iterator[None]:
    """Have Pallas kernels lowered to custom calls that stand for them by their number in ``found``, if there is any.

    Those in a region that is manual along every axis stay, and so do those that are not Pallas' own to lower: they run
    in a simulator, have effects, or arrays that are no plain ones. On a CPU, which has no kernels, all are interpreted.
    """
    pallas: Any = sys.modules.get("jax._src.pallas.pallas_call")
    if pallas is None:  # nobody has imported it, and that takes a while
        yield
        return
    primitive = pallas.pallas_call_p
    entry = _jax_mlir._lowerings[primitive]
    here = threading.get_ident()

    def rule(ctx: Any, *nodes: Any, **params: Any) -> Any:
        if threading.get_ident() != here:
            return entry.rule(ctx, *nodes, **params)
        params = _runnable(params, platform)
        if found is None or not _is_plain(ctx, nodes, params):
            return entry.rule(ctx, *nodes, **params)
        found.append(PallasCall(params, tuple(ctx.avals_in), read_kernel(params, ctx.avals_in)))
        types = [_jax_mlir.aval_to_ir_type(ctx.module_context, aval) for aval in ctx.avals_out]
        attributes = {
            MARK: ir.IntegerAttr.get(ir.IntegerType.get_signless(64), len(found) - 1),
            "kernel_name": ir.StringAttr.get(found[-1].kernel.name),
        }
        call = _jax_mlir.custom_call(TARGET, result_types=types, operands=nodes, extra_attributes=attributes)
        return call.results

    _jax_mlir._lowerings[primitive] = type(entry)(rule, entry.inline)
    try:
        yield
    finally:
        _jax_mlir._lowerings[primitive] = entry


def lowered_kernel(
    call: PallasCall,
    parts: Mapping[int, int],
    shapes: Sequence[tuple[int, ...]],
    sums: frozenset[int],
    platform: str,
) -> bytes:
    """The module of a kernel on one device, as MLIR's bytecode.

    ``parts`` are those of the grid indices that it splits, ``shapes`` those of local operands and results, ``sums`` the
    grid indices over which results are added up.
    """
    params = part_params(call.params, call.kernel, parts, shapes, sums)
    if params["cost_estimate"] is not None:
        ways = math.prod(parts.values())
        estimate = params["cost_estimate"]
        params["cost_estimate"] = type(estimate)(
            flops=estimate.flops // ways,
            transcendentals=estimate.transcendentals // ways,
            bytes_accessed=estimate.bytes_accessed // ways,
        )
    operands = [
        jax.ShapeDtypeStruct(shape, aval.dtype)
        for aval, shape in zip(call.operands, shapes[: len(call.operands)], strict=True)
    ]
    primitive = sys.modules["jax._src.pallas.pallas_call"].pallas_call_p

    def run(*arrays: Any) -> Any:
        return tuple(primitive.bind(*arrays, **params))

    run.__name__ = run.__qualname__ = call.kernel.name  # by which it can be told in a compiled program
    jitted = jax.jit(run, keep_unused=True)
    with _alone():
        lowered = jitted.trace(*operands).lower(lowering_platforms=(platform,))
        return bytecode(lowered.compiler_ir("stablehlo"))


def _runnable(params: dict[str, Any], platform: str) -> dict[str, Any]:
    """A kernel's parameters where it is lowered for a platform."""
    return (
        {**params, "interpret": True} if compiler_of(platform)[STANDS_IN] and params["interpret"] is False else params
    )


def _is_plain(ctx: Any, nodes: Sequence[Any], params: Mapping[str, Any]) -> bool:
    around = ctx.module_context.axis_context
    manual: frozenset[str] = getattr(around, "manual_axes", frozenset())
    avals = (*ctx.avals_in, *ctx.avals_out)
    return (
        isinstance(params["interpret"], bool)
        and not (manual and manual == frozenset(around.mesh.axis_names))
        and not open_jaxpr(params["jaxpr"]).constvars
        and not any(type(effect).__name__ == "DebugEffect" for effect in open_jaxpr(params["jaxpr"]).effects)
        and all(isinstance(node, ir.Value) for node in nodes)
        and all(isinstance(aval, jax.core.ShapedArray) and not _is_extended(aval.dtype) for aval in avals)
    )


def _is_extended(dtype: Any) -> bool:
    return bool(jax.numpy.issubdtype(dtype, jax.dtypes.extended))


@dataclass(frozen=True)
class FunctionCall:
    """A function with a rule of its own, as JAX calls it: its parameters and the types of its operands."""

    params: Mapping[str, Any]
    operands: tuple[Any, ...]
    function: Function


@contextlib.contextmanager
def cudnn_assumed(platform: str) -> Iterator[None]:
    """Have cuDNN's attention traced for a GPU where no cuDNN is installed: all that JAX asks for is its version."""
    module: Any = sys.modules.get("jax._src.cudnn.fused_attention_stablehlo")
    if not compiler_of(platform)[CUDNN_ABSENT] or module is None or getattr(module, "cuda_versions", None) is not None:
        yield
        return
    asked, here = module.check_cudnn_version, threading.get_ident()
    module.check_cudnn_version = lambda: _CUDNN_VERSION if threading.get_ident() == here else asked()
    try:
        yield
    finally:
        module.check_cudnn_version = asked


@contextlib.contextmanager
def functions_marked(found: list[FunctionCall]) -> Iterator[None]:
    """Have functions with a ``sharding_rule`` lowered to custom calls that stand for them by number in ``found``.

    Those without one, and those in a region that is manual along any axis, are put in the place of their calls.
    """
    primitive: Any = _custom_partitioning.custom_partitioning_p
    entry = _jax_mlir._lowerings[primitive]
    here = threading.get_ident()

    def rule(ctx: Any, *nodes: Any, **params: Any) -> Any:
        if threading.get_ident() != here:
            return entry.rule(ctx, *nodes, **params)
        manual: frozenset[str] = getattr(ctx.module_context.axis_context, "manual_axes", frozenset())
        if params["sharding_rule"] is None or manual or not all(isinstance(node, ir.Value) for node in nodes):
            inline = jaxpr_as_fun(params["call"])
            return _jax_mlir.lower_fun(inline, multiple_results=True)(ctx, *nodes)
        operands = [_jax_mlir.aval_to_ir_type(ctx.module_context, aval) for aval in ctx.avals_in]
        results = [_jax_mlir.aval_to_ir_type(ctx.module_context, aval) for aval in ctx.avals_out]
        found.append(FunctionCall(params, tuple(ctx.avals_in), _function_of(params)))
        attributes = {
            FUNCTION_MARK: ir.IntegerAttr.get(ir.IntegerType.get_signless(64), len(found) - 1),
            "kernel_name": ir.StringAttr.get(found[-1].function.name),
            "sdy.sharding_rule": _rule_of(params, operands, results),
        }
        call = _jax_mlir.custom_call(
            _function.TARGET, result_types=results, operands=nodes, extra_attributes=attributes
        )
        return call.results

    _jax_mlir._lowerings[primitive] = type(entry)(rule, entry.inline)
    try:
        with _without_devices():
            yield
    finally:
        _jax_mlir._lowerings[primitive] = entry


@contextlib.contextmanager
def _without_devices() -> Iterator[None]:
    """Have functions with a rule of their own lowered for a mesh of no devices; cuDNN's attention is such functions."""
    registry = _dispatch.prim_requires_devices_during_lowering
    names = (_custom_partitioning.custom_partitioning_p.name, *CUDNN_PRODUCTS)
    taken = {primitive for primitive in registry if primitive.name.removesuffix("_wrapper") in names}
    registry -= taken
    try:
        yield
    finally:
        registry |= taken


def _function_of(params: Mapping[str, Any]) -> Function:
    jaxpr = open_jaxpr(params["call"])
    static = tuple(each if isinstance(each, (bool, int, float, str)) else None for each in params["static_args"])
    return Function(jaxpr.debug_info.func_name, *work_of(jaxpr), static)


def _rule_of(params: Mapping[str, Any], operands: list[Any], results: list[Any]) -> Any:
    """The rule that a function comes with, in Shardy's form."""
    rule = params["sharding_rule"]
    if callable(rule):
        mesh = ambient_mesh() or AbstractMesh((), ())
        rule = rule(*params["static_args"], mesh, operands, results)
        sizes: Mapping[str, Any] = {}
        if isinstance(rule, (list, tuple)) and len(rule) == 2:
            rule, sizes = rule
        if isinstance(rule, str):
            rule = _sharding_rule.str_to_sdy_sharding_rule(rule, **sizes)
    return _sharding_rule.sdy_sharding_rule_to_mlir(rule, operands, results)


def lowered_function(call: FunctionCall, platform: str) -> bytes:
    """The module of all of a function on one device, as MLIR's bytecode."""
    inside = jaxpr_as_fun(call.params["call"])
    jitted = jax.jit(lambda *arrays: tuple(inside(*arrays)), keep_unused=True)
    operands = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in call.operands]
    with _alone(), kernels_marked(None, platform):
        return bytecode(jitted.trace(*operands).lower(lowering_platforms=(platform,)).compiler_ir("stablehlo"))


@dataclass(frozen=True)
class Part:
    """What each device runs of a function, as MLIR's bytecode, and the shardings of operands and results."""

    module: bytes
    operands: tuple[PartitionSpec, ...]
    results: tuple[PartitionSpec, ...]


def lowered_part(call: FunctionCall, mesh: AbstractMesh, specs: Sequence[PartitionSpec], platform: str) -> Part:
    """What a function's own ``partition`` has each device run; ``specs`` are of operands, then of results."""
    params = call.params
    results = params["call"].out_avals
    shapes = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=NamedSharding(mesh, _full(spec, aval.ndim)))
        for aval, spec in zip((*call.operands, *results), specs, strict=True)
    ]
    count = len(call.operands)
    in_tree, out_tree = params["in_tree"], params["out_tree"]
    own_mesh, part, out, into = params["partition"](
        *params["static_args"], mesh, in_tree.unflatten(shapes[:count]), out_tree.unflatten(shapes[count:])
    )
    if dict(own_mesh.shape) != dict(mesh.shape):
        raise ValueError(f"it asks for the mesh {dict(own_mesh.shape)}")
    in_specs, out_specs = (
        tuple(_full(each.spec, aval.ndim) for each, aval in zip(tree.flatten_up_to(given), avals, strict=True))
        for tree, given, avals in ((in_tree, into, call.operands), (out_tree, out, results))
    )

    def flat(*arrays: Any) -> Any:
        return tuple(jax.tree.leaves(part(*in_tree.unflatten(arrays))))

    flat.__name__ = flat.__qualname__ = call.function.name
    mapped = jax.shard_map(flat, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    bare = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in call.operands]
    with jax.sharding.use_abstract_mesh(mesh), kernels_marked(None, platform), _without_devices():
        traced = jax.jit(mapped, keep_unused=True).trace(*bare)
        made = [(each.shape, each.dtype) for each in traced.out_info]
        if made != [(aval.shape, aval.dtype) for aval in results]:
            raise ValueError(f"its parts make up {made}")
        module = bytecode(traced.lower(lowering_platforms=(platform,)).compiler_ir("stablehlo"))
    return Part(module, in_specs, out_specs)


def _full(spec: PartitionSpec, rank: int) -> PartitionSpec:
    """A spec with an entry for every dimension, as JAX's own callbacks get it; these may give it back with more."""
    entries = list(spec)
    while len(entries) > rank and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries, *(None,) * (rank - len(entries)))


def _alone() -> contextlib.AbstractContextManager[Any]:
    """Where a mesh is set, JAX would lower for all of its devices."""
    return contextlib.nullcontext() if ambient_mesh() is None else jax.set_mesh(Mesh(jax.devices()[:1], ("device",)))
