"""From a JAX callable and its arguments to a ``Program``, without a device and without allocating anything."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from shardwright import _jax
from shardwright.errors import TraceError
from shardwright.frontend.paths import leaf_paths, parameter_names
from shardwright.ir.build import build_program
from shardwright.ir.loops import TripCounts
from shardwright.ir.program import Program

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def trace(
    fn: Callable[..., Any],
    *args: Any,
    donate: Sequence[int] = (),
    platform: str | None = None,
    trip_counts: TripCounts = None,
    rules: Mapping[str, str] | None = None,
) -> Program:
    """Trace ``fn(*args)`` as ``jax.jit`` would and read the StableHLO into a ``Program``.

    ``args`` are pytrees of arrays or ``jax.ShapeDtypeStruct``; only their shapes are looked at. ``donate`` are
    argument positions, as ``donate_argnums`` of ``jax.jit``. ``platform`` (default: that of the default backend) is
    what the function is lowered for; no such device need be present. ``trip_counts`` tells the length of loops that
    the program does not (a number, or a mapping from ``"file.py:42"`` or a glob to a number). ``rules`` maps custom-call
    targets to sharding rules such as ``"b t d, d f -> b t f"``.
    """
    lowered, names, shapes, result = lower(fn, args, platform)
    return build_program(
        _jax.copy_of(lowered),
        name=getattr(fn, "__name__", type(fn).__name__),
        argument_paths=leaf_paths(names, shapes),
        result_paths=leaf_paths(["result"], [result]),
        donated=_donated_leaves(donate, shapes),
        trip_counts=trip_counts,
        user_rules=rules,
        boundary=(__file__,),
    )


def lower(
    fn: Callable[..., Any], args: Sequence[Any], platform: str | None = None
) -> tuple[jax.stages.Lowered, list[str], tuple[Any, ...], Any]:
    """JAX's own part: check the arguments, trace and lower.

    Returns the lowering, the parameters' names, the arguments as shapes, and the result as shapes.
    """
    if not callable(fn):
        raise TraceError(f"expected a JAX function to partition, got {_a(fn)}; pass the function itself.")
    if platform is not None and platform not in PLATFORMS:
        raise TraceError(f"there is no platform {platform!r}; choose one of {', '.join(PLATFORMS)}.")
    _check_call(fn, args)
    names = parameter_names(fn, len(args))
    shapes = tuple(_shapes(name, arg) for name, arg in zip(names, args, strict=True))
    called = getattr(fn, "__name__", type(fn).__name__)
    try:
        traced = jax.jit(fn, keep_unused=True).trace(*shapes)
        lowered = traced.lower(lowering_platforms=(platform or jax.default_backend(),))
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise TraceError(
            f"tracing {called} failed with {type(error).__name__}: {reason[0] if reason else 'no message'}"
        ) from error
    return lowered, names, shapes, traced.out_info


def _check_call(fn: Callable[..., Any], args: Sequence[Any]) -> None:
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # a builtin: JAX will say
        return
    try:
        signature.bind(*args)
    except TypeError as error:
        name = getattr(fn, "__name__", type(fn).__name__)
        raise TraceError(
            f"{name}{signature} cannot be called with {len(args)} positional argument{'s' * (len(args) != 1)}: {error}."
        ) from None


def _shapes(name: str, tree: Any) -> Any:
    """The tree with every array replaced by its shape, and a clear word for a leaf that is none."""

    def shape(path: Any, leaf: Any) -> Any:
        if isinstance(leaf, (bool, int, float, complex, np.generic)):
            return leaf
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=getattr(leaf, "weak_type", False))
        where = ".".join(leaf_paths([name], [tree])[:0]) or name
        rest = jax.tree_util.keystr(path, simple=True, separator=".")
        raise TraceError(
            f"argument {'.'.join(p for p in (where, rest) if p)!r} is {_a(leaf)}, not an array or a "
            "jax.ShapeDtypeStruct; close over it, or bind it with functools.partial."
        )

    return jax.tree_util.tree_map_with_path(shape, tree)


def _donated_leaves(donate: Sequence[int] | int, args: Sequence[Any]) -> list[int]:
    positions = {donate} if isinstance(donate, int) else set(donate)
    for position in positions:
        if not 0 <= position < len(args):
            raise TraceError(f"donate names argument {position}, but there are {len(args)} arguments (0 to {len(args) - 1}).")
    leaves: list[int] = []
    start = 0
    for i, tree in enumerate(args):
        count = len(jax.tree_util.tree_leaves(tree))
        if i in positions:
            leaves.extend(range(start, start + count))
        start += count
    return leaves


def _a(thing: Any) -> str:
    """"a str ('gpt')": a thing's type and, if short, what it is."""
    name = type(thing).__name__
    shown = repr(thing)
    article = "an" if name[0].lower() in "aeiou" else "a"
    return f"{article} {name} ({shown})" if len(shown) <= 40 else f"{article} {name}"
