"""Moves between the memories of host and device in XLA's final program, replayed in the order in which it runs.

The TPU compiler's last text is its schedule. A move has a start and a done; in between other work runs, at the cycles
that the compiler gives it, and at the done the step waits for what is left. The link carries one move after another,
but both ways at once. Collectives have no cycles and count as no time, so that what is said to be exposed is rather too
much. Arrays on the host are those of memory space 5 (``S(5)``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shardwright.verify.hlo import Computation, HloModule, Instruction, array_shapes, bytes_of
from shardwright.verify.hlo_loops import trip_count
from shardwright.verify.hlo_totals import hlo_totals

_HOST = "S(5)"
_START, _DONE = "-start", "-done"


@dataclass(frozen=True)
class HloTransfers:
    """Bytes of one device to and from the host, and what they take; ``exposed_seconds`` no other work hides."""

    to_host_bytes: float = 0.0
    to_device_bytes: float = 0.0
    transfer_seconds: float = 0.0
    exposed_seconds: float = 0.0

    def plus(self, other: HloTransfers, times: int = 1) -> HloTransfers:
        """With another's, run so many times."""
        return HloTransfers(
            self.to_host_bytes + times * other.to_host_bytes,
            self.to_device_bytes + times * other.to_device_bytes,
            self.transfer_seconds + times * other.transfer_seconds,
            self.exposed_seconds + times * other.exposed_seconds,
        )


@dataclass
class _Clock:
    """Where a replay has come to: seconds, until when the link is taken each way, and when moves will be done."""

    now: float = 0.0
    free: dict[bool, float] = field(default_factory=lambda: {True: 0.0, False: 0.0})
    done: dict[str, float] = field(default_factory=dict)
    exposed: float = 0.0


def replay_transfers(module: HloModule, clock_hertz: float, host_bytes_per_second: float) -> HloTransfers:
    """The whole program's moves."""
    seconds_of = {name: hlo_totals(module, name).cycles / clock_hertz for name in module.computations}
    known: dict[str, HloTransfers] = {}

    def of(name: str) -> HloTransfers:
        if name not in known:
            known[name] = HloTransfers()
            computation = module.computations.get(name)
            if computation is not None and any(_HOST in i.shape for i in computation.instructions.values()):
                known[name] = replay(computation)
        return known[name]

    def replay(computation: Computation) -> HloTransfers:
        clock, total = _Clock(), HloTransfers()
        for i in computation.instructions.values():
            if i.opcode == "while":
                trips = trip_count(module, computation, i) or 1
                body = i.called.get("body", ("",))[0]
                total = total.plus(of(body), trips)
                clock.now += trips * seconds_of.get(body, 0.0)
            elif (move := _move(i)) is not None:
                to_host, size = move
                seconds = size / host_bytes_per_second
                clock.free[to_host] = max(clock.free[to_host], clock.now) + seconds
                clock.done[i.name] = clock.free[to_host]
                total = total.plus(HloTransfers(size * to_host, size * (not to_host), seconds))
            elif i.opcode.endswith(_DONE) and i.operands and i.operands[0] in clock.done:
                left = clock.done.pop(i.operands[0]) - clock.now
                clock.now, clock.exposed = clock.now + max(left, 0.0), clock.exposed + max(left, 0.0)
            else:
                clock.now += (i.estimated_cycles or 0) / clock_hertz
        return total.plus(HloTransfers(exposed_seconds=clock.exposed))

    return of(module.entry)


def _move(i: Instruction) -> tuple[bool, float] | None:
    """Whether a start moves to the host, and how many bytes; None for what is no such start."""
    if not i.opcode.endswith(_START) or _HOST not in i.shape:
        return None
    arrays = [(_HOST in text, bytes_of(text)) for text in array_shapes(i.shape)]
    sizes = [size for on_host, size in arrays if not on_host and size > _SCALARS]
    if i.opcode == "copy-start":  # the result is first, then the operand
        return arrays[0][0], arrays[0][1]
    return i.opcode == "dynamic-update-slice-start", max(sizes, default=0.0)


_SCALARS = 16
"""Bytes; the indices of slices are no more."""
