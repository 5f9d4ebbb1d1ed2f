"""``shardwright verify``."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import click
from rich.console import RenderableType
from rich.text import Text

from shardwright.cli.completions import complete_checks
from shardwright.cli.output import emit, note, only_results, show
from shardwright.cli.process import DOES_NOT_FIT, need_no_accelerator
from shardwright.cli.shared_options import callable_target, json_option, target_options, tracing
from shardwright.errors import PlanError, PlanWarning, nearest
from shardwright.evaluate import load
from shardwright.request.targets import is_target, parse_target
from shardwright.verify import CompilerVerdict, Verdict


@click.command(short_help="Check a saved plan by a compiler, or by running it.")
@click.argument("plan", type=click.Path())
@target_options
@click.option(
    "--on",
    "checks",
    multiple=True,
    required=True,
    metavar="ON",
    shell_complete=complete_checks,
    help="What to check it on: tpu:v5e:4x4, gpu:a100-80:8, cpu, run or shardy. It can be given several times.",
)
@json_option
def verify(plan: str, checks: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Check a saved plan by a compiler, or by running it.

    PLAN is a file that plan --save wrote, and TARGET is the program that it is for. tpu:v5e:4x4 and the like
    compile it ahead of time for such devices, which need not be present. run runs it on CPU devices and compares
    it with the plain function. shardy compares its collectives with those of the compiler's own partitioner.

    \b
    shardwright plan gpt --mesh data=4,model=4 --device tpu-v5e --save plan.json
    shardwright verify plan.json gpt --on tpu:v5e:4x4
    shardwright verify plan.json gpt --on shardy --json

    The exit code is 0 if every check says yes, 2 for a mistake in the call, and 3 if a check says no, for example
    because the compiler finds that the plan does not fit.
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


OWN_CHECKS = ("run", "shardy")
_FIGURES = (
    "fits",
    "peak_bytes",
    "limit_bytes",
    "step_seconds",
    "serial_seconds",
    "exposed_seconds",
    "compute_seconds",
    "comm_seconds",
    "compile_seconds",
    "host_bytes",
    "transfer_seconds",
    "exposed_transfer_seconds",
)


def check_names(checks: Iterable[str], devices: int | None = None) -> None:
    """Raise where a plan cannot be verified on one of these: before a search rather than after it."""
    for check in checks:
        if is_target(check):
            target = parse_target(check)
            if devices is not None:
                target.check(devices)
        elif check not in OWN_CHECKS:
            raise PlanError(
                f"a plan is verified on run or shardy, or compiled for cpu, tpu:v5e:4x4, gpu:a100-80:8 and the like, "
                f"not on {check!r}{nearest(check, OWN_CHECKS)}."
            )


def verdict_text(verdict: Verdict) -> RenderableType:
    """The verdict as it prints, its first line green or red."""
    first, *rest = str(verdict).splitlines()
    return Text("\n").join([Text(first, style="bold green" if verdict.ok else "bold red"), *map(Text, rest)])


def verdict_dict(verdict: Verdict) -> dict[str, Any]:
    """The verdict of JSON's types alone."""
    out: dict[str, Any] = {"on": verdict.on, "ok": verdict.ok, "message": verdict.message}
    if isinstance(verdict, CompilerVerdict):
        out |= {name: getattr(verdict, name) for name in _FIGURES}
        out |= {name: dict(getattr(verdict, name)) for name in ("counts", "bytes", "estimate", "ratios")}
        out["collectives"] = [asdict(collective) for collective in verdict.collectives]
        out["gathered_whole"] = [{"shape": found.shape, "source": str(found.source)} for found in verdict.involuntary]
    return out
