"""A program compiled ahead of time for devices that need not be there, in a process of its own."""

from __future__ import annotations

import dataclasses
import gzip
import importlib.util
import json
import math
import os
import shutil
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from jax import export

from shardwright._children import child_environment, child_folder, run_child
from shardwright.compiler.invoking import INVOCATIONS
from shardwright.errors import CompilerMissingError, MeshError, PlanError
from shardwright.plan.verdicts import CompilerVerdict
from shardwright.request.targets import Target, parse_target
from shardwright.verify.compiled_before import answer_folder, recall, remember
from shardwright.verify.figures import memory_figures, program_figures
from shardwright.verify.gpu_specs import target_config
from shardwright.verify.hlo import parse_hlo
from shardwright.verify.kept_figures import KeptFigures
from shardwright.verify.messages import involuntary, last_words, shortage

if TYPE_CHECKING:
    from shardwright.plan import Plan

_STARTED = ("-m", "shardwright.verify.compile_child")


def verify_compiled(
    plan: Plan,
    on: str,
    *,
    timeout_seconds: float = 600.0,
    compiler_options: Mapping[str, Any] | None = None,
    keep: str | os.PathLike[str] | None = None,
    known: KeptFigures | None = None,
) -> CompilerVerdict:
    """Compile a plan for a target such as "tpu:v5e:4x4" and set the result beside the plan's own estimate.

    ``keep`` is a file for the compiled program's text, compressed. ``known`` are figures of earlier compilations, which
    are not made again.
    """
    target = parse_target(on)
    target.check(math.prod(plan.mesh.values()))
    require_compiler(target.platform)
    exported, _ = plan.export(target.platform)
    same = plan.device.name == target.device.name
    options = {**(plan.compiler_options if same else {}), **(compiler_options or {})}
    kernels = kernel_seconds_of(plan) if same else {}
    found = compile_exported(exported, plan.mesh, target, plan.donate, timeout_seconds, options, keep, kernels, known)
    if same:
        found |= within(found, plan.memory_bytes, plan.device.usable_bytes)
    return CompilerVerdict.of(on, found, plan.estimate if same else None)


def compile_exported(
    exported: export.Exported,
    mesh_axes: Mapping[str, int],
    target: str | Target,
    donate: Sequence[int] = (),
    timeout_seconds: float = 600.0,
    compiler_options: Mapping[str, Any] | None = None,
    keep: str | os.PathLike[str] | None = None,
    seconds_of_kernels: Mapping[str, float] | None = None,
    known: KeptFigures | None = None,
) -> dict[str, Any]:
    """Compile an exported program for a target and return what the compiler's result says, in plain figures.

    Args:
        exported: the program, exported for the target's platform with shardings on a mesh of ``mesh_axes``.
        mesh_axes: the mesh's axes and their sizes.
        target: such as "tpu:v5e:4x4".
        donate: positions of arguments whose buffers may be reused.
        timeout_seconds: of the compilation.
        compiler_options: further options of XLA.
        keep: a file for the compiled program's text, compressed.
        seconds_of_kernels: what one run of each Pallas kernel takes, by its name: the compiler does not say.
        known: figures of earlier compilations, which are not made again.
    """
    target = parse_target(target) if isinstance(target, str) else target
    target.check(math.prod(mesh_axes.values()))
    require_compiler(target.platform)
    called = INVOCATIONS[target.platform]
    flat, donated = flattened(exported, donate)
    task = {
        "platform": target.platform,
        "local": called.local,
        "topology": target.topology,
        "topology_options": target.topology_options,
        "target_config": target_config(target.device) if called.configured else "",
        "mesh": dict(mesh_axes),
        "donate": donated,
        "compiler_options": {**called.options, **(compiler_options or {})},
    }
    asked = known.name(exported, task, target, seconds_of_kernels) if known is not None else ""
    if known is not None and (before := known.recall(asked)) is not None:
        return before
    kept = answer_folder(exported, task)
    with child_folder() as folder:
        if (log := recall(kept, folder)) is not None:
            found = {**json.loads((folder / "result.json").read_text()), "log": log}
        else:
            (folder / "exported").write_bytes(flat.serialize())
            (folder / "task.json").write_text(json.dumps(task))
            found = _child(folder, target.platform, math.prod(mesh_axes.values()), timeout_seconds)
            remember(kept, folder, found["log"])
        text = folder / "hlo.txt.gz"
        if keep is not None and text.exists():
            shutil.copyfile(text, keep)
        hlo = gzip.decompress(text.read_bytes()).decode() if text.exists() else ""
    program = parse_hlo(hlo)
    found["involuntary"] = involuntary(found.pop("log"), program.frames)
    answered = "compile_seconds" in found or "error" in found
    if "compile_seconds" not in found:
        found = _refused(found, target)
    else:
        figures = program_figures(program, mesh_axes, target, seconds_of_kernels)
        found = {**found, **memory_figures(found["memory"], target), **figures}
    if known is not None and answered:  # a crash, or no end, may not come again
        known.remember(asked, found)
    return found


