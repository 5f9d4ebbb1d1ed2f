"""What a user has decided, in any of the forms that are allowed, as decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jax.sharding import PartitionSpec

from shardwright.analysis import Analysis
from shardwright.errors import PinError, nearest
from shardwright.ir.program import Argument
from shardwright.price import Partitioned
from shardwright.request import MeshShape
from shardwright.search import Kept
from shardwright.space import Decision, Whole, expand
from shardwright.space.decisions import axis_number, find_group, path_matches

Pin = Any
"""A ``Decision``, ``Whole``, ``(axis, dimension)``, ``(axis, dimension, sides)``, ``"tactic:axis"``, or a mapping from
argument paths to ``PartitionSpec``; or a list of these."""
_OPEN = PartitionSpec.UNCONSTRAINED
"""The entry of a spec for a dimension that it leaves to the search."""


def as_decisions(analysis: Analysis, mesh: MeshShape, pins: Pin) -> list[Decision | Whole]:
    """All pins as decisions, in order, each once."""
    out: list[Decision | Whole] = []
    for pin in _flat(pins):
        for decision in _one(analysis, mesh, pin):
            if decision not in out:
                out.append(decision)
    return out


def named_axes(pins: Pin) -> tuple[str, ...]:
    """The axes that pins speak of, in the order in which they do."""
    out: list[str] = []
    for pin in _flat(pins):
        if isinstance(pin, (Decision, Whole)):
            out.append(pin.axis)
        elif isinstance(pin, str):
            out += [axis.strip() for axis in pin.partition(":")[2].split(",")]
        elif isinstance(pin, tuple):
            out.append(pin[0])
        else:
            out += [axis for spec in pin.values() if isinstance(spec, PartitionSpec) for e in spec for axis in _axes(e)]
    return tuple(dict.fromkeys(axis for axis in out if axis))


def check_specs(partitioned: Partitioned, pins: Pin) -> None:
    """Every spec that was pinned must be what came out; else the message names what took its place."""
    program, names = partitioned.program, partitioned.mesh.names
    flat = _flat(pins)
    for pin in flat:
        if not isinstance(pin, Mapping):
            continue
        for pattern, spec in pin.items():
            for argument in program.arguments:
                if not path_matches(pattern, argument.path):
                    continue
                have = [tuple(names[a] for a in axes) for axes in partitioned.values[argument.value]]
                entries = [*spec, *[None] * (len(have) - len(spec))]
                want = [h if entry is _OPEN else _axes(entry) for h, entry in zip(have, entries, strict=True)]
                if have != want:
                    other = _other_side(partitioned, flat, (pattern, spec), argument, have, want)
                    raise PinError(
                        f"the pin {pattern!r}: {spec} clashes with {other}: {argument.path} of shape "
                        f"{list(program.values[argument.value].shape)} comes out as {tuple(have)}."
                    )


def _other_side(
    partitioned: Partitioned,
    pins: list[Any],
    this: tuple[str, Any],
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
        parts = [{p: s} for p, s in pin.items()] if isinstance(pin, Mapping) else [pin]
        for part in parts:
            if isinstance(part, dict) and this[0] in part:
                continue
            for decision in _one(analysis, mesh, part):
                if decision.axis not in differing:
                    continue
                if isinstance(decision, Whole):
                    blocks = decision.axis not in got and path_matches(decision.path, argument.path)
                else:
                    blocks = find_group(analysis, decision.dimension) == groups[got.get(decision.axis, -1)]
                if blocks:
                    shown = ", ".join(f"{p!r}: {s}" for p, s in part.items()) if isinstance(part, dict) else repr(part)
                    return f"the pin {shown}"
    return "the other pins"


def replicated(analysis: Analysis, mesh: MeshShape, replicate: Any, pins: Pin) -> tuple[Kept, list[Decision | Whole]]:
    """What stays whole: axes, each with the reason, and arguments as decisions.

    Raises ``PinError`` where a pin uses an axis, or shards an argument, that is to stay whole.
    """
    names = [replicate] if isinstance(replicate, str) else list(replicate or ())
    paths = [a.path for a in analysis.program.arguments]
    axes: Kept = {name: f"replicate={name!r} keeps this axis unused" for name in names if name in mesh.names}
    for pin in _flat(pins):
        used = [d for d in _one(analysis, mesh, pin) if isinstance(d, Decision) and d.axis in axes]
        if used:
            raise PinError(f"the pin {pin!r} uses the axis {used[0].axis!r}, which replicate= keeps unused; drop one.")
    whole: list[Decision | Whole] = []
    for name in names:
        if name in axes:
            continue
        matched = [path for path in paths if path_matches(name, path)]
        if not matched:
            known = nearest(name, [*paths, *mesh.names])
            raise PinError(f"replicate={name!r} is neither an axis of the mesh nor an argument{known}.")
        for pattern, spec in ((p, s) for pin in _flat(pins) if isinstance(pin, Mapping) for p, s in pin.items()):
            clash = next((path for path in matched if path_matches(pattern, path)), None)
            if clash is not None and any(_axes(entry) for entry in spec):
                raise PinError(f"the pin {pattern!r}: {spec} shards {clash}, which replicate={name!r} keeps whole.")
        whole += [Whole(axis, name) for axis in mesh.names]
    return axes, whole


def decided(analysis: Analysis, mesh: MeshShape, pins: Pin) -> Kept:
    """What specs with dimensions that are open leave to no search: groups on axes, each with the reason.

    A dimension that such a spec decides must not come to lie on a further axis, and a group lies on it everywhere.
    """
    out: dict[str | tuple[str, int], str] = {}
    for pattern, spec in ((p, s) for pin in _flat(pins) if isinstance(pin, Mapping) for p, s in pin.items()):
        if _OPEN not in spec:
            continue
        others = [name for name in mesh.names if not any(name in _axes(entry) for entry in spec)]
        for argument in analysis.program.arguments:
            if path_matches(pattern, argument.path):
                for d, colour in enumerate(analysis.colours.of_value(argument.value).tolist()):
                    if colour >= 0 and (d >= len(spec) or spec[d] is not _OPEN):
                        reason = f"the pin {pattern!r}: {spec} decides {argument.path}[{d}]"
                        out |= dict.fromkeys(((name, analysis.group_of[colour]) for name in others), reason)
    return out


def _flat(pins: Pin) -> list[Any]:
    if pins is None:
        return []
    if isinstance(pins, (str, Decision, Whole, Mapping)):
        return [pins]
    if (
        isinstance(pins, tuple)
        and len(pins) in (2, 3)
        and all(isinstance(p, str) for p in pins[:2])
        and ":" not in pins[0]
    ):
        return [pins]
    if isinstance(pins, Sequence):
        return [pin for found in pins for pin in _flat(found)]
    raise PinError(f"a pin is a tactic such as 'fsdp:data', a decision, or specs by path, not {pins!r}.")


def _one(analysis: Analysis, mesh: MeshShape, pin: Any) -> list[Decision | Whole]:
    if isinstance(pin, (Decision, Whole)):
        return [pin]
    if isinstance(pin, str):
        return expand(analysis, mesh, pin)
    if isinstance(pin, tuple):
        sides = tuple(pin[2]) if len(pin) == 3 else ()
        return [Decision(pin[0], pin[1], sides)]
    return [decision for pattern, spec in pin.items() for decision in _from_spec(analysis, mesh, pattern, spec)]


def _from_spec(analysis: Analysis, mesh: MeshShape, pattern: str, spec: Any) -> list[Decision | Whole]:
    if not isinstance(spec, PartitionSpec):
        raise PinError(f"the pin {pattern!r} needs a PartitionSpec, not {spec!r}.")
    program = analysis.program
    found = [a for a in program.arguments if path_matches(pattern, a.path)]
    if not found:
        raise PinError(
            f"no argument matches the pin {pattern!r}{nearest(pattern, [a.path for a in program.arguments])}."
        )
    out: list[Decision | Whole] = []
    used = {name for entry in spec for name in _axes(entry)}
    for argument in found:
        shape = program.values[argument.value].shape
        if len(spec) > len(shape):
            raise PinError(f"the pin {pattern!r}: {spec} is longer than {argument.path} of shape {list(shape)}.")
        for d, entry in enumerate(spec):
            ways = 1
            for name in _axes(entry):
                ways *= mesh.sizes[axis_number(mesh, name, f"{pattern}: {spec}")]
                if shape[d] % ways:
                    raise PinError(
                        f"the pin {pattern!r}: {spec} splits {argument.path}[{d}] of {shape[d]} into {ways}."
                    )
                out.append(Decision(name, f"{argument.path}[{d}]"))
        if _OPEN not in spec:
            out.extend(Whole(name, argument.path) for name in mesh.names if name not in used)
    return out


def _axes(entry: Any) -> tuple[str, ...]:
    if entry is None or entry is _OPEN:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)
