"""What can go wrong, as exceptions whose message is one sentence that a user can act on."""

import difflib
from collections.abc import Sequence
from typing import Any


def nearest(name: str, names: Sequence[str], cutoff: float = 0.4) -> str:
    """The end of a sentence about an unknown name."""
    close = difflib.get_close_matches(name, list(dict.fromkeys(names)), n=3, cutoff=cutoff)
    return f"; did you mean {' or '.join(close)}" if close else ""


class ShardwrightError(Exception):
    """Base of every exception that Shardwright raises on purpose."""


class TraceError(ShardwrightError):
    """The function could not be traced: its own exception, untouched, is the cause."""


class TargetError(ShardwrightError):
    """What was asked for by name (a model, a size, `module:function`, a file) is not there or not usable."""


class ModuleError(ShardwrightError):
    """A StableHLO module cannot be read, or holds what the analysis cannot take."""


class RuleError(ShardwrightError):
    """A sharding rule given by the user for a custom call does not parse or does not fit the call."""


class UnsupportedJaxError(ShardwrightError):
    """The installed JAX lacks an interface that Shardwright stands on."""


class MeshError(ShardwrightError):
    """A mesh, or a device list for one, does not fit."""


class DeviceError(ShardwrightError):
    """A device is not known by that name, or is described with figures that make no sense."""


class PinError(ShardwrightError):
    """A decision or tactic names what is not there, or clashes with another; the message names both."""


class PlanError(ShardwrightError):
    """A plan does not fit this program, mesh or version, or cannot be carried out."""


class PlanWarning(UserWarning):
    """A plan was loaded for another program than it was made for; the message tells what differs."""


class InfeasibleError(ShardwrightError):
    """No plan was found that fits the devices' memory.

    Attributes:
        needed_bytes: what the smallest plan found needs on each device.
        limit_bytes: what there is.
        plan: that smallest plan; ``plan.estimate.alive`` is what holds it up.
        advice: what would help, a sentence each, with its estimate.

    """

    def __init__(self, message: str, needed_bytes: int, limit_bytes: int, plan: Any, advice: Sequence[str]) -> None:
        super().__init__(message)
        self.needed_bytes, self.limit_bytes, self.plan, self.advice = needed_bytes, limit_bytes, plan, tuple(advice)


class CompilerMissingError(ShardwrightError):
    """The compiler that a plan was to be verified with is not installed."""
