"""Which values of a backward loop are values of the forward loop: read from a stack, or computed again.

Ops are numbered by what they compute (value numbering: Cocke and Schwartz, "Programming languages and their compilers",
1970): two ops of one class with the same operands are one *node*. A slice that the backward loop reads of a stack is
the node whose result the forward loop has written to it, so that what ``jax.checkpoint`` computes again gets the
numbers of the forward loop's ops; what it computes beside (the derivatives of a ``tanh``) gets numbers of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from shardwright.advice.draft import bodies_of, reads_of
from shardwright.ir.kinds import MADE
from shardwright.ir.program import Op, Program


class Ref(NamedTuple):
    """A result of a node."""

    node: int
    result: int = 0


class Node(NamedTuple):
    """An op that computes it (-1 for a leaf) and the nodes of what that reads (see ``reads_of``).

    ``order`` is where it stands or could stand in the forward loop, ``varies`` whether it differs from turn to turn.
    """

    op: int
    operands: tuple[Ref, ...]
    order: tuple[int, int]
    varies: bool


@dataclass(frozen=True)
class Scan:
    """A loop over layers and the loop that goes back over them; each with its value that counts the turns.

    ``stacks`` are the forward loop's slots that the backward loop reads, with what is written to them in a turn.
    """

    forward: int
    backward: int
    trips: int
    forward_index: int
    backward_index: int
    stacks: dict[int, int]


def find_scans(program: Program) -> list[Scan]:
    """Every pair of loops of which one keeps stacks for the other."""
    trips = {loop.op: loop.trips for loop in program.loops}
    found: list[Scan] = []
    for o in trips:
        op = program.ops[o]
        if not op.source.backward:
            continue
        pairs: dict[int, dict[int, int]] = {}
        for v in op.operands:
            maker = program.values[v].op
            if maker in trips and maker != o:
                slot = program.ops[maker].results.index(v)
                if (write := _write(program, maker, slot)) is not None:
                    pairs.setdefault(maker, {})[slot] = write
        if not pairs:
            continue
        forward = max(pairs, key=lambda f: sum(program.values[program.ops[f].results[k]].bytes for k in pairs[f]))
        index = _reading_index(program, op, {program.ops[forward].results[k] for k in pairs[forward]})
        first = next(iter(pairs[forward].values()))
        if index is not None and trips[forward] == trips[o] > 1:
            stacks = {k: program.ops[w].operands[1] for k, w in pairs[forward].items()}
            found.append(Scan(forward, o, trips[o], program.ops[first].operands[2], index, stacks))
    return found


def _write(program: Program, loop: int, slot: int) -> int | None:
    """The op that updates a slot of what a loop carries, if nothing else is done with it."""
    body = program.regions[program.ops[loop].regions[-1]]
    o = program.values[body.results[slot]].op
    if o < body.start or program.ops[o].kind != "dynamic_update_slice":
        return None
    return o if program.ops[o].operands[0] == body.parameters[slot] else None


def _reading_index(program: Program, loop: Op, stacks: set[int]) -> int | None:
    body = program.regions[loop.regions[-1]]
    for v, parameter in zip(loop.operands, body.parameters, strict=True):
        if v in stacks:
            for o in program.users[parameter]:
                if program.ops[o].kind == "dynamic_slice" and program.ops[o].region == loop.regions[-1]:
                    return program.ops[o].operands[1]
    return None


class Numbering:
    """The nodes of a scan.

    ``forward`` and ``backward`` are the nodes of the values of the two bodies; ``kept`` the backward body's values that
    are read from stacks, ``recomputed`` those that are computed again.
    """

    def __init__(self, program: Program, scan: Scan) -> None:
        self.program, self.scan = program, scan
        self.reads = reads_of(program)
        self.nodes: list[Node] = []
        self.forward: dict[int, Ref] = {}
        self.backward: dict[int, Ref] = {}
        self.outer: dict[Ref, int] = {}
        """Values from outside both loops."""
        self.carried: dict[Ref, int] = {}
        """Slots of the forward loop that change from turn to turn."""
        self.value: dict[Ref, int] = {}
        """The forward body's value of a node, if it has one."""
        self.kept: set[int] = set()
        self.recomputed: set[int] = set()
        self._numbers: dict[object, int] = {}
        self._unchanged: dict[int, int] = {}
        bodies = bodies_of(program)
        self._number_forward(bodies[program.ops[scan.forward].regions[-1]])
        self._number_backward(bodies[program.ops[scan.backward].regions[-1]])

    def _node(self, key: object, node: Node) -> int:
        number = self._numbers.setdefault(key, len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append(node)
        return number

    def _outside(self, v: int) -> Ref:
        """The node of a value from outside; what is made of constants alone is what it would be inside."""
        v = self._unchanged.get(v, v)
        o = self.program.values[v].op
        if o >= 0 and self.program.free[v] and not self.program.ops[o].regions:
            op = self.program.ops[o]
            operands = tuple([self._outside(a) for a in op.operands])
            return Ref(self._node(_key(o, op, operands), Node(o, operands, (-1, o), varies=False)))
        ref = Ref(self._node(("outside", v), Node(-1, (), (-1, -1), varies=False)))
        self.outer[ref] = v
        return ref

    def _number_forward(self, ops: list[int]) -> None:
        program, loop = self.program, self.program.ops[self.scan.forward]
        body = program.regions[loop.regions[-1]]
        for k, v in enumerate(body.parameters):
            if body.results[k] == v:
                self._unchanged[loop.results[k]] = loop.operands[k]
                self.forward[v] = self._outside(loop.operands[k])
                self.value.setdefault(self.forward[v], v)
            else:
                ref = self.forward[v] = Ref(self._node(("carried", k), Node(-1, (), (-1, -1), varies=True)))
                self.carried[ref] = k
                self.value[ref] = v
        for o in ops:
            op = program.ops[o]
            operands = tuple([self.forward.get(v) or self._outside(v) for v in self.reads[o]])
            varies = bool(op.regions) or any(self.nodes[r.node].varies for r in operands)
            node = self._node(_key(o, op, operands), Node(o, operands, (o, -1), varies))
            for k, v in enumerate(op.results):
                self.forward[v] = Ref(node, k)
                self.value.setdefault(Ref(node, k), v)

    def _number_backward(self, ops: list[int]) -> None:
        program, scan = self.program, self.scan
        loop = program.ops[scan.backward]
        body = program.regions[loop.regions[-1]]
        written = {program.ops[scan.forward].results[k]: v for k, v in scan.stacks.items()}
        stacks: dict[int, int] = {}
        for before, v, after in zip(loop.operands, body.parameters, body.results, strict=True):
            if after == v and before in written:
                stacks[v] = written[before]
            elif after == v:
                self.backward[v] = self._outside(before)
        self.backward[scan.backward_index] = self.forward[scan.forward_index]
        for o in ops:
            self._number_in_backward(o, stacks)

    def _number_in_backward(self, o: int, stacks: dict[int, int]) -> None:
        program = self.program
        op = program.ops[o]
        if op.kind == "dynamic_slice" and op.operands[0] in stacks:
            written = stacks[op.operands[0]]
            if op.operands[1] == self.scan.backward_index and program.values[written].shape == _shape(program, op):
                self.backward[op.results[0]] = self.forward[written]
                self.kept.add(op.results[0])
            return
        if op.kind == "optimization_barrier":
            for before, after in zip(op.operands, op.results, strict=True):
                if before in self.backward:
                    self.backward[after] = self.backward[before]
                    for values in (self.kept, self.recomputed):
                        if before in values:
                            values.add(after)
            return
        operands = [self.backward.get(v) for v in self.reads[o]]
        if any(ref is None for ref in operands) or (op.regions and not op.source.recomputed):
            return
        known = tuple([ref for ref in operands if ref is not None])
        if op.kind == "reshape" and (inner := self._widened(known[0], _shape(program, op))) is not None:
            self.backward[op.results[0]] = inner
            if op.operands[0] in self.kept:
                self.kept.add(op.results[0])
            return
        shaping = op.kind in MADE or op.kind in ("dynamic_slice", "reshape", "broadcast_in_dim")
        if not op.source.recomputed and not (shaping and not any(v in self.kept for v in op.operands)):
            return
        first = max((self.nodes[r.node].order[0] for r in known), default=-1)
        varies = bool(op.regions) or any(self.nodes[r.node].varies for r in known)
        node = self._node(_key(o, op, known), Node(o, known, (first, o), varies))
        for k, v in enumerate(op.results):
            self.backward[v] = Ref(node, k)
            if op.source.recomputed:
                self.recomputed.add(v)

    def _widened(self, ref: Ref, shape: tuple[int, ...]) -> Ref | None:
        """What a value is of which a dimension of one was added, if it has this shape."""
        node = self.nodes[ref.node]
        if node.op < 0 or self.program.ops[node.op].kind not in ("broadcast_in_dim", "reshape"):
            return None
        inner = self.program.values[self.program.ops[node.op].operands[0]]
        return node.operands[0] if inner.shape == shape and inner.bytes == self._bytes(node.op) else None

    def _bytes(self, o: int) -> int:
        return self.program.values[self.program.ops[o].results[0]].bytes


def _shape(program: Program, op: Op) -> tuple[int, ...]:
    return program.values[op.results[0]].shape


def _key(o: int, op: Op, operands: tuple[Ref, ...]) -> object:
    """What an op computes; an op with a body is like no other."""
    return ("op", o) if op.regions else (op.signature, op.attributes.get("value"), operands)
