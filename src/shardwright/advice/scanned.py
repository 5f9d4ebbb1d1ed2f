"""Layers in a scan, kept or recomputed as a policy says: the program's draft with both loops changed."""

from __future__ import annotations

from shardwright.advice.draft import Draft, Policy, bodies_of
from shardwright.advice.numbering import Numbering, Ref
from shardwright.ir.program import Op
from shardwright.ir.rules import Rule


def change_scan(draft: Draft, known: Numbering, policy: Policy) -> bool:
    """Keep of each turn what the policy says, and compute the rest again; false if that cannot be worked out."""
    return _Change(draft, known, policy).apply()


class _Change:
    def __init__(self, draft: Draft, known: Numbering, policy: Policy) -> None:
        self.draft, self.known, self.policy = draft, known, policy
        self.program = draft.program
        scan = self.scan = known.scan
        bodies = bodies_of(self.program)
        self.forward_body = bodies[self.program.ops[scan.forward].regions[-1]]
        self.backward_body = bodies[self.program.ops[scan.backward].regions[-1]]
        self.there: dict[Ref, int] = {}
        """Values of the backward body by their node: those it has anyway, and those that it is given."""
        self.stacked: list[Ref] = []
        self.computed: set[int] = set()
        self.early: dict[Ref, int] = {}
        self.places: dict[int, int] = {}
        """After which op of the forward body something is computed that only the backward body computed."""

    def apply(self) -> bool:
        wanted = self._wanted()
        if not wanted or (self.policy is not Policy.NOTHING and self._recomputes_loops()):
            return False
        start = self._start()
        for o in self.backward_body[: self.backward_body.index(start)]:
            for v in self.program.ops[o].results:
                if v in self.known.backward and v not in self.known.recomputed and v not in self.known.kept:
                    self.there.setdefault(self.known.backward[v], v)
        self.there[self.known.forward[self.scan.forward_index]] = self.scan.backward_index
        kept = {self.known.backward[v] for v in wanted} if self.policy is Policy.EVERYTHING else set()
        for v in wanted:
            self._need(self.known.backward[v], kept)
        if not all(self._is_early(ref) for ref in self.stacked):
            return False
        inserted: list[int] = []
        for ref in self.stacked:
            inserted += self._from_stack(ref)
        for number in sorted(self.computed, key=lambda n: self.known.nodes[n].order):
            inserted += self._again(number)
        self.draft.before[start] += inserted
        for v in wanted:
            if self.there[self.known.backward[v]] != v:
                self.draft.exchanged[v] = self.there[self.known.backward[v]]
        self._drop_barriers()
        return True

    def _wanted(self) -> list[int]:
        """What the backward pass proper needs of the layer, in order."""
        program, known = self.program, self.known
        body = program.regions[program.ops[self.scan.backward].regions[-1]]
        layers = known.kept | known.recomputed
        found: dict[int, None] = {}
        for o in self.backward_body:
            op = program.ops[o]
            if op.kind == "optimization_barrier" or (op.results and op.results[0] in layers):
                continue
            found.update(dict.fromkeys(v for v in known.reads[o] if v in layers))
        found.update(dict.fromkeys(v for v in body.results if v in layers))
        return list(found)

    def _recomputes_loops(self) -> bool:
        return any(self.program.ops[o].regions and self.program.ops[o].source.recomputed for o in self.backward_body)

    def _start(self) -> int:
        """The first op of the backward body that reads what the layer has computed, or computes it again."""
        layers = self.known.kept | self.known.recomputed
        for o in self.backward_body:
            op = self.program.ops[o]
            reads = any(v in layers for v in self.known.reads[o]) and not (
                op.results and op.results[0] in self.known.kept
            )
            if op.source.recomputed or (reads and op.kind != "optimization_barrier"):
                return o
        return self.backward_body[-1]

    def _need(self, ref: Ref, kept: set[Ref]) -> None:
        """Find out how the backward body comes by a value: it has it, reads it from a stack, or computes it."""
        waiting = [ref]
        seen: set[Ref] = set()
        while waiting:
            ref = waiting.pop()
            node = self.known.nodes[ref.node]
            if ref in self.there or ref in self.stacked or ref in seen:
                continue
            seen.add(ref)
            if ref in self.known.outer:
                self.there[ref] = self._enter(self.known.outer[ref])
            elif node.varies and (
                ref in self.known.carried or ref in kept or (not kept and self.policy.keeps(self.program.ops[node.op]))
            ):
                self.stacked.append(ref)
            elif ref.node not in self.computed:
                self.computed.add(ref.node)
                waiting += node.operands

    def _enter(self, outside: int) -> int:
        """The backward body's own name for a value from outside."""
        op = self.draft.ops[self.scan.backward]
        body = self.draft.regions[op.regions[-1]]
        for before, v, after in zip(op.operands, body.parameters, body.results, strict=True):
            if before == outside and v == after:
                return v
        return self.draft.carry(self.scan.backward, outside)[0]

    def _from_stack(self, ref: Ref) -> list[int]:
        """Ops that read a value from its stack; none if the backward body does so already."""
        for v in self.known.kept:
            if self.known.backward[v] == ref:
                self.there[ref] = v
                return []
        value = self.known.value.get(ref)
        if value is None:
            value = self._early(ref)
        stack, writing = new_stack(self.draft, self.scan.forward, value, self.scan.forward_index, self.scan.trips)
        self.draft.after[self.forward_body[-1]] += writing
        inside = self.draft.carry(self.scan.backward, stack)[0]
        near = self.program.ops[self.backward_body[0]]
        self.there[ref], reading = read_stack(self.draft, near, inside, value, self.scan.backward_index)
        return reading

    def _is_early(self, ref: Ref) -> bool:
        """The forward body computes a value or could: it needs nothing that is made between the two loops."""
        if ref in self.known.outer:
            return self.program.values[self.known.outer[ref]].op < self.scan.forward
        return ref in self.known.value or all(map(self._is_early, self.known.nodes[ref.node].operands))

    def _early(self, ref: Ref) -> int:
        """Compute in the forward body what only the backward body computed."""
        if ref in self.early:
            return self.early[ref]
        node = self.known.nodes[ref.node]
        op = self.program.ops[node.op]
        values: dict[int, int] = {}
        place = -1
        for v, operand in zip(self.known.reads[node.op], node.operands, strict=True):
            if operand in self.known.outer:
                values[v] = self._forward_name(self.known.outer[operand])
            else:
                found = self.known.value.get(operand)
                values[v] = found if found is not None else self._early(operand)
                place = max(place, self.places.get(values[v], self.draft.values[values[v]].op))
        new = self.draft.clone(node.op, values)
        for k, v in enumerate(op.results):
            self.early[Ref(ref.node, k)] = values[v]
            self.places[values[v]] = place
        if place >= 0:
            self.draft.after[place].append(new)
        else:
            self.draft.before[self.forward_body[0]].append(new)
        return self.early[ref]

    def _forward_name(self, outside: int) -> int:
        op = self.draft.ops[self.scan.forward]
        body = self.draft.regions[op.regions[-1]]
        for before, v, after in zip(op.operands, body.parameters, body.results, strict=True):
            if before == outside and v == after:
                return v
        return self.draft.carry(self.scan.forward, outside)[0]

    def _again(self, number: int) -> list[int]:
        """Compute a node in the backward body, after those that it needs: the ops."""
        node = self.known.nodes[number]
        op = self.program.ops[node.op]
        if all(Ref(number, k) in self.there for k in range(len(op.results))):
            return []
        first = [o for ref in node.operands if ref not in self.there for o in self._again(ref.node)]
        values = {v: self.there[ref] for v, ref in zip(self.known.reads[node.op], node.operands, strict=True)}
        new = self.draft.clone(node.op, values)
        for k, v in enumerate(op.results):
            self.there.setdefault(Ref(number, k), values[v])
        return [*first, new]

    def _drop_barriers(self) -> None:
        for o in self.backward_body:
            op = self.program.ops[o]
            if op.kind == "optimization_barrier":
                for before, after in zip(op.operands, op.results, strict=True):
                    if after not in self.draft.exchanged:
                        self.draft.exchanged[after] = before


