"""A plan for the terminal."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardwright.analysis.present import human_bytes
from shardwright.apply import spec
from shardwright.cost.present import headline, human_seconds, place
from shardwright.cost.present import table as empty_table
from shardwright.spmd.collectives import local_bytes

if TYPE_CHECKING:
    from shardwright.plan.plan import Plan

_COSTLIEST = 10


def plan_table(plan: Plan) -> RenderableType:
    """Headline, decisions, arguments by pattern, collectives by bytes."""
    mesh, program = plan.partitioned.mesh, plan.analysis.program
    values = plan.partitioned.values
    held = sum(local_bytes(program.values[a.value].bytes, values[a.value], mesh) for a in program.arguments)
    whole = sum(program.values[a.value].bytes for a in program.arguments)
    moved = sum(c.total_bytes for c in plan.collectives)
    axes = " × ".join(f"{name} {size}" for name, size in plan.mesh.items())
    title = f"{program.name} on {mesh.devices} × {plan.device.name} ({axes})"
    sentence = headline(plan.estimate)
    about = (
        f"Arguments take {human_bytes(held)} of {human_bytes(whole)} on each device; each sends {human_bytes(moved)} "
        f"in {sum(c.times for c in plan.collectives):,} collectives."
    )
    parts: list[RenderableType] = [
        Text(title, style="bold"),
        Text(f"{sentence[0].upper()}{sentence[1:]}.", style="bold"),
        Text(about),
        Text(),
        _decisions(plan),
        Text(),
        _arguments(plan),
    ]
    if plan.collectives:
        parts += [Text(), _collectives(plan)]
    return Group(*parts)


def _decisions(plan: Plan) -> Table:
    table = empty_table("axis", "dimension", "size")
    sizes = {d.name: d.size for d in plan.analysis.descriptions}
    for decision in plan.decisions:
        text = str(decision).partition(": ")[2]
        size = sizes.get(getattr(decision, "dimension", ""))
        table.add_row(Text(decision.axis, style="green"), Text(text, style="cyan"), f"{size:,}" if size else "")
    return table


def _arguments(plan: Plan) -> Table:
    program, mesh = plan.analysis.program, plan.partitioned.mesh
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    first: dict[tuple[str, str], str] = {}
    for argument in program.arguments:
        value = program.values[argument.value]
        key = (str(value), str(spec(plan.partitioned.values[argument.value], mesh.names)))
        groups[key].append(argument.value)
        first.setdefault(key, argument.path)
    table = empty_table("argument", "arguments", "type", "spec", "on each device")
    for key, found in groups.items():
        each = sum(local_bytes(program.values[v].bytes, plan.partitioned.values[v], mesh) for v in found)
        more = " …" if len(found) > 1 else ""
        table.add_row(Text(first[key] + more, style="cyan"), str(len(found)), key[0], key[1], human_bytes(each))
    return table


def _collectives(plan: Plan) -> Table:
    table = empty_table("collective", "axes", "bytes", "times", "seconds", "tensor", "at")
    ordered = sorted(plan.estimate.collectives, key=lambda c: -c.seconds)
    for c in ordered[:_COSTLIEST]:
        seconds = human_seconds(c.seconds)
        table.add_row(
            c.kind, ", ".join(c.axes), human_bytes(c.bytes), f"{c.times:,}", seconds, c.tensor, place(c.source)
        )
    if len(ordered) > _COSTLIEST:
        table.add_row(f"… and {len(ordered) - _COSTLIEST} smaller")
    return table
