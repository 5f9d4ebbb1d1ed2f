"""``shardwright``: the commands, and how errors end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn

import click

import shardwright
from shardwright.cli.completions import completions
from shardwright.cli.fit_command import fit
from shardwright.cli.inventory import analyse, devices, models
from shardwright.cli.plan_command import compare, plan
from shardwright.cli.process import (
    DOES_NOT_FIT,
    INTERRUPTED,
    MISTAKE,
    NOBODY_READS,
    Terminated,
    interrupted,
    run_process,
    say,
)
from shardwright.cli.verify_command import verify
from shardwright.errors import InfeasibleError, ShardwrightError


class _Commands(click.Group):
    """Turns our exceptions into one sentence on standard error; ``--debug`` keeps the traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """In the order in which they are needed."""
        return list(self.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """``analyze`` is understood as well."""
        return super().get_command(ctx, "analyse" if cmd_name == "analyze" else cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """``--debug`` is understood wherever it stands."""
        if "--debug" in args:
            args = ["--debug", *(arg for arg in args if arg != "--debug")]
        return super().parse_args(ctx, args)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """As a process."""
        run_process(lambda: self.main(*args, **kwargs))

    def main(self, *args: Any, standalone_mode: bool = True, **more: Any) -> Any:
        """Run a command; where it stands alone, what click says of a call is one sentence as well."""
        run: Callable[..., Any] = super().main
        if not standalone_mode:
            return run(*args, standalone_mode=False, **more)
        try:
            code = run(*args, standalone_mode=False, **more)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            code = error.exit_code
        except click.ClickException as error:
            command = getattr(error, "ctx", None)
            help_ = f" ({command.command_path} --help shows what there is.)" if command is not None else ""
            say(" ".join(error.format_message().split()) + help_)
            code = error.exit_code
        except click.Abort:  # Ctrl-C outside of a command
            say("interrupted.")
            code = INTERRUPTED
        except OSError as error:  # in the middle of a help text
            code = _ended(_of_system(error))
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")  # a terminal without "×" shows "?"
        try:
            return super().invoke(ctx)
        except (ShardwrightError, OSError, MemoryError, SystemExit, KeyboardInterrupt) as error:
            stopped = interrupted.is_set() and not isinstance(error, InfeasibleError)  # of the best plan so far
            told = ("interrupted.", INTERRUPTED) if stopped else _told(error)
            if told is None or ctx.params.get("debug"):
                raise
            ctx.exit(_ended(told))


def _ended(told: tuple[str, int]) -> int:
    if told[0]:
        say(told[0])
    return told[1]


def _told(error: BaseException) -> tuple[str, int] | None:
    """What to say of an exception, and how to end; None where it is nobody's mistake."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted.", INTERRUPTED
    if isinstance(error, Terminated):
        return None
    if isinstance(error, SystemExit):
        return f"the program called sys.exit({error.code!r}).", MISTAKE
    if isinstance(error, ShardwrightError):
        return str(error), DOES_NOT_FIT if isinstance(error, InfeasibleError) else MISTAKE
    if isinstance(error, OSError):
        return _of_system(error)
    if isinstance(error, MemoryError):
        return "this machine has not enough memory for it.", MISTAKE
    return None


def _of_system(error: OSError) -> tuple[str, int]:
    if isinstance(error, BrokenPipeError):
        return "", NOBODY_READS
    named = f"cannot use {error.filename}: " if error.filename is not None else ""
    return f"{named}{error.strerror or error}.", MISTAKE


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(shardwright.__version__, prog_name="shardwright")
@click.option("--debug", is_flag=True, help="Show the whole traceback of an error.")
def main(debug: bool) -> None:
    """Automatic partitioning of JAX programs.

    \b
    Find the best sharding of a built-in model on 16 chips, and of your own program:
      shardwright plan gpt --mesh data=4,model=4 --device tpu-v5e
      shardwright plan my_package.train:step --mesh data=8 --save plan.json
    See it beside data parallelism, FSDP and Megatron, and ask the real compiler:
      shardwright compare gpt --mesh data=4,model=4 --device tpu-v5e
      shardwright verify plan.json my_package.train:step --on tpu:v5e:2x4
    Find how large a batch fits, and how few devices would do:
      shardwright fit gpt --mesh data=4,model=4 --device tpu-v5e
    List what there is to decide, to work on, and to plan for:
      shardwright analyse gpt --set layers=24
      shardwright models
      shardwright devices

    The exit code is 0 for a plan that fits, 2 for a mistake in the call (or a full disk, or the like), 3 if no plan
    fits, 130 for Ctrl-C, 143 for SIGTERM, and 141 if nobody reads standard output any more.
    """  # noqa: D301 (click wants the character)


for _command in (plan, compare, fit, analyse, verify, models, devices, completions):
    main.add_command(_command)
