"""The values of a program on one device of a mesh: how the classes of them are sharded, and their bytes."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.price.buffers import Form
from shardwright.price.classes import ValueClass
from shardwright.price.layout import row_bytes, stored_bytes
from shardwright.price.shardings import fixed_on, shard_value
from shardwright.price.views import Seen, View
from shardwright.request import MeshShape
from shardwright.space.state import Sharding


class Tensors:
    """Shardings of classes of values, each sharding with a number; ``sets[c]`` is that of the groups of a class."""

    def __init__(
        self, classes: Sequence[ValueClass], sets: Sequence[int], mesh: MeshShape, tile: tuple[int, int] | None
    ) -> None:
        self.classes, self.mesh, self.tile = classes, mesh, tile
        self.shardings: list[Sharding] = []
        self._sets = sets
        self._numbers: dict[Sharding, int] = {}
        self._known: list[dict[Seen, int]] = [{} for _ in classes]
        self._bytes: list[dict[Sharding, float]] = [{} for _ in classes]

    def number(self, value_class: int, view: View) -> int:
        """The number of the sharding of a class."""
        if view.fixed is not None:
            return self._numbered(view.fixed[value_class])
        known, seen = self._known[value_class], view.seen[self._sets[value_class]]
        found = known.get(seen)
        if found is None:
            c = self.classes[value_class]
            fixed = fixed_on(c.given, self.mesh)
            sharding = shard_value(c.shape, c.groups, c.pairs, c.kept, self.mesh, view.lists, c.padded, fixed)
            found = known[seen] = self._numbered(sharding)
        return found

    def sharding(self, value_class: int, view: View) -> Sharding:
        """The sharding of a class."""
        return self.shardings[self.number(value_class, view)]

    def _numbered(self, sharding: Sharding) -> int:
        number = self._numbers.get(sharding)
        if number is None:
            number = self._numbers[sharding] = len(self.shardings)
            self.shardings.append(sharding)
        return number

    def local_shape(self, value_class: int, sharding: Sharding) -> tuple[int, ...]:
        """One device's part of a value."""
        shape, ways = self.classes[value_class].shape, self.mesh.ways
        return tuple([-(-size // ways(axes)) if axes else size for size, axes in zip(shape, sharding, strict=True)])

    def bytes_in(self, value_class: int, sharding: Sharding) -> float:
        """Bytes of one device's part of a value."""
        known = self._bytes[value_class].get(sharding)
        if known is None:
            local = self.local_shape(value_class, sharding)
            known = self._bytes[value_class][sharding] = stored_bytes(local, self.classes[value_class].dtype, self.tile)
        return known

    def held_bytes(self, value_class: int, sharding: Sharding, form: Form) -> float:
        """Bytes of a buffer that holds one device's part of a value in some form."""
        if form.rows:
            local = self.local_shape(value_class, sharding)
            in_rows = row_bytes(local, self.classes[value_class].dtype, self.tile, form.rows)
            if in_rows or form.copy:
                return in_rows * form.scale
        return self.bytes_in(value_class, sharding) * form.scale

    def most_elements(self, values: Sequence[int], shardings: Sequence[Sharding]) -> float:
        """Elements of one device's part of the largest of some values."""
        most = 0.0
        for v, sharding in zip(values, shardings, strict=True):
            count = 1.0
            for size in self.local_shape(v, sharding):
                count *= size
            most = max(most, count)
        return most
