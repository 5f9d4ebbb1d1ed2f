"""What can go wrong, as exceptions whose message is one sentence that a user can act on."""

import difflib
from collections.abc import Sequence
from typing import Any


def nearest(name: str, names: Sequence[str], cutoff: float = 0.4) -> str:
    """The end of a sentence about an unknown name."""
    close = difflib.get_close_matches(name, list(dict.fromkeys(names)), n=3, cutoff=cutoff)
    return f"; did you mean {' or '.join(close)}" if close else ""


class ShardwrightError(Exception):
    """The base of every exception that Shardwright raises on purpose."""


class TraceError(ShardwrightError):
    """The function could not be traced; the exception that it raised is the cause."""


class TargetError(ShardwrightError):
    """Something that was asked for by name (a model, a size, `module:function`, a file) is missing or unusable."""


class ModuleError(ShardwrightError):
    """A StableHLO module cannot be read, or has something in it that cannot be analysed."""


class RuleError(ShardwrightError):
    """A sharding rule that the user gave for a custom call does not parse, or does not fit the call."""


class UnsupportedJaxError(ShardwrightError):
    """The installed JAX lacks an interface that Shardwright needs."""


class MeshError(ShardwrightError):
    """A mesh is not well formed, or does not fit the program, the plan or the devices."""


class DeviceError(ShardwrightError):
    """A device is not known by its name, or its figures make no sense."""


class PinError(ShardwrightError):
    """A decision or tactic names something that does not exist, or clashes with another; the message names both."""


class PlanError(ShardwrightError):
    """A plan does not fit this program, mesh or version, or cannot be carried out."""


class PlanWarning(UserWarning):
    """A plan was loaded for another program than the one it was made for; the message says what differs."""


class InfeasibleError(ShardwrightError):
    """No plan was found that fits the devices' memory.

    Attributes:
        needed_bytes: the bytes that the smallest plan needs on each device.
        limit_bytes: the bytes that a device may hold.
        plan: the smallest plan that was found; ``plan.estimate.alive`` lists what holds the memory at its peak.
        advice: changes that would help, one sentence each, with their estimates.

    """

    def __init__(self, message: str, needed_bytes: int, limit_bytes: int, plan: Any, advice: Sequence[str]) -> None:
        super().__init__(message)
        self.needed_bytes, self.limit_bytes, self.plan, self.advice = needed_bytes, limit_bytes, plan, tuple(advice)


class CompilerMissingError(ShardwrightError):
    """The compiler that is to verify a plan is not installed."""
