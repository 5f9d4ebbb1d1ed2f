"""``sw.evaluate`` and ``sw.load``: a plan from decisions that somebody made."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwright.analysis import Analysis, analyse_program
from shardwright.errors import PinError, PlanError
from shardwright.frontend.trace import Lowering, lower, read
from shardwright.ir.loops import TripCounts
from shardwright.plan import Plan, make_plan
from shardwright.plan import file as plan_file
from shardwright.plan.mesh import mesh_shape
from shardwright.plan.pins import Pin, as_decisions, check_specs
from shardwright.spmd import MeshShape


def evaluate(
    fn: Callable[..., Any],
    *args: Any,
    mesh: Any,
    decisions: Any = (),
    pin: Any = None,
    donate: Sequence[int] = (),
    platform: str | None = None,
    trip_counts: TripCounts = None,
    rules: Mapping[str, str] | None = None,
) -> Plan:
    """A plan for decisions made by hand.

    Args:
        fn: a JAX callable.
        *args: its arguments: pytrees of arrays or ``jax.ShapeDtypeStruct``; only shapes are looked at.
        mesh: a dict such as ``{"data": 4, "model": 2}``, a jax ``Mesh`` or ``AbstractMesh``.
        decisions: in order of priority on each axis: ``("data", "batch.tokens[0]")``, ``sw.Decision(...)``, a tactic
            such as ``"fsdp:data"`` or ``"megatron:model"``, or specs by path (``{"batch.tokens": P("data")}``).
        pin: the same; comes first.
        donate: positions of arguments whose buffers may be reused, as ``donate_argnums`` of ``jax.jit``.
        platform: what to lower for while planning; by default that of JAX's default backend.
        trip_counts: as in ``sw.analyse``.
        rules: as in ``sw.analyse``.
    """
    traced = _Traced.of(fn, args, donate, platform, trip_counts, rules)
    return traced.plan(mesh_shape(mesh), [pin, decisions])


def load(
    path: str | os.PathLike[str],
    fn: Callable[..., Any],
    *args: Any,
    platform: str | None = None,
    trip_counts: TripCounts = None,
    rules: Mapping[str, str] | None = None,
) -> Plan:
    """Read a plan that ``plan.save`` wrote, and derive it again for ``fn(*args)``.

    Raises ``PlanError`` where the plan does not fit the program.
    """
    mesh, written, donate = plan_file.read(path)
    traced = _Traced.of(fn, args, donate, platform, trip_counts, rules)
    known = {d.name for d in traced.analysis.descriptions}
    try:
        return traced.plan(mesh_shape(mesh), [plan_file.as_decision(w, known) for w in written])
    except PinError as error:
        raise PlanError(f"the plan {os.fspath(path)} does not fit this program: {error}") from error


@dataclass(frozen=True)
class _Traced:
    """A function that was traced and analysed, and with what."""

    fn: Callable[..., Any]
    lowering: Lowering
    analysis: Analysis
    donate: tuple[int, ...]
    options: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        fn: Callable[..., Any],
        args: Sequence[Any],
        donate: Sequence[int] | int,
        platform: str | None,
        trip_counts: TripCounts,
        rules: Mapping[str, str] | None,
    ) -> _Traced:
        lowering = lower(fn, args, platform)
        positions = (donate,) if isinstance(donate, int) else tuple(donate)
        module = read(fn, lowering, donate=positions, trip_counts=trip_counts, rules=rules)
        options = {"trip_counts": trip_counts, "rules": rules}
        return cls(fn, lowering, analyse_program(module.program), positions, options)

    def plan(self, mesh: MeshShape, pins: Pin) -> Plan:
        decisions = as_decisions(self.analysis, mesh, pins)
        lowering = self.lowering
        plan = make_plan(
            self.fn, lowering.shapes, lowering.result, self.analysis, mesh, decisions, self.donate, self.options
        )
        check_specs(plan.partitioned, pins)
        return plan
