"""An analysis for the terminal and as JSON's types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardwright._amounts import human_bytes, human_count
from shardwright.analysis.analysis import Analysis
from shardwright.analysis.describe import Description
from shardwright.ir.text import program_text

FORMAT_VERSION = 1
_MOST_SHOWN = 24


def analysis_table(analysis: Analysis, *, everything: bool = False) -> RenderableType:
    """The groups as a table, those that touch most bytes first, then their conflicts.

    Only the largest are shown unless ``everything``.
    """
    ordered = sorted(analysis.descriptions, key=lambda d: -d.bytes)
    shown = ordered if everything else ordered[:_MOST_SHOWN]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("dimension", overflow="fold")
    for column in ("size", "copies", "tensors", "bytes", "FLOPs"):
        table.add_column(column, justify="right", no_wrap=True)
    for d in shown:
        table.add_row(
            Text(d.name, style="cyan"),
            _size(d),
            str(d.copies) if d.copies > 1 else "",
            f"{d.tensors:,}",
            human_bytes(d.bytes),
            human_count(d.flops),
        )
    parts: list[RenderableType] = [Text(_headline(analysis), style="bold"), Text(), table]
    left_out = len(ordered) - len(shown)
    if left_out:
        parts.append(Text(f"… and {left_out} smaller group{'s' * (left_out > 1)}", style="dim"))
    if any(d.conflicts for d in shown):
        parts += [Text(), _conflict_table(shown)]
    parts += [Text(line, style="yellow") for line in _notes(analysis)]
    return Group(*parts)


def coloured_program(analysis: Analysis) -> str:
    """The program as text, each dimension followed by its colour: ``f32[8a,32c]``."""
    program = analysis.program

    def type_text(v: int) -> str:
        value = program.values[v]
        dims = zip(value.shape, analysis.colours.of_value(v).tolist(), strict=True)
        return f"{value.dtype}[{','.join(f'{size}{colour_letters(c)}' for size, c in dims)}]"

    return program_text(program, type_text)


def colour_letters(colour: int) -> str:
    """0 → a, 25 → z, 26 → aa; nothing for a dimension without a colour."""
    letters = ""
    while colour >= 0:
        letters = chr(ord("a") + colour % 26) + letters
        colour = colour // 26 - 1
    return letters


def analysis_dict(analysis: Analysis) -> dict[str, Any]:
    """The whole analysis as dicts, lists, strings and numbers."""
    program = analysis.program
    return {
        "version": FORMAT_VERSION,
        "program": {
            "name": program.name,
            "ops": len(program.ops),
            "values": len(program.values),
            "flops": total_flops(analysis),
            "arguments": [
                {
                    "path": a.path,
                    "shape": list(program.values[a.value].shape),
                    "dtype": program.values[a.value].dtype,
                    "donated": a.donated,
                }
                for a in program.arguments
            ],
            "unused_arguments": list(program.unused_arguments),
            "loops": [
                {"source": str(program.ops[l.op].source), "trips": l.trips, "known": l.known} for l in program.loops
            ],
            "opaque": [{"op": kind, "source": source, "count": n} for kind, source, n in analysis.opaque],
            "kernels": [asdict(note) for note in analysis.kernels],
        },
        "colours": analysis.colours.count,
        "conflicts": len(analysis.conflicts),
        "groups": [_group_dict(d) for d in analysis.descriptions],
    }


def _group_dict(description: Description) -> dict[str, Any]:
    out = asdict(description)
    out["sizes"], out["arguments"] = list(description.sizes), list(description.arguments)
    out["conflicts"] = [
        {
            "source": str(c.source),
            "op": c.kind,
            "sides": [asdict(side) for side in c.sides],
            "sets": c.sets,
            "members": c.members,
            "consistent": c.consistent,
        }
        for c in description.conflicts
    ]
    return out


def total_flops(analysis: Analysis) -> int:
    """FLOPs of the whole, unsharded program."""
    flops = np.array([op.flops for op in analysis.program.ops], dtype=np.float64)
    return int((flops * analysis.program.repeats).sum())


def _headline(analysis: Analysis) -> str:
    program = analysis.program
    held = sum(program.values[a.value].bytes for a in program.arguments)
    return (
        f"{program.name}: {len(program.ops):,} ops, {len(program.arguments):,} arguments of {human_bytes(held)}, "
        f"{human_count(total_flops(analysis))} FLOPs; {_many(analysis.colours.count, 'colour')} and "
        f"{_many(len(analysis.conflicts), 'conflict')} make {_many(len(analysis.groups), 'group')} to decide."
    )


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _size(d: Description) -> str:
    return f"{d.size:,}" + ("…" if len(d.sizes) > 1 else "")


def _conflict_table(descriptions: Sequence[Description]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("conflict of", "copies", "where it begins", "one side", "or the other"):
        table.add_column(column, overflow="fold", justify="right" if column == "copies" else "left")
    for d in descriptions:
        for c in d.conflicts:
            where = f"{c.kind}, {c.source}{', backward' * c.source.backward}"
            sides = [Text(str(side), style="magenta") for side in c.sides]
            if not c.consistent:
                sides = [Text("no choice: both sides meet in one tensor, each keeps its first", style="dim"), Text()]
            table.add_row(Text(d.name, style="cyan"), str(c.sets) if c.sets > 1 else "", where, *sides)
    return table


def _notes(analysis: Analysis) -> list[str]:
    program = analysis.program
    lines = []
    for loop in program.loops:
        source = program.ops[loop.op].source
        if loop.known == "unknown":
            lines.append(f"The loop at {source} runs an unknown number of times and counts once; set its trip count.")
        elif loop.known == "at most":
            lines.append(f"The loop at {source} runs at most {loop.trips:,} times and counts so; set its trip count.")
    if program.unused_arguments:
        count = len(program.unused_arguments)
        more = f" and {count - 1} more" if count > 1 else ""
        lines.append(f"The result does not depend on {program.unused_arguments[0]}{more}.")
    for kind, line, count in analysis.opaque:
        times = f" ({count} times)" if count > 1 else ""
        lines.append(f"{kind} at {line}{times} has no sharding rule and is computed whole.")
    lines += [str(note) for note in analysis.kernels]
    return ["", *lines] if lines else []
