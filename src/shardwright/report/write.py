"""Write a plan's report."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shardwright._files import write_whole
from shardwright.report.render import render

if TYPE_CHECKING:
    from shardwright.plan import Plan


def write_report(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write the report of a plan as one HTML file."""
    write_whole(path, render(plan), "the report")
