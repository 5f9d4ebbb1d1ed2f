"""What else could have been chosen, as a plan remembers it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MeshChoice:
    """A shape of the mesh and the best that was found on it.

    ``effort`` is how hard it was tried: "carried over" (the best states of other shapes), "improved" or "searched".
    """

    mesh: dict[str, int]
    step_seconds: float
    peak_bytes: int
    fits: bool
    effort: str
