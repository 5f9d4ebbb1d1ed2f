"""Estimates: what a plan costs, with its parts, as data and as text for the terminal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardwright._amounts import human_bytes, human_seconds
from shardwright._console import plain_text
from shardwright.compiler import margins
from shardwright.compiler.margins import FORWARD, LOOPED, UNROLLED, Margin
from shardwright.ir.program import Program, Source

_COSTLIEST = 10
_SHOWN = 10
_NUMBERS = ("size", "tensors", "bytes", "times", "seconds", "hidden", "arguments", "on each device")
_IN_LOOPS = 0.5


@dataclass(frozen=True)
class CollectiveCost:
    """A collective and what it takes: the ``bytes`` that each device sends in one run, and the ``seconds`` of all runs.

    It runs so many ``times``. The bytes take into account what the compiler is known to do, such as rounding a tensor
    before it is moved. ``hidden_seconds`` of the seconds other work runs beside; for the rest the device waits.
    """

    kind: str
    axes: tuple[str, ...]
    bytes: float
    times: int
    seconds: float
    tensor: str
    where: str
    source: Source
    hidden_seconds: float = 0.0

    @property
    def total_bytes(self) -> float:
        """Bytes that each device sends over the whole run."""
        return self.bytes * self.times

    @property
    def exposed_seconds(self) -> float:
        """The seconds of all runs that the device waits."""
        return self.seconds - self.hidden_seconds


@dataclass(frozen=True)
class KernelCost:
    """The kernels of one kind at one source line; ``bound`` is what they wait for: "matrix", "vector" or "memory"."""

    kind: str
    source: Source
    times: int
    seconds: float
    bound: str
    tensor: str


@dataclass(frozen=True)
class TransferCost:
    """A move between the memories of host and device.

    ``bytes`` are what one device moves in one run, ``seconds`` those of all its ``times``, and ``to`` is "host" or
    "device".
    """

    to: str
    bytes: float
    times: int
    seconds: float
    tensor: str
    source: Source

    @property
    def total_bytes(self) -> float:
        """Bytes over the whole run."""
        return self.bytes * self.times


@dataclass(frozen=True)
class Alive:
    """Tensors of an argument or a source line that a device holds at the peak of memory."""

    name: str
    what: str
    tensors: int
    bytes: int


@dataclass(frozen=True, eq=False)
class Estimate:
    """The estimated cost of a plan: the seconds of one run of the function, and the bytes of one device.

    ``peak_fraction`` is the part of all devices' peak FLOP/s that the step would reach: the time that its contractions
    would take at the peak rates of their own types, as a part of the time of the step.
    """

    device: str
    limit_bytes: int
    compute_seconds: float
    comm_seconds: float
    peak_bytes: int
    argument_bytes: int
    collectives: tuple[CollectiveCost, ...]
    kernels: tuple[KernelCost, ...]
    alive: tuple[Alive, ...]
    peak_fraction: float
    host_bytes: int = 0
    """The most that lies in the host's memory at a time, of one device."""
    host_limit_bytes: int | None = None
    """What a device has of its host's memory; None where it is not known."""
    transfer_seconds: float = 0.0
    """The seconds of all moves between the memories of host and device."""
    exposed_transfer_seconds: float = 0.0
    """The seconds of those that no compute hides: they are part of the step."""
    transfers: tuple[TransferCost, ...] = ()
    alive_on_host: tuple[Alive, ...] = ()
    hidden_seconds: float = 0.0
    """The seconds of communication that other work runs beside."""

    @property
    def exposed_comm_seconds(self) -> float:
        """The seconds of communication that no compute hides."""
        return self.comm_seconds - self.hidden_seconds

    @property
    def exposed_seconds(self) -> float:
        """The seconds of communication and transfers that no compute hides: what the device waits."""
        return self.exposed_comm_seconds + self.exposed_transfer_seconds

    @property
    def step_seconds(self) -> float:
        """The seconds of a step: compute, and what of communication and transfers it does not hide."""
        return self.compute_seconds + self.exposed_seconds

    @property
    def fits(self) -> bool:
        """Whether the peak of memory is within the limit, on the device and on the host."""
        on_host = self.host_limit_bytes is None or self.host_bytes <= self.host_limit_bytes
        return self.peak_bytes <= self.limit_bytes and on_host

    @cached_property
    def comm_by_kind(self) -> dict[str, float]:
        """The seconds of communication by kind of collective."""
        return _totals((c.kind, c.seconds) for c in self.collectives)

    @cached_property
    def comm_by_axis(self) -> dict[str, float]:
        """The seconds of communication by mesh axis, or by several axes if a collective runs over them together."""
        return _totals((", ".join(c.axes), c.seconds) for c in self.collectives)

    @property
    def costliest_kernels(self) -> tuple[KernelCost, ...]:
        """The ten kernels that take the most time."""
        return self.kernels[:_COSTLIEST]

    @cached_property
    def costliest_collectives(self) -> tuple[CollectiveCost, ...]:
        """The ten collectives that take the most time."""
        return tuple(sorted(self.collectives, key=lambda c: -c.seconds)[:_COSTLIEST])

    def __str__(self) -> str:
        return plain_text(estimate_table(self))


