"""Verdicts: what was found when a plan was checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwright.ir.program import Source

_ON_HOST = ("host_bytes", "transfer_seconds", "exposed_transfer_seconds")
_ESTIMATED = ("peak_bytes", "step_seconds", "compute_seconds", "comm_seconds", "exposed_seconds", *_ON_HOST)

_NOTHING = 1e-9
"""Seconds, below which there is only rounding."""


@dataclass(frozen=True)
class Verdict:
    """The verdict of a check: whether the plan is ``ok``, a sentence that says why, and the figures behind it."""

    on: str
    ok: bool
    message: str
    figures: dict[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return f"{self.on}: {'ok' if self.ok else 'FAILED'}: {self.message}"


class Verified(dict[str, Verdict]):
    """The verdicts on a plan, by what it was checked on; it is true if all of them are."""

    def __bool__(self) -> bool:
        return all(self.values())

    def __str__(self) -> str:
        return "\n".join(map(str, self.values()))

    def __repr__(self) -> str:
        return f"Verified({', '.join(f'{on}: ' + ('ok' if verdict else 'FAILED') for on, verdict in self.items())})"


@dataclass(frozen=True)
class Involuntary:
    """A resharding for which XLA's partitioner gathered the whole tensor on every device.

    ``have`` and ``want`` are the shardings as XLA writes them, ``operation`` the instruction, ``shape`` and ``bytes``
    those of the whole tensor.
    """

    have: str
    want: str
    operation: str
    shape: str
    bytes: float
    source: Source

    def __str__(self) -> str:
        return f"{self.shape} at {self.source}: from {self.have} to {self.want}"


@dataclass(frozen=True)
class CompiledCollective:
    """A collective of the compiled program: ``bytes`` that each device sends and ``seconds``, once, and how often.

    ``overlapped``: the compiler starts it ahead of where its result is needed, and does other work in between.
    ``hidden_seconds`` of it, once, the compiled schedule has other work beside (None where there is no schedule), and
    ``behind`` is that work: source lines with their seconds, largest first. A part may be hidden behind the wait for
    another collective.
    """

    kind: str
    axes: tuple[str, ...]
    bytes: float
    times: int
    seconds: float
    source: str
    overlapped: bool = False
    hidden_seconds: float | None = None
    behind: tuple[tuple[str, float], ...] = ()

    @property
    def exposed_seconds(self) -> float | None:
        """What a device waits for it, once, by the compiled schedule."""
        return None if self.hidden_seconds is None else self.seconds - self.hidden_seconds

    @property
    def total_bytes(self) -> float:
        """Bytes that each device sends over the whole run."""
        return self.bytes * self.times


@dataclass(frozen=True)
class LineSeconds:
    """What a compiled program spends on one thing at one place in the source, in the forward or the backward pass.

    ``what`` is "compute", "copies" (entries laid out anew, of which it is not told where), "sums" (all-reduces and
    reduce-scatters) or "operands" (all other collectives); ``hidden_seconds`` of these the schedule has other work
    beside.
    """

    what: str
    line: str
    backward: bool
    seconds: float
    hidden_seconds: float = 0.0


@dataclass(frozen=True)
class CompilerVerdict(Verdict):
    """What a real compiler made of a plan, beside the plan's own estimate.

    Attributes:
        fits: Whether it fits into what a device may hold, the limit that was asked for; None where nobody said.
        peak_bytes: The most that one device holds at a time: arguments, results, temporaries.
        limit_bytes: What a device has.
        step_seconds: The compiled schedule replayed, with what is under way at the same time (TPU only).
        exposed_seconds: What of it a device waits for collectives and for the host; the rest is compute.
        serial_seconds: ``compute_seconds``, ``comm_seconds`` and ``exposed_transfer_seconds`` one after the other.
        compute_seconds: The compiler's own cycles (TPU only), and ``kernel_seconds``.
        kernel_seconds: Of the Pallas kernels in it, by the plan's estimate: the compiler has no cycles for them.
        comm_seconds: The compiled program's collectives on the device's links.
        host_bytes: What one device keeps on the host: arguments, results, temporaries.
        transfer_seconds: The compiled program's moves between the memories of host and device, on the device's link.
        exposed_transfer_seconds: What of them its schedule has no other work beside (TPU only).
        collectives: Every collective of the compiled program.
        counts: How many collectives run, by kind.
        bytes: What each device sends in them, by kind.
        compile_seconds: How long the compiler took.
        involuntary: Reshardings for which the partitioner gathered whole tensors, largest first.
        lines: The seconds of the compiled schedule by source line, largest first (TPU only).
        estimate: The plan's figures by these names, if it has any for this device.
        ratios: The estimate as a multiple of the compiler's figure.

    """

    fits: bool | None = None
    peak_bytes: int | None = None
    limit_bytes: int | None = None
    step_seconds: float | None = None
    serial_seconds: float | None = None
    exposed_seconds: float | None = None
    compute_seconds: float | None = None
    kernel_seconds: float | None = None
    comm_seconds: float | None = None
    host_bytes: int | None = None
    transfer_seconds: float | None = None
    exposed_transfer_seconds: float | None = None
    collectives: tuple[CompiledCollective, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    bytes: Mapping[str, float] = field(default_factory=dict)
    compile_seconds: float | None = None
    involuntary: tuple[Involuntary, ...] = ()
    lines: tuple[LineSeconds, ...] = ()
    estimate: Mapping[str, float | None] = field(default_factory=dict)
    ratios: Mapping[str, float | None] = field(default_factory=dict)

    @classmethod
    def of(cls, on: str, found: Mapping[str, Any], estimate: Any = None) -> CompilerVerdict:
        """From the figures of ``compile_exported``, and an object with the estimate's fields."""
        compiled = {
            name: found.get(name) for name in ("fits", "limit_bytes", "compile_seconds", "serial_seconds", *_ESTIMATED)
        }
        estimated = {name: getattr(estimate, name, None) for name in _ESTIMATED} if estimate is not None else {}
        ratios = {name: _ratio(value, compiled[name]) for name, value in estimated.items()}
        ok = "compile_seconds" in found and found.get("fits") is not False
        return cls(
            on,
            ok,
            _message(found),
            dict(found),
            collectives=found.get("collectives", ()),
            counts=found.get("counts", {}),
            bytes=found.get("bytes", {}),
            involuntary=found.get("involuntary", ()),
            lines=found.get("lines", ()),
            kernel_seconds=found.get("kernel_seconds"),
            estimate=estimated,
            ratios=ratios,
            **compiled,
        )

    def __str__(self) -> str:
        lines = [super().__str__()]
        rows: list[tuple[str, str, str, str]] = []
        for name, label, shown in (
            ("peak_bytes", "memory", _gib),
            ("step_seconds", "step", _ms),
            ("compute_seconds", "compute", _ms),
            ("exposed_seconds", "waiting", _ms),
            ("comm_seconds", "communication", _ms),
            ("host_bytes", "on the host", _gib),
            ("transfer_seconds", "transfers", _ms),
            ("exposed_transfer_seconds", "not hidden", _ms),
        ):
            if name in _ON_HOST and not (self.host_bytes or self.estimate.get("host_bytes")):
                continue
            value, guess, ratio = getattr(self, name), self.estimate.get(name), self.ratios.get(name)
            if value is not None:
                beside = f"estimated {shown(guess)}" if guess is not None else ""
                rows.append((label, shown(value), beside, f"({ratio:.2f} of it)" if ratio is not None else ""))
        lines += [f"  {label:<14}{value:>12}  {guess}  {ratio}".rstrip() for label, value, guess, ratio in rows]
        if self.kernel_seconds is not None:
            lines.append(f"  {'of it kernels':<14}{_ms(self.kernel_seconds):>12}  as estimated: there are no cycles")
        if self.serial_seconds is not None:
            lines.append(f"  {'serial step':<14}{_ms(self.serial_seconds):>12}  if nothing ran beside anything else")
        lines += [
            f"  {kind:<20}{self.counts[kind]:>6} times{sent / 1e6:>12,.1f} MB from each device{self._hidden(kind)}"
            for kind, sent in sorted(self.bytes.items(), key=lambda item: -item[1])
        ]
        return "\n".join(lines)

    def _hidden(self, kind: str) -> str:
        """How much of a kind's seconds the schedule hides, in words."""
        known = [c for c in self.collectives if c.kind == kind and c.hidden_seconds is not None]
        seconds = sum(c.seconds * c.times for c in known)
        hidden = sum((c.hidden_seconds or 0.0) * c.times for c in known)
        return f", {_ms(hidden) if hidden > _NOTHING else 'none'} of {_ms(seconds)} hidden" if seconds else ""


