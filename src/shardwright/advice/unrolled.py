"""Layers that are written out, kept or recomputed as a policy says: a draft with its backward pass changed."""

from __future__ import annotations

from bisect import bisect_right

from shardwright.advice.draft import Draft, Policy, bodies_of, reads_of
from shardwright.advice.repeated_layers import Layers, is_forward
from shardwright.ir.own_rules import NONE
from shardwright.ir.program import Program


def recompute_layers(draft: Draft, layers: Layers, policy: Policy) -> bool:
    """Put each of the layers under ``jax.checkpoint``; false if the backward pass reads nothing of them."""
    return _Recompute(draft, layers, policy).apply()


class _Recompute:
    def __init__(self, draft: Draft, layers: Layers, policy: Policy) -> None:
        self.draft, self.program, self.policy = draft, draft.program, policy
        self.layers = layers
        self.reads = reads_of(self.program)
        self.layer_of_op = {o: k for k, ops in enumerate(layers.ops) for o in ops}
        for region in self.program.regions:  # what is inside an op of a layer is of that layer
            if region.op in self.layer_of_op:
                inside = dict.fromkeys(range(region.start, region.stop), self.layer_of_op[region.op])
                self.layer_of_op.update(inside)
        body = bodies_of(self.program)[layers.region]
        self.backward = [o for o in body if self.program.ops[o].source.backward]

    def apply(self) -> bool:
        starts = self._starts()
        if not starts:
            return False
        order = sorted((at, k) for k, at in starts.items())
        wanted: dict[int, list[int]] = {k: [] for k in starts}
        uses: dict[int, list[tuple[int, int]]] = {k: [] for k in starts}
        inputs = {k: self._inputs(k) for k in starts}
        for o in self.backward:
            turn = bisect_right(order, (o, len(self.layers.ops))) - 1
            now = order[turn][1] if turn >= 0 else -1
            for v in self.reads[o]:
                k = self._layer_of(v)
                if k in starts and (k == now or self._internal(v, k)):
                    wanted[k].append(v)
                    uses[k].append((o, v))
                elif now in starts and v in inputs[now]:
                    uses[now].append((o, v))
        for k, at in starts.items():
            self._insert(k, at, wanted[k], uses[k])
        return True

    def _layer_of(self, v: int) -> int:
        o = self.program.values[v].op
        return -1 if self.program.free[v] else self.layer_of_op.get(o, -1)

    def _internal(self, v: int, k: int) -> bool:
        """No other part of the forward pass needs a value of a layer."""
        users = self.program.users[v]
        outside = (u for u in users if self.layer_of_op.get(u, -1) != k)
        return v not in self.program.returned and not any(is_forward(self.program.ops[u]) for u in outside)

    def _starts(self) -> dict[int, int]:
        """For each layer the op with which its backward pass begins."""
        starts: dict[int, int] = {}
        for o in self.backward:
            for v in self.reads[o]:
                k = self._layer_of(v)
                if k >= 0 and k not in starts and self._internal(v, k):
                    starts[k] = o
        return starts

    def _inputs(self, k: int) -> set[int]:
        """What a layer is given."""
        free = self.program.free
        read = (v for o in self.layers.ops[k] for v in self.reads[o])
        return {v for v in read if self._layer_of(v) != k and not free[v]}

    def _insert(self, k: int, at: int, wanted: list[int], uses: list[tuple[int, int]]) -> None:
        """Compute a layer again before its backward pass, from its inputs and what the policy keeps.

        The barrier keeps the compiler from taking the two for one.
        """
        program, draft = self.program, self.draft
        given: dict[int, None] = {}
        again: set[int] = set()
        waiting = list(wanted)
        while waiting:
            v = waiting.pop()
            o = program.values[v].op
            op = program.ops[o]
            if self._layer_of(v) == k:
                if self.policy.keeps(op):
                    given[v] = None
                elif o not in again:
                    again.add(o)
                    waiting += self.reads[o]
            elif program.free[v] and o >= 0:
                if o not in again:
                    again.add(o)
                    waiting += op.operands
            else:
                given[v] = None
        inputs = self._inputs(k)
        given.update(dict.fromkeys(v for _, v in uses if v in inputs))
        known = {v: draft.like(v) for v in given}
        near = program.ops[at]
        if given:
            draft.before[at].append(draft.op(near, "optimization_barrier", tuple(known), tuple(known.values()), NONE))
        for o in sorted(again):
            draft.before[at].append(draft.clone(o, known))
        for o, v in uses:
            if v in known:
                draft.use(o, {v: known[v]})


