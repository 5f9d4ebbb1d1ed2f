"""From a JAX callable and its arguments to a ``Program``, without a device and without allocating anything."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding

from shardwright import _jax
from shardwright.devices.find import default_backend
from shardwright.errors import PlanWarning, TraceError
from shardwright.frontend import calls, in_place, leaves, once, own_shardings, stablehlo
from shardwright.frontend.calls import Donate, Names, by_position
from shardwright.frontend.leaves import host_sharding, kind_on_host, memory_kind_of
from shardwright.frontend.names import function_name, join, leaf_paths, parameter_names
from shardwright.ir.build import ReadModule, read_module
from shardwright.ir.loops import TripCounts
from shardwright.ir.memory import PINNED
from shardwright.ir.program import Program, Source
from shardwright.ir.user_rules import check_targets

# Not every supported JAX annotates the constructor.
_shape_of: Callable[..., Any] = jax.ShapeDtypeStruct

_OURS = (__file__, *(str(each.__file__) for each in (_jax, calls, in_place, leaves, own_shardings, stablehlo)))
"""Files whose frames, and all outside them, are not the user's."""
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
_ANOTHER_PLATFORM = "is different from the lowering platform"
"""What JAX says of a callback into Python that is lowered for a platform which is not there."""


def trace(
    fn: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    static_argnames: Names = (),
    donate: Donate = (),
    platform: str | None = None,
    trip_counts: TripCounts = None,
    rules: Mapping[str, str] | None = None,
) -> Program:
    """Trace ``fn(*args, **kwargs)`` as ``jax.jit`` would and read the StableHLO into a ``Program``.

    ``args`` and ``kwargs`` are pytrees of arrays or ``jax.ShapeDtypeStruct``; only their shapes are looked at.
    ``static_argnames`` and ``donate``, positions or names, are as in ``jax.jit``. ``platform`` (default: that of the
    default backend) is what the function is lowered for; no such device need be present. ``trip_counts`` tells the
    length of loops that the program does not (a number, or a mapping from ``"file.py:42"`` or a glob to a number).
    ``rules`` maps targets of custom calls, or names of kernels, to sharding rules such as ``"b t d, d f -> b t f"``.
    """
    fn, args, positions = by_position(fn, args, donate, kwargs, static_argnames)
    program = read(fn, lower(fn, args, platform), donate=positions, trip_counts=trip_counts, rules=rules).program
    check_targets(program, rules)
    return program


def read(
    fn: Callable[..., Any],
    lowering: Lowering,
    *,
    donate: Sequence[int] = (),
    trip_counts: TripCounts = None,
    rules: Mapping[str, str] | None = None,
    constraints: str = own_shardings.KEEP,
) -> ReadModule:
    """Read a lowering of ``fn`` into a program, and keep the module beside it.

    Shardings that the program has already are kept as they are, or dropped.
    """
    paths = leaf_paths(lowering.names, lowering.shapes)
    kept = _jax.kept_arguments(lowering.lowered)
    donated = _donated_leaves(donate, lowering.shapes)
    module = _jax.copy_of(lowering.lowered)
    given = own_shardings.settle(module, constraints, [lowering.given[k] for k in kept], planned=lowering.planned)
    read_again = partial(
        read_module,
        module,
        name=function_name(fn),
        argument_paths=[paths[k] for k in kept],
        unused_arguments=[path for k, path in enumerate(paths) if k not in set(kept)],
        result_paths=_result_paths(lowering),
        donated=[i for i, k in enumerate(kept) if k in donated],
        trip_counts=trip_counts,
        user_rules=rules,
        platform=lowering.platform,
        boundary=_OURS,
        origin=_definition(fn),
        given_arguments=given,
        kernels=[call.kernel for call in lowering.kernels],
        functions=[call.function for call in lowering.functions],
        memory_kinds=[lowering.memory_kinds[k] for k in kept],
        result_kinds=lowering.result_kinds,
        typed=constraints == own_shardings.KEEP and lowering.explicit,
    )
    found = read_again()
    return read_again() if once.open_loops(found) else found


