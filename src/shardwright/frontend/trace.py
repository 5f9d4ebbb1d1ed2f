"""From a JAX callable and its arguments to a ``Program``, without a device and without allocating anything."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from shardwright import _jax
from shardwright.devices.find import default_backend
from shardwright.errors import PlanWarning, TraceError
from shardwright.frontend import calls, in_place, stablehlo, static
from shardwright.frontend.calls import Donate, Names, by_position
from shardwright.frontend.paths import function_name, join, leaf_paths, parameter_names
from shardwright.ir.build import ReadModule, read_module
from shardwright.ir.loops import TripCounts
from shardwright.ir.program import Program, Source
from shardwright.ir.user_rules import check_targets

# Not every supported JAX annotates the constructor.
_shape_of: Callable[..., Any] = jax.ShapeDtypeStruct

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
    ``rules`` maps targets of custom calls to sharding rules such as ``"b t d, d f -> b t f"``.
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
) -> ReadModule:
    """Read a lowering of ``fn`` into a program, and keep the module beside it."""
    paths = leaf_paths(lowering.names, lowering.shapes)
    kept = _jax.kept_arguments(lowering.lowered)
    donated = _donated_leaves(donate, lowering.shapes)
    return read_module(
        _jax.copy_of(lowering.lowered),
        name=function_name(fn),
        argument_paths=[paths[k] for k in kept],
        unused_arguments=[path for k, path in enumerate(paths) if k not in set(kept)],
        result_paths=_result_paths(lowering),
        donated=[i for i, k in enumerate(kept) if k in donated],
        trip_counts=trip_counts,
        user_rules=rules,
        platform=lowering.platform,
        boundary=(__file__, calls.__file__, in_place.__file__, stablehlo.__file__, static.__file__),
        origin=_definition(fn),
    )


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


def lowering_platform(name: str) -> str:
    """What JAX lowers for on a device or backend of this name: it calls some GPUs "cuda"."""
    return {"gpu": "cuda"}.get(name, name)


def lower(fn: Callable[..., Any], args: Sequence[Any], platform: str | None = None, **jit_options: Any) -> Lowering:
    """Check the arguments, trace and lower, as ``jax.jit(fn, **jit_options)`` would."""
    if not callable(fn):
        raise TraceError(f"expected a JAX function to partition, got {_a(fn)}; pass the function itself.")
    if platform is not None and platform not in PLATFORMS:
        raise TraceError(f"there is no platform {platform!r}; choose one of {', '.join(PLATFORMS)}.")
    here = default_backend()
    fn, args = static.sealed(fn, tuple(args))
    names = parameter_names(fn, len(args))
    shapes = tuple(_shapes(name, arg) for name, arg in zip(names, args, strict=True))
    changed: list[Any] = []
    try:
        traced = jax.jit(in_place.watched(fn, changed), **jit_options).trace(*shapes)
        lowered = traced.lower(lowering_platforms=(platform or here,))
    except Exception as error:
        reason = str(error).strip().splitlines()
        if _ANOTHER_PLATFORM in str(error) and platform not in (None, here) and not jit_options:
            _warn_of_platform(fn, here, platform)
            return replace(lower(fn, args, here), platform=platform)
        raise TraceError(
            f"tracing {function_name(fn)} failed with {type(error).__name__}: {reason[0] if reason else 'no message'}"
        ) from error
    if not jit_options:  # with options it is the same function once more
        lost = in_place.lost_changes(fn, names, shapes) if changed else {}
        if lost:
            return lower(in_place.Updating(fn, lost), args, platform)
        _check_jitted(fn, names, shapes)
    return Lowering(fn, lowered, names, shapes, traced.out_info, platform or here)


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


def _shapes(name: str, tree: Any) -> Any:
    """The tree with every array replaced by its shape, and a clear word for a leaf that is none."""

    def shape(path: Any, leaf: Any) -> Any:
        if isinstance(leaf, (bool, int, float, complex, np.generic)):
            return leaf
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
            dtype = jax.dtypes.canonicalize_dtype(
                leaf.dtype, allow_extended_dtype=True
            )  # NumPy's float64: as jax.jit does
            return _shape_of(leaf.shape, dtype, weak_type=getattr(leaf, "weak_type", False))
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
