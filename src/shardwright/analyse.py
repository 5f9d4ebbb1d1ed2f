"""``sw.analyse``: from a function to what there is to decide about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardwright.analysis import Analysis, analyse_program
from shardwright.frontend import trace
from shardwright.ir.loops import TripCounts


def analyse(
    fn: Callable[..., Any],
    *args: Any,
    donate: Sequence[int] = (),
    platform: str | None = None,
    trip_counts: TripCounts = None,
    rules: Mapping[str, str] | None = None,
) -> Analysis:
    """Find the colours, conflicts and groups of ``fn(*args)``, without a mesh and without a search.

    Args:
        fn: a JAX callable.
        *args: its arguments: pytrees of arrays or ``jax.ShapeDtypeStruct``; only shapes are looked at.
        donate: positions of arguments whose buffers may be reused, as ``donate_argnums`` of ``jax.jit``.
        platform: "cpu", "tpu", "cuda" or "rocm"; by default that of JAX's default backend. It need not be present.
        trip_counts: how often loops run whose length the program does not tell: one number for all of them, or a
            mapping from ``"file.py:42"``, a function's name or a glob to a number.
        rules: sharding rules of custom calls by their target, such as ``{"my_kernel": "b t d, d f -> b t f"}``.

    Returns:
        An ``Analysis`` with ``.colours``, ``.conflicts`` and ``.groups``; ``print`` shows a table.

    """
    return analyse_program(trace(fn, *args, donate=donate, platform=platform, trip_counts=trip_counts, rules=rules))
