"""Options that several commands take, and what they amount to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import jax

from shardwright.cli.completions import (
    complete_checks,
    complete_device_names,
    complete_pins,
    complete_presets,
    complete_sizes,
    complete_targets,
)
from shardwright.cli.process import need_no_accelerator
from shardwright.cli.target import Target, find_target
from shardwright.cli.typed_values import mesh_devices, parse_literal, parse_mesh, parse_pairs, parse_pins
from shardwright.front import Front
from shardwright.frontend.own_shardings import DROP, KEEP
from shardwright.frontend.trace import PLATFORMS
from shardwright.pareto import pareto
from shardwright.partition import partition
from shardwright.plan import Plan
from shardwright.request.targets import parse_target

Command = Callable[..., Any]

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object on standard output and nothing else."
)


def target_options(command: Command) -> Command:
    """What every command that works on a program takes."""
    return _all(
        command,
        click.argument("target", shell_complete=complete_targets),
        click.option("--preset", shell_complete=complete_presets, help="The preset of a built-in model, such as tiny."),
        click.option(
            "--set",
            "sizes",
            multiple=True,
            metavar="NAME=VALUE",
            shell_complete=complete_sizes,
            help="Set a size of a built-in model, such as layers=24.",
        ),
        click.option(
            "--platform",
            type=click.Choice(PLATFORMS),
            help="The platform to lower for; no such device needs to be present.",
        ),
        click.option(
            "--trip-count",
            "trip_counts",
            multiple=True,
            metavar="FILE:LINE=N",
            help="How often a loop runs if the program does not tell (a glob works: '*=10').",
        ),
        click.option(
            "--rule",
            "rules",
            multiple=True,
            metavar="TARGET=RULE",
            help="The sharding rule of a custom call: --rule 'my_kernel=b t d, d f -> b t f'.",
        ),
    )


def search_options(command: Command) -> Command:
    """What every command that searches for a plan takes."""
    return _all(
        command,
        click.option(
            "--mesh",
            metavar="AXIS=N,…",
            help="The axes of the mesh and their sizes (data=4,model=4). Or a number of devices (16), or devices by "
            "where they are (tpu:v5e:4x4, gpu:a100-80:2x8): then the shape of the mesh is chosen, too. By default the "
            "mesh of the program's own shardings.",
        ),
        click.option(
            "--constraints",
            type=click.Choice((KEEP, DROP)),
            default=KEEP,
            show_default=True,
            help="What to do with shardings that the program has already: keep them as pins, or drop them.",
        ),
        click.option(
            "--device",
            shell_complete=complete_device_names,
            help="The kind of device, as 'shardwright devices' lists them. By default what JAX runs on here.",
        ),
        click.option(
            "--memory", metavar="BYTES", help="The memory that a device may use, such as 12GiB. By default all of it."
        ),
        click.option(
            "--pin",
            "pins",
            multiple=True,
            metavar="PIN",
            shell_complete=complete_pins,
            help="What you have decided already: a tactic (fsdp:data), a spec (\"batch.x=P('data')\"), or a dimension "
            "on an axis (data:batch.x[0]). It can be given several times.",
        ),
        click.option(
            "--replicate",
            multiple=True,
            metavar="NAME",
            help="An argument (a path or a glob) that stays whole, or an axis that splits nothing.",
        ),
        click.option(
            "--seconds",
            type=click.FloatRange(min=0),
            help="The most seconds that the search may take; 0 plans with the pins alone.",
        ),
        click.option("--simulations", type=click.IntRange(min=0), help="The number of simulations of the tree search."),
        click.option(
            "--seed",
            type=int,
            default=0,
            show_default=True,
            help="The seed of the search's random choices; the same seed gives the same plan.",
        ),
        click.option(
            "--rerank",
            metavar="ON",
            shell_complete=complete_checks,
            help="Compile the best few plans for this target, such as tpu:v5e:4x4, and take the best of them.",
        ),
        click.option(
            "--ask-compiler/--no-ask-compiler",
            default=None,
            help="Ask the device's compiler whether a plan fits if the estimate is too close to the limit to tell. By "
            "default it is asked where it is installed.",
        ),
    )


def chosen_target(given: dict[str, Any]) -> Target:
    """The target that the options name."""
    sizes = parse_pairs(given["sizes"], "--set", parse_literal)
    if given["preset"] is not None:
        sizes["preset"] = given["preset"]
    return find_target(given["target"], sizes)


def tracing(given: dict[str, Any]) -> dict[str, Any]:
    """How the target is traced."""
    return {
        "platform": given["platform"],
        "trip_counts": parse_pairs(given["trip_counts"], "--trip-count", parse_literal),
        "rules": parse_pairs(given["rules"], "--rule", str),
    }


def callable_target(given: dict[str, Any]) -> Target:
    """The target as a function."""
    target = chosen_target(given)
    if target.file is None:
        return target
    # Other frameworks index with 64 bits, which JAX has to be told to keep.
    click.get_current_context().with_resource(jax.enable_x64(True))
    return target.called()


def asked(given: dict[str, Any]) -> tuple[Target, dict[str, Any]]:
    """The target, and what the options of ``target_options`` and ``search_options`` say about it as keywords."""
    mesh = None if given["mesh"] is None else parse_mesh(given["mesh"])
    pins = parse_pins(given["pins"], mesh)
    if given["device"] is not None or isinstance(mesh, str):
        need_no_accelerator()
    target = callable_target(given)
    names = ("device", "memory", "replicate", "seconds", "simulations", "seed", "ask_compiler", "constraints")
    options = {**(target.options or {}), **tracing(given), **{name: given[name] for name in names}}
    return target, {**options, "mesh": mesh, "pin": pins}


def searched_plan(given: dict[str, Any]) -> Plan:
    """The plan that the options of ``target_options`` and ``search_options`` ask for."""
    for on in (given["rerank"], given.get("tune")):
        if on is not None and (devices := mesh_devices(given["mesh"])) is not None:
            parse_target(on).check(devices)
    target, options = asked(given)
    assert target.fn is not None
    tuned = {name: given[name] for name in ("tune", "compiles") if given.get(name) is not None}
    return partition(target.fn, *target.args, **options, rerank=given["rerank"], **tuned)


def searched_front(given: dict[str, Any]) -> Front:
    """The front of plans that the same options ask for."""
    target, options = asked(given)
    assert target.fn is not None
    return pareto(target.fn, *target.args, **options)


def _all(command: Command, *options: Callable[[Command], Command]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command
