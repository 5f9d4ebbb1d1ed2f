"""Amounts of memory as people write them."""

from __future__ import annotations

import math
import re
from numbers import Real
from typing import Any

from shardwright.errors import DeviceError

_UNITS = {"": 1, "b": 1} | {
    prefix + ending: base ** (power + 1)
    for ending, base in (("b", 1000), ("ib", 1024))
    for power, prefix in enumerate("kmgt")
}
_AMOUNT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)")


def parse_bytes(amount: int | float | str) -> int:
    """``"12GiB"`` → 12 · 1024³, ``"12GB"`` → 12 · 1000³, ``"1.5TiB"``, ``"800MB"``; a number is bytes already."""
    count = _count(amount)
    if not 1 <= count < math.inf:  # also where it is not a number
        raise DeviceError(
            f"an amount of memory is a positive number of bytes, or text such as '12GiB' or '800MB', not {amount!r}."
        )
    return int(count)


def _count(amount: Any) -> Any:
    if isinstance(amount, str):
        found = _AMOUNT.fullmatch(amount.strip().lower())
        return float(found[1]) * _UNITS.get(found[2], math.nan) if found else math.nan
    return math.nan if isinstance(amount, bool) or not isinstance(amount, Real) else amount