def _result_paths(lowering: Lowering) -> list[str]:
    fn, result = lowering.fn, lowering.result
    if own := getattr(fn, "result_names", None):
        return list(own)
    if isinstance(fn, in_place.Updating):
        return [*leaf_paths(["result"], result[:1]), *(f"result.{path}" for path in fn.changes)]
    return leaf_paths(["result"], [result])


@dataclass(frozen=True)
class Lowering:
    """JAX's own part: the lowering, the parameters' names, the arguments and the result as shapes.

    ``fn`` takes and returns what JAX can trace: where leaves of the user's arguments are no arrays, these are sealed;
    what it changes in place, it returns too.
    """

    fn: Callable[..., Any]
    lowered: jax.stages.Lowered
    names: list[str]
    shapes: tuple[Any, ...]
    result: Any
    platform: str
    given: tuple[NamedSharding | None, ...] = ()
    """The shardings that flat arguments have already: their own, or those that the function was jitted with."""
    ambient: AbstractMesh | None = None
    """The mesh that was set around the caller, or that the types of arguments are on."""
    planned: bool = False
    """Whether it was lowered with shardings that are not the program's own."""
    kernels: tuple[_jax.PallasCall, ...] = ()
    """The Pallas kernels that custom calls in the module stand for, by number."""
    functions: tuple[_jax.FunctionCall, ...] = ()
    """The functions with a ``sharding_rule`` that custom calls in the module stand for, by number."""
    memory_kinds: tuple[str | None, ...] = ()
    """Where flat arguments lie if that is on the host, as JAX calls it."""
    result_kinds: tuple[str | None, ...] = ()
    """The same of flat results."""

    @property
    def explicit(self) -> bool:
        """Whether types have shardings."""
        return self.ambient is not None and AxisType.Explicit in self.ambient.axis_types


def lowering_platform(name: str) -> str:
    """What JAX lowers for on a device or backend of this name: it calls some GPUs "cuda"."""
    return {"gpu": "cuda"}.get(name, name)


def lower(
    fn: Callable[..., Any],
    args: Sequence[Any],
    platform: str | None = None,
    ambient: AbstractMesh | None = None,
    constraints: str = own_shardings.KEEP,
    **jit_options: Any,
) -> Lowering:
    """Check the arguments, trace and lower, as ``jax.jit(fn, **jit_options)`` would.

    ``ambient`` is the mesh that was set when the function was first traced; by default that which is set now. Where
    ``constraints`` are dropped, regions of ``shard_map`` are opened.
    """
    if not callable(fn):
        raise TraceError(f"expected a JAX function to partition, got {_a(fn)}; pass the function itself.")
    if platform is not None and platform not in PLATFORMS:
        raise TraceError(f"there is no platform {platform!r}; choose one of {', '.join(PLATFORMS)}.")
    here = default_backend()
    fn, args = leaves.sealed(fn, tuple(args))
    names = parameter_names(fn, len(args))
    inside = nullcontext() if ambient is None else jax.sharding.use_abstract_mesh(ambient)
    shapes = tuple(_shapes(name, arg) for name, arg in zip(names, args, strict=True))
    ambient = ambient or _jax.ambient_mesh() or _explicit_mesh(shapes)
    explicit = ambient is not None and AxisType.Explicit in ambient.axis_types
    changed: list[Any] = []
    try:
        dropped = constraints == own_shardings.DROP
        replaced = _jax.regions_replaced(own_shardings.on_blocks) if dropped else nullcontext()
        with inside, replaced, _jax.cudnn_assumed(platform or here):
            jitted = jax.jit(in_place.watched(fn, changed), **jit_options)
            traced = jitted.trace(*bare(shapes, sharded=explicit))
        kernels: list[_jax.PallasCall] = []
        functions: list[_jax.FunctionCall] = []
        with _jax.kernels_marked(kernels, platform or here), _jax.functions_marked(functions):
            lowered = traced.lower(lowering_platforms=(platform or here,))
    except Exception as error:
        reason = str(error).strip().splitlines()
        if _ANOTHER_PLATFORM in str(error) and platform not in (None, here) and not jit_options:
            _warn_of_platform(fn, here, platform)
            return replace(lower(fn, args, here, ambient, constraints), platform=platform)
        raise TraceError(
            f"tracing {function_name(fn)} failed with {type(error).__name__}: {reason[0] if reason else 'no message'}"
        ) from error
    if not jit_options:  # with options it is the same function once more
        lost = in_place.lost_changes(fn, names, shapes) if changed else {}
        if lost:
            return lower(in_place.Updating(fn, lost), args, platform, ambient, constraints)
        _check_jitted(fn, names, shapes)
        _check_put_on_host(fn, traced)
    own = _jax.own_shardings(traced)
    given = [_sharding_of(leaf) or jitted_with for leaf, jitted_with in zip(jax.tree.leaves(shapes), own, strict=True)]
    return Lowering(
        fn,
        lowered,
        names,
        shapes,
        traced.out_info,
        platform or here,
        given=tuple(given),
        ambient=ambient,
        planned="in_shardings" in jit_options,
        kernels=tuple(kernels),
        functions=tuple(functions),
        memory_kinds=tuple(
            memory_kind_of(leaf) or kind_on_host(jitted_with)
            for leaf, jitted_with in zip(jax.tree.leaves(shapes), own, strict=True)
        ),
        result_kinds=tuple(PINNED if on_host else None for on_host in _jax.results_on_host(traced)),
    )


