"""What a plan's decisions are commonly called: "ZeRO-3 / FSDP", "Megatron with sequence parallelism", ….

What counts is what each axis does, not what stands on its list: a name is given only where the axis splits, in (nearly)
all of the contractions that a strategy is about, what the strategy's tactic would split, and stores the weights as it
would. What is done in part is called so. The parts of a program (batch, sequence, …) are those that tactics go by
(``space/roles.py``), found from its structure.

- *data parallel*, *context parallel*, *expert parallel*, *spatial*: the axis splits the batch, the sequence (also in
  attention; else it is *sequence parallel*), the experts, the image height. "elsewhere": another strategy that is named
  takes what it does not.
- *ZeRO-3 / FSDP*, *ZeRO-1*: the axis splits data in one of these ways, and what it does not split is stored in parts
  and gathered where it is used; for ZeRO-1 this holds for optimizer state alone. It stands for "data parallel" too.
- *Megatron*: the axis splits what the tactic would, where weights are stored and where they are used; with *sequence
  parallelism* where the activations in between are split along the sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from shardwright.errors import PinError
from shardwright.plan.split import BETWEEN, WEIGHTS, Splits
from shardwright.request import Decision
from shardwright.space.carried import carried_results
from shardwright.space.decisions import find_group
from shardwright.space.roles import Roles
from shardwright.space.state import Entry
from shardwright.space.tactics import megatron

if TYPE_CHECKING:
    from shardwright.plan.plan import Plan

_ALL, _SOME = 0.9, 0.1
"""From which part on something is called done, and up to which it is called not done. In between it is given in %."""
CONTEXT, EXPERTS = "context parallel", "expert parallel"
ATTENTION, FEED_FORWARD, VOCABULARY, CONVOLUTIONS = "attention", "feed-forward", "vocabulary", "convolutions"


def common_names(plan: Plan) -> Mapping[str, tuple[str, ...]]:
    """For each mesh axis what its decisions are commonly called; nothing where no name fits."""
    roles = Roles.of(plan.analysis)
    try:
        known = _Known(plan, roles)
    except PinError:  # no contraction, so no batch: strategies are not about such programs
        return dict.fromkeys(plan.mesh, ())
    return {axis: tuple(known.names(number)) for number, axis in enumerate(plan.mesh)}


class _Known:
    def __init__(self, plan: Plan, roles: Roles) -> None:
        self.roles, self.state = roles, plan.partitioned.state
        self.splits = Splits(plan.partitioned, roles)
        self.inner = self._inner()
        self.heads = [g for g, part in self.inner.items() if part == ATTENTION]
        self.data = dict(self._data_names())

    def _data_names(self) -> Iterator[tuple[int, str]]:
        """The groups that strategies for data are about, and what it is called to split each.

        Where tokens are sent to experts by a product, the experts touch all FLOPs, and ``Roles`` takes them for the
        batch, and a width of theirs for the sequence: neither is a dimension of anything but weights.
        """
        roles = self.roles
        if roles.experts is not None and self._is_sent_to(roles.experts):
            yield roles.experts, EXPERTS
        sent = self._is_of_weights(roles.batch) and self._is_sent_to(roles.batch)
        yield roles.batch, EXPERTS if sent else "data parallel"
        if roles.sequence is not None and not sent:
            yield roles.sequence, CONTEXT
        if roles.height is not None:
            yield roles.height, "spatial"

    def _is_sent_to(self, group: int) -> bool:
        """Whether activations get a group from other activations, in a product: tokens are sent to experts so.

        The frequencies of a spectral convolution have a matrix each as well, but nothing is sent to them.
        """
        given = {*self.roles.made_from, *self.roles.groups_of_arguments}
        for o, op in enumerate(self.roles.analysis.program.ops):
            groups = self.roles.groups_of_op(o)
            if op.flops and group in groups:
                *sides, out = ({groups[f] for d in dims for f in d[:1]} for dims in op.rule.tensors[:3])
                having = [self._before_casts(v) for v, own in zip(op.operands, sides, strict=False) if group in own]
                if group in out and len(having) == 1 and having[0] not in given:
                    return True
        return False

    def _is_of_weights(self, group: int) -> bool:
        """Whether every argument that has a group comes back as a result, or has a matrix for each of its indices.

        An input's rows are multiplied by weights that lack the batch, whatever else runs beside it.
        """
        program = self.roles.analysis.program
        matrices, rows = set[int](), set[int]()
        for o, op in enumerate(program.ops):
            groups = self.roles.groups_of_op(o)
            if op.flops and group in groups:
                sides = [any(groups[f] == group for d in dims for f in d) for dims in op.rule.tensors[:2]]
                (matrices if all(sides) else rows).update(map(self._before_casts, op.operands))
        own = {*carried_results(program), *(matrices - rows)}
        return all(v in own for v, groups in self.roles.groups_of_arguments.items() if group in groups)

    def _before_casts(self, value: int) -> int:
        program = self.roles.analysis.program
        while (o := program.values[value].op) >= 0 and program.ops[o].kind == "convert":
            value = program.ops[o].operands[0]
        return value

    def names(self, axis: int) -> list[str]:
        """What the axis's decisions are called, in the order of its list."""
        shares = {g: self.splits.share(axis, [g], [g]) for g in self.data}
        tensor = self._megatron(axis, shares)
        named = [*self.data, *(self.inner if tensor else ())]
        found = {g: self._data(axis, g, share, named) for g, share in shares.items() if share > _SOME}
        splits_data = any(self.data[g] != EXPERTS for g in found)
        batch = self.roles.batch
        if batch not in found and self.splits.share(axis, self.heads, [batch], (BETWEEN,)) >= _ALL:
            found[batch] = "data parallel in attention"
        order = [entry.subject for entry in self.state.lists[axis]]
        # What the program's own shardings split need not be on the list.
        order += [g for g in (*found, *self.inner) if g not in order]
        ordered = [found[g] for g in sorted(found, key=order.index)]
        if tensor:
            first = min(order.index(g) for g in self.inner)
            ordered.insert(sum(order.index(g) < first for g in found), tensor)
        return self._with_storage(axis, ordered) if splits_data else ordered

    def _data(self, axis: int, group: int, share: float, named: list[int]) -> str:
        """What it is called to split a part of the data, and where that is done."""
        name = self._sequence(axis, group) if self.data[group] == CONTEXT else self.data[group]
        if share >= _ALL:
            return name
        if self.splits.share(axis, [group], named) >= _ALL:
            return f"{name} elsewhere"
        return f"{name} in {share:.0%} of the FLOPs"

    def _sequence(self, axis: int, group: int) -> str:
        """Context parallelism if attention is split along the sequence, and on which side."""
        if self.splits.share(axis, [group], [group], (BETWEEN,)) < _ALL:
            return "sequence parallel"
        sides = next(e.sides for e in self.state.lists[axis] if isinstance(e, Entry) and e.group == group)
        return CONTEXT if sides == self.roles.row_side(group) else f"{CONTEXT} on the side of the keys"

    def _with_storage(self, axis: int, names: list[str]) -> list[str]:
        """With what sharded storage is called, in place of plain data parallelism."""
        storage = self.splits.storage(axis)
        share, rest = storage.gathered_share, storage.rest_share
        if share >= _ALL or (share <= _SOME and rest >= _ALL):
            stored = "ZeRO-3 / FSDP" if share >= _ALL else "ZeRO-1"
            if any(name.startswith("data parallel") for name in names):
                return [name.replace("data parallel", stored) for name in names]
            return [*names, stored]
        if share > _SOME:
            more = ", ZeRO-1 of the rest" if rest >= _ALL else ""
            return [*names, f"ZeRO-3 / FSDP of {share:.0%} of the parameters{more}"]
        if rest > _SOME:
            return [*names, f"ZeRO-1 of {rest:.0%} of the optimizer state"]
        return names

    def _megatron(self, axis: int, data: Mapping[int, float]) -> str:
        """Megatron, or the part of it that the axis does; of a part beside another whole strategy nothing is said."""
        parts: dict[str, list[int]] = {}
        for g, part in self.inner.items():
            parts.setdefault(part, []).append(g)
        shares = {
            part: self.splits.share(axis, groups, self.inner, (WEIGHTS,)) * (self.splits.stored(axis, groups) > _SOME)
            for part, groups in parts.items()
        }
        words = [
            part if share >= _ALL else f"{share:.0%} of the {part}" for part, share in shares.items() if share > _SOME
        ]
        if shares.get(ATTENTION, 0.0) >= _ALL and self.splits.share(axis, self.heads, self.heads, (BETWEEN,)) < _ALL:
            words[words.index(ATTENTION)] = "attention's projections"
        whole = bool(words) and words == list(parts)
        rest = any(share >= _ALL for g, share in data.items() if self.data[g] != EXPERTS)
        if not words or (rest and not whole):
            return ""
        name, sequence = "Megatron", self.roles.sequence
        if sequence is not None and data.get(sequence, 0.0) <= _SOME:
            name += " with sequence parallelism" * (self.splits.activations(axis, sequence, self.inner) >= _ALL)
        return name if whole else f"{name}, {' and '.join(words)} only"

    def _inner(self) -> dict[int, str]:
        """The groups that Megatron would split if every size could be divided, and what each belongs to."""
        try:
            decisions = megatron(self.roles, "", 1)
        except PinError:
            return {}
        groups = [find_group(self.roles.analysis, d.dimension) for d in decisions if isinstance(d, Decision)]
        return {g: self._part(g) for g in groups}

    def _part(self, group: int) -> str:
        """Attention where activations are contracted beside it, vocabulary where it is looked up or normalised over."""
        program, of_op = self.roles.analysis.program, self.splits.partitioned.places.of_op
        exponentials = reduced = convolved = False
        for o, op in enumerate(program.ops):
            groups = of_op[o]
            if group not in groups or self.roles.batch not in groups:
                continue
            if op.flops and self.splits.kind(o) == BETWEEN:
                return ATTENTION
            convolved |= op.kind == "convolution"
            exponentials |= op.kind == "exponential"
            reduced |= op.kind == "reduce" and any(groups[f] == group for f in op.rule.reduction)
        if exponentials and reduced:
            return VOCABULARY
        return CONVOLUTIONS if convolved else FEED_FORWARD
