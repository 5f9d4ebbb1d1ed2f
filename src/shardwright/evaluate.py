"""``sw.evaluate`` and ``sw.load``: a plan from decisions that somebody made."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardwright.analysis import analyse_program
from shardwright.errors import PinError, PlanError
from shardwright.frontend.trace import lower, read
from shardwright.ir.loops import TripCounts
from shardwright.plan import Plan, make_plan
from shardwright.plan import file as plan_file
from shardwright.plan.mesh import mesh_shape
from shardwright.plan.pins import as_decisions, check_specs


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
            such as ``"fsdp:data"`` or ``"megatron:model"``, or specs by argument path (``{"batch.tokens": P("data")}``).
        pin: the same; comes first.
        donate: positions of arguments whose buffers may be reused, as ``donate_argnums`` of ``jax.jit``.
        platform: what to lower for while planning; by default that of JAX's default backend.
        trip_counts: as in ``sw.analyse``.
        rules: as in ``sw.analyse``.
    """
    shape = mesh_shape(mesh)
    lowering = lower(fn, args, platform)
    options = {"trip_counts": trip_counts, "rules": rules}
    analysis = analyse_program(read(fn, lowering, donate=donate, **options).program)  # type: ignore[arg-type]
    pins = [pin, decisions]
    found = as_decisions(analysis, shape, pins)
    positions = (donate,) if isinstance(donate, int) else tuple(donate)
    plan = make_plan(fn, lowering.shapes, lowering.result, analysis, shape, found, positions, options)
    check_specs(plan.partitioned, pins)
    return plan


def load(path: str | os.PathLike[str], fn: Callable[..., Any], *args: Any, **options: Any) -> Plan:
    """Read a plan that ``plan.save`` wrote, and derive it again for ``fn(*args)``.

    Further options are those of ``sw.evaluate``. Raises ``PlanError`` where the plan does not fit the program.
    """
    mesh, written, donate = plan_file.read(path)
    lowering = lower(fn, args, options.get("platform"))
    analysis = analyse_program(read(fn, lowering, donate=donate).program)
    known = {d.name for d in analysis.descriptions}
    decisions = [plan_file.as_decision(w, known) for w in written]
    try:
        return evaluate(fn, *args, mesh=mesh, decisions=decisions, donate=donate, **options)
    except PinError as error:
        raise PlanError(f"the plan {os.fspath(path)} does not fit this program: {error}") from error
