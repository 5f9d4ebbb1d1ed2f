"""``sw.evaluate`` and ``sw.load``: a plan from decisions that somebody made."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from shardwright.devices import Device
from shardwright.errors import DeviceError, MeshError, PinError, PlanError, PlanWarning
from shardwright.frontend.calls import Donate, Names, by_position
from shardwright.frontend.names import function_name
from shardwright.frontend.own_shardings import KEEP
from shardwright.frontend.trace import lowering_platform
from shardwright.ir.loops import TripCounts
from shardwright.plan import Plan
from shardwright.plan import file as plan_file
from shardwright.plan.file import differences, fingerprint
from shardwright.problem import Problem, shapes_for
from shardwright.request import MeshLike, PinLike, mesh_shape
from shardwright.request.mesh import Machine
from shardwright.space import implied_decisions
from shardwright.traced import Traced


def evaluate(
    fn: Callable[..., Any],
    *args: Any,
    mesh: MeshLike = None,
    device: str | Device | None = None,
    memory: int | str | None = None,
    decisions: PinLike = (),
    pin: PinLike = None,
    kwargs: Mapping[str, Any] | None = None,
    static_argnames: Names = (),
    donate: Donate = (),
    platform: str | None = None,
    trip_counts: TripCounts = None,
    rules: Mapping[str, str] | None = None,
    constraints: str = KEEP,
) -> Plan:
    """Make a plan of decisions that are made by hand, without any search.

    Args:
        fn: a JAX callable.
        *args: its arguments: pytrees of arrays or ``jax.ShapeDtypeStruct``; only shapes are looked at.
        mesh: a dict such as ``{"data": 4, "model": 2}``, a jax ``Mesh`` or an ``AbstractMesh``; by default the mesh of
            the program's own shardings.
        device: a preset's name such as ``"tpu-v5e"`` (``shardwright devices`` lists them) or a ``sw.Device``; by
            default what JAX's default backend runs on.
        memory: the bytes that a device may hold, or text such as ``"12GiB"``; by default all that is usable of the
            device's memory.
        decisions: decisions in order of priority: ``("data", "batch.tokens[0]")``, ``sw.Decision(...)``, a tactic
            such as ``"fsdp:data"`` or ``"megatron:model"``, or specs by path (``{"batch.tokens": P("data")}``).
        pin: further decisions, which come before the others.
        kwargs: keyword arguments of the callable. They are planned like the others, and their paths begin with the
            parameter's name.
        static_argnames: parameters whose values are part of the program, as in ``jax.jit``. If ``fn`` is a ``jax.jit``
            already, its own are found.
        donate: positions or names of arguments whose buffers may be reused, as in ``jax.jit``.
        platform: the platform to lower for while planning; by default that of the device.
        trip_counts: as in ``sw.analyse``.
        rules: as in ``sw.analyse``.
        constraints: as in ``sw.partition``.
    """
    problem = Problem(
        fn,
        *args,
        mesh=mesh if mesh is None else mesh_shape(mesh),
        device=device,
        memory=memory,
        kwargs=kwargs,
        static_argnames=static_argnames,
        donate=donate,
        pin=pin,
        platform=platform,
        trip_counts=trip_counts,
        rules=rules,
        constraints=constraints,
    )
    return problem.plan_of([decisions, implied_decisions(problem.analysis, problem.mesh)])


def load(
    path: str | os.PathLike[str],
    fn: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    static_argnames: Names = (),
    platform: str | None = None,
    trip_counts: TripCounts = None,
    rules: Mapping[str, str] | None = None,
) -> Plan:
    """Read a plan that ``plan.save`` wrote, and derive it again for ``fn(*args, **kwargs)``.

    If the program is not the one that the plan was made for, a ``PlanWarning`` says what differs. If the plan does not
    fit the program, ``PlanError`` is raised.
    """
    saved, shown = plan_file.read(path), os.fspath(path)
    fn, args, _ = by_position(fn, args, (), kwargs, static_argnames)
    if any(position >= len(args) for position in saved.donate):
        raise PlanError(
            f"the plan {shown} donates argument {max(saved.donate)}, but {function_name(fn)} is given {len(args)}."
        )
    lowered_for = platform or lowering_platform(saved.device.platform)
    traced = Traced.of(fn, args, saved.donate, lowered_for, trip_counts, rules, constraints=saved.constraints)
    known = {d.name for d in traced.analysis.descriptions}
    decisions = [plan_file.as_decision(w, known) for w in saved.decisions]
    found = fingerprint(traced.analysis.program, traced.platform)
    differing = differences(saved.program, found) if saved.program is not None else ""
    try:
        shapes = shapes_for(Machine(saved.device, (mesh_shape(saved.mesh),)), traced.module.program)
        plan = Problem.of(traced, saved.device, saved.memory_bytes, shapes).plan_of(decisions)
    except (PinError, MeshError, DeviceError) as error:
        more = f" ({differing})" if differing else ""
        raise PlanError(
            f"the plan {shown}, made for {saved.function}, does not fit {function_name(fn)}{more}: {error}"
        ) from error
    if differing:
        warnings.warn(
            f"the plan {shown}, made for {saved.function}, still applies to {function_name(fn)} and was priced anew, "
            f"but was not chosen for it: {differing}.",
            PlanWarning,
            stacklevel=2,
        )
    return plan if saved.tuning is None else replace(plan, tuning=saved.tuning, given_costs=plan.costs)
