"""Writes docs/compiler.md from the table of what XLA does: python docs/compiler_page.py."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from shardwright.compiler import GROUPS, TABLE, Behaviour
from shardwright.compiler.behaviours import EVERYWHERE
from shardwright.compiler.miscompiled import Splits

PAGE = Path(__file__).with_name("compiler.md")
_HEAD = """# What the compiler does

A plan is priced for what XLA will make of it. Each behaviour of XLA that is modelled is one record, {count} in all, in
`src/shardwright/compiler/`: what it does, where it applies, what was measured and with which versions, the tests that
hold it, and the code that asks for it. This page is made from the records by `python docs/compiler_page.py`.
"""


def text() -> str:
    """The page."""
    parts = [_HEAD.format(count=len(TABLE))]
    for group, records in GROUPS.items():
        parts.append(f"## {group}\n")
        parts += [_record(record) for record in records]
    return "\n".join(parts)


def _record(record: Behaviour[Any]) -> str:
    lines = [f"### {record.name[0].upper()}{record.name[1:]}", "", _sentence(record), ""]
    applies = "every platform" if record.platforms == EVERYWHERE else ", ".join(sorted(record.platforms))
    if record.generations:
        applies += f" ({', '.join(sorted(record.generations))})"
    if record.ops:
        applies += f"; {', '.join(f'`{op}`' for op in record.ops)}"
    lines.append(f"- applies to: {applies}")
    if figures := _figures(record.effect):
        lines.append(f"- figures: {figures}")
    lines.append(f"- evidence: {record.evidence.rstrip('.')}.")
    lines.append(f"- held by: {', '.join(f'`{test}`' for test in record.tests)}")
    lines.append(f"- asked for in: {', '.join(f'`{where}`' for where in record.where)}")
    return "\n".join([*lines, ""])


def _sentence(record: Behaviour[Any]) -> str:
    if isinstance(record.effect, Splits):
        return f"Split so, XLA gives {record.what}. Instead, {record.effect.instead}."
    return record.what


def _figures(effect: Any) -> str:
    """What is asked for, if it is figures; functions and plain yes are in words already."""
    if isinstance(effect, Splits) or effect is None or isinstance(effect, bool):
        return ""
    if dataclasses.is_dataclass(effect):
        fields = {field.name: getattr(effect, field.name) for field in dataclasses.fields(effect)}
        return ", ".join(f"{name.replace('_', ' ')} {_value(value)}" for name, value in fields.items())
    return "" if callable(effect) else _value(effect)


def _value(value: Any) -> str:
    if isinstance(value, (frozenset, tuple)):
        return " ".join(f"`{each}`" for each in sorted(value))
    if isinstance(value, str):
        return f"`{value}`"
    if hasattr(value, "items"):
        return ", ".join(f"`{name}={each}`" for name, each in value.items())
    return str(value)


if __name__ == "__main__":
    PAGE.write_text(text())