Dims = tuple[tuple[int, ...], ...]


def new_stack(draft: Draft, loop: int, kept: int, index: int, trips: int) -> tuple[int, list[int]]:
    """Let a loop keep a value of its body in every turn: the stack that it gives back, and the ops that write it.

    The ops belong at the end of the body; ``index`` is the body's value that counts the turns.
    """
    op = draft.ops[loop]
    near = op._replace(region=op.regions[-1])
    stack, one = draft.stacked(kept, trips), draft.stacked(kept, 1)
    shape = draft.values[stack].shape
    start = draft.scalar(draft.values[kept].dtype)
    draft.before[loop].append(draft.op(op, "constant", (), (start,), Rule((), (), ((),), known=False)))
    empty = draft.like(stack)
    every = _each(len(shape))
    draft.before[loop].append(draft.op(op, "broadcast_in_dim", (start,), (empty,), Rule(shape, ((),), (every,))))
    parameter, after, slot = draft.carry(loop, empty)
    written = draft.like(stack)
    inner = every[1:]
    widen = draft.op(near, "broadcast_in_dim", (kept,), (one,), Rule((1, *shape[1:]), (inner,), (every,)))
    zeros, made = _zeros(draft, near, len(shape) - 1)
    rule = Rule(
        (shape[0], *shape[1:], 1),
        (every, ((len(shape),), *inner), *((),) * len(shape)),
        (every,),
        whole=frozenset({len(shape)}),
    )
    write = draft.op(near, "dynamic_update_slice", (parameter, one, index, *zeros), (written,), rule)
    draft.give_back(loop, slot, written)
    draft.stacks.append(stack)
    return after, [widen, *made, write]


def read_stack(draft: Draft, near: Op, stack: int, like: int, index: int) -> tuple[int, list[int]]:
    """Read a turn's slice of a stack: the value, which is like another, and the ops that read it."""
    shape = draft.values[stack].shape
    every = _each(len(shape))
    one, out = draft.stacked(like, 1), draft.like(like)
    zeros, made = _zeros(draft, near, len(shape) - 1)
    rule = Rule(
        (*shape, 1),
        (every, *((),) * len(shape)),
        (((len(shape),), *every[1:]),),
        whole=frozenset({0, len(shape)}),
    )
    cut = draft.op(near, "dynamic_slice", (stack, index, *zeros), (one,), rule)
    shown = draft.op(near, "reshape", (one,), (out,), Rule((1, *shape[1:]), (every,), (every[1:],)))
    return out, [*made, cut, shown]


def _each(rank: int) -> Dims:
    """A factor for each dimension."""
    return tuple([(k,) for k in range(rank)])


def _zeros(draft: Draft, near: Op, count: int) -> tuple[list[int], list[int]]:
    values = [draft.scalar("i32") for _ in range(count)]
    rule = Rule((), (), ((),), known=False)
    return values, [draft.op(near, "constant", (), (v,), rule) for v in values]
