"""Plans as files: JSON, versioned, small, and readable; what they imply is derived again when they are loaded."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright._files import write_whole
from shardwright.devices import PRESETS, Device, Link, find_device
from shardwright.errors import DeviceError, PlanError
from shardwright.frontend.paths import function_name
from shardwright.space import Decision, Whole

if TYPE_CHECKING:
    from shardwright.plan.plan import Plan

VERSION = 2


def save(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write a plan; nothing half-written stays behind."""
    arguments = {d.name: d.arguments for d in plan.analysis.descriptions}

    def written(decision: Decision | Whole) -> dict[str, Any]:
        if isinstance(decision, Whole):
            return {"axis": decision.axis, "whole": decision.path}
        out: dict[str, Any] = {"axis": decision.axis, "dimension": decision.dimension}
        anchors = arguments.get(decision.dimension, ())
        if anchors and decision.dimension not in anchors:
            out["argument"] = anchors[0]  # a name with a * in it is ours alone; this one the user knows
        if any(decision.sides):
            out["sides"] = list(decision.sides)
        if decision.unless:
            out["unless"] = decision.unless
        return out

    content = {
        "shardwright_plan": VERSION,
        "function": function_name(plan.fn),
        "mesh": plan.mesh,
        "device": as_written(plan.device),
        "memory_bytes": plan.memory_bytes,
        "decisions": [written(decision) for decision in plan.decisions],
        "donate": list(plan.donate),
    }
    write_whole(path, json.dumps(content, indent=1) + "\n", "the plan")


@dataclass(frozen=True)
class Saved:
    """What a plan file says, with the decisions as they are written."""

    mesh: dict[str, int]
    device: Device
    memory_bytes: int
    decisions: list[dict[str, Any]]
    donate: tuple[int, ...]


def read(path: str | os.PathLike[str]) -> Saved:
    """Read a plan file."""
    file = Path(path)
    try:
        content = json.loads(file.read_text())
    except OSError as error:
        raise PlanError(f"cannot read the plan {file}: {error.strerror or error}.") from None
    except ValueError as error:
        raise PlanError(f"{file} is not JSON: {error}.") from None
    if not isinstance(content, dict) or "shardwright_plan" not in content:
        raise PlanError(f"{file} is not a plan of shardwright.")
    if content["shardwright_plan"] != VERSION:
        raise PlanError(
            f"{file} is a plan of version {content['shardwright_plan']}; this shardwright reads version {VERSION}."
        )
    try:
        return Saved(
            dict(content["mesh"]),
            device_from(content["device"]),
            int(content["memory_bytes"]),
            list(content["decisions"]),
            tuple(content["donate"]),
        )
    except (KeyError, TypeError, ValueError, DeviceError) as error:
        raise PlanError(f"{file} is damaged: {error!r} is missing or wrong.") from None


def as_written(device: Device) -> str | dict[str, Any]:
    """A preset by its name, another device with all its figures."""
    if PRESETS.get(device.name) == device:
        return device.name
    out = {f.name: getattr(device, f.name) for f in dataclasses.fields(device)}
    return {
        **out,
        "flops_per_second": dict(device.flops_per_second),
        "links": list(map(dataclasses.asdict, device.links)),
    }


def device_from(written: str | dict[str, Any]) -> Device:
    """The device that ``as_written`` wrote."""
    if isinstance(written, str):
        return find_device(written)
    tile = written["tile"]
    links = tuple(Link(**link) for link in written["links"])
    return Device(**{**written, "links": links, "tile": tuple(tile) if tile else None})


def as_decision(written: dict[str, Any], known: set[str]) -> Decision | Whole:
    """A decision as it was written; by its argument where its name is not known in this program."""
    try:
        if "whole" in written:
            return Whole(written["axis"], written["whole"])
        name = written["dimension"]
        if name not in known and "argument" in written:
            name = written["argument"]
        return Decision(written["axis"], name, tuple(written.get("sides", ())), written.get("unless", ""))
    except (KeyError, TypeError) as error:
        raise PlanError(f"the decision {written!r} is damaged: {error!r} is missing or wrong.") from None
