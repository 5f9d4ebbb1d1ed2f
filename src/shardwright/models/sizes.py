"""Sizes of a model: a frozen dataclass of checked fields, and the choice of one from presets."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeVar, get_type_hints

from shardwright.errors import TargetError

#: The floating-point types a model may compute in.
DTYPES = ("bfloat16", "float16", "float32")

S = TypeVar("S", bound="Sizes")


def suggestion(name: object, names: Iterable[str]) -> str:
    """Return how a sentence about an unknown ``name`` ends: with the closest names and all of them."""
    names = list(names)
    close = difflib.get_close_matches(str(name), names, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)} (of {', '.join(names)})?"
    return f"choose from {', '.join(names)}."


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Base of every model's sizes: checks each field's type and range when constructed.

    An ``int`` or ``float`` field must be positive unless its metadata gives another ``minimum``; a ``str`` is one of
    the ``choices`` of its metadata, or else of ``DTYPES``.
    """

    model: ClassVar[str] = "model"

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for field in dataclasses.fields(self):
            value, kind = getattr(self, field.name), hints[field.name]
            if kind is bool:
                self.require(isinstance(value, bool), f"{field.name} must be true or false, not {value!r}")
            elif kind is str:
                choices = field.metadata.get("choices", DTYPES)
                self.require(value in choices, f"{field.name} must be one of {', '.join(choices)}, not {value!r}")
            else:
                self._require_number(field.name, value, kind, field.metadata.get("minimum"))
        self.check()

    def check(self) -> None:
        """Check relations between fields; a model with any overrides this."""

    def require(self, condition: bool, message: str) -> None:
        """Raise ``TargetError`` with ``message`` unless ``condition`` holds."""
        if not condition:
            raise TargetError(f"{self.model}: {message}.")

    def require_multiple(self, field: str, of: str) -> None:
        """Require that the value of ``field`` is a multiple of the value of the field ``of``."""
        value, divisor = getattr(self, field), getattr(self, of)
        self.require(value % divisor == 0, f"{field} ({value}) must be a multiple of {of} ({divisor})")

    def _require_number(self, name: str, value: Any, kind: type, minimum: float | None) -> None:
        # bool is a subclass of int, and layers=True is a slip rather than one layer.
        accepted = not isinstance(value, bool) and isinstance(value, (int, float) if kind is float else int)
        noun = "a number" if kind is float else "an integer"
        self.require(
            accepted and (isinstance(value, int) or math.isfinite(value)),
            f"{name} must be {noun}, not {value!r}",
        )
        if minimum is None:
            self.require(value > 0, f"{name} must be positive, not {value!r}")
        else:
            self.require(value >= minimum, f"{name} must be at least {minimum}, not {value!r}")


def choose(presets: Mapping[str, S], preset: str, changes: Mapping[str, Any]) -> S:
    """Return the named preset with ``changes`` applied; ``TargetError`` if either makes no sense."""
    model = presets["default"].model
    if not isinstance(preset, str) or preset not in presets:
        raise TargetError(f"Model {model} has no preset {preset!r}; {suggestion(preset, presets)}")
    names = [field.name for field in dataclasses.fields(presets[preset])]
    for name in changes:
        if name not in names:
            raise TargetError(f"Model {model} has no size {name!r}; {suggestion(name, names)}")
    return dataclasses.replace(presets[preset], **changes)
