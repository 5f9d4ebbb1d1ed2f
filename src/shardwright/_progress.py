"""Bars on a terminal: how a search stands, and how many plans have been compiled."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from shardwright._amounts import human_bytes, human_seconds

if TYPE_CHECKING:
    from shardwright.plan import Plan
    from shardwright.search.scores import Scores

_REFRESH_SECONDS = 0.1


@contextmanager
def search_bar(
    progress: bool | None, seconds: float | None, limit_bytes: int
) -> Iterator[Callable[[Scores], None] | None]:
    """Something to call with the state of a search; None where no bar is wanted."""
    if not _wanted(progress):
        yield None
        return
    columns = [TextColumn("searching"), BarColumn(bar_width=20), TextColumn("{task.description}"), TimeElapsedColumn()]
    if seconds:
        columns.append(TimeRemainingColumn())
    with Progress(*columns, console=_console(progress), transient=True) as bar:
        task = bar.add_task("", total=seconds or None)
        shown = 0.0

        def watch(scores: Scores) -> None:
            nonlocal shown
            now = time.perf_counter()
            if now - shown >= _REFRESH_SECONDS and scores.best is not None:
                shown = now
                bar.update(task, description=standing(scores, limit_bytes), completed=scores.seconds)

        yield watch


def standing(scores: Scores, limit_bytes: int) -> str:
    """The best cost so far, its memory, and how fast states are met."""
    assert scores.best is not None
    cost = scores.best.cost
    fits = "" if cost.peak_bytes <= limit_bytes else ", does not fit yet"
    return (
        f"best {human_seconds(cost.step_seconds)}, {human_bytes(cost.peak_bytes)} of {human_bytes(limit_bytes)}{fits}; "
        f"{scores.evaluations:,} states, {scores.evaluations / max(scores.seconds, 1e-9):,.0f} a second"
    )


@contextmanager
def compile_bar(progress: bool | None, count: int, on: str) -> Iterator[Callable[[Plan], None]]:
    """Something to call with each plan that has been compiled."""
    if not _wanted(progress):
        yield lambda _: None
        return
    columns = [TextColumn("compiling"), BarColumn(bar_width=20), MofNCompleteColumn(), TextColumn("{task.description}")]
    with Progress(*columns, TimeElapsedColumn(), console=_console(progress), transient=True) as bar:
        task = bar.add_task(f"for {on}", total=count)

        def tick(plan: Plan) -> None:
            step = plan.verdict.step_seconds if plan.verdict else None
            bar.update(task, advance=1, description=f"last {human_seconds(step)}" if step else "last refused")

        yield tick


@contextmanager
def note_bar(progress: bool | None) -> Iterator[Callable[[str], None]]:
    """Something to call with what is being tried."""
    if not _wanted(progress):
        yield lambda _: None
        return
    columns = [TextColumn("trying"), BarColumn(bar_width=20), TextColumn("{task.description}"), TimeElapsedColumn()]
    with Progress(*columns, console=_console(progress), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda words: bar.update(task, description=words)


@contextmanager
def tuning_bar(
    progress: bool | None, compiles: int
) -> Iterator[Callable[[str, int, float | None, float | None], None]]:
    """Something to call with what is done now, how many were compiled, the best compiled step, and the seconds left."""
    if not _wanted(progress):
        yield lambda *_: None
        return
    columns = [TextColumn("tuning"), BarColumn(bar_width=10), MofNCompleteColumn(), TextColumn("{task.description}")]
    with Progress(*columns, TimeElapsedColumn(), console=_console(progress), transient=True) as bar:
        task = bar.add_task("", total=compiles)

        def tell(doing: str, done: int, best_seconds: float | None, seconds_left: float | None) -> None:
            best = f"best {human_seconds(best_seconds)}; " if best_seconds is not None else ""
            left = f", {human_seconds(seconds_left)} left" if seconds_left is not None else ""
            bar.update(task, completed=done, description=f"{best}{doing}{left}")

        yield tell


def _console(progress: bool | None) -> Console:
    return Console(stderr=True, force_terminal=True if progress else None)


def _wanted(progress: bool | None) -> bool:
    return sys.stderr.isatty() if progress is None else progress
