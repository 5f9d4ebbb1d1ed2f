"""``shardwright completions``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from shardwright.cli.output import put

SHELLS = ("bash", "zsh", "fish")


@click.command(short_help="Print what makes a shell complete commands.")
@click.argument("shell", type=click.Choice(SHELLS))
def completions(shell: str) -> None:
    """Print what makes a shell complete commands, models, devices, presets and tactics.

    \b
    shardwright completions bash >> ~/.bashrc
    shardwright completions zsh >> ~/.zshrc
    shardwright completions fish > ~/.config/fish/completions/shardwright.fish
    """  # noqa: D301 (click wants the character)
    root = click.get_current_context().find_root()
    found = get_completion_class(shell)
    assert found is not None
    put(found(root.command, {}, "shardwright", "_SHARDWRIGHT_COMPLETE").source())
