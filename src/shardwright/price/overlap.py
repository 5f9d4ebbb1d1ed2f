"""Communication that the device computes beside: what stands between a collective's start and its use.

A *slot* is a product with all that runs after it, up to the next one, and a *stretch* are the slots of a loop's body,
or of the program around loops, that no loop comes between. Gathers are under way one at a time, in the order of what
they are for (``compiler/overlapping.py``). The one for slot ``i``, or for kernels between it and the product before, is
started with the product of a slot from which its operand is there, ``from(i)`` at the earliest: of slot ``i'``, which
the last gather was for, or, once that one is through, of an earlier one, but none before ``i''``, which the one before
it was for. So with gathers of ``g(i)`` seconds and slots of ``c(j)``, where ``C(k, i)`` are those of the slots from
``max(k, from(i))`` up to ``i``,

    beside(i) = max(C(i', i), C(i'', i) - g(i'))
    hidden    = Σ_i n_i · min(g(i), beside(i))

where a slot runs ``n_i`` times. Of equal layers that follow one another the first and the second have slots, and those
of the second stand for all that follow. Seconds are counted in whole picoseconds here, so that a sum does not depend on
the order in which it came about.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright.ir.kinds import CONTRACTIONS
from shardwright.ir.program import Program
from shardwright.price.program_classes import Classes
from shardwright.price.transfers import places_of

_PICOSECOND = 1e-12
_MOST_KNOWN = 2**14
"""Lanes that are remembered before all are forgotten."""
_MOST_PERIODS = 24
"""How many distances to the next equal kernel are tried as the length of a layer."""

Lane = NDArray[np.int64]
"""Picoseconds: a nought, those of the kernels in each slot, and then those of what is gathered for each."""


def picoseconds(seconds: float) -> int:
    """Seconds as a whole number of picoseconds."""
    return round(seconds / _PICOSECOND)


@dataclass(frozen=True)
class Stretch:
    """The products of a stretch.

    ``every`` are the positions of all of them in the program, ``slots[k]`` the slot that stands for each, and
    ``own[k]`` whether it is its own. ``kept`` are the positions of those that are slots, the first of which is
    ``start``.
    """

    start: int
    every: Sequence[int]
    slots: Sequence[int]
    own: Sequence[bool]
    kept: Sequence[int]


class Overlap:
    """The slots of a program, ``size`` of them; a slot runs ``times[slot]`` times."""

    def __init__(self, classes: Classes) -> None:
        self.classes = classes
        self._at, self._places = classes.kernels.at, places_of(classes.program)
        self._loops = _loops(classes.program, self._places)
        self._ready_at = _ready_at(classes, self._places)
        self._stretches: dict[tuple[int, int], Stretch] = {}
        self._stretch_of: list[Stretch] = []
        times: list[int] = []
        for key, found in self._products().items():
            start, kept = len(times), list[int]()
            slots: list[int] = []
            standing = roll_up([k for _, k in found])
            for number, ((position, k), first) in enumerate(zip(found, standing, strict=True)):
                if first == number:
                    kept.append(position)
                    times.append(0)
                    slots.append(len(times) - 1)
                else:
                    slots.append(slots[first])
                times[slots[-1]] += classes.kernel_classes.keys[k].repeats
            own = [first == number for number, first in enumerate(standing)]
            stretch = Stretch(start, [position for position, _ in found], slots, own, kept)
            self._stretches[key] = stretch
            self._stretch_of += [stretch] * len(kept)
        self._known: dict[bytes, float] = {}
        """What is hidden, by lanes: states that differ often have the same."""
        self.size = len(times)
        self.lane_size = 2 * self.size + 1
        self.times = np.array(times, np.int64)
        self._from = self._earliest()
        """The first slot from which something that may be gathered for a slot is there."""

    def _products(self) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """The kernels of products in each stretch, by position and class, in the order in which they run."""
        found: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for k, kernel in enumerate(self.classes.kernel_classes.keys):
            if any(self.classes.op(o).kind in CONTRACTIONS for o in kernel.ops):
                for root in self.classes.kernel_classes.members[k]:
                    found.setdefault(self._key(root), []).append((self._at[root], k))
        return {key: sorted(found[key]) for key in sorted(found)}

    def _key(self, op: int) -> tuple[int, int]:
        """The place of an op, and how many loops of it come before."""
        place = self._places[self.classes.program.ops[op].region]
        return place, bisect_right(self._loops.get(place, ()), self._at[op])

    # Columns: what is added to a lane for each picosecond.

    def of_kernels(self, roots: Iterable[int]) -> Lane | None:
        """The column of kernels, by their roots; None where nothing is gathered for what follows any of them."""
        found = []
        for root in roots:
            stretch = self._stretches.get(self._key(root))
            number = bisect_right(stretch.every, self._at[root]) - 1 if stretch is not None else -1
            if stretch is not None and 0 <= number < len(stretch.every) - 1 and stretch.own[number]:
                found.append(stretch.slots[number] + 1)
        return self._column(found)

    def of_gathers(self, uses: Iterable[tuple[int, Sequence[int]]]) -> Lane | None:
        """The column of values that are gathered, each for some ops; None where nothing runs beside any of them."""
        found = []
        for value, ops in uses:
            slot, own = self._slot_for(min(ops, key=self._at.__getitem__))
            if own and self._from_slot(value, slot) < slot:
                found.append(self.size + 1 + slot)
        return self._column(found)

    def started(self, value: int, op: int) -> int | None:
        """The position of the product with which the gather of a value for an op starts; None if it is waited for."""
        stretch = self._stretches.get(self._key(op))
        number = bisect_left(stretch.every, self._at[op]) if stretch is not None else 0
        if stretch is None or not 0 < number < len(stretch.every):
            return None
        before = stretch.every[number - 1]
        return before if self._ready_at[value] < before else None

    def _slot_for(self, op: int) -> tuple[int, bool]:
        """The slot of an op, or the one that follows it, and whether it is that op's own; -1 where there is none."""
        stretch = self._stretches.get(self._key(op))
        number = bisect_left(stretch.every, self._at[op]) if stretch is not None else 0
        if stretch is None or number == len(stretch.every):
            return -1, False
        return stretch.slots[number], stretch.own[number]

    def _column(self, entries: Sequence[int]) -> Lane | None:
        if not entries:
            return None
        column = np.zeros(self.lane_size, np.int64)
        np.add.at(column, list(entries), 1)
        return column

    # What is hidden.

    def hidden_seconds(self, lane: Lane) -> float:
        """The seconds of gathers that kernels run beside."""
        key = lane.tobytes()
        found = self._known.get(key)
        if found is None:
            slots, hidden = self._hidden(lane)
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            found = self._known[key] = float(hidden @ self.times[slots]) * _PICOSECOND
        return found

    def hidden_parts(self, lane: Lane) -> dict[int, float]:
        """For each slot that something is gathered for, how much of that is hidden, as a part of it."""
        slots, hidden = self._hidden(lane)
        gathered = lane[self.size + 1 :][slots]
        return dict(zip(slots.tolist(), (hidden / gathered).tolist(), strict=True))

    def hidden_part(self, parts: Mapping[int, float], value: int, op: int) -> float:
        """The part of gathering a value for an op that is hidden, where these are those of slots."""
        slot, _ = self._slot_for(op)
        return parts.get(slot, 0.0) if slot >= 0 and self._from_slot(value, slot) < slot else 0.0

    def _hidden(self, lane: Lane) -> tuple[Lane, Lane]:
        """The slots that something is gathered for, and the picoseconds of it that are hidden, once."""
        gathered = lane[self.size + 1 :]
        slots = gathered.nonzero()[0]
        before = lane[: self.size].cumsum()
        gathered, first, until = gathered[slots], self._from[slots], before[slots]
        beside = until - before[first]
        if len(slots) > 1:
            since_last = until[1:] - before[np.maximum(first[1:], slots[:-1])]
            beside[2:] = until[2:] - before[np.maximum(first[2:], slots[:-2])]
            beside[1:] = np.maximum(since_last, beside[1:] - gathered[:-1])
        return slots, np.minimum(gathered, beside)

    # When operands are there.

    def _from_slot(self, value: int, slot: int) -> int:
        """The first slot of a slot's stretch from which a value is there; the slot itself if there is none before."""
        stretch = self._stretch_of[slot]
        return min(stretch.start + bisect_right(stretch.kept, self._ready_at[value]), slot)

    def _earliest(self) -> Lane:
        found = np.arange(self.size, dtype=np.int64)
        for value, uses in self.classes.uses:
            for op, _ in uses:
                slot, own = self._slot_for(op)
                if own:
                    found[slot] = min(found[slot], self._from_slot(value, slot))
        return found


