"""``shardwright analyse``."""

from __future__ import annotations

from typing import Any

import click

from shardwright.analysis import analyse_program
from shardwright.analysis.present import analysis_table, coloured_program
from shardwright.cli.backend import need_no_accelerator
from shardwright.cli.options import chosen_target, json_option, target_options, tracing
from shardwright.cli.output import emit, only_results, put, show


@click.command(short_help="Show what there is to decide about a program.")
@target_options
@json_option
@click.option("--all", "everything", is_flag=True, help="Show small groups too.")
@click.option(
    "--program", "show_program", is_flag=True, help="Print the program instead, each dimension with its colour."
)
def analyse(as_json: bool, everything: bool, show_program: bool, **given: Any) -> None:
    """Show which dimensions are sharded together, where that conflicts, and what is left to decide.

    TARGET is a built-in model, package.module:function for a function without arguments that returns
    (fn, args) or (fn, args, {"donate": (0,)}), or a StableHLO file (.mlir, text or bytecode).

    \b
    shardwright analyse gpt --preset gemma-2b
    shardwright analyse unet --json | jq '.groups[0]'
    shardwright analyse model.mlir
    """  # noqa: D301 (click wants the character)
    if as_json and show_program:
        raise click.UsageError("--json and --program exclude each other.")
    need_no_accelerator()
    with only_results(as_json):
        analysis = analyse_program(chosen_target(given).program(**tracing(given)))
    if show_program:
        put(coloured_program(analysis), nl=False)
    elif as_json:
        emit(analysis.to_dict())
    else:
        show(analysis_table(analysis, everything=everything))
