"""``shardwright``: the commands, their options, and how errors end."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console, RenderableType

import shardwright
from shardwright.analysis import analyse_program
from shardwright.analysis.present import analysis_table, coloured_program
from shardwright.cli.target import find_target
from shardwright.devices import PRESETS
from shardwright.devices.present import devices_table
from shardwright.errors import ShardwrightError, TargetError
from shardwright.frontend.trace import PLATFORMS
from shardwright.models import MODELS

MISTAKE = 2
"""Exit code for a mistake in the call."""


class _Commands(click.Group):
    """Turns our exceptions into one sentence on standard error; ``--debug`` keeps the traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ShardwrightError as error:
            if ctx.params.get("debug"):
                raise
            click.echo(f"shardwright: {error}", err=True)
            ctx.exit(MISTAKE)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(shardwright.__version__, prog_name="shardwright")
@click.option("--debug", is_flag=True, help="Show the whole traceback of an error.")
def main(debug: bool) -> None:
    r"""Automatic partitioning of JAX programs.

    \b
    shardwright analyse gpt                       what there is to decide about a built-in model
    shardwright analyse gpt --set layers=24       with another size
    shardwright analyse my_package.train:step     your own: a function that returns (fn, args)
    shardwright models                            the built-in models, their presets and sizes
    shardwright devices                           the devices to plan for, their speed, memory and links
    """


def _target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What every command that works on a program takes."""
    for option in reversed(
        [
            click.argument("target"),
            click.option("--preset", help="A preset of a built-in model, such as tiny."),
            click.option("--set", "sizes", multiple=True, metavar="NAME=VALUE", help="A size of a built-in model."),
            click.option(
                "--platform", type=click.Choice(PLATFORMS), help="Lower for this platform; it need not be here."
            ),
            click.option(
                "--trip-count",
                "trip_counts",
                multiple=True,
                metavar="FILE:LINE=N",
                help="How often a loop runs whose length the program does not tell (a glob works: '*=10').",
            ),
            click.option(
                "--rule",
                "rules",
                multiple=True,
                metavar="TARGET=RULE",
                help="Sharding rule of a custom call: --rule 'my_kernel=b t d, d f -> b t f'.",
            ),
        ]
    ):
        command = option(command)
    return command


@main.command()
@_target_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output and nothing else.")
@click.option("--all", "everything", is_flag=True, help="Show small groups too.")
@click.option(
    "--program", "show_program", is_flag=True, help="Print the program instead, each dimension with its colour."
)
def analyse(
    target: str,
    preset: str | None,
    sizes: tuple[str, ...],
    platform: str | None,
    trip_counts: tuple[str, ...],
    rules: tuple[str, ...],
    as_json: bool,
    everything: bool,
    show_program: bool,
) -> None:
    r"""Show which dimensions are sharded together, where that conflicts, and what is left to decide.

    TARGET is a built-in model, package.module:function for a function without arguments that returns
    (fn, args) or (fn, args, {"donate": (0,)}), or a StableHLO file (.mlir, text or bytecode).

    \b
    shardwright analyse gpt --preset gemma-2b
    shardwright analyse unet --json | jq '.groups[0]'
    shardwright analyse model.mlir
    """
    if as_json and show_program:
        raise click.UsageError("--json and --program exclude each other.")
    chosen = dict(_pairs(sizes, "--set", _literal))
    if preset is not None:
        chosen["preset"] = preset
    program = find_target(target, chosen).program(
        platform=platform,
        trip_counts=dict(_pairs(trip_counts, "--trip-count", _literal)),
        rules=dict(_pairs(rules, "--rule", str)),
    )
    analysis = analyse_program(program)
    if show_program:
        click.echo(coloured_program(analysis), nl=False)
    elif as_json:
        click.echo(json.dumps(analysis.to_dict(), indent=1))
    else:
        _print(analysis_table(analysis, everything=everything))


@main.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output and nothing else.")
def models(as_json: bool) -> None:
    """List the built-in models with their presets and sizes."""
    listed: dict[str, dict[str, Any]] = {
        name: {"summary": m.summary, "presets": {preset: asdict(sizes) for preset, sizes in m.presets.items()}}
        for name, m in MODELS.items()
    }
    if as_json:
        click.echo(json.dumps(listed, indent=1))
        return
    for name, model in listed.items():
        click.echo(f"{click.style(name, bold=True)}  {model['summary']}")
        click.echo(f"  presets: {', '.join(model['presets'])}")
        sizes = ", ".join(f"{k}={v}" for k, v in model["presets"]["default"].items())
        click.echo(f"  sizes:   {sizes}\n")


@main.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output and nothing else.")
def devices(as_json: bool) -> None:
    """List the devices to plan for: their peak rate, memory and links."""
    if as_json:
        click.echo(json.dumps({name: asdict(device) for name, device in PRESETS.items()}, indent=1))
    else:
        _print(devices_table(PRESETS.values()))


def _print(table: RenderableType) -> None:
    Console(width=None if sys.stdout.isatty() else 120, highlight=False).print(table)


def _pairs(texts: Iterable[str], option: str, convert: Callable[[str], Any]) -> Iterable[tuple[str, Any]]:
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise TargetError(f"{option} takes NAME=VALUE, not {text!r}.")
        yield name.strip(), convert(value.strip())


def _literal(text: str) -> Any:
    """``24`` → 24, ``true`` → True, ``bfloat16`` → "bfloat16"."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
