"""What XLA does, as data: a record for each behaviour that is modelled, with its evidence and its test.

``TABLE`` has them all, ``GROUPS`` by what they are about. Pricing asks ``of(platform, generation)``, or
``device.compiler``, once, and then ``compiler[RECORD]``. ``docs/compiler.md`` is made from the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from shardwright.compiler import (
    fusing,
    invoking,
    layouts,
    margins,
    miscompiled,
    moving,
    offloading,
    options,
    overlapping,
    partitioner,
    ragged,
    simplifying,
    storing,
)
from shardwright.compiler.behaviours import Behaviour, Compiler

Records = tuple[Behaviour[Any], ...]

GROUPS: Mapping[str, Records] = MappingProxyType(
    {
        "What it simplifies": simplifying.RECORDS,
        "What it fuses": fusing.RECORDS,
        "What it stores, and for how long": storing.RECORDS,
        "How tensors lie in memory": layouts.RECORDS,
        "What it moves between devices": moving.RECORDS,
        "What the partitioner leaves whole, or pads": partitioner.RECORDS,
        "Splits that it gets wrong": miscompiled.TABLE,
        "Ragged products": ragged.RECORDS,
        "Values on the host": offloading.RECORDS,
        "What runs at the same time": overlapping.RECORDS,
        "Options that are decisions, too": options.RECORDS,
        "How it is called, and what it tells": (*invoking.RECORDS, *margins.RECORDS),
    }
)
TABLE: Records = tuple(record for records in GROUPS.values() for record in records)
_LOWERED_FOR = {"gpu": "cuda"}


@cache
def of(platform: str | None, generation: str = "") -> Compiler:
    """The compiler of a platform, by JAX's name of it or of its devices; one object for all that do the same."""
    found = _LOWERED_FOR.get(platform, platform) if platform is not None else None
    return _with(frozenset(record for record in TABLE if record.applies(found, generation)))


@cache
def _with(behaviours: frozenset[Behaviour[Any]]) -> Compiler:
    return Compiler(behaviours)


__all__ = ["GROUPS", "TABLE", "Behaviour", "Compiler", "of"]