def _warn_of_platform(fn: Callable[..., Any], here: str, platform: str | None) -> None:
    warnings.warn(
        f"{function_name(fn)} calls back into Python (jax.debug.print, jax.pure_callback, …), which JAX lowers for "
        f"{here} alone where no {platform} is present; it was planned as lowered for {here}, which hardly differs.",
        PlanWarning,
        stacklevel=5,  # who called sw.partition, sw.evaluate, sw.load or sw.analyse
    )


def _check_jitted(fn: Callable[..., Any], names: Sequence[str], shapes: tuple[Any, ...]) -> None:
    """Refuse a ``jax.jit`` that loses what the function inside changes in place: hardly anybody means that."""
    leaves = dict(jax.tree_util.tree_flatten_with_path(shapes)[0])
    jitted = fn.inside if isinstance(fn, calls.Positional) else fn
    if not _jax.is_jitted(jitted) or not any(isinstance(path[-1], jax.tree_util.GetAttrKey) for path in leaves):
        return
    inside = inspect.unwrap(jitted)
    inside = fn.around(inside) if isinstance(fn, calls.Positional) else inside
    changes = in_place.lost_changes(inside, names, shapes).items()
    # A counter of random numbers is changed by every call, and its loss may be meant.
    lost = [name for name, path in changes if jax.numpy.issubdtype(leaves[path].dtype, jax.numpy.inexact)]
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise TraceError(
            f"{function_name(fn)} changes {lost[0]}{more} in place and does not return it, which jax.jit loses; let it "
            "return what it changes, or hand it in without jax.jit or as nnx.jit: then the planned step changes it too."
        )


def _check_put_on_host(fn: Callable[..., Any], traced: jax.stages.Traced) -> None:
    """Refuse what only ``out_shardings`` put on the host: they are lost where the function is called in another."""
    paths = leaf_paths(["result"], [traced.out_info])
    lost = [path for path, by_jit in zip(paths, _jax.put_on_host_by_jit(traced), strict=True) if by_jit]
    if lost:
        raise TraceError(
            f"{function_name(fn)} was jitted with out_shardings that put {lost[0]} on the host, which JAX does not "
            "keep inside of a plan; return jax.device_put(x, jax.memory.Space.Host)."
        )


