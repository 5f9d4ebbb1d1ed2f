"""What a user has decided, in any of the forms that are allowed, as typed values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from jax.sharding import PartitionSpec

from shardwright.errors import PinError

OPEN = PartitionSpec.UNCONSTRAINED
"""The entry of a spec for a dimension that it leaves to the search."""


@dataclass(frozen=True)
class Decision:
    """The decision to shard a dimension, and all that is sharded with it, over an axis of the mesh.

    Decisions that come before it on the same axis take precedence. ``dimension`` is the name of a group, or any
    dimension of an argument that belongs to it (``"params.w1[1]"``). ``sides`` are the sides taken in the group's
    conflicts; sides that are left out are 0. Tensors that also have the dimension ``unless`` are left to the decisions
    that follow.
    """

    axis: str
    dimension: str
    sides: tuple[int, ...] = ()
    unless: str = ""

    def __str__(self) -> str:
        sides = f" (side{'s' * (len(self.sides) > 1)} {', '.join(map(str, self.sides))})" if any(self.sides) else ""
        unless = f", but not beside {self.unless}" if self.unless else ""
        return f"{self.axis}: {self.dimension}{sides}{unless}"


@dataclass(frozen=True)
class Whole:
    """The decision to keep arguments whole on an axis of the mesh, with everything that is only cast from them.

    ``path`` is the path of an argument, a prefix of it, or a glob.
    """

    axis: str
    path: str

    def __str__(self) -> str:
        return f"{self.axis}: {self.path} stays whole"


PinLike = (
    Decision
    | Whole
    | tuple[str, str]
    | tuple[str, str, Sequence[int]]
    | str
    | Mapping[str, PartitionSpec]
    | Sequence["PinLike"]
    | None
)
"""A ``Decision``, ``Whole``, ``(axis, dimension)``, ``(axis, dimension, sides)``, ``"tactic:axis"``, or a mapping from
argument paths to ``PartitionSpec``; or a list of these."""


@dataclass(frozen=True)
class TacticPin:
    """A strategy by its name, with the axes that it is for: ``"fsdp:data"``."""

    text: str

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that it names."""
        return tuple(axis.strip() for axis in self.text.partition(":")[2].split(","))

    def __str__(self) -> str:
        return repr(self.text)


@dataclass(frozen=True)
class SpecPin:
    """The sharding of all arguments whose paths match."""

    pattern: str
    spec: PartitionSpec

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that it names."""
        return tuple(axis for entry in self.spec for axis in axes_of(entry))

    @property
    def is_open(self) -> bool:
        """Whether it leaves dimensions to the search."""
        return OPEN in self.spec

    def __str__(self) -> str:
        return f"{self.pattern!r}: {self.spec}"


@dataclass(frozen=True)
class DecisionPin:
    """A decision; ``given`` is how the user wrote it."""

    decision: Decision | Whole
    given: Any

    @property
    def axes(self) -> tuple[str, ...]:
        """The axis that it is about."""
        return (self.decision.axis,)

    def __str__(self) -> str:
        return repr(self.given)


Pin = DecisionPin | TacticPin | SpecPin


@dataclass(frozen=True)
class Pins:
    """All that a user has decided: ``pins`` in order of priority, and arguments and axes to ``replicate``."""

    pins: tuple[Pin, ...] = ()
    replicate: tuple[str, ...] = ()

    @classmethod
    def of(cls, pin: PinLike = None, replicate: str | Sequence[str] | None = ()) -> Pins:
        """From ``pin=`` and ``replicate=`` as users give them."""
        return cls(tuple(_flat(pin)), (replicate,) if isinstance(replicate, str) else tuple(replicate or ()))

    @property
    def specs(self) -> tuple[SpecPin, ...]:
        """Those that are specs."""
        return tuple(pin for pin in self.pins if isinstance(pin, SpecPin))

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that pins speak of, in the order in which they do."""
        return tuple(dict.fromkeys(axis for pin in self.pins for axis in pin.axes if axis))


def axes_of(entry: Any) -> tuple[str, ...]:
    """The axes in an entry of a spec."""
    if entry is None or entry is OPEN:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def _flat(pins: PinLike) -> Iterator[Pin]:
    if pins is None:
        return
    if isinstance(pins, (Decision, Whole)):
        yield DecisionPin(pins, pins)
    elif isinstance(pins, str):
        yield TacticPin(pins)
    elif isinstance(pins, Mapping):
        for pattern, spec in pins.items():
            if not isinstance(spec, PartitionSpec):
                raise PinError(f"the pin {pattern!r} needs a PartitionSpec, not {spec!r}.")
            yield SpecPin(pattern, spec)
    elif _is_single(pins):
        axis, dimension, *sides = cast("tuple[Any, ...]", pins)
        yield DecisionPin(Decision(axis, dimension, tuple(sides[0]) if sides else ()), pins)
    elif isinstance(pins, Sequence):
        for pin in cast("Sequence[PinLike]", pins):
            yield from _flat(pin)
    else:
        raise PinError(f"a pin is a tactic such as 'fsdp:data', a decision, or specs by path, not {pins!r}.")


def _is_single(pins: Any) -> bool:
    """Whether this is ``(axis, dimension)``, perhaps with sides, and not two tactics."""
    return (
        isinstance(pins, tuple)
        and len(pins) in (2, 3)
        and all(isinstance(part, str) for part in pins[:2])
        and ":" not in pins[0]
    )
