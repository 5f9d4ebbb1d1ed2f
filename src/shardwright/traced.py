"""A function that was traced and analysed: all that can be known of it without a mesh."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
from jax.sharding import AbstractMesh

from shardwright.analysis import Analysis, analyse_program
from shardwright.frontend.calls import Donate, Names, by_position
from shardwright.frontend.names import leaf_paths
from shardwright.frontend.own_shardings import KEEP, check_mode
from shardwright.frontend.trace import Lowering, lower, read, resized
from shardwright.ir.build import ReadModule
from shardwright.ir.loops import TripCounts
from shardwright.ir.user_rules import check_targets
from shardwright.price import Places


@dataclass(frozen=True, eq=False)
class Traced:
    """A function that was traced and analysed, and with what; ``tracing_seconds`` is what JAX's own part of it took."""

    fn: Callable[..., Any]
    lowering: Lowering
    module: ReadModule
    analysis: Analysis
    donate: tuple[int, ...]
    platform: str | None
    options: Mapping[str, Any]
    tracing_seconds: float

    @classmethod
    def of(
        cls,
        fn: Callable[..., Any],
        args: Sequence[Any],
        donate: Donate,
        platform: str | None,
        trip_counts: TripCounts,
        rules: Mapping[str, str] | None,
        kwargs: Mapping[str, Any] | None = None,
        static_argnames: Names = (),
        constraints: str = KEEP,
        ambient: AbstractMesh | None = None,
    ) -> Traced:
        """Trace, read and analyse."""
        check_mode(constraints)
        fn, args, positions = by_position(fn, args, donate, kwargs, static_argnames)
        started = time.perf_counter()
        lowering = lower(fn, args, platform, ambient, constraints)
        tracing_seconds = time.perf_counter() - started
        module = read(fn, lowering, donate=positions, trip_counts=trip_counts, rules=rules, constraints=constraints)
        check_targets(module.program, rules)
        options = {
            "trip_counts": trip_counts,
            "rules": rules,
            "platform": platform,
            "constraints": constraints,
            "ambient": lowering.ambient,
        }
        analysis = analyse_program(module.program)
        return cls(lowering.fn, lowering, module, analysis, positions, platform, options, tracing_seconds)

    def again(self, *, shapes: Sequence[Any] | None = None, donate: Sequence[int] | None = None) -> Traced:
        """The same function with arguments of other shapes, or other arguments to overwrite."""
        return Traced.of(
            self.fn,
            self.lowering.shapes if shapes is None else shapes,
            self.donate if donate is None else donate,
            self.platform,
            self.options["trip_counts"],
            self.options["rules"],
            constraints=self.options["constraints"],
            ambient=self.options["ambient"],
        )

    def resized(self, sizes: Mapping[str, int]) -> tuple[Any, ...]:
        """The arguments' shapes with other sizes of some dimensions (``"batch.x[0]"``)."""
        leaves, structure = jax.tree.flatten(self.lowering.shapes)
        paths = leaf_paths(self.lowering.names, self.lowering.shapes)
        out = []
        for path, leaf in zip(paths, leaves, strict=True):
            given = getattr(leaf, "shape", ())
            shape = tuple(sizes.get(f"{path}[{d}]", size) for d, size in enumerate(given))
            out.append(leaf if shape == given else resized(leaf, shape))
        shapes: tuple[Any, ...] = jax.tree.unflatten(structure, out)
        return shapes

    @cached_property
    def places(self) -> Places:
        """The groups of every dimension and factor."""
        return Places(self.analysis)
