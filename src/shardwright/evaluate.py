"""``sw.evaluate`` and ``sw.load``: a plan from decisions that somebody made."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from shardwright.devices import Device, find_device, parse_bytes
from shardwright.errors import DeviceError, MeshError, PinError, PlanError, PlanWarning
from shardwright.frontend.calls import Donate, Names, by_position
from shardwright.frontend.own_shardings import KEEP
from shardwright.frontend.paths import function_name
from shardwright.frontend.trace import lowering_platform
from shardwright.ir.loops import TripCounts
from shardwright.machine import Machine
from shardwright.plan import Plan
from shardwright.plan import file as plan_file
from shardwright.plan.file import differences, fingerprint
from shardwright.plan.pins import Pin, as_decisions, check_specs
from shardwright.request import MeshShape, mesh_shape
from shardwright.space import implied_decisions
from shardwright.traced import Traced


def evaluate(
    fn: Callable[..., Any],
    *args: Any,
    mesh: Any = None,
    device: str | Device | None = None,
    memory: int | str | None = None,
    decisions: Any = (),
    pin: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    static_argnames: Names = (),
    donate: Donate = (),
    platform: str | None = None,
    trip_counts: TripCounts = None,
    rules: Mapping[str, str] | None = None,
    constraints: str = KEEP,
) -> Plan:
    """A plan for decisions made by hand.

    Args:
        fn: a JAX callable.
        *args: its arguments: pytrees of arrays or ``jax.ShapeDtypeStruct``; only shapes are looked at.
        mesh: a dict such as ``{"data": 4, "model": 2}``, a jax ``Mesh`` or ``AbstractMesh``; by default the mesh of the
            program's own shardings.
        device: a preset's name such as ``"tpu-v5e"`` (``shardwright devices`` lists them) or a ``sw.Device``; by
            default what JAX's default backend runs on.
        memory: bytes that a device may hold, or ``"12GiB"``; by default what is usable of the device's memory.
        decisions: in order of priority on each axis: ``("data", "batch.tokens[0]")``, ``sw.Decision(...)``, a tactic
            such as ``"fsdp:data"`` or ``"megatron:model"``, or specs by path (``{"batch.tokens": P("data")}``).
        pin: the same; comes first.
        kwargs: keyword arguments of the callable, planned like the others; their paths begin with the parameter's name.
        static_argnames: parameters whose values are part of the program, as in ``jax.jit``; those of a ``jax.jit`` that
            is handed in are found.
        donate: positions or names of arguments whose buffers may be reused, as in ``jax.jit``.
        platform: what to lower for while planning; by default the device's.
        trip_counts: as in ``sw.analyse``.
        rules: as in ``sw.analyse``.
        constraints: as in ``sw.partition``.
    """
    found = find_device(device)
    limit = found.usable_bytes if memory is None else parse_bytes(memory)
    traced = Traced.of(
        fn,
        args,
        donate,
        platform or lowering_platform(found.platform),
        trip_counts,
        rules,
        kwargs,
        static_argnames,
        constraints,
    )
    machine = Machine(found, () if mesh is None else (mesh_shape(mesh),)).for_program(traced.module.program)
    shape = machine.shapes[0]
    return plan_pins(traced, shape, found, limit, [pin, decisions, implied_decisions(traced.analysis, shape)])


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

    Where the program is not the one that the plan was made for, a ``PlanWarning`` tells what differs; where the plan
    does not fit it, ``PlanError`` is raised.
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
        machine = Machine(saved.device, (mesh_shape(saved.mesh),)).for_program(traced.module.program)
        plan = plan_pins(traced, machine.shapes[0], saved.device, saved.memory_bytes, decisions)
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
    return plan


def plan_pins(traced: Traced, mesh: MeshShape, device: Device, limit_bytes: int, pins: Pin) -> Plan:
    """The plan of pins and nothing else."""
    plan = traced.plan(mesh, device, limit_bytes, as_decisions(traced.analysis, mesh, pins))
    check_specs(plan.partitioned, pins)
    return plan
