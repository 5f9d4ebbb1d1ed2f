"""Pins that did not come out as they were given, and what took their place."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.errors import PinError
from shardwright.ir.program import Argument
from shardwright.price import Partitioned
from shardwright.request import Whole
from shardwright.request.pins import OPEN, Pin, SpecPin, axes_of
from shardwright.space.decisions import find_group, path_matches
from shardwright.space.pinned import decisions_of


def check_specs(partitioned: Partitioned, pins: Sequence[Pin]) -> None:
    """Every spec that was pinned must be what came out; else the message names what took its place."""
    program, names = partitioned.program, partitioned.mesh.names
    for pin in pins:
        if not isinstance(pin, SpecPin):
            continue
        for argument in program.arguments:
            if not path_matches(pin.pattern, argument.path):
                continue
            have = [tuple(names[a] for a in axes) for axes in partitioned.values[argument.value]]
            entries = [*pin.spec, *[None] * (len(have) - len(pin.spec))]
            want = [h if entry is OPEN else axes_of(entry) for h, entry in zip(have, entries, strict=True)]
            if have != want:
                other = _other_side(partitioned, pins, pin, argument, have, want)
                raise PinError(
                    f"the pin {pin} clashes with {other}: {argument.path} of shape "
                    f"{list(program.values[argument.value].shape)} comes out as {tuple(have)}."
                )


def _other_side(
    partitioned: Partitioned,
    pins: Sequence[Pin],
    this: SpecPin,
    argument: Argument,
    have: list[tuple[str, ...]],
    want: list[tuple[str, ...]],
) -> str:
    """The pin that got in the way of another, in the user's words."""
    analysis, mesh = partitioned.places.analysis, partitioned.mesh
    wanted = {axis: d for d, axes in enumerate(want) for axis in axes}
    got = {axis: d for d, axes in enumerate(have) for axis in axes}
    differing = [axis for axis in {**wanted, **got} if wanted.get(axis) != got.get(axis)]
    if not differing:
        return "the order of the mesh's axes, which a dimension that is split over several follows"
    groups = partitioned.places.of_value[argument.value]
    for pin in pins:
        if isinstance(pin, SpecPin) and pin.pattern == this.pattern:
            continue
        for decision in decisions_of(analysis, mesh, pin):
            if decision.axis not in differing:
                continue
            if isinstance(decision, Whole):
                blocks = decision.axis not in got and path_matches(decision.path, argument.path)
            else:
                blocks = find_group(analysis, decision.dimension) == groups[got.get(decision.axis, -1)]
            if blocks:
                return f"the pin {pin}"
    return "the other pins"
