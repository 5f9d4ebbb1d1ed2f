"""A front: plans of one program on one mesh, from the fastest to the smallest."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, overload

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardwright._amounts import exact_bytes, human_bytes, human_seconds
from shardwright._console import plain_text
from shardwright.devices import parse_bytes
from shardwright.errors import PlanError
from shardwright.plan import Plan
from shardwright.plan.strategy_names import common_names
from shardwright.space.state import State

_MOST_DECISIONS = 2
FASTEST, FITTING, SMALLEST = "fastest", "fastest that fits", "smallest"


class Point(NamedTuple):
    """A state by what it costs, and how much there is to say about it."""

    step_seconds: float
    peak_bytes: int
    complexity: int
    state: State


@dataclass(frozen=True, eq=False)
class Front:
    """Plans from the fastest to the smallest: each is slower than the one before it and needs less memory.

    Plans that differ by less than one per cent in both are shown as one; ``within`` knows all of them.
    """

    plans: tuple[Plan, ...]
    memory_bytes: int
    """What a device may hold: the limit that ``plan.fits`` goes by."""
    points: tuple[Point, ...] = field(repr=False)
    plan_of: Callable[[State], Plan] = field(repr=False)

    @property
    def fastest(self) -> Plan:
        """The fastest plan, whatever memory it needs."""
        return self.plans[0]

    @property
    def smallest(self) -> Plan:
        """The plan that needs the least memory."""
        return self.plans[-1]

    @property
    def fitting(self) -> Plan | None:
        """The fastest plan that fits the device.

        If none is sure to fit, it is the smallest of those that may fit; None if there is none of these either.
        """
        unknown = (plan for plan in reversed(self.plans) if plan.fits is None)
        return next((plan for plan in self.plans if plan.fits), next(unknown, None))

    def within(self, memory: int | str) -> Plan:
        """Return the fastest plan that needs no more than this memory (bytes, or ``"12GiB"``) on each device."""
        limit_bytes = parse_bytes(memory)
        shown = next((plan for plan in self.plans if plan.estimate_cost.peak_bytes <= limit_bytes), None)
        point = next((p for p in self.points if p.peak_bytes <= limit_bytes), None)
        if point is None:
            raise PlanError(
                f"no plan of the front needs {human_bytes(limit_bytes)} or less; the smallest needs "
                f"{human_bytes(self.smallest.estimate_cost.peak_bytes)}."
            )
        if shown is not None and shown.estimate_cost.step_seconds <= point.step_seconds:
            return shown
        return self.plan_of(point.state)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Write the front to a file as one HTML page that needs no network."""
        from shardwright.report.front_page import write_front

        write_front(self, path)

    def to_dict(self) -> dict[str, Any]:
        """Return the plans' figures, names and decisions as plain data that JSON can hold."""
        first = self.fastest
        return {
            "program": first.analysis.program.name,
            "mesh": first.mesh,
            "device": first.device.name,
            "limit_bytes": self.memory_bytes,
            "plans": [_row_dict(self, plan) for plan in self],
        }

    def marks(self, plan: Plan) -> list[str]:
        """Return what is special about a plan of the front: that it is the fastest, or the smallest, and so on."""
        special = {FASTEST: self.fastest, FITTING: self.fitting, SMALLEST: self.smallest}
        if self.fitting is self.fastest or (self.fitting is not None and self.fitting.fits is None):
            del special[FITTING]
        return [mark for mark, marked in special.items() if marked is plan]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What each plan is commonly called; if two have the same name, how the second differs from the first."""
        out: list[str] = []
        called = [_called(plan) for plan in self.plans]
        for k, (plan, name) in enumerate(zip(self.plans, called, strict=True)):
            same = [other for other, its in zip(self.plans[:k], called, strict=False) if its == name]
            out.append(f"{name} ({_difference(plan, same[-1])})" if same else name)
        return tuple(out)

    @property
    def verdict(self) -> str:
        """How the fastest and the smallest compare, as one sentence."""
        fitting, cost = self.fitting, self.smallest.estimate_cost
        if fitting is None:
            return f"Nothing fits: the smallest needs {human_bytes(cost.peak_bytes)}."
        if len(self) == 1:
            return f"One plan is both the fastest and the smallest. {self._rests_on}"
        first = self.fastest.estimate_cost
        more = cost.step_seconds / first.step_seconds - 1 if first.step_seconds else 0.0
        fits = {True: "fits", False: "does not fit", None: "may fit"}[self.fastest.fits]
        part = f"{100 * cost.peak_bytes / first.peak_bytes:.0f}% of its memory and {100 * more:.0f}% more time"
        return f"The fastest {fits}; the smallest takes {part}. {self._rests_on}"

    @property
    def _rests_on(self) -> str:
        """Who says which of the plans fit, as one sentence."""
        on = next((plan.verdict.on for plan in self.plans if plan.verdict is not None), None)
        unknown = any(plan.fits is None for plan in self.plans)
        by = (
            f"What fits is by the estimate, and near the limit by the compiler for {on}"
            if on
            else "What fits is by the estimate"
        )
        return f"{by}; what may fit is too close to the limit to tell." if unknown else f"{by}."

    def __iter__(self) -> Iterator[Plan]:
        return iter(self.plans)

    def __len__(self) -> int:
        return len(self.plans)

    @overload
    def __getitem__(self, index: int) -> Plan: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Plan, ...]: ...
    def __getitem__(self, index: int | slice) -> Plan | tuple[Plan, ...]:
        return self.plans[index]

    def __str__(self) -> str:
        return plain_text(front_table(self))


def fits_words(plan: Plan) -> str:
    """``fits``, ``does not fit`` or ``may fit``, with the compiler's figure where it was asked."""
    words = {True: "fits", False: "does not fit", None: "may fit"}[plan.fits]
    if plan.fits_by == "estimate" or plan.verdict is None or plan.verdict.peak_bytes is None:
        return words
    return f"{words}: compiled {human_bytes(plan.verdict.peak_bytes)}"


