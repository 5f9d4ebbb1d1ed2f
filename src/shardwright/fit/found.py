"""What was found to fit, and what was tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardwright._amounts import exact_bytes, human_bytes, human_seconds
from shardwright._console import plain_text
from shardwright.devices import Device
from shardwright.plan import Plan
from shardwright.plan.verdicts import CompilerVerdict

SIZE, DEVICES, COMPILED = "size", "devices", "compiled"


@dataclass(frozen=True)
class Tried:
    """A size or a number of devices that was tried.

    ``needed_bytes`` are those of a plan that fits, of the smallest plan found if none fits, or what the compiler says;
    None if nothing is known. ``fits`` is None if the estimate is too close to the limit to tell, or if the function
    does not take that size.
    """

    question: str
    size: int
    mesh: Mapping[str, int]
    needed_bytes: int | None
    fits: bool | None
    why: str

    @property
    def devices(self) -> int:
        """How many devices the mesh has."""
        count = 1
        for size in self.mesh.values():
            count *= size
        return count


@dataclass(frozen=True, eq=False)
class Fit:
    """The largest size of a dimension that fits the mesh, and the fewest devices that the program fits on.

    ``size`` and ``plan``, or ``devices`` and ``devices_plan``, are None if nothing was found that fits. ``verdict`` is
    what the compiler made of ``plan`` if it was asked; it then has the last word on ``size``.
    """

    program: str
    dimension: str
    given_size: int
    given_mesh: Mapping[str, int]
    device: Device
    limit_bytes: int
    size: int | None
    plan: Plan | None
    devices: int | None
    devices_plan: Plan | None
    tried: tuple[Tried, ...]
    verdict: CompilerVerdict | None = None
    notes: tuple[str, ...] = ()

    @property
    def batch(self) -> int | None:
        """The largest batch: another name for ``size``, for the dimension that is taken by default."""
        return self.size

    def to_dict(self) -> dict[str, Any]:
        """Everything, of JSON's types alone."""
        return {
            "program": self.program,
            "dimension": self.dimension,
            "given_size": self.given_size,
            "mesh": dict(self.given_mesh),
            "device": self.device.name,
            "limit_bytes": self.limit_bytes,
            "size": self.size,
            "size_by": self.plan.fits_by if self.plan is not None else None,
            "plan": self.plan.to_dict() if self.plan is not None else None,
            "devices": self.devices,
            "devices_by": self.devices_plan.fits_by if self.devices_plan is not None else None,
            "devices_plan": self.devices_plan.to_dict() if self.devices_plan is not None else None,
            "verdict": None if self.verdict is None else {"ok": self.verdict.ok, "message": self.verdict.message},
            "notes": list(self.notes),
            "tried": [{**vars(tried), "mesh": dict(tried.mesh), "devices": tried.devices} for tried in self.tried],
        }

    def __str__(self) -> str:
        return plain_text(fit_table(self))


def fit_table(found: Fit) -> RenderableType:
    """The answers, and a row for all that was tried."""
    devices = found.tried[0].devices if found.tried else 0
    title = f"{found.program} on {devices} × {found.device.name} ({axes(found.given_mesh)}), "
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(found.dimension, justify="right", overflow="fold")
    table.add_column("devices", justify="right", no_wrap=True)
    table.add_column("a plan of", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for tried in sorted(found.tried, key=lambda t: ((SIZE, COMPILED, DEVICES).index(t.question), t.size, t.devices)):
        needed = "" if tried.needed_bytes is None else human_bytes(tried.needed_bytes)
        where = f"{tried.devices:,}" + (f" ({axes(tried.mesh)})" if tried.question == DEVICES else "")
        table.add_row(f"{tried.size:,}", where, needed, tried.why, style="" if tried.fits else "dim")
    return Group(
        Text(f"{title}{exact_bytes(found.limit_bytes)} each", style="bold"),
        *(Text(sentence, style="bold green" if good else "bold red") for sentence, good in _answers(found)),
        *(Text(note) for note in found.notes),
        Text(),
        table,
    )


def _answers(found: Fit) -> Iterator[tuple[str, bool]]:
    name, given = found.dimension, f"{found.given_size:,} as given"
    if found.size is None or found.plan is None:
        yield f"No size of {name} fits.", False
    else:
        judge = (
            f", and the compiler for {found.verdict.on} takes it" if found.verdict is not None else ", by the estimate"
        )
        yield f"Largest {name} that fits: {found.size:,} ({given}){judge}. {_costs(found.plan, found.verdict)}", True
    asked = [tried for tried in found.tried if tried.question == DEVICES]
    if found.devices is not None and found.devices_plan is not None:
        shape = axes(found.devices_plan.mesh)
        size = f"{name} = {found.given_size:,}"
        verdict = found.devices_plan.verdict
        judge = f", and the compiler for {verdict.on} takes it" if verdict is not None else ", by the estimate"
        costs = _costs(found.devices_plan, verdict)
        yield f"Fewest devices for {size}: {found.devices:,} ({shape}){judge}. {costs}", True
    elif asked:
        yield f"No number of devices fits, up to {max(tried.devices for tried in asked):,}.", False


def _costs(plan: Plan, verdict: CompilerVerdict | None = None) -> str:
    cost = plan.estimate_cost
    step, needed = human_seconds(cost.step_seconds), human_bytes(cost.peak_bytes)
    if verdict is None or verdict.peak_bytes is None:
        return f"A step takes {step} and {needed}."
    return f"It needs {human_bytes(verdict.peak_bytes)}; by the estimate, a step takes {step} and {needed}."


def axes(mesh: Mapping[str, int]) -> str:
    """``data 4 × model 4``."""
    return " × ".join(f"{name} {size}" for name, size in mesh.items())
