"""What a user, or the program itself, has decided, as decisions on a mesh, and what that leaves to no search."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from shardwright.analysis import Analysis
from shardwright.errors import PinError, nearest
from shardwright.ir.kinds import CONSTRAINT, MANUAL
from shardwright.request import Decision, MeshShape, Pins, Whole
from shardwright.request.pins import OPEN, DecisionPin, Pin, SpecPin, TacticPin, axes_of
from shardwright.space.decisions import axis_number, path_matches
from shardwright.space.tactics import expand


def implied_decisions(analysis: Analysis, mesh: MeshShape) -> list[Decision]:
    """A decision for each dimension and axis that a value is given, on every axis in an order that keeps to them.

    Where a value has two dimensions that lie on one axis elsewhere, the one that has it there goes first.
    """
    names = [described.name for described in analysis.descriptions]
    repeats = analysis.program.repeats.tolist()
    out: list[Decision] = []
    for axis, size in zip(mesh.names, mesh.sizes, strict=True):
        if size == 1:
            continue
        wanted = list(_wanted(analysis, axis))
        bytes_of: Counter[int] = Counter()
        before: dict[int, Counter[int]] = defaultdict(Counter)
        for v, group, _ in wanted:
            made_by = analysis.program.values[v].op
            weight = analysis.program.values[v].bytes * (repeats[made_by] if made_by >= 0 else 1)
            bytes_of[group] += weight
            for other in set(_groups(analysis, v)) - {group}:
                before[group][other] += weight
        left = list(bytes_of)
        while left:
            first = max(left, key=lambda g: (sum(before[g][h] - before[h][g] for h in left), bytes_of[g], -g))
            left.remove(first)
            out.append(Decision(axis, names[first], _sides(analysis, first, wanted)))
    return out


def _groups(analysis: Analysis, value: int) -> list[int]:
    return [analysis.group_of.get(colour, -1) for colour in analysis.colours.of_value(value).tolist()]


def _wanted(analysis: Analysis, axis: str) -> Iterator[tuple[int, int, int]]:
    """The values that are given an axis, with the group and the number of the dimension that has it."""
    program = analysis.program
    for v, value in enumerate(program.values):
        # Not what is only made to be constrained: the constraint says the same.
        if value.given is not None and (value.op < 0 or program.ops[value.op].kind in (CONSTRAINT, MANUAL)):
            for d, axes in enumerate(value.given.axes):
                if axis in axes and (group := _groups(analysis, v)[d]) >= 0:
                    yield v, group, d


def _sides(analysis: Analysis, group: int, wanted: list[tuple[int, int, int]]) -> tuple[int, ...]:
    """The side of each of a group's conflicts on which the values lie that are given an axis."""
    at = {v: d for v, g, d in wanted if g == group}
    sides = []
    for conflict in analysis.groups[group].conflicts:
        votes: Counter[int] = Counter()
        for s in conflict.sets:
            for member in analysis.conflicts[s].members:
                if member.of == "value" and at.get(member.index) in member.sides():
                    votes[member.sides().index(at[member.index])] += 1
        sides.append(1 if votes[1] > votes[0] else 0)
    return tuple(sides) if any(sides) else ()


Kept = Mapping[str | tuple[str, int], str]
"""Axes, and groups on an axis, that a search must not touch, and why."""


def as_decisions(analysis: Analysis, mesh: MeshShape, pins: Iterable[Pin]) -> list[Decision | Whole]:
    """All pins as decisions, in order, each once."""
    return list(dict.fromkeys(decision for pin in pins for decision in decisions_of(analysis, mesh, pin)))


def decisions_of(analysis: Analysis, mesh: MeshShape, pin: Pin) -> list[Decision | Whole]:
    """One pin as decisions."""
    if isinstance(pin, DecisionPin):
        return [pin.decision]
    if isinstance(pin, TacticPin):
        return expand(analysis, mesh, pin.text)
    return _from_spec(analysis, mesh, pin)


def replicated(analysis: Analysis, mesh: MeshShape, pins: Pins) -> tuple[Kept, list[Decision | Whole]]:
    """What stays whole: axes, each with the reason, and arguments as decisions.

    Raises ``PinError`` where a pin uses an axis, or shards an argument, that is to stay whole.
    """
    paths = [a.path for a in analysis.program.arguments]
    axes: Kept = {name: f"replicate={name!r} keeps this axis unused" for name in pins.replicate if name in mesh.names}
    for pin in pins.pins:
        used = [d for d in decisions_of(analysis, mesh, pin) if isinstance(d, Decision) and d.axis in axes]
        if used:
            raise PinError(f"the pin {pin} uses the axis {used[0].axis!r}, which replicate= keeps unused; drop one.")
    whole: list[Decision | Whole] = []
    for name in pins.replicate:
        if name in axes:
            continue
        matched = [path for path in paths if path_matches(name, path)]
        if not matched:
            known = nearest(name, [*paths, *mesh.names])
            raise PinError(f"replicate={name!r} is neither an axis of the mesh nor an argument{known}.")
        for pin in pins.specs:
            clash = next((path for path in matched if path_matches(pin.pattern, path)), None)
            if clash is not None and pin.axes:
                raise PinError(f"the pin {pin} shards {clash}, which replicate={name!r} keeps whole.")
        whole += [Whole(axis, name) for axis in mesh.names]
    return axes, whole


def decided(analysis: Analysis, mesh: MeshShape, pins: Pins) -> Kept:
    """What specs with dimensions that are open leave to no search: groups on axes, each with the reason.

    A dimension that such a spec decides must not come to lie on a further axis, and a group lies on it everywhere.
    """
    out: dict[str | tuple[str, int], str] = {}
    for pin in pins.specs:
        if not pin.is_open:
            continue
        others = [name for name in mesh.names if name not in pin.axes]
        for argument in analysis.program.arguments:
            if path_matches(pin.pattern, argument.path):
                for d, colour in enumerate(analysis.colours.of_value(argument.value).tolist()):
                    if colour >= 0 and (d >= len(pin.spec) or pin.spec[d] is not OPEN):
                        reason = f"the pin {pin} decides {argument.path}[{d}]"
                        out |= dict.fromkeys(((name, analysis.group_of[colour]) for name in others), reason)
    return out


def _from_spec(analysis: Analysis, mesh: MeshShape, pin: SpecPin) -> list[Decision | Whole]:
    program = analysis.program
    found = [a for a in program.arguments if path_matches(pin.pattern, a.path)]
    if not found:
        known = nearest(pin.pattern, [a.path for a in program.arguments])
        raise PinError(f"no argument matches the pin {pin.pattern!r}{known}.")
    out: list[Decision | Whole] = []
    for argument in found:
        shape = program.values[argument.value].shape
        if len(pin.spec) > len(shape):
            raise PinError(f"the pin {pin} is longer than {argument.path} of shape {list(shape)}.")
        for d, entry in enumerate(pin.spec):
            ways = 1
            for name in axes_of(entry):
                ways *= mesh.sizes[axis_number(mesh, name, f"{pin.pattern}: {pin.spec}")]
                if shape[d] % ways:
                    raise PinError(f"the pin {pin} splits {argument.path}[{d}] of {shape[d]} into {ways}.")
                out.append(Decision(name, f"{argument.path}[{d}]"))
        if not pin.is_open:
            out.extend(Whole(name, argument.path) for name in mesh.names if name not in pin.axes)
    return out
