"""A dimension whose size can be changed: where it stands in the arguments, and the arguments at another size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwright.errors import PinError
from shardwright.problem import Problem
from shardwright.space.decisions import find_group
from shardwright.space.roles import Roles


@dataclass(frozen=True)
class Dimension:
    """``places`` are all dimensions of arguments (``"batch.x[0]"``) that grow with it, and their sizes as given.

    ``size`` is that of the first; the others keep their ratio to it.
    """

    name: str
    size: int
    places: Mapping[str, int]

    def scaled(self, size: int) -> dict[str, int] | None:
        """The sizes of all places where the first has this size; None where one would not be whole."""
        sizes = {place: divmod(given * size, self.size) for place, given in self.places.items()}
        return (
            None if any(rest for _, rest in sizes.values()) else {place: whole for place, (whole, _) in sizes.items()}
        )


def find_dimension(problem: Problem, named: str | Sequence[str] | None) -> Dimension:
    """The dimension that is named, with all that is tied to it; or several that grow together; or the batch."""
    analysis = problem.analysis
    if named is None:
        try:
            groups = [Roles.of(analysis).batch]
        except PinError:
            raise PinError(
                "no batch was found: no argument takes part in a contraction; say dimension=, such as 'x[0]'."
            ) from None
    else:
        groups = [find_group(analysis, name) for name in ([named] if isinstance(named, str) else named)]
    places = {
        f"{a.path}[{d}]": analysis.program.values[a.value].shape[d]
        for group in groups
        for a in analysis.program.arguments
        for d, g in enumerate(problem.places.of_value[a.value])
        if g == group
    }
    described = [analysis.descriptions[g] for g in groups]
    if not places:
        raise PinError(f"no argument has the dimension {described[0].name}, so its size cannot be changed.")
    first = described[0].name
    size = places.get(first, next(iter(places.values())))
    return Dimension(", ".join(d.name for d in described), size, places)
