"""What a search may do: put a group, with a resolution of its conflicts, on an axis's list.

Only what is legal and can matter; what is left out is left out with a reason.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import product

from shardwright.analysis import Analysis
from shardwright.price import Places
from shardwright.price.uneven import splits
from shardwright.request import MeshShape
from shardwright.space.pinned import Kept
from shardwright.space.roles import Roles
from shardwright.space.state import AnyEntry, Entry

_MATTERS = 1e-3
"""Of the program's FLOPs, of the bytes of its tensors and of its arguments: below it in all three, a group is left
out. What it could save is less than the cost model can tell."""
_MOST_RESOLUTIONS = 8


@dataclass(frozen=True)
class Pruned:
    """A dimension that the search leaves alone on an axis, and why."""

    axis: str
    dimension: str
    reason: str

    def __str__(self) -> str:
        return f"{self.axis}: {self.dimension}: {self.reason}"


@dataclass(frozen=True)
class Actions:
    """``entries[axis]`` are those that the search may put on an axis's list, ``tactics[axis]`` several at once.

    ``meets[group]`` are groups that stand beside it in some tensors: an entry may except these tensors.
    """

    entries: tuple[tuple[AnyEntry, ...], ...]
    pruned: tuple[Pruned, ...]
    tactics: tuple[Mapping[str, tuple[AnyEntry, ...]], ...] = ()
    meets: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(map(len, self.entries))


def find_actions(
    analysis: Analysis,
    mesh: MeshShape,
    *,
    kept: Kept | None = None,
    matters: float = _MATTERS,
    places: Places | None = None,
) -> Actions:
    """All actions on a program, whose ``places`` may be known. ``kept`` is what must not be touched."""
    kept = kept or {}
    weight = _weights(analysis)
    inside = (places or Places(analysis)).padded_groups
    entries: list[tuple[AnyEntry, ...]] = []
    pruned: list[Pruned] = []
    for axis, size in zip(mesh.names, mesh.sizes, strict=True):
        found: list[Entry] = []
        for g, described in enumerate(analysis.descriptions):
            told = kept.get(axis) or kept.get((axis, g))
            reason = told or _reason(described.sizes, size, weight[g], matters, g in inside)
            if reason:
                pruned.append(Pruned(axis, described.name, reason))
            else:
                found += [Entry(g, sides) for sides in resolutions(analysis, g)]
        entries.append(tuple(found))
    return Actions(tuple(entries), tuple(pruned))


def resolutions(analysis: Analysis, group: int) -> list[tuple[int, ...]]:
    """The ways to resolve a group's conflicts: all of them, or where they are many, those near the usual one.

    The usual one shards what is reduced over less, such as the queries of attention.
    """
    conflicts = analysis.groups[group].conflicts
    free = [k for k, conflict in enumerate(conflicts) if conflict.consistent]
    if 2 ** len(free) <= _MOST_RESOLUTIONS:
        choices = [(0, 1) if k in free else (0,) for k in range(len(conflicts))]
        return list(product(*choices))
    usual = Roles.of(analysis).row_side(group)
    flipped = [{k} for k in free] + [set(free)]
    return [usual, *(tuple(1 - s if k in which else s for k, s in enumerate(usual)) for which in flipped)]


def _weights(analysis: Analysis) -> list[tuple[float, float, float]]:
    """For each group its part of the program's FLOPs, of its tensors' bytes, and of its arguments' bytes."""
    program = analysis.program
    flops = sum(op.flops * n for op, n in zip(program.ops, program.repeats.tolist(), strict=True)) or 1
    total = sum(value.bytes for value in program.values) or 1
    held = sum(program.values[a.value].bytes for a in program.arguments) or 1
    in_arguments = [0] * len(analysis.groups)
    for argument in program.arguments:
        colours = analysis.colours.of_value(argument.value).tolist()
        for g in {analysis.group_of[c] for c in colours if c >= 0}:
            in_arguments[g] += program.values[argument.value].bytes
    return [(d.flops / flops, d.bytes / total, in_arguments[g] / held) for g, d in enumerate(analysis.descriptions)]


def _reason(
    sizes: Collection[int], axis_size: int, weight: tuple[float, float, float], matters: float, inside: bool
) -> str:
    if axis_size == 1:
        return "the axis has one device"
    if not any(splits(size, axis_size, padded=inside) for size in sizes):
        given = " and ".join(map(str, sorted(sizes)))
        return f"{axis_size} devices do not divide {given}"
    flops, total, held = weight
    if max(weight) < matters:
        return f"it has {flops:.2%} of the FLOPs, {total:.2%} of the bytes and {held:.2%} of the arguments"
    return ""