def _row_dict(front: Front, plan: Plan) -> dict[str, Any]:
    cost = plan.estimate_cost
    return {
        "step_seconds": cost.step_seconds,
        "compute_seconds": cost.compute_seconds,
        "comm_seconds": cost.comm_seconds,
        "hidden_seconds": cost.hidden_seconds,
        "exposed_seconds": cost.exposed_seconds,
        "peak_bytes": int(cost.peak_bytes),
        **(
            {"host_bytes": cost.host_bytes, "exposed_transfer_seconds": cost.exposed_transfer_seconds}
            if cost.host_bytes
            else {}
        ),
        "fits": plan.fits,
        "fits_by": plan.fits_by,
        "compiled_bytes": plan.verdict.peak_bytes if plan.verdict is not None else None,
        "marks": front.marks(plan),
        "names": {axis: list(names) for axis, names in common_names(plan).items()},
        "decisions": [str(decision) for decision in plan.decisions],
    }


def _called(plan: Plan) -> str:
    """Axes that do the same together, axes without a name by their dimensions."""
    axes_of: dict[str, list[str]] = defaultdict(list)
    for axis, names in common_names(plan).items():
        own = [str(d).removeprefix(f"{axis}: ") for d in plan.decisions if d.axis == axis]
        axes_of["; ".join(names) or ", ".join(own) or "unused"].append(axis)
    return "; ".join(f"{', '.join(axes)}: {what}" for what, axes in axes_of.items())


def _difference(plan: Plan, other: Plan) -> str:
    """Decisions that one has and the other lacks."""
    parts = []
    for word, one, two in (("with", plan, other), ("without", other, plan)):
        found = [str(decision) for decision in one.decisions if decision not in two.decisions]
        more = f" and {len(found) - _MOST_DECISIONS} more" if len(found) > _MOST_DECISIONS else ""
        parts += [f"{word} {', '.join(found[:_MOST_DECISIONS])}{more}"] if found else []
    return "; ".join(parts) or "the same decisions in another order"


def front_table(front: Front) -> RenderableType:
    """A row a plan: step, memory, its part of the device's, what it is called, and what is special about it."""
    first = front.fastest
    axes = " × ".join(f"{name} {size}" for name, size in first.mesh.items())
    devices = first.partitioned.mesh.devices
    title = f"{first.analysis.program.name} on {devices} × {first.device.name} ({axes}), "
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("step", "memory", "of it"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    table.add_column("what it is", overflow="fold")
    table.add_column("")
    for plan, name in zip(front, front.names, strict=True):
        cost = plan.estimate_cost
        table.add_row(
            human_seconds(cost.step_seconds),
            human_bytes(cost.peak_bytes),
            f"{100 * cost.peak_bytes / max(front.memory_bytes, 1):.0f}%",
            fits_words(plan),
            name,
            ", ".join(front.marks(plan)),
            style="bold" if plan is front.fitting else "dim" if plan.fits is False else "",
        )
    return Group(
        Text(f"{title}{exact_bytes(front.memory_bytes)} each", style="bold"), Text(front.verdict), Text(), table
    )
