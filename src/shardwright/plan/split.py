"""What each mesh axis does in a plan: what it splits in the contractions, and how the weights lie on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from functools import cached_property
from typing import NamedTuple

from shardwright.price import Partitioned
from shardwright.space.roles import Roles

KINDS = WEIGHTS, BETWEEN, GRADIENTS = "weights", "between", "gradients"
"""Contractions with a weight; of activations with each other (attention's scores); weights' gradients."""


class Storage(NamedTuple):
    """Bytes of parameters by what becomes of them on an axis, and the part of the optimizer's state that is split.

    ``stationary`` are stored in parts and used so, ``gathered`` stored in parts and used whole.
    """

    stationary: int
    gathered: int
    whole: int
    state_share: float

    @property
    def gathered_share(self) -> float:
        """Of the parameters that are used whole, the part that is stored in parts."""
        used_whole = self.gathered + self.whole
        return self.gathered / used_whole if used_whole else 0.0

    @property
    def rest_share(self) -> float:
        """Of the parameters that are stored whole, the part whose optimizer state is not."""
        total = self.stationary + self.gathered + self.whole
        if not self.whole:
            return 0.0
        return min(1.0, max(0.0, (self.state_share * total - self.stationary - self.gathered) / self.whole))


class Splits:
    """FLOPs of a plan's contractions by what is split in them on each axis. Groups are given by number."""

    def __init__(self, partitioned: Partitioned, roles: Roles) -> None:
        self.partitioned, self.roles = partitioned, roles
        program, places = partitioned.program, partitioned.places
        self._flops: list[Counter[tuple[str, frozenset[int], int]]] = [Counter() for _ in partitioned.mesh.names]
        repeats = program.repeats.tolist()
        for o, op in enumerate(program.ops):
            assignment = partitioned.assignments[o]
            if op.flops and assignment is not None:
                groups = places.of_op[o]
                for axis, factor in enumerate(assignment.factors):
                    by = groups[factor] if factor >= 0 else -1
                    self._flops[axis][self.kind(o), frozenset(groups), by] += op.flops * repeats[o]

    def share(self, axis: int, over: Collection[int], by: Collection[int], kinds: Collection[str] = KINDS) -> float:
        """Of the FLOPs that run over one of some groups, the part in which the axis splits one of others."""
        total = split = 0
        for (kind, groups, found), flops in self._flops[axis].items():
            if kind in kinds and not groups.isdisjoint(over):
                total += flops
                split += flops * (found in by)
        return split / total if total else 0.0

    def activations(self, axis: int, group: int, without: Collection[int]) -> float:
        """Of the bytes of values that have the batch and a group, but none of some others, the part split along it."""
        program, of_value = self.partitioned.program, self.partitioned.places.of_value
        total = split = 0
        for v, value in enumerate(program.values):
            groups = of_value[v]
            if (
                value.op < 0
                or group not in groups
                or self.roles.batch not in groups
                or not {*without}.isdisjoint(groups)
            ):
                continue
            total += value.bytes
            sharding = self.partitioned.values[v]
            split += value.bytes * any(axis in sharding[d] for d, g in enumerate(groups) if g == group)
        return split / total if total else 0.0

    def stored(self, axis: int, groups: Collection[int]) -> float:
        """Of the bytes of parameters that have one of some groups, the part that is stored split along one of them."""
        program, total, split = self.partitioned.program, 0, 0
        for p in self.roles.parameters:
            found = self.roles.groups_of_arguments[p]
            if not {*groups}.isdisjoint(found):
                total += program.values[p].bytes
                lies = zip(self.partitioned.values[p], found, strict=True)
                split += program.values[p].bytes * any(axis in axes and g in groups for axes, g in lies)
        return split / total if total else 0.0

    def storage(self, axis: int) -> Storage:
        """How the weights lie on an axis."""
        program, values = self.partitioned.program, self.partitioned.values
        lie = Counter[str]()
        for p in self.roles.parameters:
            in_parts = any(axis in axes for axes in values[p])
            whole, parts = self._uses[p][axis]
            lie["whole" if not in_parts else "gathered" if whole > parts else "stationary"] += program.values[p].bytes
        state = set(self.roles.weights) - set(self.roles.parameters)
        held = sum(program.values[v].bytes for v in state)
        split = sum(program.values[v].bytes for v in state if any(axis in axes for axes in values[v]))
        return Storage(lie["stationary"], lie["gathered"], lie["whole"], split / held if held else 0.0)

    @cached_property
    def _uses(self) -> dict[int, list[list[int]]]:
        """For each parameter and axis how much its uses weigh that take it whole and in parts."""
        program, roles = self.partitioned.program, self.roles
        axes = range(len(self.partitioned.mesh.names))
        out = {p: [[0, 0] for _ in axes] for p in roles.parameters}
        repeats = program.repeats.tolist()
        for o, op in enumerate(program.ops):
            assignment = self.partitioned.assignments[o]
            if assignment is None or not (op.flops or roles.batch in self.partitioned.places.of_op[o]):
                continue
            for v, sharding in zip(op.operands, assignment.operands, strict=True):
                p = roles.made_from.get(v, -1)
                if p in out:
                    for axis in axes:
                        in_parts = any(axis in found for found in sharding)
                        out[p][axis][in_parts] += (op.flops + program.values[v].bytes) * repeats[o]
        return out

    def kind(self, o: int) -> str:
        """What an op contracts."""
        op, groups = self.partitioned.program.ops[o], self.partitioned.places.of_op[o]
        if any(v in self.roles.made_from for v in op.operands):
            return WEIGHTS
        return GRADIENTS if any(groups[f] == self.roles.batch for f in op.rule.reduction) else BETWEEN
