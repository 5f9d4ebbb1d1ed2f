"""What tuning by a compiler left behind: options that were kept, what was compiled, and what was learned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from shardwright._amounts import human_bytes, human_seconds
from shardwright.compiler.options import settings_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_SHOWN = 8
_NOTHING = 5e-4
"""Of a step: what is less is nothing."""
_WORDS = {
    "compute": "compute",
    "copies": "copies to other layouts",
    "sums": "sums, not hidden",
    "operands": "gathers and exchanges, not hidden",
}


@dataclass(frozen=True)
class KeptOption:
    """Options of the compiler that belong to a plan, what they are called, and the part of the step that they saved."""

    name: str
    settings: Mapping[str, str]
    saved: float


@dataclass(frozen=True)
class Compiled:
    """One compilation: of what, with which of our options by name, and what the compiler said.

    ``predicted_seconds`` are those of the step by the prices as they had been corrected until then.
    """

    what: str
    options: tuple[str, ...]
    step_seconds: float | None
    peak_bytes: int | None
    fits: bool | None
    message: str
    predicted_seconds: float | None = None
    compile_seconds: float | None = None


@dataclass(frozen=True)
class Correction:
    """What something at a line takes in the tuned plan by the estimate and by the compiler, and why, if that is known.

    ``what`` is "compute", "copies", "sums" or "operands"; of moves only what is not hidden counts.
    """

    what: str
    line: str
    backward: bool
    estimated_seconds: float
    compiled_seconds: float
    why: str = ""


@dataclass(frozen=True)
class Tuning:
    """How a plan was tuned.

    Attributes:
        on: The target whose compiler was asked.
        options: The options that were kept.
        default_seconds: The compiled step of the plan that tuning began with, without options; None where that plan was
            refused.
        step_seconds: The compiled step of the tuned plan, with its options.
        compiled: What was compiled, in order. A plan that was read from a file does not know it.
        corrections: The largest differences between the estimate and the compiler, of the tuned plan.
        notes: What else there is to say: options that the compiler does not know, why it ended early.
        ended: "converged", "compiles", "seconds" or "interrupted".
        seconds: What it took.

    """

    on: str
    options: tuple[KeptOption, ...] = ()
    default_seconds: float | None = None
    step_seconds: float | None = None
    compiled: tuple[Compiled, ...] = ()
    corrections: tuple[Correction, ...] = ()
    notes: tuple[str, ...] = ()
    ended: str = ""
    seconds: float = 0.0

    @property
    def compiler_options(self) -> dict[str, str]:
        """The options of XLA that were kept, by name."""
        return {name: value for kept in self.options for name, value in kept.settings.items()}

    @property
    def saved(self) -> float | None:
        """The part of the default plan's compiled step that tuning saved; None where either is not known."""
        if not self.default_seconds or self.step_seconds is None:
            return None
        return 1 - self.step_seconds / self.default_seconds

    def __str__(self) -> str:
        return "\n".join(tuning_lines(self))

    def to_dict(self) -> dict[str, Any]:
        """Of JSON's types alone."""
        return asdict(self)


def written(tuning: Tuning) -> dict[str, Any]:
    """What a plan file says of it: the options, and what they brought."""
    kept = [{"name": o.name, "settings": dict(o.settings), "saved": o.saved} for o in tuning.options]
    steps = {"default_seconds": tuning.default_seconds, "step_seconds": tuning.step_seconds}
    return {"on": tuning.on, "options": kept, **steps}


def tuning_from(content: Mapping[str, Any]) -> Tuning:
    """The inverse of ``written``."""
    kept = tuple(KeptOption(o["name"], dict(o["settings"]), o["saved"]) for o in content["options"])
    return Tuning(content["on"], kept, content["default_seconds"], content["step_seconds"])


def unknown_option(platform: str, name: str, settings: Mapping[str, str]) -> str:
    """What is wrong with an option of a plan file for a platform's compiler; nothing where it is one of ours.

    A plan file may come from a stranger, and options of a compiler can write files.
    """
    for record in settings_of(platform):
        if record.name == name and record.effect is not None:
            return "" if dict(record.effect.options) == dict(settings) else "its settings are others"
    return "it is none of those that tuning tries"


def tuning_lines(tuning: Tuning) -> list[str]:
    """Tuning in sentences: what it saved, which options were kept, notes."""
    step = human_seconds(tuning.step_seconds) if tuning.step_seconds is not None else "no step"
    first = f"Tuned by the compiler for {tuning.on}: {step}"
    if tuning.default_seconds is not None and tuning.saved is not None:
        before = f"in place of {human_seconds(tuning.default_seconds)}, {_percent(tuning.saved)} less"
        first += f" {before}" if tuning.saved >= _NOTHING else ", as without tuning"
    if tuning.compiled:
        first += f"; {len(tuning.compiled)} compilations in {human_seconds(tuning.seconds)}"
        first += {"interrupted": ", until it was interrupted", "seconds": ", until its time was over"}.get(
            tuning.ended, ""
        )
    return [f"{first}.", *option_lines(tuning.options), *(f"{note}." for note in tuning.notes)]


def option_lines(options: Sequence[KeptOption]) -> list[str]:
    """A sentence for each option that was kept: what it is called, what is set, and what it brought."""
    return [
        f"With {kept.name} ({', '.join(f'{name}={value}' for name, value in kept.settings.items())}): "
        f"{_percent(kept.saved)} less."
        for kept in options
    ]


def corrections_table(corrections: Sequence[Correction]) -> Table:
    """The largest differences between the estimate and the compiler."""
    return _table(("learned of", "at", "estimated", "compiled", "why"), correction_rows(corrections))


def correction_rows(corrections: Sequence[Correction]) -> Iterator[tuple[str, str, str, str, str]]:
    """The cells of such a table."""
    for c in corrections[:_MOST_SHOWN]:
        at = f"{c.line}{', backward' * c.backward}" if c.line else ""
        seconds = human_seconds(c.estimated_seconds), human_seconds(c.compiled_seconds)
        yield _WORDS.get(c.what, c.what), at, *seconds, c.why


def compiled_rows(compiled: Sequence[Compiled]) -> Iterator[tuple[str, str, str, str, str]]:
    """What was compiled: what, with which options, the predicted and the compiled step, and memory or the refusal."""
    for c in compiled:
        predicted = human_seconds(c.predicted_seconds) if c.predicted_seconds is not None else ""
        step = human_seconds(c.step_seconds) if c.step_seconds is not None else ""
        held = human_bytes(c.peak_bytes) if c.fits and c.peak_bytes is not None else c.message
        yield c.what, ", ".join(c.options), predicted, step, held


def compiled_table(compiled: Sequence[Compiled]) -> Table:
    """What was compiled, in order."""
    return _table(("compiled", "with", "predicted", "step", "each device"), compiled_rows(compiled))


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table whose third and fourth columns are seconds."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for k, name in enumerate(names):
        right = k in (2, 3)
        table.add_column(name, justify="right" if right else "left", no_wrap=right, overflow="fold")
    for cells in rows:
        table.add_row(*cells)
    return table


def _percent(part: float) -> str:
    return f"{100 * part:.1f}%"