def _loops(program: Program, places: Sequence[int]) -> dict[int, list[int]]:
    """The positions of the loops in each place."""
    found: dict[int, list[int]] = {}
    for o, op in enumerate(program.ops):
        if op.kind == "while":
            found.setdefault(places[op.region], []).append(o)
    return found


def _ready_at(classes: Classes, places: Sequence[int]) -> list[int]:
    """The position after which each value is there, if all that is fused into others is made at once; -1: the start.

    What is cut out of an argument, or converted from it, is there as soon as that is.
    """
    program = classes.program
    fused, at = classes.kernels.fused, classes.kernels.at
    found = [-1] * len(program.values)
    for o, op in enumerate(program.ops):
        place = places[op.region]
        ready = at[o]
        if fused[o]:
            ready = max(
                (found[v] for v in op.operands if places[program.values[v].region] == place),
                default=-1,
            )
        for v in op.results:
            found[v] = ready
    return found


def roll_up(kinds: Sequence[int]) -> list[int]:
    """For each entry of a sequence the number of the one that stands for it, mostly its own.

    Where some entries are gone through three times or more, the second time stands for all that follow.
    """
    sequence = np.asarray(kinds, np.int64)
    where: dict[int, list[int]] = {}
    for number, kind in enumerate(kinds):
        where.setdefault(kind, []).append(number)
    found: list[int] = []
    while len(found) < len(kinds):
        i = len(found)
        period, turns = _repeats(sequence, where[kinds[i]], i)
        found += [
            i + number if number < 2 * period else i + period + number % period for number in range(period * turns)
        ]
    return found


def _repeats(sequence: NDArray[np.int64], same: Sequence[int], i: int) -> tuple[int, int]:
    """The period from an entry on that covers most of a sequence, and how often it is gone through; one, once."""
    best = (1, 1)
    following = bisect_right(same, i)
    for j in same[following : following + _MOST_PERIODS]:
        period = j - i
        if j + period > len(sequence) or (sequence[i:j] != sequence[j : j + period]).any():
            continue
        alike = sequence[i:-period] == sequence[j:]
        turns = (len(alike) if alike.all() else int(alike.argmin())) // period + 1
        if turns > 2 and turns * period > best[0] * best[1]:
            best = (period, turns)
    return best
