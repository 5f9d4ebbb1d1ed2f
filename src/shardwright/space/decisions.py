"""Decisions: what a person or a search says, in words; and the state that they amount to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

from shardwright.analysis import Analysis
from shardwright.errors import PinError, nearest
from shardwright.ir.program import Program
from shardwright.request import Decision, MeshShape, Whole
from shardwright.space.carried import carried_results
from shardwright.space.state import AnyEntry, Entry, KeepWhole, State

Decisions = Sequence[Decision | Whole]


def resolve(analysis: Analysis, mesh: MeshShape, decisions: Decisions) -> State:
    """The state that decisions amount to on this program."""
    lists: list[list[AnyEntry]] = [[] for _ in mesh.names]
    whole: list[set[int]] = [set() for _ in mesh.names]
    carried = carried_results(analysis.program)
    for decision in decisions:
        axis = axis_number(mesh, decision.axis, str(decision))
        if isinstance(decision, Whole):
            values = [a.value for a in analysis.program.arguments if path_matches(decision.path, a.path)]
            if not values:
                paths = [a.path for a in analysis.program.arguments]
                raise PinError(f"no argument matches {decision.path!r}{nearest(decision.path, paths)}.")
            whole[axis].update(values)
            for v in values:  # what stays whole must stay whole from step to step
                whole[axis].update(carried.get(v, ()))
            continue
        new = entry_of(analysis, decision)
        if all(entry.subject != new.group for entry in lists[axis]):
            lists[axis].append(new)
    sets = tuple({frozenset(values): None for values in whole if values})
    for axis, kept in enumerate(whole):
        if kept:
            lists[axis].insert(0, KeepWhole(sets.index(frozenset(kept))))
    return State(tuple(map(tuple, lists)), sets)


def entry_of(analysis: Analysis, decision: Decision) -> Entry:
    """A decision as an entry of its axis's list."""
    group = find_group(analysis, decision.dimension)
    count = len(analysis.groups[group].conflicts)
    if len(decision.sides) > count:
        raise PinError(f"{decision.dimension} has {count} conflicts, so it takes no more than {count} sides.")
    if any(side not in (0, 1) for side in decision.sides):
        raise PinError(f"a side is 0 or 1, but {decision} has {decision.sides}.")
    unless = find_group(analysis, decision.unless) if decision.unless else -1
    return Entry(group, (*decision.sides, *(0,) * (count - len(decision.sides))), unless)


def describe(analysis: Analysis, mesh: MeshShape, state: State) -> list[Decision | Whole]:
    """A state in words: the decisions that ``resolve`` makes it from."""
    program, names = analysis.program, [d.name for d in analysis.descriptions]
    out: list[Decision | Whole] = []
    for axis, entries in zip(mesh.names, state.lists, strict=True):
        for entry in entries:
            if isinstance(entry, Entry):
                unless = names[entry.unless] if entry.unless >= 0 else ""
                out.append(Decision(axis, names[entry.group], entry.sides if any(entry.sides) else (), unless))
            else:
                kept = [v for v in state.whole[entry.number] if v in program.argument_of]
                out.extend(Whole(axis, path) for path in paths_of(program, kept))
    return out


def axis_number(mesh: MeshShape, axis: str, where: str) -> int:
    """The number of an axis by its name."""
    if axis not in mesh.names:
        raise PinError(f"{where!r} names the axis {axis!r}, but the mesh has {', '.join(mesh.names)}.")
    return mesh.names.index(axis)


def find_group(analysis: Analysis, dimension: str) -> int:
    """The group that goes by this name or that this dimension of an argument belongs to."""
    names = [d.name for d in analysis.descriptions]
    if dimension in names:
        return names.index(dimension)
    path, _, number = dimension.removesuffix("]").rpartition("[")
    if number.isdecimal():
        for argument in analysis.program.arguments:
            shape = analysis.program.values[argument.value].shape
            if not fnmatchcase(argument.path, path):
                continue
            if int(number) >= len(shape):
                raise PinError(f"{argument.path} has {len(shape)} dimensions, so there is no {dimension!r}.")
            colour = int(analysis.colours.of_value(argument.value)[int(number)])
            if colour >= 0:
                return analysis.group_of[colour]
            raise PinError(f"{dimension} has size 1 and cannot be sharded.")
    known = [*names, *(a for d in analysis.descriptions for a in d.arguments)]
    raise PinError(f"there is no dimension {dimension!r}{nearest(dimension, known)}.")


def paths_of(program: Program, values: Collection[int]) -> list[str]:
    """A short list of paths, prefixes and globs that match the arguments with these values and no others."""
    inside = set(values)
    wrong = {p for a in program.arguments if a.value not in inside for p in _patterns(a.path)}
    covers: dict[str, set[str]] = defaultdict(set)
    for argument in program.arguments:
        if argument.value in inside:
            for pattern in _patterns(argument.path):
                if pattern not in wrong:
                    covers[pattern].add(argument.path)
    left = {a.path for a in program.arguments if a.value in inside}
    chosen: list[str] = []
    while left:  # the one that says most, and of these the shortest
        best = min(covers, key=lambda p: (-len(covers[p] & left), p.count("*"), len(p), p))
        chosen.append(best)
        left -= covers.pop(best)
    order = {a.path: k for k, a in enumerate(program.arguments)}
    return sorted(chosen, key=lambda p: next(k for path, k in order.items() if path_matches(p, path)))


def _patterns(path: str) -> list[str]:
    """What matches a path: itself and its prefixes, its last components, and each of its components anywhere."""
    parts = path.split(".")
    out = [".".join(parts[:k]) for k in range(1, len(parts) + 1)]
    if not any(sign in path for sign in "*?["):
        out += [f"*.{'.'.join(parts[-k:])}" for k in (1, 2) if k < len(parts)]
        out += [f"*.{part}.*" for part in dict.fromkeys(parts[1:-1]) if not part.isdigit()]
    return out


def path_matches(pattern: str, path: str) -> bool:
    """A path matches itself, a prefix of whole components, or a glob."""
    return path == pattern or path.startswith(pattern + ".") or fnmatchcase(path, pattern)
