"""Tactics: strategies that have a name, as decisions, found from the program's structure alone.

Each takes the program's roles and an axis and returns decisions; each raises ``PinError`` with the reason where it does
not apply. They combine: on different axes, or one after the other on one axis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from shardwright.analysis import Analysis
from shardwright.errors import PinError, nearest
from shardwright.request import Decision, MeshShape, Whole
from shardwright.space.decisions import axis_number, find_group, paths_of
from shardwright.space.roles import Roles

_WORTH = 0.05


Tactic = Callable[[Roles, str, int], list[Decision | Whole]]
"""From the roles of a program, an axis and its size to decisions."""


def data_parallel(roles: Roles, axis: str, size: int) -> list[Decision | Whole]:
    """Each device takes a part of the batch; parameters are whole, gradients are summed."""
    return [_decision(roles, axis, _divisible(roles, roles.batch, size, "data_parallel", "batch"))]


def fsdp(roles: Roles, axis: str, size: int) -> list[Decision | Whole]:
    """ZeRO-3: data parallel, and what has no batch is stored in parts, gathered where it is used."""
    others = set(range(len(roles.analysis.groups))) - {roles.batch}
    cover = roles.cover(roles.weights, others, size)
    if not cover:
        raise PinError(f"fsdp does not apply on {axis!r}: no parameter has a dimension that {size} divides.")
    return [*data_parallel(roles, axis, size), *(_decision(roles, axis, g) for g in cover)]


def zero1(roles: Roles, axis: str, size: int) -> list[Decision | Whole]:
    """ZeRO-1: as fsdp, but the parameters themselves stay whole; only optimizer state and gradients are in parts."""
    program = roles.analysis.program
    state = set(roles.weights) - set(roles.parameters)
    if not any(program.values[v].shape for v in state):
        raise PinError("zero1 does not apply: there is no optimizer state beside the parameters.")
    return [*fsdp(roles, axis, size), *(Whole(axis, path) for path in paths_of(program, roles.parameters))]


def megatron(roles: Roles, axis: str, size: int) -> list[Decision | Whole]:
    """Tensor parallelism: the inner dimensions of the weights (heads, hidden, vocabulary), not the one all share."""
    program = roles.analysis.program
    inner = _inner_groups(roles, size)
    if not inner:
        raise PinError(f"megatron does not apply on {axis!r}: no weights have an inner dimension that {size} divides.")
    total = sum(program.values[v].bytes for v in roles.weights)
    chosen: list[int] = []
    covered: set[int] = set()
    for g in inner:
        have = {v for v in roles.weights if g in roles.groups_of_arguments[v]}
        gain = sum(program.values[v].bytes for v in have - covered)
        if gain >= _WORTH * total:
            chosen.append(g)
            covered |= have
    return [_decision(roles, axis, g) for g in chosen]


def _inner_groups(roles: Roles, size: int) -> list[int]:
    """Groups of weights by FLOPs, without batch, sequence and experts and without the one that most weights have."""
    program, described = roles.analysis.program, roles.analysis.descriptions
    coverage: dict[int, int] = {}
    for v in roles.parameters:
        for g in set(roles.groups_of_arguments[v]) - {-1, roles.batch, roles.sequence, roles.experts}:
            coverage[g] = coverage.get(g, 0) + program.values[v].bytes
    if not coverage:
        return []
    # Copies of an inner dimension, one a layer, are a group of several colours; the stream through them is one colour.
    colours = {g: len(roles.analysis.groups[g].colours) for g in coverage}
    stream = max(coverage, key=lambda g: (coverage[g], -colours[g], -g))
    joins = Counter(g for v in roles.parameters for g in set(roles.groups_of_arguments[v]))
    if all(joins[g] < 2 for g in coverage if g != stream) and joins[stream] > 1:
        stream = -1  # two layers: what joins them is inside, and there is no stream
        coverage = {g: n for g, n in coverage.items() if joins[g] > 1}
    inner = [g for g in coverage if g != stream and described[g].flops and described[g].size % size == 0]
    return sorted(inner, key=lambda g: (-described[g].flops, g))


def megatron_sequence(roles: Roles, axis: str, size: int) -> list[Decision | Whole]:
    """Megatron with sequence parallelism: what Megatron leaves whole is sharded along the sequence."""
    sequence = _divisible(roles, roles.sequence, size, "megatron_sequence", "sequence")
    return [*megatron(roles, axis, size), _decision(roles, axis, sequence, rows=True)]


def context_parallel(roles: Roles, axis: str, size: int) -> list[Decision | Whole]:
    """The sequence is sharded on the side of the queries; keys and values are gathered."""
    sequence = _divisible(roles, roles.sequence, size, "context_parallel", "sequence")
    return [_decision(roles, axis, sequence, rows=True)]


def expert_parallel(roles: Roles, axis: str, size: int) -> list[Decision | Whole]:
    """Each device holds a part of the experts; tokens travel to them."""
    return [_decision(roles, axis, _divisible(roles, roles.experts, size, "expert_parallel", "expert dimension"))]


def spatial(roles: Roles, axis: str, size: int) -> list[Decision | Whole]:
    """Images are cut into strips, which exchange their rims at convolutions."""
    return [_decision(roles, axis, _divisible(roles, roles.height, size, "spatial", "image height"), rows=True)]


TACTICS: Mapping[str, Tactic] = {
    "data_parallel": data_parallel,
    "fsdp": fsdp,
    "zero1": zero1,
    "megatron": megatron,
    "megatron_sequence": megatron_sequence,
    "context_parallel": context_parallel,
    "expert_parallel": expert_parallel,
    "spatial": spatial,
}


def expand(analysis: Analysis, mesh: MeshShape, text: str) -> list[Decision | Whole]:
    """The decisions of ``"fsdp:data"``; the batch can be named, as in ``"fsdp:data=batch.tokens[0]"``.

    Several tactics and axes can be given at once: ``"expert_parallel+fsdp:data,model"`` is both on both.
    """
    first, _, rest = text.partition(":")
    last, _, batch = rest.partition("=")
    names = [name.strip() for name in first.split("+")]
    for name in names:
        if name not in TACTICS:
            raise PinError(f"there is no tactic {name!r}{nearest(name, list(TACTICS))} (known: {', '.join(TACTICS)}).")
    roles = Roles(analysis, find_group(analysis, batch)) if batch else Roles.of(analysis)
    axes = [axis.strip() for axis in last.split(",")]
    sizes = [mesh.sizes[axis_number(mesh, axis, text)] for axis in axes]
    found = [TACTICS[name](roles, axis, size) for axis, size in zip(axes, sizes, strict=True) for name in names]
    return list(dict.fromkeys(decision for decisions in found for decision in decisions))


def _decision(roles: Roles, axis: str, group: int, rows: bool = False) -> Decision:
    sides = roles.row_side(group) if rows else ()
    return Decision(axis, roles.analysis.descriptions[group].name, sides if any(sides) else ())


def _divisible(roles: Roles, group: int | None, size: int, tactic: str, what: str) -> int:
    if group is None:
        raise PinError(f"{tactic} does not apply: the program has no {what}.")
    description = roles.analysis.descriptions[group]
    if all(s % size for s in description.sizes):
        raise PinError(
            f"{tactic} does not apply: {size} devices do not divide the {what} {description.name} "
            f"of {description.size}."
        )
    return group
