"""``shardwright devices``."""

from __future__ import annotations

from dataclasses import asdict

import click

from shardwright.cli.options import json_option
from shardwright.cli.output import emit, show
from shardwright.devices import PRESETS
from shardwright.devices.present import devices_table


@click.command(short_help="List the devices to plan for.")
@json_option
def devices(as_json: bool) -> None:
    """List the devices to plan for: their peak rate, memory and links."""
    if as_json:
        emit({name: asdict(device) for name, device in PRESETS.items()})
    else:
        show(devices_table(PRESETS.values()))
