"""The commands that need no plan: ``shardwright analyse``, ``models`` and ``devices``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click
from rich.text import Text

from shardwright.analysis import analyse_program
from shardwright.analysis.present import analysis_table, coloured_program
from shardwright.cli.output import emit, only_results, put, show
from shardwright.cli.process import need_no_accelerator
from shardwright.cli.shared_options import chosen_target, json_option, target_options, tracing
from shardwright.devices import PRESETS
from shardwright.devices.present import devices_table
from shardwright.models import MODELS


@click.command(short_help="Show what there is to decide about a program.")
@target_options
@json_option
@click.option("--all", "everything", is_flag=True, help="Show small groups, too.")
@click.option(
    "--program", "show_program", is_flag=True, help="Print the program instead, with the colour of each dimension."
)
def analyse(as_json: bool, everything: bool, show_program: bool, **given: Any) -> None:
    """Show which dimensions are sharded together, where that conflicts, and what is left to decide.

    TARGET is a built-in model, a StableHLO file (.mlir, text or bytecode), or package.module:function. Such a
    function takes no arguments and returns (fn, args) or (fn, args, {"donate": (0,)}).

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


@click.command(short_help="List the built-in models and their sizes.")
@json_option
def models(as_json: bool) -> None:
    """List the built-in models with their presets and sizes.

    \b
    shardwright plan gpt --preset gemma-2b --mesh data=16 --device tpu-v5e
    shardwright plan gpt --set layers=24 --mesh data=16 --device tpu-v5e
    """  # noqa: D301 (click wants the character)
    if as_json:
        emit(
            {
                name: {"summary": m.summary, "presets": {preset: asdict(sizes) for preset, sizes in m.presets.items()}}
                for name, m in MODELS.items()
            }
        )
        return
    for name, model in MODELS.items():
        sizes = ", ".join(f"{k}={v}" for k, v in asdict(model.presets["default"]).items())
        show(Text.assemble((name, "bold cyan"), f"  {model.summary}"))
        show(Text.assemble(("  presets  ", "dim"), ", ".join(model.presets)))
        show(Text.assemble(("  sizes    ", "dim"), sizes, "\n"))


@click.command(short_help="List the devices to plan for.")
@json_option
def devices(as_json: bool) -> None:
    """List the devices to plan for: their peak rate, memory and links."""
    if as_json:
        emit({name: asdict(device) for name, device in PRESETS.items()})
    else:
        show(devices_table(PRESETS.values()))
