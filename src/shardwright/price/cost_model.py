"""What a state costs: seconds and bytes, by looking only at what has changed since the last state.

What a class of kernels or values costs in a state depends on nothing but the entries of the state's lists that it sees.
Classes that see the same are a *family* (``price/units.py``), and each family remembers its price for every such part
of a state that it has met. The price of a state is then one look-up for each family; of a state that differs from the
last one by a decision, one for each family that sees the decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from operator import itemgetter, ne
from typing import NamedTuple

from shardwright._memo import Numbers
from shardwright.compiler.overlapping import started_early
from shardwright.compiler.storing import ON_CHIP
from shardwright.devices import Device
from shardwright.price.assign import Assigner, Assignment
from shardwright.price.buffers import Buffer
from shardwright.price.class_prices import KernelWorks, OpPrices, Projections, Seen, Tensors, View, WorkBySplit
from shardwright.price.collectives import Move
from shardwright.price.corrections import NONE, Corrections
from shardwright.price.overlap import Overlap
from shardwright.price.partitioned import Partitioned, partition_program, partition_values
from shardwright.price.prices import DevicePrices
from shardwright.price.program_classes import Classes, Points, find_points
from shardwright.price.shardings import Places
from shardwright.price.transfers import all_and_exposed
from shardwright.price.units import (
    ATTOSECOND,
    SHORT,
    Family,
    FamilyPart,
    Rows,
    Units,
    added_beside,
    find_families,
    most_on_host,
    total_row,
    total_times,
)
from shardwright.request import MeshShape
from shardwright.space.state import Lists, Sharding, State, Subject

_MOST_KEPT_ROWS = 2**27
"""Numbers, eight bytes each, that may be remembered before all are forgotten."""


class Cost(NamedTuple):
    """The cost of a state: the seconds of a step, and the bytes of a device.

    ``peak_bytes`` is the most that a device holds at any point, ``host_bytes`` the most that it keeps on its host, and
    ``host_over_bytes`` how much of that is too much. ``transfer_seconds`` are the seconds of moves between host and
    device, and ``exposed_transfer_seconds`` those of them that compute does not hide; ``hidden_seconds`` are those of
    the communication that it does.
    """

    compute_seconds: float
    comm_seconds: float
    peak_bytes: int
    host_bytes: int = 0
    host_over_bytes: int = 0
    transfer_seconds: float = 0.0
    exposed_transfer_seconds: float = 0.0
    hidden_seconds: float = 0.0

    @property
    def exposed_seconds(self) -> float:
        """The seconds of communication and transfers that compute does not hide."""
        return self.comm_seconds - self.hidden_seconds + self.exposed_transfer_seconds

    @property
    def step_seconds(self) -> float:
        """The seconds of a step: compute, and what of communication and transfers it does not hide."""
        return self.compute_seconds + self.comm_seconds - self.hidden_seconds + self.exposed_transfer_seconds

    def over_bytes(self, limit_bytes: int) -> int:
        """Return the bytes beyond the limit of the device and beyond the memory of its host; 0 if both fit."""
        return max(self.peak_bytes - limit_bytes, 0) + self.host_over_bytes


class Sums(NamedTuple):
    """What all families add to a cost; the array is changed in place from one state to the next.

    ``row`` are bytes at each point, beside those ``everywhere``, and then the picoseconds of ``overlap``'s lane;
    ``times`` are compute, communication, and what of it runs beside the ops' own work, in attoseconds.
    """

    row: Rows
    everywhere: int
    times: tuple[int, int, int]

    @classmethod
    def of(cls, parts: Sequence[FamilyPart], size: int) -> Sums:
        """Of all families' parts."""
        return cls(total_row(parts, size), sum([part.everywhere for part in parts]), total_times(parts))


def _chosen(numbers: Sequence[int]) -> Callable[[Sequence[Seen]], tuple[Seen, ...]]:
    """What is at these numbers of a sequence."""
    if len(numbers) < 2:
        return lambda found: tuple([found[number] for number in numbers])
    return itemgetter(*numbers)


