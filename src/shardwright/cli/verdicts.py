"""What a check said of a plan, for people and for machines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from shardwright.devices.targets import is_target, parse_target
from shardwright.errors import PlanError, nearest
from shardwright.verify import CompilerVerdict, Verdict

OWN_CHECKS = ("run", "shardy")
_FIGURES = (
    "fits",
    "peak_bytes",
    "limit_bytes",
    "step_seconds",
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
