"""``sw.analyse``: from a function to what there is to decide about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shardwright.analysis import Analysis, analyse_program
from shardwright.frontend import trace
from shardwright.frontend.calls import Donate, Names
from shardwright.ir.loops import TripCounts


def analyse(
    fn: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    static_argnames: Names = (),
    donate: Donate = (),
    platform: str | None = None,
    trip_counts: TripCounts = None,
    rules: Mapping[str, str] | None = None,
) -> Analysis:
    """Find the colours, conflicts and groups of ``fn(*args, **kwargs)``, without a mesh and without a search.

    Args:
        fn: a JAX callable.
        *args: its arguments: pytrees of arrays or ``jax.ShapeDtypeStruct``; only shapes are looked at.
        kwargs: keyword arguments of the callable. They are analysed like the others, and their paths begin with the
            parameter's name.
        static_argnames: parameters whose values are part of the program, as in ``jax.jit``. If ``fn`` is a ``jax.jit``
            already, its own are found.
        donate: positions or names of arguments whose buffers may be reused, as in ``jax.jit``.
        platform: the platform to lower for: "cpu", "tpu", "cuda" or "rocm"; by default that of JAX's default backend.
            No such device needs to be present.
        trip_counts: how often loops run if the program does not tell: one number for all of them, or a mapping from
            ``"file.py:42"``, a function's name or a glob to a number.
        rules: the sharding rules of custom calls by their target, such as ``{"my_kernel": "b t d, d f -> b t f"}``.

    Returns:
        An ``Analysis`` with ``.colours``, ``.conflicts`` and ``.groups``; ``print`` shows a table.

    """
    program = trace(
        fn,
        *args,
        kwargs=kwargs,
        static_argnames=static_argnames,
        donate=donate,
        platform=platform,
        trip_counts=trip_counts,
        rules=rules,
    )
    return analyse_program(program)
