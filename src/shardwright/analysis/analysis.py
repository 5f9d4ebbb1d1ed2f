"""The static analysis as a whole: names → colours → conflicts → groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from shardwright._collector import collector_paused
from shardwright._console import plain_text
from shardwright.analysis.colours import Colours, find_colours
from shardwright.analysis.conflicts import CompatibilitySet, find_conflicts
from shardwright.analysis.describe import Description, describe_groups
from shardwright.analysis.groups import Group, find_groups
from shardwright.analysis.kernels import KernelNote, kernel_notes
from shardwright.analysis.names import Names, name_dimensions
from shardwright.ir.program import Program


@dataclass(frozen=True, eq=False)
class Analysis:
    """What the analysis found about a program; ``print`` shows it as a table.

    ``conflicts`` are the compatibility sets, ``groups`` are what is left to decide, and ``descriptions`` are the groups
    in words, and ``known`` is what others found out about the program, once for all meshes.
    """

    program: Program
    names: Names
    colours: Colours
    conflicts: tuple[CompatibilitySet, ...]
    groups: tuple[Group, ...]
    known: dict[type, Any] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def descriptions(self) -> tuple[Description, ...]:
        """The groups in words: one description for each group, in the same order."""
        with collector_paused():
            return describe_groups(self.colours, self.conflicts, self.groups)

    @cached_property
    def group_of(self) -> Mapping[int, int]:
        """The group of each colour."""
        return {c: g for g, group in enumerate(self.groups) for c in group.colours}

    @cached_property
    def opaque(self) -> tuple[tuple[str, str, int], ...]:
        """Ops that have no sharding rule and are computed whole: their kind, their source line and their number."""
        found: Counter[tuple[str, str]] = Counter()
        for op in self.program.ops:
            rule = op.rule
            told = rule.known and (op.kind != "custom_call" or "facts" in op.attributes)
            if not told and op.operands and len(rule.whole) == len(rule.sizes) and max(rule.sizes, default=1) > 1:
                target = op.attributes.get("target")
                found[f"{op.kind} @{target}" if target else op.kind, str(op.source)] += 1
        return tuple((kind, source, count) for (kind, source), count in found.items())

    @cached_property
    def kernels(self) -> tuple[KernelNote, ...]:
        """The Pallas kernels of the program: what each can be split by, and why not by more."""
        return kernel_notes(self.program)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data that JSON can hold."""
        from shardwright.analysis.present import analysis_dict

        return analysis_dict(self)

    def __str__(self) -> str:
        from shardwright.analysis.present import analysis_table

        return plain_text(analysis_table(self))


def analyse_program(program: Program) -> Analysis:
    """Run every stage of the analysis."""
    with collector_paused():
        names = name_dimensions(program)
        colours = find_colours(names)
        conflicts = find_conflicts(colours)
        return Analysis(program, names, colours, conflicts, find_groups(colours, conflicts))
