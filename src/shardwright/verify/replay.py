"""The schedule of a compiled program replayed: what its collectives and transfers add to the time of its compute.

The final text is walked in its order, with one clock for the device and one for each link: the mesh's axes, the
host's, each way, and the device's memory. Compute takes the device's time. A collective takes its axes' links, from
when all of them are free; one that is started ahead lets the device go on, and where its end stands, the device waits
for what is left of it. One without a start of its own is waited for at once. So

    replayed seconds = compute seconds + exposed seconds

where the exposed seconds are all that the device waits, and serial seconds have every collective waited for in full.

A loop's body is replayed twice: its first turn as it meets what is under way, and its second, which stands for all that
follow. Between a collective's start and its end it is taken to go on whatever runs.

The compiler brings operands from the device's memory to its chip ahead of their uses, and takes results out of the way,
by copies that have no cycles of their own, since they run beside kernels whose cycles are those of operands on the
chip. They take the memory's time, one after the other, and where their end stands the device waits as for any other
move. These waits are the program's own work, and part of its compute seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from shardwright.ir.program import Source
from shardwright.verify.hlo import HloModule
from shardwright.verify.replay_steps import Begin, End, Link, Loop, Move, Prices, Run, Steps


@dataclass
class Share:
    """Of one instruction's moves all together: what they take, what the device waits, and what ran meanwhile."""

    link: str
    times: int = 0
    seconds: float = 0.0
    exposed_seconds: float = 0.0
    behind: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def hidden_seconds(self) -> float:
        """What the device does not wait for."""
        return max(self.seconds - self.exposed_seconds, 0.0)

    def largest(self) -> tuple[tuple[str, float], ...]:
        """The source lines that ran meanwhile with their seconds, largest first."""
        return tuple(sorted(self.behind.items(), key=lambda item: -item[1]))


@dataclass(frozen=True)
class Replay:
    """A program's seconds by the replay, and the share of each instruction that moves something, by its name."""

    kernel_seconds: float
    shares: Mapping[str, Share]
    kernels: Mapping[tuple[Source, bool], float] = field(default_factory=dict)
    """The seconds of kernels by place in the source, and by whether they only lay entries out anew."""

    @property
    def compute_seconds(self) -> float:
        """What the device computes, and waits for its own memory."""
        return self.kernel_seconds + self._exposed("memory")

    @property
    def comm_seconds(self) -> float:
        """All collectives' seconds on their links."""
        return sum(share.seconds for share in self.shares.values() if share.link == "axis")

    @property
    def transfer_seconds(self) -> float:
        """All seconds of moves to and from the host."""
        return sum(share.seconds for share in self.shares.values() if share.link == "host")

    @property
    def exposed_transfer_seconds(self) -> float:
        """What the device waits for the host's link."""
        return self._exposed("host")

    @property
    def exposed_seconds(self) -> float:
        """What the device waits for other devices and for the host."""
        return self._exposed("axis") + self._exposed("host")

    def _exposed(self, link: str) -> float:
        return sum(share.exposed_seconds for share in self.shares.values() if share.link == link)

    @property
    def replayed_seconds(self) -> float:
        """From the program's start to its end."""
        return self.compute_seconds + self.exposed_seconds


def replay(module: HloModule, prices: Prices) -> Replay:
    """Walk the whole program, from its entry."""
    steps = Steps(module, prices)
    clock = _Clock()
    _walk(steps, module.entry, clock)
    return Replay(clock.compute_seconds, clock.shares, clock.kernels)


@dataclass(frozen=True)
class _UnderWay:
    """A move that has been started: when it has its links, when it is through, and how many of its kind it is for."""

    begin: float
    end: float
    weight: int
    move: Move


@dataclass
class _Clock:
    """Where the replay has come to: seconds, until when links are taken, and what is under way.

    ``weight`` is how many turns of loops the present one stands for, ``ran`` what the device did, in seconds by label.
    """

    now: float = 0.0
    weight: int = 1
    compute_seconds: float = 0.0
    free: dict[Link, float] = field(default_factory=dict)
    under_way: dict[str, tuple[_UnderWay, ...]] = field(default_factory=dict)
    ran: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    shares: dict[str, Share] = field(default_factory=dict)
    kernels: dict[tuple[Source, bool], float] = field(default_factory=lambda: defaultdict(float))

    def run(self, step: Run) -> None:
        self.compute_seconds += step.seconds * self.weight
        self.kernels[step.source, step.copies] += step.seconds * self.weight
        self._pass(step.seconds, {step.label: 1.0})

    def begin(self, step: Begin) -> None:
        items = []
        for move in step.moves:
            begin = max([self.now, *(self.free.get(link, 0.0) for link in move.links)])
            for link in move.links:
                self.free[link] = begin + move.seconds
            share = self.shares.setdefault(move.name, Share(_link(move)))
            share.times += self.weight
            share.seconds += move.seconds * self.weight
            items.append(_UnderWay(begin, begin + move.seconds, self.weight, move))
        self.under_way[step.key] = tuple(items)

    def end(self, key: str) -> None:
        for item in self.under_way.pop(key, ()):
            wait = item.end - self.now
            if wait > 0:
                self.shares[item.move.name].exposed_seconds += wait * item.weight
                self._pass(wait, {item.move.label: 1.0})
                self.now = item.end

    def repeat(self, turns: int, since: float, ran: Mapping[str, float], free: Mapping[Link, float]) -> None:
        """Pass over as many turns as the one that has begun at ``since``, with these figures, and has just ended."""
        turn = self.now - since
        if turns <= 0 or turn <= 0:
            return
        mix = {label: (seconds - ran.get(label, 0.0)) / turn for label, seconds in self.ran.items()}
        for link, until in self.free.items():
            if until != free.get(link):
                self.free[link] = until + turns * turn
        self._pass(turns * turn, {label: part for label, part in mix.items() if part > 0})

    def _pass(self, seconds: float, mix: Mapping[str, float]) -> None:
        """Let the device spend some time, on what the mix has: parts of one by label."""
        until = self.now + seconds
        for items in self.under_way.values():
            for item in items:
                beside = min(until, item.end) - max(self.now, item.begin)
                if beside > 0:
                    behind = self.shares[item.move.name].behind
                    for label, part in mix.items():
                        behind[label] += beside * part * item.weight
        for label, part in mix.items():
            self.ran[label] += seconds * part
        self.now = until


def _link(move: Move) -> str:
    """The kind of links that a move takes."""
    return next((kind for kind, _ in move.links), "axis")


def _walk(steps: Steps, name: str, clock: _Clock) -> None:
    """Run a computation; what it has started and does not end is waited for at its own end."""
    before = frozenset(clock.under_way)
    for step in steps.of(name):
        match step:
            case Run():
                clock.run(step)
            case Begin():
                clock.begin(step)
            case End():
                clock.end(step.key)
            case Loop():
                _turns(steps, step, clock)
    for key in [key for key in clock.under_way if key not in before]:
        clock.end(key)


def _turns(steps: Steps, loop: Loop, clock: _Clock) -> None:
    weight = clock.weight
    for stands_for in (1, loop.turns - 1)[: min(loop.turns, 2)]:
        since, ran, free = clock.now, dict(clock.ran), dict(clock.free)
        clock.weight = weight * stands_for
        for body in loop.bodies:
            _walk(steps, body, clock)
        clock.weight = weight
        clock.repeat(stands_for - 1, since, ran, free)
