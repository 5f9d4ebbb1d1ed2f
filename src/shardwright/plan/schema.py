"""What a plan file may hold: the type and the limits of every field, as data that can be read from top to bottom.

A plan file may come from a stranger. ``check(content)`` returns it as it is or raises ``DamagedError``, whose text
names the field and what is wrong with it. The limits are far beyond what exists; they keep absurd figures, and files
made to exhaust the machine, from what comes after.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from shardwright.devices import KernelCosts
from shardwright.devices.device import MAY_BE_ZERO
from shardwright.errors import MeshError, nearest
from shardwright.request import mesh_shape
from shardwright.request.mesh import MOST_AXES, MOST_DEVICES

VERSION, TUNED_VERSION = 3, 4

Check = Callable[[Any, str], None]
"""Raises where a value, at a place in the file such as ``decisions[2].axis``, is not what it should be."""

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, which would reach the user's terminal, and halves of characters, which cannot be printed."""

_brief = reprlib.Repr()
_brief.maxstring = _brief.maxother = _brief.maxlong = 50


def short(value: Any) -> str:
    """A value as Python writes it, cut short."""
    return _brief.repr(value)


class DamagedError(ValueError):
    """A field is missing, of another type, or beyond its limits."""


def wrong(value: Any, place: str, wanted: str) -> DamagedError:
    """A value that is not what was wanted at its place."""
    return DamagedError(f"{place or 'the whole'} is {short(value)}, not {wanted}")


def integer(low: int, high: int) -> Check:
    """A whole number within limits, which ``true`` is not."""

    def check(value: Any, place: str) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise wrong(value, place, f"a whole number from {low:,} to {high:,}")

    return check


def number(low: float, high: float, *, or_zero: bool = False) -> Check:
    """A finite number within limits."""

    def check(value: Any, place: str) -> None:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high
        if not fits and not (or_zero and value == 0 and not isinstance(value, bool)):
            raise wrong(value, place, f"a number from {low:g} to {high:g}{', or 0' * or_zero}")

    return check


def text(most: int = 500, *, least: int = 1) -> Check:
    """A text of some length without control characters."""

    def check(value: Any, place: str) -> None:
        if not isinstance(value, str) or not least <= len(value) <= most or _UNSAFE.search(value):
            raise wrong(value, place, f"a text of {least} to {most:,} characters without control characters")

    return check


def choice(*words: str) -> Check:
    """One of some words."""

    def check(value: Any, place: str) -> None:
        if value not in words:
            raise wrong(value, place, " or ".join(map(repr, words)))

    return check


def listed(item: Check, *, most: int, least: int = 0) -> Check:
    """A list whose items are all alike."""

    def check(value: Any, place: str) -> None:
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise wrong(value, place, f"a list of {least} to {most:,} items")
        for k, each in enumerate(value):
            item(each, f"{place}[{k}]")

    return check


def mapped(item: Check, *, most: int) -> Check:
    """An object from names to values that are all alike."""
    name = text()

    def check(value: Any, place: str) -> None:
        if not isinstance(value, dict) or len(value) > most:
            raise wrong(value, place, f"an object of at most {most:,} entries")
        for key, each in value.items():
            name(key, f"a name in {place}")
            item(each, _joined(place, short(key).strip("'")))

    return check


def optional(item: Check) -> Check:
    """The same, or null."""

    def check(value: Any, place: str) -> None:
        if value is not None:
            item(value, place)

    return check


def record(fields: Mapping[str, Check], may_lack: Sequence[str] = ()) -> Check:
    """An object with these fields and no others."""

    def check(value: Any, place: str) -> None:
        if not isinstance(value, dict):
            raise wrong(value, place, "an object")
        for key in value:
            if key not in fields:
                hint = nearest(key[:50], list(fields))
                raise DamagedError(f"{place or 'the whole'} has {short(key)}, which is not known{hint}")
        for key, item in fields.items():
            if key in value:
                item(value[key], _joined(place, key))
            elif key not in may_lack:
                raise DamagedError(f"{_joined(place, key)} is missing")

    return check