def _totals(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    out: dict[str, float] = defaultdict(float)
    for name, seconds in pairs:
        out[name] += seconds
    return dict(sorted(out.items(), key=lambda item: -item[1]))


def headline(estimate: Estimate) -> str:
    """One line: whether a plan fits, how long a step takes and what of."""
    fits = "fits" if estimate.fits else "does not fit"
    return (
        f"{fits}: {human_bytes(estimate.peak_bytes)} of {human_bytes(estimate.limit_bytes)} on each device; "
        f"step {human_seconds(estimate.step_seconds)} = {human_seconds(estimate.compute_seconds)} compute + "
        f"{waiting_text(estimate)}; "
        f"{100 * estimate.peak_fraction:.0f}% of the devices' peak"
    )


def waiting_text(estimate: Estimate) -> str:
    """What a step waits for: communication, with how much more of it is hidden, and what is left of transfers."""
    hidden = f" ({human_seconds(estimate.hidden_seconds)} more hidden)" if estimate.hidden_seconds else ""
    transfers = estimate.exposed_transfer_seconds
    text = f"{human_seconds(estimate.exposed_comm_seconds)} communication{hidden}"
    return f"{text} + {human_seconds(transfers)} transfers" if transfers else text


def host_text(estimate: Estimate) -> str:
    """What lies on the host, and what it takes to move it, as a sentence; empty where nothing does."""
    if not estimate.host_bytes and not estimate.transfers:
        return ""
    limit, over = estimate.host_limit_bytes, 0
    if limit is not None:
        over = estimate.host_bytes - limit
    of = f" of the {human_bytes(limit)} that it has there" if limit is not None else ""
    lies = f"Each device keeps {human_bytes(estimate.host_bytes)} on the host{of}"
    lies += f", {human_bytes(over)} too much" if over > 0 else ""
    ways = {to: sum(t.total_bytes for t in estimate.transfers if t.to == to) for to in ("host", "device")}
    moved = [f"{human_bytes(size)} to the {to}" for to, size in ways.items() if size]
    if not moved:
        return f"{lies}; nothing is moved."
    every, exposed = estimate.transfer_seconds, estimate.exposed_transfer_seconds
    hidden = "hidden behind compute" if not exposed else f"{human_seconds(exposed)} of it not hidden behind compute"
    return f"{lies} and moves {' and '.join(moved)} in {human_seconds(every)}, {hidden}."


def estimate_table(estimate: Estimate) -> RenderableType:
    """Headline, communication by kind and axis, costliest kernels and collectives, what is alive at the peak."""
    on_host = [Text(text)] if (text := host_text(estimate)) else []
    parts: list[RenderableType] = [Text(headline(estimate), style="bold"), *on_host, Text()]
    if estimate.collectives:
        by = ", ".join(f"{kind} {human_seconds(s)}" for kind, s in estimate.comm_by_kind.items())
        on = ", ".join(f"{axes} {human_seconds(s)}" for axes, s in estimate.comm_by_axis.items())
        parts += [Text(f"communication by kind: {by}"), Text(f"communication by axis: {on}"), Text()]
    kernels = table("costliest ops", "tensor", "times", "seconds", "bound by", "at")
    for k in estimate.costliest_kernels:
        kernels.add_row(k.kind, k.tensor, f"{k.times:,}", human_seconds(k.seconds), k.bound, place(k.source))
    parts.append(kernels)
    if estimate.collectives:
        hides = bool(estimate.hidden_seconds)
        moves = table("costliest collectives", "axes", "tensor", "bytes", "times", "seconds", *["hidden"] * hides, "at")
        for c in estimate.costliest_collectives:
            moves.add_row(
                c.kind,
                ", ".join(c.axes),
                c.tensor,
                human_bytes(c.bytes),
                f"{c.times:,}",
                human_seconds(c.seconds),
                *[human_seconds(c.hidden_seconds)] * hides,
                place(c.source),
            )
        parts += [Text(), moves]
    alive = table("alive at the peak", "what", "tensors", "bytes")
    for a in estimate.alive[:_SHOWN]:
        alive.add_row(a.name, a.what, f"{a.tensors:,}", human_bytes(a.bytes))
    rest = estimate.alive[_SHOWN:]
    if rest:
        alive.add_row(
            f"… and {len(rest)} more", "", f"{sum(a.tensors for a in rest):,}", human_bytes(sum(a.bytes for a in rest))
        )
    return Group(*parts, Text(), alive)


def place(source: Source) -> str:
    """A source line, and whether it is its backward pass."""
    return f"{source}{', backward' * source.backward}"


def table(*columns: str) -> Table:
    """An empty table, with columns of numbers to the right."""
    out = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        right = column in _NUMBERS
        out.add_column(column, justify="right" if right else "left", no_wrap=right, overflow="fold")
    return out


def kind_of(program: Program) -> str:
    """What kind of program it is, as far as the errors of estimates differ by it.

    A backward pass is known by the places in the source that its ops come from; a program that does not tell any may
    have one.
    """
    placed = any(op.source.file for op in program.ops)
    if placed and not any(op.source.backward for op in program.ops):
        return FORWARD
    total = looped = 0.0
    for op, repeats in zip(program.ops, program.repeats.tolist(), strict=True):
        if op.flops:
            total += op.flops * repeats
            looped += op.flops * repeats * (op.region != 0)
    return LOOPED if total and looped >= _IN_LOOPS * total else UNROLLED


def margin_of(program: Program, platform: str) -> Margin:
    """The margin of a program's estimates on a platform ("tpu", "gpu" or "cpu")."""
    return margins.margins()[platform][kind_of(program)]