def kernel_seconds_of(plan: Plan) -> dict[str, float]:
    """What one run of each of a plan's Pallas kernels takes by its estimate, and of ragged products by their scopes."""
    names = {op.attributes["kernel"] for op in plan.analysis.program.ops if "kernel" in op.attributes}
    seconds: dict[str, float] = defaultdict(float)
    times: dict[str, int] = defaultdict(int)
    for cost in plan.estimate.kernels:
        name = cost.source.scope if cost.kind == "ragged_dot" else cost.kind
        if cost.kind == "ragged_dot" or cost.kind in names:
            seconds[name] += cost.seconds
            times[name] += cost.times
    return {name: seconds[name] / times[name] for name in times if times[name]}


def within(found: Mapping[str, Any], asked_bytes: int, device_bytes: int) -> dict[str, Any]:
    """Figures of a compilation judged by the limit that was asked for, where a device has more."""
    asked = asked_bytes if asked_bytes < device_bytes else None
    if found.get("fits") is False:
        return {"asked_bytes": asked, "limit_bytes": device_bytes} if asked is not None else {}
    if "compile_seconds" not in found or found.get("peak_bytes") is None:
        return {}
    return {"fits": found["peak_bytes"] <= asked_bytes, "asked_bytes": asked}


def compiler_installed(platform: str) -> bool:
    """Whether the package with a platform's compiler is installed; that of CPUs always is."""
    packages = INVOCATIONS[platform].packages
    return not packages or any(importlib.util.find_spec(package) for package in packages)


def require_compiler(platform: str) -> None:
    """Raise ``CompilerMissingError`` where the package with a platform's compiler is not installed."""
    if not compiler_installed(platform):
        extra = INVOCATIONS[platform].extra
        raise CompilerMissingError(
            f"compiling for {extra.upper()} needs a package that is not installed: pip install 'shardwright[{extra}]'."
        )


def number_widths() -> dict[str, str]:
    """The variable that has another process keep numbers of 64 bits, or not, as this one does."""
    return {"JAX_ENABLE_X64": str(jax.dtypes.canonicalize_dtype("int64") == "int64")}


def flattened(exported: export.Exported, donate: Sequence[int]) -> tuple[export.Exported, list[int]]:
    """The same program with its leaves as arguments, so that the process need not know the user's types."""
    given: Any = exported.in_tree
    counts = [argument.num_leaves for argument in given.children()[0].children()]
    starts = [sum(counts[:k]) for k in range(len(counts))]
    donated = [starts[k] + j for k in donate for j in range(counts[k])]
    in_tree: Any = jax.tree.structure((tuple(range(len(exported.in_avals))), {}))
    out_tree: Any = jax.tree.structure(tuple(range(len(exported.out_avals))))
    return dataclasses.replace(exported, in_tree=in_tree, out_tree=out_tree), donated


def _refused(found: dict[str, Any], target: Target) -> dict[str, Any]:
    """No program: because it does not fit, because the compiler failed, or because we asked for nonsense."""
    if "devices" in found:
        raise MeshError(f"{target.name} has {found['devices']} devices, but the plan's mesh has another number.")
    error = found.get("error", "")
    sentence = (error.strip().splitlines() or ["it gave no reason"])[0][:500]
    if found.get("stage") == "topology":
        raise PlanError(f"the compiler does not take {target.name}: {sentence}")
    if lack := shortage(error):
        return {**found, "fits": False, "peak_bytes": lack.needed_bytes, "limit_bytes": lack.limit_bytes}
    return {**found, "crash": found.get("crash") or f"the compiler gave up: {sentence}"}


def _child(folder: Path, platform: str, devices: int, timeout_seconds: float) -> dict[str, Any]:
    """Run the compiler; what it prints is searched, never shown."""
    environment = {**child_environment(), **INVOCATIONS[platform].environment, **number_widths()}
    if INVOCATIONS[platform].local:
        environment["JAX_NUM_CPU_DEVICES"] = str(devices)
    ended = run_child(
        sys.executable,
        [*_STARTED, str(folder)],
        folder=folder,
        environment=environment,
        timeout_seconds=timeout_seconds,
    )
    if ended.code is None:
        return {"crash": f"the compiler did not end within {timeout_seconds:.0f} seconds", "log": ""}
    log = ended.output + ended.complaints
    result = folder / "result.json"
    if not result.exists():
        return {"crash": last_words(log, ended.code), "stderr": log[-4000:], "log": log}
    return {**json.loads(result.read_text()), "log": log}
