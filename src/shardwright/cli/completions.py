"""``shardwright completions``, and what a shell offers to complete."""

from __future__ import annotations

from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem, get_completion_class

from shardwright.cli.output import put
from shardwright.devices import PRESETS
from shardwright.models import MODELS, Model
from shardwright.request.mesh import AXES
from shardwright.request.targets import target_beginnings
from shardwright.space import TACTICS

SHELLS = ("bash", "zsh", "fish")
_CHECKS = {"run": "on CPU devices, against the plain function", "shardy": "the compiler's own partitioner"}


@click.command(short_help="Print the completions for a shell.")
@click.argument("shell", type=click.Choice(SHELLS))
def completions(shell: str) -> None:
    """Print a script that lets a shell complete commands, models, devices, presets and tactics.

    \b
    shardwright completions bash >> ~/.bashrc
    shardwright completions zsh >> ~/.zshrc
    shardwright completions fish > ~/.config/fish/completions/shardwright.fish
    """  # noqa: D301 (click wants the character)
    root = click.get_current_context().find_root()
    found = get_completion_class(shell)
    assert found is not None
    put(found(root.command, {}, "shardwright", "_SHARDWRIGHT_COMPLETE").source())


def complete_targets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """Built-in models, with what they are; else files, for StableHLO."""
    found = [CompletionItem(n, help=m.summary) for n, m in MODELS.items() if n.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


def complete_presets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Presets of the model that is the target."""
    model = _model(ctx)
    return _starting(model.presets if model else (), incomplete)


def complete_sizes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Sizes of the model that is the target, with their usual values."""
    model = _model(ctx)
    if model is None:
        return []
    usual = vars(model.presets["default"])
    return _starting((f"{name}={value}" for name, value in usual.items()), incomplete)


def complete_device_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Devices with a preset."""
    return _starting(PRESETS, incomplete)


def complete_pins(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Tactics on the axes of the mesh, if that is there already."""
    mesh = ctx.params.get("mesh") or ""
    axes = AXES if mesh and "=" not in mesh else [part.partition("=")[0] for part in mesh.split(",")]
    return _starting((f"{tactic}:{axis}" for tactic in TACTICS for axis in axes), incomplete)


def complete_checks(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """What a plan can be verified on; for compilers, up to the number of devices."""
    known = [CompletionItem(name, help=text) for name, text in _CHECKS.items()]
    known += [CompletionItem(name) for name in target_beginnings()]
    return [item for item in known if item.value.startswith(incomplete)]


def _model(ctx: click.Context) -> Model | None:
    """The built-in model that is named so far; click leaves it among the rest while an option waits for its value."""
    names = [ctx.params.get("target") or "", *ctx.args]
    return next((MODELS[name] for name in names if name in MODELS), None)


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
