"""``shardwright plan`` and ``shardwright compare``."""

from __future__ import annotations

from typing import Any

import click

from shardwright.cli.completions import complete_checks
from shardwright.cli.output import check_files, emit, note, only_results, output_option, put, show
from shardwright.cli.process import DOES_NOT_FIT
from shardwright.cli.shared_options import json_option, search_options, searched_front, searched_plan, target_options
from shardwright.cli.target import target_file
from shardwright.cli.typed_values import mesh_devices
from shardwright.cli.verify_command import check_names, verdict_dict, verdict_text
from shardwright.compare import Comparison, comparison_table
from shardwright.compare import compare as compare_plan
from shardwright.errors import InfeasibleError
from shardwright.front import Front, front_table
from shardwright.plan.plan_text import plan_table


@click.command(short_help="Find the fastest sharding that fits the memory.")
@target_options
@search_options
@output_option("--save", "Write the plan as JSON, for sw.load and for verify. Here and below, - is standard output.")
@output_option("--report", "Write the plan as one HTML page.")
@output_option("--output", "Write the StableHLO module with the plan's shardings in it.")
@click.option(
    "--verify",
    "checks",
    multiple=True,
    metavar="ON",
    shell_complete=complete_checks,
    help="Check the plan on tpu:v5e:4x4, gpu:a100-80:8, cpu, run or shardy. It can be given several times.",
)
@click.option(
    "--tune",
    metavar="ON",
    shell_complete=complete_checks,
    help="Let the compiler for this target, such as tpu:v5e:4x4, correct the prices of the program and choose among "
    "plans and among its own options.",
)
@click.option("--compiles", type=click.IntRange(min=1), help="The most compilations of --tune.  [default: 8]")
@click.option(
    "--explain",
    "explained",
    multiple=True,
    metavar="PATH",
    help="Explain why an argument, or a source line, is sharded as it is, and what alternatives would cost.",
)
@click.option(
    "--bound", "bounded", is_flag=True, help="Say also how much faster any plan on this mesh could be, at most."
)
@click.option(
    "--pareto",
    metavar="[FILE]",
    is_flag=False,
    flag_value="",
    help="Show the plans from the fastest to the smallest, and draw them into FILE. Options such as --save take the "
    "fastest plan that fits.",
)
@click.option(
    "--python", "as_python", is_flag=True, help="Print Python code to paste instead: the mesh, the specs, jax.jit."
)
@json_option
def plan(
    save: str | None,
    report: str | None,
    output: str | None,
    checks: tuple[str, ...],
    explained: tuple[str, ...],
    bounded: bool,
    pareto: str | None,
    as_python: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Find the fastest sharding of a program on a mesh that fits its devices' memory.

    TARGET is a built-in model, a StableHLO file (.mlir, text or bytecode), or package.module:function. Such a
    function takes no arguments and returns (fn, args) or (fn, args, {"donate": (0,)}).

    \b
    shardwright plan gpt --mesh data=4,model=4 --device tpu-v5e
    shardwright plan train:step --mesh data=8 --device h100 --save plan.json
    With less memory, and with what you have decided already:
      … --memory 12GiB --pin megatron:model --pin "batch.tokens=P('data')"
    As a page, and checked by the TPU compiler:
      … --report plan.html --verify tpu:v5e:4x4
    A module of any framework, with its shardings written into it:
      shardwright plan model.mlir --mesh data=8 --output sharded.mlir
    Chosen by the TPU compiler, with options of it that pay:
      … --tune tpu:v5e:4x4
    Memory against time, as a table and as a page:
      … --pareto front.html
    For programs, and as Python code to paste:
      … --json | jq .step_seconds
      … --python > specs.py

    The exit code is 0 for a plan that fits, or that may fit and says so, 2 for a mistake in the call, and 3 if no
    plan fits or a check refuses it.
    """  # noqa: D301 (click wants the character)
    if as_json and as_python:
        raise click.UsageError("--json and --python exclude each other.")
    if pareto is not None and (as_python or given["rerank"] is not None):
        raise click.UsageError("--pareto excludes --python and --rerank.")
    if given["tune"] is not None and (pareto is not None or given["rerank"] is not None):
        raise click.UsageError("--tune excludes --pareto and --rerank.")
    if given["compiles"] is not None and given["tune"] is None:
        raise click.UsageError("--compiles is of --tune.")
    if pareto and not pareto.endswith(".html"):
        raise click.UsageError(f"--pareto takes a file that ends in .html, or nothing, not {pareto!r}.")
    machine = as_json or as_python
    files = {"--save": save, "--report": report, "--output": output, "--pareto": pareto or None}
    streamed = check_files(files, target_file(given["target"]), only_result=machine)
    check_names(checks, mesh_devices(given["mesh"]))
    front = drawn_front(given, pareto, as_json) if pareto is not None else None
    if front is not None and front.fitting is None:
        emit(front.to_dict()) if as_json else show(front_table(front))
        click.get_current_context().exit(DOES_NOT_FIT)
    try:
        with only_results(machine):
            found = searched_plan(given) if front is None or front.fitting is None else front.fitting
            if save is not None:
                found.save(save)
                note(f"wrote {save}")
            if report is not None:
                found.report(report)
                note(f"wrote {report}")
            if output is not None:
                found.to_stablehlo(output)
                note(f"wrote {output}")
            explanations = {path: found.explain(path) for path in explained}
            verdicts = [found.verify(check) for check in checks]
            bound = found.bound() if bounded else None
            python = found.to_python() if as_python else ""
    except InfeasibleError as error:
        if as_json:
            emit(infeasible_dict(error))
        raise
    if as_json:
        emit(
            {
                **(found.to_dict() if front is None else front.to_dict()),
                **({"bound_seconds": bound.least_seconds} if bound is not None else {}),
                "explanations": {path: str(explanation) for path, explanation in explanations.items()},
                "verdicts": [verdict_dict(verdict) for verdict in verdicts],
            }
        )
    elif as_python:
        put(python)
        if bound is not None:
            note(str(bound))
        for verdict in verdicts:
            note(str(verdict))
    else:
        with only_results(streamed):
            show(plan_table(found) if front is None else front_table(front))
            if bound is not None:
                put(f"\n{bound}")
            for explanation in explanations.values():
                put(f"\n{explanation}")
            for verdict in verdicts:
                put()
                show(verdict_text(verdict))
    if not all(verdicts):
        click.get_current_context().exit(DOES_NOT_FIT)


def drawn_front(given: dict[str, Any], path: str, as_json: bool) -> Front:
    """The front that the options ask for, drawn where a path is given."""
    with only_results(as_json):
        front = searched_front(given)
        if path:
            front.plot(path)
            note(f"wrote {path}")
    return front


def infeasible_dict(error: InfeasibleError) -> dict[str, Any]:
    """What a machine is told where nothing fits."""
    return {
        "fits": False,
        "error": str(error),
        "needed_bytes": error.needed_bytes,
        "limit_bytes": error.limit_bytes,
        "advice": list(error.advice),
    }


@click.command(short_help="Show the plan beside what experts do.")
@target_options
@search_options
@json_option
def compare(as_json: bool, **given: Any) -> None:
    """Show the plan beside what experts do: data parallel, FSDP, Megatron, and combinations of these.

    All are priced by the same cost model; those that do not fit the memory are marked. A row's name is what
    --pin takes.

    \b
    shardwright compare gpt --mesh data=4,model=4 --device tpu-v5e
    shardwright compare gpt --mesh data=4,model=4 --device tpu-v5e --memory 3GiB
    shardwright compare train:step --mesh data=8 --device h100 --json
    """  # noqa: D301 (click wants the character)
    try:
        with only_results(as_json):
            comparison = compare_plan(searched_plan(given))
    except InfeasibleError as error:  # the smallest plan there is, beside tactics that are larger still
        _put(compare_plan(error.plan), as_json)
        raise
    _put(comparison, as_json)


def _put(comparison: Comparison, as_json: bool) -> None:
    if as_json:
        emit(comparison.to_dict())
    else:
        show(comparison_table(comparison))
