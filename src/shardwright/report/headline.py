"""The first thing that a reader sees: does it fit, how long does a step take, what of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwright.analysis.present import human_bytes
from shardwright.plan.plan_text import kernels_text, own_text
from shardwright.plan.strategy_names import common_names
from shardwright.price.collectives import local_bytes
from shardwright.price.estimate import host_text
from shardwright.report.table import seconds_text

if TYPE_CHECKING:
    from shardwright.plan import Plan

_FITS = {True: "✓ fits", False: "✗ does not fit", None: "? may fit: too close to the limit to tell"}


@dataclass(frozen=True)
class Axis:
    """An axis of the mesh, and what its decisions are commonly called."""

    number: int
    name: str
    size: int
    called: tuple[str, ...]


@dataclass(frozen=True)
class Headline:
    """Figures as they are shown; parts are between 0 and 1."""

    function: str
    device: str
    devices: int
    axes: tuple[Axis, ...]
    fits: bool | None
    fits_words: str
    peak: str
    limit: str
    memory_part: float
    step: str
    compute: str
    comm: str
    compute_part: float
    peak_percent: str
    sent: str
    collectives: int
    arguments: str
    arguments_whole: str
    own: str
    """What is kept of the program's own shardings; empty where it has none."""
    whole_kernels: str
    """The kernels that every device runs all of; empty where there are none."""
    exposed: str
    """What no compute hides of transfers between host and device; empty where there is nothing of it."""
    comm_part: float
    on_host: str
    """What lies on the host, and the moves there and back; empty where nothing does."""


def make_headline(plan: Plan) -> Headline:
    """The headline of a plan."""
    estimate, mesh, program = plan.estimate, plan.partitioned.mesh, plan.analysis.program
    called = common_names(plan)
    held = [
        (program.values[a.value].bytes, plan.partitioned.values[a.value], a.memory_kind is None)
        for a in program.arguments
    ]
    step, limit, peak = estimate.step_seconds, estimate.limit_bytes, estimate.peak_bytes
    if plan.fits_by == "compiler" and plan.verdict is not None and plan.verdict.peak_bytes is not None:
        peak = plan.verdict.peak_bytes
    return Headline(
        function=program.name,
        device=plan.device.name,
        devices=mesh.devices,
        axes=tuple(
            Axis(number, name, size, called.get(name, ()))
            for number, (name, size) in enumerate(zip(mesh.names, mesh.sizes, strict=True))
        ),
        fits=plan.fits,
        fits_words=_FITS[plan.fits] + (", says the compiler" if plan.fits_by == "compiler" else ""),
        peak=human_bytes(peak),
        limit=human_bytes(limit),
        memory_part=min(peak / limit, 1.0) if limit else 1.0,
        step=seconds_text(step),
        compute=seconds_text(estimate.compute_seconds),
        comm=seconds_text(estimate.comm_seconds),
        compute_part=estimate.compute_seconds / step if step else 0.0,
        peak_percent=f"{100 * estimate.peak_fraction:.0f}",
        sent=human_bytes(sum(c.total_bytes for c in estimate.collectives)),
        collectives=sum(c.times for c in estimate.collectives),
        arguments=human_bytes(sum(local_bytes(whole, sharding, mesh) for whole, sharding, here in held if here)),
        arguments_whole=human_bytes(sum(whole for whole, *_ in held)),
        own=own_text(plan) if plan.own_shardings else "",
        whole_kernels=kernels_text(plan) if plan.whole_kernels else "",
        exposed=seconds_text(estimate.exposed_transfer_seconds) if estimate.exposed_transfer_seconds else "",
        comm_part=estimate.comm_seconds / step if step else 0.0,
        on_host=host_text(estimate),
    )
