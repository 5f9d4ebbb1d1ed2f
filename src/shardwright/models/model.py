"""What a built-in model is: a name, a summary, its presets and the function that builds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shardwright.models.sizes import Sizes

#: ``(fn, args, options)``: a plain function, its arguments as pytrees of shapes, ``{"donate": positions}``.
Program = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Model:
    """A built-in model.

    Attributes:
        name: The name it is asked for by.
        summary: One line for people.
        build: Called with an optional ``preset`` and sizes by keyword; returns a ``Program``.
        presets: Named sizes; always holds ``"default"`` (full size) and ``"tiny"`` (runs on a CPU).

    """

    name: str
    summary: str
    build: Callable[..., Program]
    presets: Mapping[str, Sizes]