def keep_layers(draft: Draft, region: int, policy: Policy) -> bool:
    """Keep of what ``jax.checkpoint`` computes again in a region what the policy says; false if that is nothing."""
    program = draft.program
    body = bodies_of(program)[region]
    again = [o for o in body if program.ops[o].source.recomputed]
    if any(program.ops[o].regions for o in again):
        return False
    twins = _Twins(program, body)
    if policy is not Policy.EVERYTHING:
        return _keep_some(draft, body, again, twins, policy)
    if not any(v in twins.same for o in again for v in program.ops[o].results):
        return False
    for o in again:
        op = program.ops[o]
        if all(v in twins.same for v in op.results):
            draft.exchanged.update({v: twins.same[v] for v in op.results})
        elif not all(program.free[v] for v in op.results):
            values: dict[int, int] = {}
            place = twins.place(o)
            early = draft.after[place] if place >= 0 else draft.before[body[0]]
            for v in op.operands:
                early += _from_forward(draft, twins, v, values)
            early.append(draft.clone(o, values))
            draft.exchanged.update({v: values[v] for v in op.results})
    for o in body:
        op = program.ops[o]
        if op.kind == "optimization_barrier" and op.source.backward:
            pairs = zip(op.operands, op.results, strict=True)
            draft.exchanged.update({after: before for before, after in pairs if after not in draft.exchanged})
    return bool(again)


def _from_forward(draft: Draft, twins: _Twins, v: int, known: dict[int, int]) -> list[int]:
    """Enter into ``known`` what a value is in the forward pass; ops that make it again if it costs nothing."""
    if not draft.program.free[v]:
        known[v] = draft.standing_for(twins.same.get(v, v))
        return []
    o = draft.program.values[v].op
    made = [new for a in draft.program.ops[o].operands for new in _from_forward(draft, twins, a, known)]
    return [*made, draft.clone(o, known)]


def _keep_some(draft: Draft, body: list[int], again: list[int], twins: _Twins, policy: Policy) -> bool:
    """Hand kept results through the barrier before a layer's recomputation, as its inputs are."""
    program = draft.program
    recomputed = set(again)
    barrier = -1
    found = False
    for o in body:
        op = program.ops[o]
        if op.kind == "optimization_barrier" and op.source.backward:
            barrier = o
        elif o in recomputed and policy.keeps(op) and op.results[0] in twins.same:
            found = True
            kept = twins.same[op.results[0]]
            if barrier < 0:
                draft.exchanged[op.results[0]] = kept
                continue
            after = draft.like(kept)
            wider = draft.ops[barrier]
            draft.ops[barrier] = wider._replace(operands=(*wider.operands, kept), results=(*wider.results, after))
            draft.exchanged[op.results[0]] = after
    return found


class _Twins:
    """Values that are computed again with the value of the forward pass that each is: ``same``.

    By value numbering, as in ``numbering``, within one region.
    """

    def __init__(self, program: Program, body: list[int]) -> None:
        self.program = program
        self.same: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._region = program.ops[body[0]].region
        first: dict[object, tuple[int, ...]] = {}
        for o in body:
            op = program.ops[o]
            if op.kind == "optimization_barrier":
                self.same.update({b: self.same.get(a, a) for a, b in zip(op.operands, op.results, strict=True)})
                continue
            free = bool(op.results) and all(program.free[v] for v in op.results)
            if op.regions or not (free or op.source.recomputed or not op.source.backward):
                continue
            key = (op.signature, op.attributes.get("value"), tuple([self.same.get(v, v) for v in op.operands]))
            known = first.setdefault(key, op.results)
            if known is not op.results:
                self.same.update(zip(op.results, known, strict=True))
            elif op.source.recomputed:
                self._last.update(dict.fromkeys(op.results, self.place(o)))

    def place(self, o: int) -> int:
        """The op of the forward pass after which a recomputed one could be computed; -1 for before all of them."""
        place = -1
        for v in self.program.ops[o].operands:
            maker = self.program.values[v].op
            if self.program.free[v]:
                place = max(place, self.place(maker))
            else:
                v = self.same.get(v, v)
                maker = self.program.values[v].op
                here = maker >= 0 and self.program.ops[maker].region == self._region
                place = max(place, self._last.get(v, maker if here else -1))
        return place