def _joined(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key


def _mesh(value: Any, place: str) -> None:
    mapped(_SIZE, most=MOST_AXES)(value, place)
    try:
        mesh_shape(value)
    except MeshError as error:
        raise DamagedError(f"in {place}, {str(error).removesuffix('.')}") from None


def _device(value: Any, place: str) -> None:
    text(200)(value, place) if isinstance(value, str) else DEVICE(value, place)


def _decision(value: Any, place: str) -> None:
    (WHOLE if isinstance(value, dict) and "whole" in value else DECISION)(value, place)


_SIZE, _BYTES = integer(1, MOST_DEVICES), integer(1, 2**60)
_RATE, _RATE_OR_0 = number(1, 1e24), number(1, 1e24, or_zero=True)

LINK = record(
    {
        "name": text(200),
        "bytes_per_second": _RATE,
        "latency_seconds": number(0, 3_600),
        "devices": optional(_SIZE),
        "torus_dimensions": integer(0, 3),
        "ring_from": integer(0, MOST_DEVICES),
    }
)
LATER = ("host_bytes_per_second", "host_memory_bytes", "on_chip_bytes", "kernel_costs")
"""Figures of a device that files of earlier releases do not have."""
_COST, _COST_OR_0 = number(1e-12, 1e12), number(1e-12, 1e12, or_zero=True)
LATER_COSTS = (
    *("entry_slots", "read_slots", "pack_slots", "alone_slots", "held_rows", "operand_slots"),
    *("prefetched_slots", "sharpness"),
    "prefetched_bytes",
)
"""Costs of kernels that files of earlier releases do not have."""
KERNEL_COSTS = record(
    {each.name: _COST_OR_0 if each.name in MAY_BE_ZERO else _COST for each in fields(KernelCosts)}, may_lack=LATER_COSTS
)
DEVICE = record(
    {
        "name": text(200),
        "platform": text(20),
        "flops_per_second": mapped(_RATE, most=100),
        "memory_bytes": _BYTES,
        "memory_bytes_per_second": _RATE,
        "usable_bytes": _BYTES,
        "links": listed(LINK, most=20),
        "clock_hertz": _RATE_OR_0,
        "matrix_unit": number(1, 1e6),
        "tile": optional(listed(_SIZE, least=2, most=2)),
        "vector_ops_per_second": _RATE_OR_0,
        "slice_shape": optional(listed(_SIZE, least=1, most=10)),
        "host_bytes_per_second": _RATE_OR_0,
        "host_memory_bytes": integer(0, 2**60),
        "on_chip_bytes": integer(0, 2**60),
        "kernel_costs": KERNEL_COSTS,
    },
    may_lack=LATER,
)
DECISION = record(
    {
        "axis": text(100),
        "dimension": text(),
        "argument": text(),
        "sides": listed(integer(0, 1), most=10_000),
        "unless": text(),
    },
    may_lack=("argument", "sides", "unless"),
)
WHOLE = record({"axis": text(100), "whole": text()})
PROGRAM = record(
    {
        "made_with": text(),
        "arguments": mapped(text(), most=200_000),
        "results": mapped(integer(1, 10**9), most=200_000),
        "ops": mapped(integer(1, 10**9), most=1_000),
        "digest": text(100),
    }
)
_STEP = optional(number(0, 1e9))
OPTION = record({"name": text(200), "settings": mapped(text(200), most=20), "saved": number(-1e9, 1)})
TUNING = record({"on": text(200), "options": listed(OPTION, most=50), "default_seconds": _STEP, "step_seconds": _STEP})
PLAN = {
    "shardwright_plan": integer(2, TUNED_VERSION),
    "function": text(least=0),
    "mesh": _mesh,
    "device": _device,
    "memory_bytes": _BYTES,
    "decisions": listed(_decision, most=10_000),
    "donate": listed(integer(0, 9_999), most=10_000),
}
_WITH_PROGRAM = {**PLAN, "program": PROGRAM, "constraints": choice("keep", "drop")}
VERSIONS = {
    2: record(PLAN),
    VERSION: record(_WITH_PROGRAM, may_lack=("constraints",)),
    TUNED_VERSION: record({**_WITH_PROGRAM, "tuning": TUNING}, may_lack=("constraints",)),
}


def check(content: dict[str, Any]) -> dict[str, Any]:
    """The content of a plan file of a known version, as it is; raises where a field is not what it should be."""
    VERSIONS[content["shardwright_plan"]](content, "")
    for k, decision in enumerate(content["decisions"]):
        if decision["axis"] not in content["mesh"]:
            raise wrong(decision["axis"], f"decisions[{k}].axis", f"an axis of the mesh ({', '.join(content['mesh'])})")
    return content


def finite(literal: str) -> float:
    """A number with a point or an exponent, as JSON has it."""
    value = float(literal)
    if not math.isfinite(value):
        raise DamagedError(f"the number {literal[:50]} is too large")
    return value


def whole(literal: str) -> int:
    """A whole number; Python takes a time that grows with the square of its length."""
    if len(literal) > 40:
        raise DamagedError(f"the number {literal[:20]}… has {len(literal):,} digits")
    return int(literal)


def no_number(literal: str) -> float:
    """``NaN`` and ``Infinity``, which Python's reader takes and JSON has not."""
    raise DamagedError(f"{literal} is no number of JSON")


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names differ: of two values for one name nobody knows which was meant."""
    out: dict[str, Any] = {}
    for name, value in pairs:
        if name in out:
            raise DamagedError(f"{short(name)} stands twice in one object")
        out[name] = value
    return out
