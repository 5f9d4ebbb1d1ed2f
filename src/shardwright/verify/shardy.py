"""Shardy's explicit collectives for the annotated module, beside those that the plan implies."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwright import _jax
from shardwright.apply import annotated_module
from shardwright.apply.annotate import TAG
from shardwright.ir.build import functions_of
from shardwright.ir.collective_ops import axes_of, is_collective
from shardwright.ir.program import Source, bits_of
from shardwright.ir.sources import Sources
from shardwright.plan.verdicts import Verdict
from shardwright.price import Partitioned
from shardwright.price.collectives import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, PERMUTE, REDUCE_SCATTER, own_move
from shardwright.request import MeshShape

if TYPE_CHECKING:
    from shardwright.plan import Plan

AGREEMENT = 0.10
_AXIS = re.compile(r'"([^"]+)"(?::\(\d+\)(\d+))?')
"""An axis by its name, or a part of one: ``"x":(1)2``."""
_DIMENSION = re.compile(r'\{[^{}]*"[^{}]*\}')
"""The axes of a dimension that has any."""
EXPLICIT = "func.func(sdy-insert-explicit-reshards{enable-full-version=true},sdy-reshard-to-collectives)"
_WITH_BODIES = frozenset(
    {"stablehlo.while", "stablehlo.case", "stablehlo.if", "sdy.named_computation", "sdy.manual_computation"}
)
_PIPELINE = f"sdy-propagation-pipeline,{EXPLICIT}"
_KINDS = {
    "sdy.all_gather": ALL_GATHER,
    "sdy.all_reduce": ALL_REDUCE,
    "sdy.reduce_scatter": REDUCE_SCATTER,
    "sdy.all_to_all": ALL_TO_ALL,
    "sdy.collective_permute": PERMUTE,
}


@dataclass(frozen=True)
class ShardyCollective:
    """A collective in Shardy's program: ``bytes`` that each device sends, once, and how often.

    ``axes`` are numbers of the mesh's axes; ``in_place`` as that of a ``Move``.
    """

    kind: str
    axes: tuple[int, ...]
    bytes: float
    times: int
    source: Source
    in_place: bool = True

    @property
    def total_bytes(self) -> float:
        """Bytes that each device sends over the whole run."""
        return self.bytes * self.times


def verify_shardy(plan: Plan, *, platform: str | None = None) -> Verdict:
    """Bytes by kind, ours and Shardy's; ok if the totals agree within a tenth.

    ``platform`` is what to lower for; by default what the plan was made for.
    """
    theirs = shardy_collectives(plan, platform)
    ours_by, theirs_by = _by_kind(plan.collectives), _by_kind(theirs)
    ours, total = sum(ours_by.values()), sum(theirs_by.values())
    ratio = ours / total if total else (1.0 if not ours else math.inf)
    figures = {
        "ours_bytes": ours_by,
        "shardy_bytes": theirs_by,
        "ours_counts": _counts(plan.collectives),
        "shardy_counts": _counts(theirs),
        "ratio": ratio,
        "differences": _differences(plan.collectives, theirs),
    }
    message = f"the plan implies {ours / 1e6:,.1f} MB from each device, Shardy's program moves {total / 1e6:,.1f} MB"
    if plan.partitioned.padded:
        message += ", which gathers the dimensions that the compiler pads: compile it to see what that does"
    return Verdict("shardy", abs(ratio - 1) <= AGREEMENT, message, figures)


def shardy_collectives(plan: Plan, platform: str | None = None) -> tuple[ShardyCollective, ...]:
    """What Shardy's own passes turn the annotated module into."""
    _, module, partitioned, _ = annotated_module(plan.sharded, platform or plan.platform)
    _jax.run_passes(module.module, _PIPELINE)
    return read_collectives(module.module, partitioned)


def read_collectives(module: Any, partitioned: Partitioned) -> tuple[ShardyCollective, ...]:
    """The collectives of a module whose ops are numbered as those of the program."""
    trips = {loop.op: loop.trips for loop in partitioned.program.loops}
    sources = Sources()
    functions = functions_of(module)
    out: list[ShardyCollective] = []

    def visit(block: Any, times: int, caller: Source) -> None:
        for view in block.operations:
            op = view.operation
            if op.name in _KINDS:
                for kind, axes, sent in _sent(op, partitioned.mesh):
                    if sent:
                        source = sources.of(op.location, caller)
                        out.append(ShardyCollective(kind, axes, sent, times, source, _in_place(op)))
            elif op.name == "func.call":
                callee = functions[_jax.ir.FlatSymbolRefAttr(op.attributes["callee"]).value]
                visit(callee.regions[0].blocks[0], times, sources.of(op.location, caller))
            elif is_collective(op.name):
                out.extend(_own(op, partitioned, times, sources.of(op.location, caller)))
            elif op.name in _WITH_BODIES:
                number = _jax.ir.IntegerAttr(op.attributes[TAG]).value if TAG in op.attributes else -1
                for region in op.regions:
                    visit(region.blocks[0], times * trips.get(number, 1), caller)

    with module.context:
        main = functions["main"]
        visit(main.regions[0].blocks[0], 1, Source())
    return tuple(out)


