"""Functions that say themselves how they may be split, by JAX's ``custom_partitioning``, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

TARGET = "CustomSPMDPartitioning"
"""What JAX calls such a function by, whichever it is."""


@dataclass(frozen=True)
class Function:
    """Its name, and its work as a whole: counted in its own program, with that of the kernels in it.

    ``static`` are those of its arguments that are no arrays, of plain types.
    """

    name: str
    flops: int = 0
    transcendentals: int = 0
    static: tuple[bool | int | float | str | None, ...] = ()
