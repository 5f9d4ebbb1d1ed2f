"""Small pieces of text that tables and sentences about plans share, and their parts as JSON's types."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from jax.sharding import PartitionSpec

from shardwright._amounts import human_seconds
from shardwright.ir.program import Source
from shardwright.price.estimate import place


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th."""
    last = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if 10 <= number % 100 <= 20 else last}"


def signed(count: float, shown: Callable[[float], str]) -> str:
    """A difference with its sign: ``+1.2 GiB``, ``−30 ms``."""
    return f"{'−' if count < 0 else '+'}{shown(abs(count))}"


def signed_seconds(seconds: float) -> str:
    """``+12.5 ms``; "same" for less than a millionth of a second."""
    if abs(seconds) < 1e-6:
        return "same"
    return f"{'-' if seconds < 0 else '+'}{human_seconds(abs(seconds))}"


def signed_percent(part: float, of: float) -> str:
    """``+4.1%``; nothing where it is next to nothing."""
    percent = 100 * part / of if of else 0.0
    if abs(percent) < 0.05:
        return ""
    return f"{percent:+.0f}%" if abs(percent) >= 10 else f"{percent:+.1f}%"


def many(count: int, noun: str) -> str:
    """``1 op``, ``2 ops``."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def short(name: str) -> str:
    """The end of a long name."""
    parts = name.split(".")
    return name if len(name) <= 30 or len(parts) < 4 else f"…{'.'.join(parts[-2:])}"


def more(path: str, count: int) -> str:
    """A path that stands for several arguments."""
    return f"{path} and {count - 1:,} more" if count > 1 else path


def plain(thing: Any) -> Any:
    """Dicts, lists, strings and numbers for anything that an explanation is made of."""
    if isinstance(thing, Source):
        return place(thing)
    if isinstance(thing, PartitionSpec):
        return [list(entry) if isinstance(entry, (tuple, list)) else entry for entry in thing]
    if dataclasses.is_dataclass(thing):
        return {field.name: plain(getattr(thing, field.name)) for field in dataclasses.fields(thing)}
    if isinstance(thing, dict):
        return {key: plain(value) for key, value in thing.items()}
    if isinstance(thing, (tuple, list)):
        return [plain(part) for part in thing]
    return thing
