"""Plans as files: JSON, versioned, small, and readable; what they imply is derived again when they are loaded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.errors import PlanError
from shardwright.space import Decision, Whole

if TYPE_CHECKING:
    from shardwright.plan.plan import Plan

VERSION = 1


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
        return out

    content = {
        "shardwright_plan": VERSION,
        "function": getattr(plan.fn, "__name__", type(plan.fn).__name__),
        "mesh": plan.mesh,
        "decisions": [written(decision) for decision in plan.decisions],
        "donate": list(plan.donate),
    }
    target = Path(path)
    temporary = target.with_name(target.name + ".part")
    try:
        temporary.write_text(json.dumps(content, indent=1) + "\n")
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise PlanError(f"cannot write the plan to {target}: {error.strerror or error}.") from None


def read(path: str | os.PathLike[str]) -> tuple[dict[str, int], list[dict[str, Any]], tuple[int, ...]]:
    """The mesh, the decisions as written, and the donated positions of a plan file."""
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
        return dict(content["mesh"]), list(content["decisions"]), tuple(content["donate"])
    except (KeyError, TypeError, ValueError) as error:
        raise PlanError(f"{file} is damaged: {error!r} is missing or wrong.") from None


def as_decision(written: dict[str, Any], known: set[str]) -> Decision | Whole:
    """A decision as it was written; by its argument where its name is not known in this program."""
    try:
        if "whole" in written:
            return Whole(written["axis"], written["whole"])
        name = written["dimension"]
        if name not in known and "argument" in written:
            name = written["argument"]
        return Decision(written["axis"], name, tuple(written.get("sides", ())))
    except (KeyError, TypeError) as error:
        raise PlanError(f"the decision {written!r} is damaged: {error!r} is missing or wrong.") from None