def _message(found: Mapping[str, Any]) -> str:
    if "crash" in found:
        return str(found["crash"])
    peak, limit, asked = found.get("peak_bytes"), found.get("limit_bytes"), found.get("asked_bytes")
    has = "" if limit is None else f"a device has {_gib(limit)}"
    if asked is not None:
        has = f"no more than {_gib(asked)} may be taken" + (
            f" of a device's {_gib(limit)}" if limit is not None else ""
        )
    if found.get("fits") is False:
        needs = f"it needs {_gib(peak)}" if peak is not None else "it needs more memory than there is"
        return f"{needs}, but {has}" if has else needs
    message = "it compiles" if peak is None else f"it compiles and takes {_gib(peak)}"
    if peak is not None and asked is not None:
        message += f" of the {_gib(asked)} that it may take"
    elif peak is not None and limit is not None:
        message += f" of a device's {_gib(limit)}"
    if forced := found.get("involuntary", ()):
        tensors = "1 tensor is" if len(forced) == 1 else f"{len(forced)} tensors are"
        message += f"; {tensors} gathered whole to be resharded, the largest {forced[0].shape} at {forced[0].source}"
    return message


def _ratio(estimated: float | None, compiled: float | None) -> float | None:
    return estimated / compiled if estimated is not None and compiled else None


def _gib(count: float) -> str:
    return f"{count / 2**30:,.2f} GiB" if count >= 2**27 else f"{count / 2**20:,.2f} MiB"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:,.2f} µs"
