"""Amounts as people read them: bytes, seconds, counts."""

from __future__ import annotations


def human_bytes(count: float) -> str:
    """``3.2 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def human_count(count: float) -> str:
    """``3.7e14`` as ``369 T``."""
    if not count:
        return ""
    for unit in ("", "K", "M", "G", "T", "P"):
        if abs(count) < 1000 or unit == "P":
            return (
                f"{count:,.0f}{' ' * bool(unit)}{unit}" if abs(count) >= 100 else f"{count:.3g}{' ' * bool(unit)}{unit}"
            )
        count /= 1000
    raise AssertionError("unreachable")


def human_seconds(seconds: float) -> str:
    """Three digits with a unit that fits: 281 ms, 1.25 s, 3.4 µs."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size or unit == "µs":
            return f"{seconds / size:.3g} {unit}"
    raise AssertionError


def exact_bytes(count: int) -> str:
    """``15.75 GiB``: with two digits, as limits of memory are written."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:,.2f}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{count} B"
