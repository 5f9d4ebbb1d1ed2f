"""Write a plan's report."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.errors import PlanError
from shardwright.report.render import render

if TYPE_CHECKING:
    from shardwright.plan import Plan


def write_report(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write the report of a plan as one HTML file; nothing half-written stays behind."""
    target = Path(path)
    with _writing(target):
        if target.is_dir():
            raise OSError(0, "it is a folder; name a file in it")
        if not target.parent.is_dir():
            raise OSError(0, f"there is no folder {target.parent}")
    page = render(plan)
    temporary = target.with_name(target.name + ".part")
    try:
        with _writing(target):
            temporary.write_text(page, encoding="utf-8")
            temporary.replace(target)
    except PlanError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


@contextlib.contextmanager
def _writing(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PlanError(f"cannot write the report to {target}: {error.strerror or error}.") from None
