"""Runs a plan on as many CPU devices as its mesh has, in a process of its own, against the plain function."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright._children import child_environment, child_folder, run_child
from shardwright.apply import export_plain
from shardwright.errors import PlanError
from shardwright.ir.program import Program
from shardwright.plan.verdicts import Verdict
from shardwright.space.carried import carried_results
from shardwright.verify.agreement import epsilon
from shardwright.verify.compile import flattened, number_widths
from shardwright.verify.messages import last_words

if TYPE_CHECKING:
    from shardwright.plan import Plan

PLATFORM = "cpu"


def verify_run(plan: Plan, *, seed: int = 0, timeout_seconds: float = 600.0) -> Verdict:
    """Random inputs through both programs; every leaf of the result must agree within its type's tolerance.

    So must what was added to the arguments that a result carries: see ``shardwright.verify.agreement``.
    """
    planned, _ = plan.export(PLATFORM)
    try:
        plain = export_plain(plan.sharded, PLATFORM, planned.disabled_safety_checks)
    except NotImplementedError as error:
        raise PlanError(
            f"JAX cannot export this program ({error}), so it cannot be run in a process of its own."
        ) from error
    with child_folder() as folder:
        for name, program in (("plain", plain), ("planned", planned)):
            (folder / name).write_bytes(flattened(program, ())[0].serialize())
        coarsest = _coarsest(plan.analysis.program)
        task = {"mesh": plan.mesh, "seed": seed, "named": _named(plan), "coarsest": coarsest}
        (folder / "task.json").write_text(json.dumps(task))
        found = _child(folder, plan.partitioned.mesh.devices, timeout_seconds)
    if "crash" in found:
        return Verdict("run", False, found["crash"], found)
    return Verdict("run", found["ok"], _message(found, plan), found)


def _message(found: dict[str, Any], plan: Plan) -> str:
    """What was compared, in one sentence."""
    worst, results, arguments = found["worst"], plan.analysis.program.results, plan.argument_paths
    if worst is None:
        return "it returns nothing that could be compared"
    path = results[worst["leaf"]] if worst["leaf"] < len(results) else "result"
    whole = f"what is added to {arguments[worst['argument']]}" if "argument" in worst else f"{path}'s largest entry"
    message = (
        f"the largest difference is {worst['error']:.2g} of {whole}, where {worst['tolerance']:.2g} is allowed "
        f"({found['leaves']} leaves on {plan.partitioned.mesh.devices} devices)"
    )
    if unseen := found["unseen"]:
        more = f" and {len(unseen) - 1} more" if len(unseen) > 1 else ""
        message += f"; what is added to {arguments[unseen[0]]}{more} is no more than rounding, which was not compared"
    return message


def _named(plan: Plan) -> list[tuple[int, int]]:
    """Numbers of an argument's leaf and of the result that has its path and type: what it becomes."""
    program = plan.analysis.program
    results: dict[int, list[int]] = {}
    for k, value in enumerate(program.regions[0].results):
        results.setdefault(value, []).append(k)
    numbers = {path: k for k, path in enumerate(plan.argument_paths)}
    paths = {argument.value: argument.path for argument in program.arguments}
    return [
        (numbers[paths[value]], k)
        for value, found in carried_results(program).items()
        for result in found
        for k in results[result]
        if paths[value] in numbers  # an array that the function closes over is none of its own arguments
    ]


def _coarsest(program: Program) -> str:
    """The floating-point type in a program that has the fewest bits, as JAX calls it."""
    found = {_float_type(dtype) for dtype in {value.dtype for value in program.values}}
    return max((name for name in found if name), key=epsilon, default="float32")


def _float_type(dtype: str) -> str | None:
    """``bf16`` as ``bfloat16`` and ``f8E4M3FN`` as ``float8_e4m3fn``; None for what is no floating-point type."""
    found = re.fullmatch(r"(b?)f(\d+)(E\w+)?", dtype)
    return found and f"{found[1]}float{found[2]}" + (f"_{found[3].lower()}" if found[3] else "")


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