class CostModel:
    """Costs of states of one program on one mesh of devices. ``evaluate`` is the fast way in.

    An ``assigner`` that has seen the same classes of ops on this mesh need not weigh them again. ``like`` prices the
    same program on another mesh: what does not depend on the mesh is taken from it. ``freed`` are values whose
    shardings in the program do not count. ``corrections`` are factors on the prices of this program.
    """

    def __init__(
        self,
        places: Places,
        mesh: MeshShape,
        device: Device,
        whole: tuple[frozenset[int], ...] = (),
        fixed: Sequence[Sharding] | None = None,
        assigner: Assigner | None = None,
        like: CostModel | None = None,
        freed: frozenset[int] = frozenset(),
        corrections: Corrections = NONE,
    ) -> None:
        self.mesh, self.device, self.whole, self.corrections = mesh, device, whole, corrections
        if like is not None and (
            like.whole != whole or like.device.compiler is not device.compiler or fixed is not None
        ):
            like = None
        self.classes: Classes = (
            like.classes if like is not None else Classes(places, whole, device.compiler, fixed, freed)
        )
        self.points: Points = find_points(self.classes) if like is None else like.points
        self.at = self.points.at
        self.prices = DevicePrices.of(device, mesh)
        self.assigner = assigner or Assigner(mesh, self.prices, as_they_lie=places.analysis.program.typed)
        # Into how many parts each factor is split says what is left to do, on any mesh of the same device.
        self._work: WorkBySplit = like._work if like is not None and like.device == device else {}
        self.overlap: Overlap | None = like.overlap if like is not None else None
        self._make_units()
        self.priced_units = 0
        """How many prices of classes have been asked of families that had to look: what the time of evaluations goes
        by, on any machine."""
        self._start()

    def _make_units(self) -> None:
        classes = self.classes
        sets: Numbers[frozenset[Subject]] = Numbers()
        value_sets = [sets[groups] for groups in classes.groups_of_values]
        op_sets = [sets[groups] for groups in classes.groups_of_ops]
        most = ON_CHIP.effect.most_part * self.device.on_chip_bytes
        self.tensors = Tensors(classes.values.keys, value_sets, self.mesh, self.device.tile, most)
        self.ops = OpPrices(classes, op_sets, self.tensors, self.device, self.assigner, self._work)
        self.kernels = KernelWorks(classes, self.ops)
        overlap = self.overlap
        if overlap is None and started_early(self.device.compiler):
            overlap = self.overlap = Overlap(classes)
        made_of = (classes, self.points, self.tensors, self.ops, self.kernels, self.prices, overlap)
        self.units = Units(*made_of, self.corrections)
        points, lane_size = len(self.at), overlap.lane_size if overlap is not None else 0
        self.families: list[Family] = find_families(self.units.all(), sets, points, lane_size)
        self._every = range(len(self.families))
        self._own = _chosen([family.number for family in self.families])
        self._sizes = points, points + lane_size
        self._projections = Projections(sets.things)
        self.uses_host = bool(classes.program.on_host)
        """Whether anything lies in the host's memory."""

    def _start(self) -> None:
        """Begin with the state without decisions."""
        self._kept_rows = 0
        self._view = self.view(((),) * len(self.mesh.sizes))
        self._parts = [family.add_up(self._view) for family in self.families]
        self._sums = Sums.of(self._parts, self._sizes[1])

    # The fast way.

    def evaluate(self, state: State) -> Cost:
        """The cost of a state."""
        if state.lists != self._view.lists:
            self._move_to(state.lists)
        return self._cost(self._parts, self._sums)

    def evaluate_shardings(self, shardings: Sequence[Sharding]) -> Cost:
        """The cost of any shardings, one for each class of values, whether or not a state leads to them.

        An op may then use every axis on every factor that the axis divides. Slower than ``evaluate``.
        """
        return self.price(self._view.of_shardings(shardings))

    def price(self, view: View) -> Cost:
        """The cost of a state, or of shardings, whatever was looked at before."""
        parts = [family.add_up(view) for family in self.families]
        return self._cost(parts, Sums.of(parts, self._sizes[1]))

    def _cost(self, parts: Sequence[FamilyPart], sums: Sums) -> Cost:
        compute, comm, hidden = [time * ATTOSECOND for time in sums.times]
        points = self._sizes[0]
        peak_bytes = int(sums.row[:points].max(initial=0)) + sums.everywhere
        if comm and self.overlap is not None:
            hidden = min(max(hidden + self.overlap.hidden_seconds(sums.row[points:]), 0.0), comm)
        if not self.uses_host:
            return Cost(compute, comm, peak_bytes, hidden_seconds=hidden)
        host, limit = most_on_host(parts), self.device.host_memory_bytes
        over = max(host - limit, 0) if limit else 0
        transfers = all_and_exposed(added_beside(parts), self.units.transfers.places)
        return Cost(compute, comm, peak_bytes, host, over, *transfers, hidden)

    @classmethod
    def of_shardings(cls, places: Places, mesh: MeshShape, device: Device, shardings: Sequence[Sharding]) -> Cost:
        """The cost of any shardings, one for each value of the program."""
        model = cls(places, mesh, device, fixed=shardings)
        return model.evaluate_shardings([c.fixed or () for c in model.classes.values.keys])

    def rows(self, lists: Lists) -> Rows:
        """Bytes at each point in a state."""
        if lists != self._view.lists:
            self._move_to(lists)
        return self._sums.row[: self._sizes[0]] + self._sums.everywhere

    def hidden_parts(self, lists: Lists) -> Mapping[int, float]:
        """For each slot of ``overlap`` how much of what is gathered for it is hidden, as a part of it."""
        if lists != self._view.lists:
            self._move_to(lists)
        return self.overlap.hidden_parts(self._sums.row[self._sizes[0] :]) if self.overlap is not None else {}

    def _move_to(self, lists: Lists) -> None:
        view, size = self.view(lists), self._sizes[1]
        before, now = self._own(self._view.seen), self._own(view.seen)
        row, everywhere, (compute, comm, hidden) = self._sums
        families, parts, long = self.families, self._parts, size > SHORT
        for f in compress(self._every, map(ne, before, now)):  # the loop that a search spends its time in
            family, old = families[f], parts[f]
            part = family.known.get(now[f])
            if part is None:
                part = family.known[now[f]] = family.add_up(view)
                self.priced_units += family.classes
                self._kept_rows += size
            if part is not old:
                if part.row is not None:
                    row += part.row
                if old.row is not None:
                    row -= old.row
                if long:
                    for span, numbers in part.pieces:
                        at = row[span]
                        at += numbers
                    for span, numbers in old.pieces:
                        at = row[span]
                        at -= numbers
                    everywhere += part.everywhere - old.everywhere
                compute += part.compute - old.compute
                comm += part.comm - old.comm
                hidden += part.hidden - old.hidden
                parts[f] = part
        self._view, self._sums = view, Sums(row, everywhere, (compute, comm, hidden))
        if self._kept_rows + self._projections.remembered > _MOST_KEPT_ROWS:
            self._forget()

    def _forget(self) -> None:
        """Give back the memory of prices that may never be asked for again."""
        for family in self.families:
            family.forget()
        self._projections.forget()
        self._kept_rows = 0

    def partitioned(self, state: State) -> Partitioned:
        """The program in a state, class by class: as ``partition_program`` would make it op by op, and far sooner."""
        classes, view, places = self.classes, self.view(state.lists), self.classes.places
        if state.whole != self.whole:
            return partition_program(places, self.mesh, state, self.prices, self.assigner)
        of_class = [self.sharding(c, view) for c in range(len(classes.values.keys))]
        values = tuple([of_class[c] for c in classes.of_value])
        known: dict[int, Assignment] = {}
        for o, (op, short) in enumerate(zip(places.analysis.program.ops, classes.program.ops, strict=True)):
            if op.rule.tensors and op.kind == short.kind and op.operands == short.operands:
                known[o] = self.assignment(classes.of_op[o], view)
        return partition_values(places, self.mesh, state, values, self.assigner, known)

    # What classes are and cost.

    def view(self, lists: Lists) -> View:
        """A state as classes see it."""
        return self._projections.view(lists)

    def sharding(self, value_class: int, view: View) -> Sharding:
        """The sharding of the values of a class."""
        return self.tensors.sharding(value_class, view)

    def assignment(self, op_class: int, view: View) -> Assignment:
        """How the ops of a class run."""
        return self.ops.price(op_class, view).assignment

    def bytes_in(self, value_class: int, sharding: Sharding) -> float:
        """The bytes of one device's part of a value."""
        return self.tensors.bytes_in(value_class, sharding)

    def value_bytes(self, v: int, view: View) -> int:
        """The bytes of one device's part of a value in a state."""
        c = self.classes.of_value[v]
        return int(self.bytes_in(c, self.sharding(c, view)))

    def buffer_bytes(self, buffer: Buffer, view: View) -> int:
        """The bytes of a buffer in a state."""
        c = self.classes.of_value[buffer.value]
        return int(self.tensors.held_bytes(c, self.sharding(c, view), buffer.form))

    def held_bytes(self, state: State) -> int:
        """The bytes of a device that hold arguments, all the time."""
        view = self.view(state.lists)
        return sum(self.value_bytes(v, view) for v in self.classes.buffers.held)

    def moves_seconds(self, moves: Iterable[Move]) -> float:
        """The seconds of collectives, one after the other."""
        return self.units.moves_seconds(moves)
