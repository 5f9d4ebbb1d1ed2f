"""What a user has decided, as decisions about a program on a mesh, and what it leaves to no search."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardwright.analysis import Analysis
from shardwright.errors import PinError, nearest
from shardwright.request import Decision, MeshShape, Pins, Whole
from shardwright.request.pins import OPEN, DecisionPin, Pin, SpecPin, TacticPin, axes_of
from shardwright.space.decisions import axis_number, path_matches
from shardwright.space.tactics import expand

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
