"""Ops that XLA's partitioner does not partition, though they could be: every device computes all of the result.

Whatever is split of such a result is cut out of the whole, which costs the time and the memory of all of it on every
device. ``ir.classes`` makes the op's factors whole.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ComputedWhole:
    """A kind of op of which every device computes all, for which platforms, and on what evidence."""

    kind: str
    platforms: frozenset[str]
    what: str
    evidence: str


RECORDS = (
    ComputedWhole(
        "rng_bit_generator",
        frozenset({"tpu"}),
        "the bits that jax.random draws with keys of impl='rbg' or 'unsafe_rbg'",
        "dropout of bf16[16384,4096] split by rows over 4 devices, compiled for v5e:2x2 by the libtpu of jax 0.10.2: "
        "%rng-bit-generator = u32[16384,4096] on each device, and 0.28 GiB in all where a quarter of the bits would "
        "make it 0.12. On CPUs (jax 0.10.2) the bits are written out as arithmetic before partitioning, and no device "
        "has all of them.",
    ),
)
KINDS = frozenset(record.kind for record in RECORDS)


def computed_whole(kind: str, platform: str | None) -> bool:
    """Whether a platform's compiler has every device compute all of such an op."""
    return any(record.kind == kind and platform in record.platforms for record in RECORDS)
