"""``shardwright verify``."""

from __future__ import annotations

import warnings
from typing import Any

import click

from shardwright.cli import complete
from shardwright.cli.backend import need_no_accelerator
from shardwright.cli.exits import DOES_NOT_FIT
from shardwright.cli.options import callable_target, json_option, target_options, tracing
from shardwright.cli.output import emit, note, only_results, show
from shardwright.cli.verdicts import check_names, verdict_dict, verdict_text
from shardwright.errors import PlanWarning
from shardwright.evaluate import load


@click.command(short_help="Have a saved plan judged by a compiler, or run.")
@click.argument("plan", type=click.Path())
@target_options
@click.option(
    "--on",
    "checks",
    multiple=True,
    required=True,
    metavar="ON",
    shell_complete=complete.checks,
    help="tpu:v5e:4x4, gpu:a100-80:8, cpu, run or shardy. Several may be given.",
)
@json_option
def verify(plan: str, checks: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Have a saved plan judged by others.

    PLAN is a file that plan --save wrote, TARGET the program that it is for. A compiler's name and a number of
    devices compile it ahead of time, which needs no such device; run runs it on CPU devices and compares with
    the plain function; shardy compares its collectives with those of the compiler's own partitioner.

    \b
    shardwright plan gpt --mesh data=4,model=4 --device tpu-v5e --save plan.json
    shardwright verify plan.json gpt --on tpu:v5e:4x4
    shardwright verify plan.json gpt --on shardy --json

    Exit code 0 where every check says yes, 2 for a mistake in the call, 3 where one says no, as where the
    compiler finds that it does not fit.
    """  # noqa: D301 (click wants the character)
    check_names(checks)
    need_no_accelerator()
    with only_results(as_json):
        target = callable_target(given)
        assert target.fn is not None
        with warnings.catch_warnings():
            warnings.simplefilter("always", PlanWarning)
            warnings.showwarning = _show_warning
            # Donation is the plan's own.
            called = {name: value for name, value in (target.options or {}).items() if name != "donate"}
            found = load(plan, target.fn, *target.args, **called, **tracing(given))
        verdicts = [found.verify(check) for check in checks]
    if as_json:
        emit({"plan": plan, "verdicts": [verdict_dict(verdict) for verdict in verdicts]})
    else:
        for verdict in verdicts:
            show(verdict_text(verdict))
    if not all(verdicts):
        click.get_current_context().exit(DOES_NOT_FIT)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    note(f"shardwright: {message}")
