"""Seconds of a collective on the links that its axes run on.

A device of a ring sends to both neighbours at once, so a collective along it goes at twice the one-way rate; on a line
the ends have one neighbour, and the link next to them carries everything one way. Collectives over several axes of one
torus use the links of all of them at once ("How to Scale Your Model", Google DeepMind 2025, "Sharded matrices"; Thakur,
Rabenseifner and Gropp, 2005, for the latency terms). Axes on different kinds of link are gone through one after the
other, the fast ones first, so that the slow ones see only what is left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardwright.devices.device import AxisLink
from shardwright.price.collectives import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, PERMUTE, REDUCE_SCATTER


def collective_seconds(
    kind: str, sent_bytes: float, links: Sequence[AxisLink], sizes: Sequence[int], sharers: int = 1
) -> float:
    """Seconds of a collective in which each device sends ``sent_bytes`` (as ``spmd.collectives`` counts them).

    ``links`` and ``sizes`` are those of the axes that it runs over. ``sharers`` all-reduces are made one, and pay the
    latency between them.
    """
    if sent_bytes <= 0 or not links:
        return 0.0
    if kind == PERMUTE:
        slowest = min(links, key=lambda link: link.bytes_per_second)
        return sent_bytes / slowest.bytes_per_second + slowest.latency_seconds
    if kind == ALL_TO_ALL:
        n = math.prod(sizes)
        local_bytes = sent_bytes * n / (n - 1)
        return sum(_all_to_all(local_bytes, link, size) for link, size in zip(links, sizes, strict=True))
    return _ring(kind, sent_bytes, links, sizes, sharers)


def rate(link: AxisLink) -> float:
    """Bytes per second that each device gets rid of in a ring collective along an axis."""
    return link.bytes_per_second * (2 if link.shape == "ring" else 1)


def _all_to_all(local_bytes: float, link: AxisLink, n: int) -> float:
    """Half of all data crosses the middle: of a line by one link each way, of a ring by two, of a switch by all.

    The middle carries ``n/2`` devices' halves, ``n · local / 4`` bytes each way. Between two devices a ring's second
    link is the same as its first.
    """
    latency = link.latency_seconds * (n - 1)
    if link.shape == "switch":
        return local_bytes * (n - 1) / n / link.bytes_per_second + latency
    across = 2 if link.shape == "ring" and n > 2 else 1
    return n * local_bytes / 4 / across / link.bytes_per_second + latency


def _ring(kind: str, sent_bytes: float, links: Sequence[AxisLink], sizes: Sequence[int], sharers: int) -> float:
    """All-gather, reduce-scatter, all-reduce: per kind of link, fast ones on the larger part."""
    rounds = 2 if kind == ALL_REDUCE else 1
    assert kind in (ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE), kind
    n = math.prod(sizes)
    full_bytes = sent_bytes * n / (n - 1) / rounds  # of the tensor before it is scattered or after it is gathered
    by_link: dict[str, list[tuple[AxisLink, int]]] = {}
    for link, size in zip(links, sizes, strict=True):
        by_link.setdefault(link.link, []).append((link, size))
    seconds = 0.0
    for members in sorted(by_link.values(), key=lambda found: -found[0][0].bytes_per_second):
        ways = math.prod(size for _, size in members)
        speed = sum(rate(link) for link, _ in members)
        seconds += rounds * full_bytes * (ways - 1) / ways / speed
        seconds += rounds * sum(link.latency_seconds * (size - 1) for link, size in members) / sharers
        full_bytes /= ways
    return seconds
