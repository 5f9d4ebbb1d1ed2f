"""Runs a plan on as many CPU devices as its mesh has, in a process of its own, against the plain function."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from jax import export

from shardwright._children import child_environment, child_folder, run_child
from shardwright.errors import PlanError
from shardwright.verify.compile import flattened, number_widths
from shardwright.verify.messages import last_words
from shardwright.verify.report import Verdict

if TYPE_CHECKING:
    from shardwright.plan import Plan

PLATFORM = "cpu"


def verify_run(plan: Plan, *, seed: int = 0, timeout_seconds: float = 600.0) -> Verdict:
    """Random inputs through both programs; every leaf of the result must agree within its type's tolerance."""
    planned, _ = plan.export(PLATFORM)
    try:
        plain = export.export(jax.jit(plan.fn), platforms=[PLATFORM], disabled_checks=planned.disabled_safety_checks)(
            *plan.args
        )
    except NotImplementedError as error:
        raise PlanError(
            f"JAX cannot export this program ({error}), so it cannot be run in a process of its own."
        ) from error
    with child_folder() as folder:
        for name, program in (("plain", plain), ("planned", planned)):
            (folder / name).write_bytes(flattened(program, ())[0].serialize())
        (folder / "task.json").write_text(json.dumps({"mesh": plan.mesh, "seed": seed}))
        found = _child(folder, plan.partitioned.mesh.devices, timeout_seconds)
    if "crash" in found:
        return Verdict("run", False, found["crash"], found)
    paths = plan.analysis.program.results
    worst = found["worst"]
    path = paths[worst["leaf"]] if worst["leaf"] < len(paths) else "result"
    message = (
        f"the largest difference is {worst['error']:.2g} of {path}'s largest entry, where {worst['tolerance']:.2g} is "
        f"allowed ({found['leaves']} leaves on {plan.partitioned.mesh.devices} devices)"
    )
    return Verdict("run", found["ok"], message, found)


def _child(folder: Path, devices: int, timeout_seconds: float) -> dict[str, Any]:
    ended = run_child(
        sys.executable,
        ["-m", "shardwright.verify.run_child", str(folder)],
        folder=folder,
        environment={
            **child_environment(),
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(devices),
            **number_widths(),
        },
        timeout_seconds=timeout_seconds,
    )
    if ended.code is None:
        return {"crash": f"it did not end within {timeout_seconds:.0f} seconds"}
    if ended.code:
        return {
            "crash": last_words(ended.complaints, ended.code, "the process"),
            "stderr": ended.complaints[-4000:],
        }
    found: dict[str, Any] = json.loads(ended.output.splitlines()[-1])
    return found