def _own(op: Any, partitioned: Partitioned, times: int, source: Source) -> Iterator[ShardyCollective]:
    """What each device sends for a collective that the program has itself, in a manual region."""
    mesh, sizes = partitioned.mesh, partitioned.mesh.axes
    axes = tuple(mesh.names.index(axis) for axis in axes_of(op, sizes))
    gathers = op.name == "stablehlo.all_gather"
    split = math.prod(int(part) if part else sizes[axis] for axis, part in _axes(op, "sdy.sharding"))
    for operand, result in zip(op.operands, op.results, strict=True):
        type_ = (result if gathers else operand).type
        size = math.prod(type_.shape) * bits_of(str(type_.element_type)) / 8 / split
        move = own_move(op.name.partition(".")[2], axes, size, mesh)
        if move.bytes:
            yield ShardyCollective(move.kind, axes, move.bytes, times, source)


def _sent(op: Any, mesh: MeshShape) -> list[tuple[str, tuple[int, ...], float]]:
    """What each device sends for one of Shardy's collectives, by the same ring formulas as for our own."""
    sizes = dict(zip(mesh.names, mesh.sizes, strict=True))

    def ways(axes: Iterable[tuple[str, str]]) -> int:
        return math.prod(int(part) if part else sizes[axis] for axis, part in axes)

    def numbers(axes: Iterable[tuple[str, str]]) -> tuple[int, ...]:
        return tuple(sorted({mesh.names.index(axis) for axis, _ in axes}))

    type_ = op.results[0].type
    total = math.prod(type_.shape) * bits_of(str(type_.element_type)) / 8
    local = total / ways(_axes(op, "out_sharding"))
    kind = _KINDS[op.name]
    if kind == ALL_GATHER:
        axes = _axes(op, "gathering_axes")
        n = ways(axes)
        return [(kind, numbers(axes), local * (n - 1) / n)]
    if kind == REDUCE_SCATTER:
        axes = _axes(op, "reduce_scatter_axes")
        return [(kind, numbers(axes), local * (ways(axes) - 1))]
    if kind == ALL_TO_ALL:
        axes = _axes(op, "params")
        n = ways(axes)
        return [(kind, numbers(axes), local * (n - 1) / n)]
    if kind == ALL_REDUCE:
        # Where each device keeps only a slice of the sum, this counts a reduce-scatter over the axes of the slice and
        # an all-reduce of the smaller rest over the others. The TPU compiler was seen to take the axes apart and to
        # slice in between, but with an all-reduce in the first place, over groups of two.
        scattered = _sliced_axes(op)
        others = _axes(op, "reduction_axes") - scattered
        n, m = ways(scattered), ways(others)
        return [
            (REDUCE_SCATTER, numbers(scattered), local * (n - 1) / n),
            (ALL_REDUCE, numbers(others), 2 * local / n * (m - 1) / m),
        ]
    return [(kind, tuple(range(len(mesh.names))), local)]


def _in_place(op: Any) -> bool:
    """Unless it gathers along several dimensions."""
    gathered = str(op.attributes["gathering_axes"]) if "gathering_axes" in op.attributes else ""
    return len(_DIMENSION.findall(gathered)) < 2


def _axes(op: Any, attribute: str) -> set[tuple[str, str]]:
    """The axes named in an attribute; Shardy's bindings give no way to lists of axes but their text."""
    return set(_AXIS.findall(str(op.attributes[attribute]))) if attribute in op.attributes else set()


def _sliced_axes(op: Any) -> set[tuple[str, str]]:
    """Of an all-reduce's axes those along which every user keeps its slice."""
    found = _axes(op, "reduction_axes")
    users = [use.owner.operation for use in op.results[0].uses]
    for user in users:
        found &= _axes(user, "slicing_axes") if user.name == "sdy.all_slice" else set()
    return found if users else set()


def _by_kind(collectives: Iterable[Any]) -> dict[str, float]:
    out: dict[str, float] = defaultdict(float)
    for c in collectives:
        out[c.kind] += c.total_bytes
    return dict(out)


def _counts(collectives: Iterable[Any]) -> dict[str, int]:
    out: dict[str, int] = defaultdict(int)
    for c in collectives:
        out[c.kind] += c.times
    return dict(out)


def _differences(ours: Iterable[Any], theirs: Iterable[Any]) -> list[dict[str, Any]]:
    """Source lines at which the bytes differ, largest first."""
    at: dict[tuple[str, bool], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for k, side in enumerate((ours, theirs)):
        for c in side:
            at[str(c.source), c.source.backward][k] += c.total_bytes
    differing = [(place, a, b) for place, (a, b) in at.items() if abs(a - b) > 0.01 * max(a, b)]
    return [
        {"at": source + (", backward" if backward else ""), "ours": a, "shardy": b}
        for (source, backward), a, b in sorted(differing, key=lambda row: -abs(row[1] - row[2]))[:20]
    ]
