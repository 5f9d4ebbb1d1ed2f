"""How fast a step could be at best, whatever its shardings."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.devices import Device
from shardwright.ir.program import Program


@dataclass(frozen=True)
class Work:
    """What every partitioning of a program has to do: operations of its contractions, and bytes of its arguments."""

    flops: float
    argument_bytes: float

    @classmethod
    def of(cls, program: Program) -> Work:
        """Of a whole program, loops and recomputation counted as often as they run."""
        flops = sum(op.flops * int(n) for op, n in zip(program.ops, program.repeats, strict=True))
        held = sum(program.values[argument.value].bytes for argument in program.arguments)
        return cls(float(flops), float(held))


@dataclass(frozen=True)
class Bound:
    """Seconds that no plan can beat, and what they are for: "FLOPs" or "bytes"."""

    seconds: float
    kind: str


def physical_bound(work: Work, device: Device, devices: int) -> Bound:
    """The longer of two times.

    ``FLOPs / (devices · peak)``, by the peak of bf16, and ``bytes / (devices · bandwidth)`` of reading every argument
    once. The first bounds training, the second decoding, where every parameter and the whole cache is read for a token.
    """
    peak = device.flops_per_second.get("bf16") or max(device.flops_per_second.values())
    by_flops = work.flops / (devices * peak)
    by_bytes = work.argument_bytes / (devices * device.memory_bytes_per_second)
    return Bound(by_flops, "FLOPs") if by_flops >= by_bytes else Bound(by_bytes, "bytes")
