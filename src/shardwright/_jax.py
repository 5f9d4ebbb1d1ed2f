"""The only file that touches what JAX does not promise to keep, and why it must.

- ``jaxlib.mlir.ir``, ``passmanager``, ``dialects``: the Python bindings of MLIR, Shardy
  and StableHLO. There is no public way to read a module's ops, or to ask Shardy for an op's sharding rule.
- ``jax._src.interpreters.mlir.make_ir_context``: an MLIR context that knows every dialect JAX emits; needed to parse
  a StableHLO file (a lowering brings its own context).
- ``jax._src.export._export._module_to_bytecode``: the form in which an ``Exported`` holds its module.
- ``Lowered._lowering.compile_args["kept_var_idx"]``: which arguments are left in the module.
- ``jax._src.mesh.thread_resources``: the mesh of a ``with mesh:`` around the caller, which has no public way to ask.
- ``Traced.jaxpr``, and of its only equation ``params["in_shardings"]`` and ``["jaxpr"]``: the shardings that a function
  was jitted with.
- ``jax._src.shard_map.shard_map_p.bind`` and ``jax._src.config.jax_xla_profile_version``: the place where every
  ``shard_map`` passes with its function still a function, which alone can be traced on other shapes; and a way to trace
  apart from caches.
- ``jax.jit(f)._jit_info.static_argnames``: which arguments a function was jitted with as static; there is no public way
  to ask, and traced, they fail in the user's code. Where it is missing, none are static but those that the user names.
- ``Lowered._lowering._hlo``: the module that a lowering compiles. A program that calls back into Python cannot be
  exported, so its annotated module takes the place of this one, beside the callbacks that the lowering holds.
- ``jax._src.interpreters.mlir._lowerings`` and the parameters of ``pallas_call`` with its grid and block mappings: a
  kernel says by them how it may be split, but not in the module, where it is bytes. It stands there by number instead,
  until it is known on which part of its grid each device runs it; then it is bound again with that grid.
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
from dataclasses import dataclass, replace
from typing import Any

import jax
import jaxlib
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jaxlib.version import __version__ as _jaxlib_version

from shardwright._kernel import TARGET, Block, Kernel
from shardwright.errors import ModuleError, UnsupportedJaxError

TESTED = ("0.10.2", "0.12.0.1")


def _unsupported(missing: str) -> UnsupportedJaxError:
    return UnsupportedJaxError(
        f"jax {jax.__version__} with jaxlib {_jaxlib_version} lacks what shardwright needs: {missing}; "
        f"install one of the tested versions: {', '.join(TESTED)}."
    )


try:
    from jax._src import config as _config
    from jax._src import mesh as _mesh
    from jax._src import shard_map as _shard_map
    from jax._src.export import _export
    from jax._src.interpreters import mlir as _jax_mlir
    from jaxlib.mlir import ir, passmanager
    from jaxlib.mlir.dialects import chlo, sdy, stablehlo

    _make_context = _jax_mlir.make_ir_context
    _export._module_to_bytecode  # noqa: B018 (is it there?)
    _mesh.thread_resources.env.physical_mesh  # noqa: B018
    _config.jax_xla_profile_version, _shard_map.shard_map_p  # noqa: B018
    _jax_mlir._lowerings, _jax_mlir.aval_to_ir_type  # noqa: B018
except (ImportError, AttributeError) as error:
    raise _unsupported(str(error)) from error

__all__ = [
    "BYTECODE",
    "MARK",
    "PallasCall",
    "ambient_mesh",
    "artifact_version",
    "bytecode",
    "chlo",
    "copy_of",
    "installed_package_folders",
    "ir",
    "is_jitted",
    "kept_arguments",
    "kernels_marked",
    "lowered_kernel",
    "own_shardings",
    "parse_module",
    "populate_rules",
    "portable",
    "regions_replaced",
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
    """Have ``replace`` called for each ``shard_map`` that is traced, with what it is given: see ``frontend/opened.py``.

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
            with contextlib.suppress(Exception):  # what is the user's own comes again below
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
def kernels_marked(found: list[PallasCall], platform: str) -> Iterator[None]:
    """Have Pallas kernels lowered to custom calls that stand for them by their number in ``found``.

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
        if not _is_plain(ctx, nodes, params):
            return entry.rule(ctx, *nodes, **params)
        found.append(PallasCall(params, tuple(ctx.avals_in), _kernel(params, ctx.avals_in)))
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


def lowered_kernel(call: PallasCall, parts: Mapping[int, int], platform: str) -> bytes:
    """The module of a kernel on one device, as MLIR's bytecode; ``parts`` are those of the grid indices it splits."""
    params = dict(call.params)
    mapping = params["grid_mapping"]

    def part(block: Block) -> tuple[int, ...]:
        return tuple(size // parts.get(k, 1) for size, k in zip(block.shape, block.index, strict=True))

    kernel = call.kernel
    mappings = tuple(
        mapped.replace(array_aval=mapped.array_aval.update(shape=part(block), sharding=None))
        for mapped, block in zip(mapping.block_mappings, kernel.blocks, strict=True)
    )
    grid = tuple(size // parts[k] if k in parts else size for k, size in enumerate(mapping.grid))
    params["grid_mapping"] = replace(mapping, grid=grid, block_mappings=mappings)
    params["out_avals"] = tuple(
        aval.update(shape=part(block), sharding=None)
        for aval, block in zip(params["out_avals"], kernel.results, strict=True)
    )
    if params["cost_estimate"] is not None:
        ways = math.prod(parts.values())
        estimate = params["cost_estimate"]
        params["cost_estimate"] = type(estimate)(
            flops=estimate.flops // ways,
            transcendentals=estimate.transcendentals // ways,
            bytes_accessed=estimate.bytes_accessed // ways,
        )
    count = len(kernel.scalars)
    operands = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in call.operands[:count]]
    operands += [
        jax.ShapeDtypeStruct(part(block), aval.dtype)
        for aval, block in zip(call.operands[count:], kernel.operands, strict=True)
    ]
    primitive = sys.modules["jax._src.pallas.pallas_call"].pallas_call_p
    jitted = jax.jit(lambda *arrays: tuple(primitive.bind(*arrays, **params)), keep_unused=True)
    # Where a mesh is set, JAX would lower for all of its devices.
    alone = contextlib.nullcontext() if ambient_mesh() is None else jax.set_mesh(Mesh(jax.devices()[:1], ("device",)))
    with alone:
        lowered = jitted.trace(*operands).lower(lowering_platforms=(platform,))
        return bytecode(lowered.compiler_ir("stablehlo"))


def _runnable(params: dict[str, Any], platform: str) -> dict[str, Any]:
    """A kernel's parameters where it is lowered for a platform."""
    return {**params, "interpret": True} if platform == "cpu" and params["interpret"] is False else params


def _is_plain(ctx: Any, nodes: Sequence[Any], params: Mapping[str, Any]) -> bool:
    around = ctx.module_context.axis_context
    manual: frozenset[str] = getattr(around, "manual_axes", frozenset())
    avals = (*ctx.avals_in, *ctx.avals_out)
    return (
        isinstance(params["interpret"], bool)
        and not (manual and manual == frozenset(around.mesh.axis_names))
        and not _open(params["jaxpr"]).constvars
        and not any(type(effect).__name__ == "DebugEffect" for effect in _open(params["jaxpr"]).effects)
        and all(isinstance(node, ir.Value) for node in nodes)
        and all(isinstance(aval, jax.core.ShapedArray) and not _is_extended(aval.dtype) for aval in avals)
    )


def _is_extended(dtype: Any) -> bool:
    return bool(jax.numpy.issubdtype(dtype, jax.dtypes.extended))


def _open(jaxpr: Any) -> Any:
    """A jaxpr without the constants that it may be closed over."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def _kernel(params: Mapping[str, Any], operands: Sequence[Any]) -> Kernel:
    """What a kernel's parameters say of it."""
    mapping, body = params["grid_mapping"], _open(params["jaxpr"])
    blocks = [_block(mapped, len(mapping.grid)) for mapped in mapping.block_mappings]
    scalars = len(operands) - mapping.num_inputs
    own = [k for k in range(len(mapping.grid)) if k not in mapping.vmapped_dims]
    semantics = getattr(params["compiler_params"], "dimension_semantics", None) or ()
    declared = zip(own, semantics, strict=False)
    asked, work = _Body(), params["cost_estimate"]
    asked.look(body, 1)
    sizes = [size if isinstance(size, int) else 1 for size in mapping.grid]
    steps = math.prod(sizes)
    return Kernel(
        name=params["name"] or body.debug_info.func_name,
        grid=tuple(sizes),
        scalars=tuple(tuple(aval.shape) for aval in operands[:scalars]),
        operands=tuple(blocks[: mapping.num_inputs]),
        results=tuple(blocks[mapping.num_inputs :]),
        numbered=frozenset(own[axis] for axis in asked.numbered),
        carries=bool(mapping.scratch_avals) or asked.has_state,
        parallel=frozenset(mapping.vmapped_dims) | {k for k, word in declared if "parallel" in str(word).lower()},
        aliases=tuple((int(operand), int(result)) for operand, result in params["input_output_aliases"]),
        fixed=_fixed(params),
        flops=work.flops if work is not None else asked.flops * steps,
        transcendentals=work.transcendentals if work is not None else asked.transcendentals * steps,
    )


def _fixed(params: Mapping[str, Any]) -> str:
    mapping = params["grid_mapping"]
    if not all(isinstance(size, int) for size in mapping.grid):
        return "belongs to a grid whose size is known only when it runs"
    if mapping.get_grid_indices is not None or mapping.local_grid_env is not None or params["mesh"] is not None:
        return "belongs to a grid that is mapped to cores by the kernel itself"
    if any(block.transforms for block in mapping.block_mappings):
        return "belongs to a kernel whose blocks are stored in another order"
    return ""


def _block(mapped: Any, indices: int) -> Block:
    """Where the block of an array lies, by its index map."""
    index_map = _open(mapped.index_map_jaxpr)
    grid = list(index_map.invars[:indices])
    touched = {id(var) for equation in index_map.eqns for var in equation.invars}
    mixed = {k for k, var in enumerate(grid) if id(var) in touched}
    shape = tuple(mapped.array_aval.shape)
    sizes, index = [], []
    kinds = [type(size).__name__ for size in mapped.block_shape]
    numbers = {id(var): k for k, var in enumerate(grid)}
    simple = len(index_map.outvars) == len(shape)
    for d, (kind, size) in enumerate(zip(kinds, mapped.block_shape, strict=True)):
        sizes.append({"Blocked": getattr(size, "block_size", 0), "Squeezed": 1}.get(kind, 0))
        k = numbers.get(id(index_map.outvars[d]), -1) if simple else -1
        if k >= 0 and not sizes[-1]:  # the number of an element, not of a block
            mixed.add(k)
        index.append(k if k not in mixed else -1)
    if not simple:
        mixed = set(range(indices))
    return Block(
        shape,
        8 * mapped.array_aval.dtype.itemsize,
        tuple(sizes),
        tuple(-1 if k in mixed else k for k in index),
        frozenset(mixed),
    )


_TRANSCENDENTAL = frozenset(
    {"exp", "exp2", "log", "log1p", "expm1", "tanh", "logistic", "sin", "cos", "erf", "rsqrt", "sqrt", "pow"}
)


class _Body:
    """What a kernel's body asks for, and its work in one step."""

    def __init__(self) -> None:
        self.numbered: set[int] = set()
        self.has_state = False
        self.flops = self.transcendentals = 0

    def look(self, jaxpr: Any, times: int) -> None:
        for equation in jaxpr.eqns:
            name, params = equation.primitive.name, equation.params
            if name in ("program_id", "num_programs"):
                self.numbered.add(params["axis"])
            elif name.startswith("prng_"):  # the state of the core's generator goes on from step to step
                self.has_state = True
            elif name == "dot_general":
                (contracted, _), _ = params["dimension_numbers"]
                depth = math.prod(equation.invars[0].aval.shape[d] for d in contracted)
                self.flops += times * 2 * depth * math.prod(equation.outvars[0].aval.shape)
            elif name in _TRANSCENDENTAL:
                self.transcendentals += times * math.prod(equation.outvars[0].aval.shape)
            inside = times * params["length"] if name == "scan" else times
            if name == "cond":
                self._branches(params["branches"], times)
                continue
            for value in params.values():
                for each in value if isinstance(value, (tuple, list)) else (value,):
                    if hasattr(_open(each), "eqns"):
                        self.look(_open(each), inside)

    def _branches(self, branches: Sequence[Any], times: int) -> None:
        """One of them runs; the one with the most work counts."""
        most = (0, 0)
        for branch in branches:
            other = _Body()
            other.look(_open(branch), times)
            self.numbered |= other.numbered
            self.has_state |= other.has_state
            most = max(most, (other.flops, other.transcendentals))
        self.flops += most[0]
        self.transcendentals += most[1]