def _sharding_of(leaf: Any) -> NamedSharding | None:
    """How an argument lies on a mesh of several devices, if it does."""
    sharding = getattr(leaf, "sharding", None)
    return sharding if isinstance(sharding, NamedSharding) and sharding.mesh.size > 1 else None


def _explicit_mesh(shapes: Any) -> AbstractMesh | None:
    """The mesh of arguments whose types carry shardings."""
    meshes = [own.mesh.abstract_mesh for leaf in jax.tree.leaves(shapes) if (own := _sharding_of(leaf)) is not None]
    return next((mesh for mesh in meshes if AxisType.Explicit in mesh.axis_types), None)


def bare(shapes: Any, *, sharded: bool = False) -> Any:
    """Shapes of arguments to trace with: without the shardings that these have, unless they are to be ``sharded``.

    Those that lie on the host stay there: that is part of their types, and what is done with them goes by it.
    """

    def shape(leaf: Any) -> Any:
        kind, sharding = memory_kind_of(leaf), _sharding_of(leaf)
        if (sharding is None and kind is None) or (sharded and sharding is not None):
            return leaf
        if kind == PINNED:
            return _jax.host_shape(leaf.shape, leaf.dtype, weak_type=leaf.weak_type)
        return _shape_of(leaf.shape, leaf.dtype, weak_type=leaf.weak_type)

    return jax.tree.map(shape, shapes)


def resized(leaf: Any, shape: tuple[int, ...]) -> Any:
    """An argument of another size, on the host if it is there."""
    kind = memory_kind_of(leaf)
    sharding = None if kind is None else host_sharding(kind)
    return _shape_of(shape, leaf.dtype, sharding=sharding)


def _shapes(name: str, tree: Any) -> Any:
    """The tree with every array replaced by its shape, and a clear word for a leaf that is none.

    Where arrays lie on a mesh, or on the host, the shapes tell.
    """

    def shape(path: Any, leaf: Any) -> Any:
        if isinstance(leaf, (bool, int, float, complex, np.generic)):
            return leaf
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
            dtype = jax.dtypes.canonicalize_dtype(
                leaf.dtype, allow_extended_dtype=True
            )  # NumPy's float64: as jax.jit does
            sharding, kind = _sharding_of(leaf), memory_kind_of(leaf)
            if sharding is not None:
                sharding = NamedSharding(sharding.mesh.abstract_mesh, sharding.spec, memory_kind=kind)
            elif kind is not None:
                sharding = host_sharding(kind)
            return _shape_of(leaf.shape, dtype, weak_type=getattr(leaf, "weak_type", False), sharding=sharding)
        raise TraceError(
            f"argument {join(name, path)!r} is {_a(leaf)}, not an array or a "
            "jax.ShapeDtypeStruct; close over it, or bind it with functools.partial."
        )

    return jax.tree_util.tree_map_with_path(shape, tree)


def _donated_leaves(donate: Sequence[int], args: Sequence[Any]) -> set[int]:
    leaves: set[int] = set()
    start = 0
    for i, tree in enumerate(args):
        count = len(jax.tree_util.tree_leaves(tree))
        if i in donate:
            leaves.update(range(start, start + count))
        start += count
    return leaves


def _definition(fn: Callable[..., Any]) -> Source:
    """Where the function is defined; ops that JAX adds on its own account belong there."""
    if isinstance(fn, stablehlo.StableHLO):
        return fn.origin
    inner = inspect.unwrap(fn)
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    return Source(code.co_filename, code.co_firstlineno, code.co_name) if code else Source()


def _a(thing: Any) -> str:
    """A thing's type and, if short, what it is: ``a str ('gpt')``."""
    name = type(thing).__name__
    shown = repr(thing)
    article = "an" if name[0].lower() in "aeiou" else "a"
    return f"{article} {name} ({shown})" if len(shown) <= 40 else f"{article} {name}"
