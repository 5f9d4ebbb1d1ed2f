"""Memory over the program: what a device holds at every kernel, and what kind of thing it is.

The cost model looks only at points where the peak may be; here are all of them, for people to look at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardwright.ir.program import Source
from shardwright.price.cost_model import CostModel
from shardwright.space.state import State

Bytes = NDArray[np.int64]

ARGUMENTS, VALUES, COPIES, UNREDUCED = "arguments", "values", "resharded copies", "unreduced results"


@dataclass(frozen=True)
class Body:
    """A loop's body: the numbers of its first and last point, and how often it runs."""

    first: int
    last: int
    trips: int


@dataclass(frozen=True, eq=False)
class Timeline:
    """Bytes alive at each point of a program, in order; one point for each position at which a kernel runs.

    ``bytes`` are by kind, all of the same length; ``sources`` are the lines of the kernels. ``bodies`` are those of
    the outermost loops.
    """

    sources: tuple[Source, ...]
    bytes: Mapping[str, Bytes]
    bodies: tuple[Body, ...]

    @cached_property
    def total(self) -> Bytes:
        """Bytes of all kinds."""
        return sum(self.bytes.values(), np.zeros(len(self.sources), np.int64))

    @property
    def peak(self) -> int:
        """The number of the point at which most is alive."""
        return int(self.total.argmax())


def make_timeline(model: CostModel, state: State) -> Timeline:
    """The memory of a state, point by point."""
    classes, units, view = model.classes, model.units, model.view(state.lists)
    program, at = classes.program, classes.kernels.at
    runs = {at[root]: root for members in classes.kernel_classes.members for root in members}
    positions = np.array(sorted(runs) or [0], np.int64)

    spans: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for buffer in classes.buffers.temporary:
        spans[VALUES].append((buffer.start, buffer.end, model.buffer_bytes(buffer, view)))
    for relaid in units.relaid:
        if relaid.start >= 0:
            spans[VALUES].append((relaid.start, relaid.end, int(units.relaid_work(relaid, view).copy_bytes)))
    for laid in units.laid:
        if laid.made >= 0:
            spans[VALUES].append((*units.laid_span(laid), int(units.laid_work(laid, view).copy_bytes)))
    for u in range(len(classes.use_classes.keys)):
        for want, (moves, which) in units.wanted(u, view).items():
            each, early = int(units.copy_bytes(u, want, which)), units.starts_early(moves)
            spans[COPIES] += [(*units.use_span(m, which, early), each) for m in classes.use_classes.members[u]]
        if late := units.kept_late(u, view):
            found = [units.late_span(m, late.which) for m in classes.use_classes.members[u]]
            spans[VALUES] += [(*span, late.bytes) for span in found if span]
    held = model.held_bytes(state)
    unreduced = np.zeros(len(positions), np.int64)
    for k, members in enumerate(classes.kernel_classes.members):
        extra = int(model.kernels.of(k, view).unmoved_bytes)
        if extra:
            here = np.searchsorted(positions, [at[root] for root in members])
            np.maximum.at(unreduced, here, extra)
    return Timeline(
        sources=tuple(program.ops[runs[p]].source if p in runs else Source() for p in positions.tolist()),
        bytes={
            ARGUMENTS: np.full(len(positions), held, np.int64),
            VALUES: _added_up(positions, spans[VALUES]),
            COPIES: _added_up(positions, spans[COPIES]),
            UNREDUCED: unreduced,
        },
        bodies=_bodies(model, positions),
    )


def _added_up(positions: NDArray[np.int64], spans: list[tuple[int, int, int]]) -> Bytes:
    """Bytes at each position of what is there from a start up to and with an end."""
    changes = np.zeros(len(positions) + 1, np.int64)
    if spans:
        start, end, size = np.array(spans, np.int64).T
        np.add.at(changes, np.searchsorted(positions, start, side="left"), size)
        np.add.at(changes, np.searchsorted(positions, end, side="right"), -size)
    return changes.cumsum()[:-1]


def _bodies(model: CostModel, positions: NDArray[np.int64]) -> tuple[Body, ...]:
    program = model.classes.program
    out = []
    for loop in program.loops:
        op = program.ops[loop.op]
        if op.region == 0 and loop.trips > 1:
            body = program.regions[op.regions[-1]]
            first = int(np.searchsorted(positions, body.start, side="left"))
            last = int(np.searchsorted(positions, body.stop, side="left")) - 1
            if first <= last:
                out.append(Body(first, last, loop.trips))
    return tuple(out)
