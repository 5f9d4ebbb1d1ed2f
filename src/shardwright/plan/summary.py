"""A plan as dicts, lists, strings and numbers: for machines."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from shardwright.apply import spec
from shardwright.plan.facts import own_lines
from shardwright.plan.file import as_written
from shardwright.plan.plan_text import unsure
from shardwright.plan.strategy_names import common_names
from shardwright.space import Decision, Whole
from shardwright.space.state import Sharding

if TYPE_CHECKING:
    from shardwright.plan.plan import Plan

FORMAT_VERSION = 1


def plan_dict(plan: Plan) -> dict[str, Any]:
    """Everything a program may want to know of a plan. A spec is a list: for each dimension null, an axis, or axes."""
    program, estimate = plan.analysis.program, plan.estimate
    values, axes = plan.partitioned.values, plan.partitioned.mesh.names
    results = zip(program.results, program.regions[0].results, strict=True)
    sizes = {d.name: d.size for d in plan.analysis.descriptions}
    return {
        "version": FORMAT_VERSION,
        "program": program.name,
        "mesh": plan.mesh,
        "device": as_written(plan.device),
        "fits": plan.fits,
        "fits_by": plan.fits_by,
        "unsure": unsure(plan) or None,
        "step_seconds": estimate.step_seconds,
        "compute_seconds": estimate.compute_seconds,
        "comm_seconds": estimate.comm_seconds,
        "hidden_seconds": estimate.hidden_seconds,
        "exposed_seconds": estimate.exposed_seconds,
        "comm_seconds_by_kind": estimate.comm_by_kind,
        "comm_seconds_by_axis": estimate.comm_by_axis,
        "peak_bytes": estimate.peak_bytes,
        "peak_bytes_range": list(plan.bytes_range),
        "compiled_bytes": plan.verdict.peak_bytes if plan.verdict is not None else None,
        "limit_bytes": estimate.limit_bytes,
        "argument_bytes": estimate.argument_bytes,
        **_host(plan),
        "peak_fraction": estimate.peak_fraction,
        "names": {axis: list(found) for axis, found in common_names(plan).items()},
        "decisions": [_decision(decision, sizes) for decision in plan.decisions],
        "own_shardings": _own(plan),
        "in_specs": {a.path: _spec(values[a.value], axes) for a in program.arguments}
        | {path: [] for path in program.unused_arguments},
        "out_specs": {path: _spec(values[v], axes) for path, v in results},
        "donate": list(plan.donate),
        "collectives": [
            {
                "kind": c.kind,
                "axes": list(c.axes),
                "bytes": c.bytes,
                "times": c.times,
                "seconds": c.seconds,
                "hidden_seconds": c.hidden_seconds,
                "tensor": c.tensor,
                "where": c.where,
                "source": str(c.source),
                "backward": c.source.backward,
            }
            for c in sorted(estimate.collectives, key=lambda c: -c.seconds)
        ],
        "meshes": [asdict(choice) for choice in plan.meshes],
        "advice": [advice.to_dict() for advice in plan.advice],
        "search": _search(plan),
        "compiler_options": plan.compiler_options,
        "tuning": plan.tuning.to_dict() if plan.tuning is not None else None,
    }


def _host(plan: Plan) -> dict[str, Any]:
    """What lies on the host, and the moves there and back; nothing where the program has none of it."""
    program, estimate = plan.analysis.program, plan.estimate
    kinds = [*plan.argument_kinds, *program.result_kinds]
    if not program.on_host and not any(kinds):
        return {}
    results = zip(program.results, program.result_kinds, strict=True)
    return {
        "host_bytes": estimate.host_bytes,
        "host_limit_bytes": estimate.host_limit_bytes,
        "transfer_seconds": estimate.transfer_seconds,
        "exposed_transfer_seconds": estimate.exposed_transfer_seconds,
        "transfers": [
            {
                "to": t.to,
                "bytes": t.bytes,
                "times": t.times,
                "seconds": t.seconds,
                "tensor": t.tensor,
                "source": str(t.source),
                "backward": t.source.backward,
            }
            for t in estimate.transfers
        ],
        "in_memory_kinds": {a.path: a.memory_kind for a in program.arguments if a.memory_kind is not None},
        "out_memory_kinds": {path: kind for path, kind in results if kind is not None},
    }


def _own(plan: Plan) -> dict[str, Any] | None:
    """The shardings that the program has already, and what its step would take without them."""
    own = plan.own_shardings
    if not own:
        return None
    return {
        "count": dict(Counter(each.what for each in own)),
        "at": own_lines(own),
        "step_seconds_without": plan.cost_without_own.step_seconds,
    }


def _decision(decision: Decision | Whole, sizes: dict[str, int]) -> dict[str, Any]:
    if isinstance(decision, Whole):
        return {"axis": decision.axis, "whole": decision.path}
    return {
        "axis": decision.axis,
        "dimension": decision.dimension,
        "size": sizes.get(decision.dimension),
        "sides": list(decision.sides),
        "unless": decision.unless or None,
    }


def _spec(sharding: Sharding, axes: tuple[str, ...]) -> list[Any]:
    return [list(entry) if isinstance(entry, tuple) else entry for entry in spec(sharding, axes)]


def _search(plan: Plan) -> dict[str, Any] | None:
    found = plan.search
    if found is None:
        return None
    return {
        "seconds": found.seconds,
        "evaluations": found.evaluations,
        "simulations": found.simulations,
        "ended": found.ended,
        "history": [asdict(milestone) for milestone in found.history],
    }
