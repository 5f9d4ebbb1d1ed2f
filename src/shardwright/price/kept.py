"""What stays whole with arguments that are to stay whole.

Casts and slices of them do, and so does a gradient that is added to them: it would be scattered only to be gathered.
"""

from __future__ import annotations

from collections.abc import Iterable

from shardwright.ir.kinds import SAME_ENTRIES
from shardwright.ir.program import Op, Program, is_elementwise
from shardwright.space.state import KeepWhole

_CARRIERS = SAME_ENTRIES | {"copy", "dynamic_update_slice"}


def kept_by(value: int, whole: Iterable[frozenset[int]]) -> tuple[KeepWhole, ...]:
    """The entries that keep a value whole; ``whole`` are sets of values with all that stays with them."""
    return tuple([KeepWhole(k) for k, values in enumerate(whole) if value in values])


def stays_whole(program: Program, arguments: frozenset[int]) -> frozenset[int]:
    """Arguments with the values that stay whole with them.

    These are the values computed from them alone, constants, scalars and loop counters aside; and sums that no
    contraction waits for, and that are only used, elementwise, together with such.
    """
    return frozenset(_Kept(program, arguments).values)


class _Kept:
    """Grows the set value by value. ``like`` are those of its values that are an argument's in another form.

    A bias that is broadcast over a batch is computed from the bias alone, but is not one in another form: what is added
    to it is no gradient.
    """

    def __init__(self, program: Program, arguments: frozenset[int]) -> None:
        self.program = program
        self.values: set[int] = set()
        self.like: set[int] = set()
        self._waiting: list[int] = []
        for v in sorted(arguments):
            self._add(v, like=True)
        while self._waiting:
            self._follow(self._waiting.pop())

    def _add(self, v: int, *, like: bool) -> None:
        if v not in self.values or (like and v not in self.like):
            self.values.add(v)
            if like:
                self.like.add(v)
            self._waiting.append(v)

    def _follow(self, v: int) -> None:
        """See what a value that stays whole takes with it."""
        program = self.program
        for o in program.users[v]:
            self._forward(o)
            op = program.ops[o]
            if v in self.like and is_elementwise(program, op):
                for operand in op.operands:
                    self._backward(operand)
        made_by = program.values[v].op
        if made_by >= 0:
            self._through_loop(v, made_by)
            for operand in program.ops[made_by].operands:
                self._backward(operand)
        region = program.regions[program.values[v].region]
        if region.op >= 0 and program.ops[region.op].kind == "while":
            for k, result in enumerate(region.results):  # given back by a loop's body as it came
                if result == v:
                    self._forward_loop(region.op, k)

    def _forward(self, o: int) -> None:
        op = self.program.ops[o]
        if op.kind == "while":
            for k, v in enumerate(op.operands):
                if v in self.values:
                    self._forward_loop(o, k)
        elif op.kind == "optimization_barrier":
            for before, after in zip(op.operands, op.results, strict=True):
                if before in self.values:
                    self._add(after, like=before in self.like)
        elif not op.regions and any(v in self.values for v in op.operands):
            own = [v for v in op.operands if not self._neutral(v)]
            if all(v in self.values for v in own):
                same = self._carries(op) or is_elementwise(self.program, op)
                for v in op.results:
                    self._add(v, like=same and all(operand in self.like for operand in own))

    def _forward_loop(self, o: int, k: int) -> None:
        """What a loop's body does not change stays whole in it and after it."""
        op = self.program.ops[o]
        body = self.program.regions[op.regions[-1]]
        if op.operands[k] in self.values and body.results[k] == body.parameters[k]:
            like = op.operands[k] in self.like
            self._add(op.results[k], like=like)
            for r in op.regions:
                self._add(self.program.regions[r].parameters[k], like=like)

    def _through_loop(self, v: int, o: int) -> None:
        """A gradient that a loop collects stays whole within it."""
        op = self.program.ops[o]
        if op.kind == "while" and v in self.like:
            k = op.results.index(v)
            if not self._collects(o, v):
                return
            for r in op.regions:
                self._add(self.program.regions[r].parameters[k], like=True)
            self._add(self.program.regions[op.regions[-1]].results[k], like=True)

    def _backward(self, v: int) -> None:
        program = self.program
        if v in self.values or self._neutral(v) or program.awaited[v] or v in program.argument_of:
            return
        made_by = program.values[v].op
        if v in program.returned or made_by < 0 or (program.ops[made_by].regions and not self._collects(made_by, v)):
            return
        if all(self._joined(o, v) for o in program.users[v]) and self._is_sum(v):
            self._add(v, like=True)

    def _is_sum(self, v: int) -> bool:
        """A value comes, elementwise, from sums alone: a gradient does, an update by an optimizer's state does not."""
        program, waiting, seen = self.program, [v], {v}
        while waiting:
            w = waiting.pop()
            if w in self.values or self._neutral(w):
                continue
            made_by = program.values[w].op
            if made_by < 0:
                return False
            op = program.ops[made_by]
            if self._carries(op) or is_elementwise(program, op):
                waiting.extend(operand for operand in op.operands if operand not in seen)
                seen.update(op.operands)
        return True

    def _collects(self, o: int, v: int) -> bool:
        """A loop fills the value, which is empty before, and nothing waits for it."""
        op = self.program.ops[o]
        begins = op.kind == "while" and self._neutral(op.operands[op.results.index(v)])
        return begins and not self.program.awaited[v]

    def _joined(self, o: int, v: int) -> bool:
        """An op brings a value together with one that stays whole, or hands it on to one."""
        op = self.program.ops[o]
        if self._carries(op):
            return all(w in self.like for w in op.results)
        if is_elementwise(self.program, op):
            return any(w in self.like for w in (*op.operands, *op.results) if w != v)
        return False

    def _carries(self, op: Op) -> bool:
        """Its result is an operand in another form."""
        if op.kind in ("broadcast_in_dim", "reduce"):  # JAX's ways to add or drop a dimension of one
            return self.program.values[op.operands[0]].bytes == self.program.values[op.results[0]].bytes
        return op.kind in _CARRIERS

    def _neutral(self, v: int) -> bool:
        return bool(self.program.free[v]) or not self.program.values[v].shape
