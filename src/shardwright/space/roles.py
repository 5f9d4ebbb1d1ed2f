"""What the parts of a program are, read off its structure: the batch, the sequence, weights, experts, image height.

An argument is a weight if it has no batch; the batch is what nearly all of the arithmetic runs over without ever
meeting itself. No name means anything here: ``w`` and ``x`` are as good as ``params`` and ``batch``. Names are compared
with one another in one place: where several dimensions could be the batch, one is preferred that the state carried from
step to step lacks, and what is carried is told by arguments and results of one type whose paths end alike
(``carried_results``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from shardwright.analysis import Analysis
from shardwright.errors import PinError
from shardwright.space.carried import carried_results

_NEARLY = 0.98


@dataclass(frozen=True, eq=False)
class Roles:
    """Roles of groups and arguments of an analysed program; groups are given by number.

    ``named_batch`` is the batch if somebody has said which it is.
    """

    analysis: Analysis
    named_batch: int | None = None

    @classmethod
    def of(cls, analysis: Analysis) -> Roles:
        """The roles of a program, which are looked for once, whoever asks."""
        found: Roles = analysis.known.setdefault(cls, cls(analysis))
        return found

    def groups_of_value(self, value: int) -> tuple[int, ...]:
        """The group of each dimension of a value, -1 where there is none."""
        return tuple(self.analysis.group_of.get(c, -1) for c in self.analysis.colours.of_value(value).tolist())

    def groups_of_op(self, op: int) -> tuple[int, ...]:
        """The group of each factor of an op, -1 where there is none."""
        return tuple(self.analysis.group_of.get(c, -1) for c in self.analysis.colours.of_op(op).tolist())

    @cached_property
    def groups_of_arguments(self) -> dict[int, tuple[int, ...]]:
        """For the value of each argument, the groups of its dimensions."""
        return {a.value: self.groups_of_value(a.value) for a in self.analysis.program.arguments}

    @cached_property
    def batch(self) -> int:
        """The group that touches (nearly) the most FLOPs, without a conflict if there is such a one, first in order.

        Of equals, one along which no convolution exchanges a rim: the height of a picture is touched as much. Then one
        that the state carried from step to step lacks, then one that the results have, then the one that the fewest
        arguments have: weights share their dimensions, inputs do not.
        """
        if self.named_batch is not None:
            return self.named_batch
        described = self.analysis.descriptions
        attached = [g for g, d in enumerate(described) if d.arguments and d.flops]
        if not attached:
            raise PinError("no batch was found: no argument takes part in a contraction; name the dimension to shard.")
        most = max(described[g].flops for g in attached)

        results = {g for v in self.analysis.program.regions[0].results for g in self.groups_of_value(v)}

        def rank(g: int) -> tuple[bool, bool, int, bool, int, int, int]:
            places = [d for groups in self.groups_of_arguments.values() for d, h in enumerate(groups) if h == g]
            conflicts = self.analysis.groups[g].conflicts
            rim = g in self._rims
            return len(conflicts) > 0, rim, self._carried[g], g not in results, len(places), min(places), g

        return min((g for g in attached if described[g].flops >= _NEARLY * most), key=rank)

    @cached_property
    def _carried(self) -> Counter[int]:
        """How many arguments that come back as results have each group."""
        carried = carried_results(self.analysis.program)
        return Counter(g for v in carried for g in set(self.groups_of_arguments[v]))

    @cached_property
    def weights(self) -> tuple[int, ...]:
        """Values of the arguments that have dimensions to shard but no batch: parameters and optimizer state."""
        return tuple(
            v
            for v, groups in self.groups_of_arguments.items()
            if max(groups, default=-1) >= 0 and self.batch not in groups
        )

    @cached_property
    def made_from(self) -> dict[int, int]:
        """For each value that is only cast, sliced or reshaped from one weight, that weight."""
        program, weights = self.analysis.program, set(self.weights)
        origin = {w: w for w in weights}
        free = program.free

        def source(operands: tuple[int, ...]) -> int | None:
            real = [v for v in operands if not free[v] and program.values[v].shape]
            return origin.get(real[0]) if len(real) == 1 else None

        for op in program.ops:
            if op.kind == "while":
                body = program.regions[op.regions[-1]]
                for k, v in enumerate(op.operands):
                    if v in origin and body.results[k] == body.parameters[k]:
                        for r in op.regions:
                            origin[program.regions[r].parameters[k]] = origin[v]
                        origin[op.results[k]] = origin[v]
            elif op.kind == "optimization_barrier":
                origin.update({b: origin[a] for a, b in zip(op.operands, op.results, strict=True) if a in origin})
            elif not op.regions and op.results and not op.flops:
                found = source(op.operands)
                if found is not None:
                    origin.update(dict.fromkeys(op.results, found))
        return origin

    @cached_property
    def parameters(self) -> tuple[int, ...]:
        """Weights that meet the batch or are contracted: what the model computes with, and not an optimizer's own."""
        program, batch = self.analysis.program, self.batch
        used: set[int] = set()
        for o, op in enumerate(program.ops):
            origins = [self.made_from[v] for v in op.operands if v in self.made_from]
            if origins and (op.flops or batch in self.groups_of_op(o)):
                used.update(origins)
        return tuple(w for w in self.weights if w in used)

    @cached_property
    def equals(self) -> tuple[frozenset[int], ...]:
        """Sets of weights in equal roles: of one shape and type, with the same groups or multiplied by the same.

        A parameter has the groups of its optimizer state. The keys and the values of attention are products of the
        same tensor, though the one is contracted afterwards and the other summed up.
        """
        program = self.analysis.program
        first: dict[object, int] = {}
        joined = {w: w for w in self.weights}

        def home(w: int) -> int:
            while joined[w] != w:
                w = joined[w]
            return w

        def join(w: int, *role: object) -> None:
            value = program.values[w]
            other = first.setdefault((value.shape, value.dtype, *role), w)
            joined[home(w)] = home(other)

        for w in self.weights:
            join(w, self.groups_of_arguments[w])
        for op in program.ops:
            for k, v in enumerate(op.operands if op.flops else ()):
                if v in self.made_from:
                    join(self.made_from[v], op.signature, k, *op.operands[:k], *op.operands[k + 1 :])
        sets: dict[int, set[int]] = {}
        for w in self.weights:
            sets.setdefault(home(w), set()).add(w)
        return tuple(frozenset(found) for found in sets.values() if len(found) > 1)

    @cached_property
    def sequence(self) -> int | None:
        """A group that lies beside the batch in an argument and that weights lack, or that meets itself (attention)."""
        if any(c.consistent for c in self.analysis.groups[self.batch].conflicts):
            return self.batch  # a batch of one: the sequence is all that there is to run over
        described = self.analysis.descriptions
        beside = {g for groups in self.groups_of_arguments.values() if self.batch in groups for g in groups} - {
            -1,
            self.batch,
        }
        in_weights = {g for w in self.weights for g in self.groups_of_arguments[w]}
        meets_itself = {g for g in beside if any(c.consistent for c in self.analysis.groups[g].conflicts)}
        found = [g for g in beside if g not in in_weights or g in meets_itself]
        return max(found, key=lambda g: (g in meets_itself, described[g].flops, -g), default=None)

    @cached_property
    def height(self) -> int | None:
        """Of the groups along which convolutions exchange a rim, the one with most FLOPs, first in order."""
        return min(self._rims, key=lambda g: (-self._rims[g], g), default=None)

    @cached_property
    def _rims(self) -> Counter[int]:
        """The FLOPs of convolutions that exchange a rim along each group."""
        flops: Counter[int] = Counter()
        for o, op in enumerate(self.analysis.program.ops):
            if op.flops and op.rule.halo:
                groups = self.groups_of_op(o)
                flops.update({groups[f]: op.flops for f in op.rule.halo if groups[f] >= 0})
        return flops

    @cached_property
    def experts(self) -> int | None:
        """The group of weights that runs beside a contraction: each of its indices has a matrix of its own."""
        flops: Counter[int] = Counter()
        program = self.analysis.program
        for o, op in enumerate(program.ops):
            if not op.flops or not any(v in self.made_from for v in op.operands):
                continue
            groups = self.groups_of_op(o)
            for f, g in enumerate(groups):
                if g >= 0 and g != self.batch and all(any(f in d for d in dims) for dims in op.rule.tensors[:3]):
                    flops[g] += op.flops
        in_weights = {g for w in self.weights for g in self.groups_of_arguments[w]}
        return max((g for g in flops if g in in_weights), key=lambda g: (flops[g], -g), default=None)

    def cover(self, values: tuple[int, ...], allowed: set[int], axis_size: int) -> list[int]:
        """Groups, largest gain first, until each of the values has a dimension of one that the axis divides."""
        program = self.analysis.program
        divisible = {
            v: {
                g
                for g, size in zip(self.groups_of_arguments[v], program.values[v].shape, strict=True)
                if g in allowed and size % axis_size == 0
            }
            for v in values
        }
        left = {v for v, groups in divisible.items() if groups}
        chosen: list[int] = []
        while left:
            gain: Counter[int] = Counter()
            for v in left:
                gain.update(dict.fromkeys(divisible[v], program.values[v].bytes))
            best = min(gain, key=lambda g: (-gain[g], g))
            chosen.append(best)
            left = {v for v in left if best not in divisible[v]}
        return chosen

    def row_side(self, group: int) -> tuple[int, ...]:
        """In each conflict of a group the side that is reduced over less: the query side of attention."""
        program, sides = self.analysis.program, []
        for conflict in self.analysis.groups[group].conflicts:
            reduced = [0, 0]
            for s in conflict.sets:
                for m in self.analysis.conflicts[s].members:
                    if m.of == "op" and program.ops[m.index].kind == "reduce":
                        for side, factor in enumerate(m.sides()):
                            reduced[side] += factor in program.ops[m.index].rule.reduction
            sides.append(int(reduced[0] > reduced[1]))
        return tuple(sides)
