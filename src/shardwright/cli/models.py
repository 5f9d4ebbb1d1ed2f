"""``shardwright models``."""

from __future__ import annotations

from dataclasses import asdict

import click
from rich.text import Text

from shardwright.cli.options import json_option
from shardwright.cli.output import emit, show
from shardwright.models import MODELS


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
