"""Buffers: the memory that a program's stored values share, and from when to when each is needed.

Positions are the numbers of ops, in program order; a loop's body stands right after the loop. One buffer holds what a
loop carries, from its first content to the last use of what comes out, and what is updated in place. Results that take
over a donated argument's buffer need none of their own; others have theirs from the start: see ``price/results.py``.
What is gathered from or scattered to may lie in another order for that, in a buffer of its own: see
``compiler/layouts.py``.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from shardwright.compiler.layouts import ROWS
from shardwright.compiler.offloading import PIPELINED
from shardwright.compiler.storing import ON_CHIP
from shardwright.ir.kinds import (
    ADDS_DIMENSIONS,
    BRANCHES,
    CONSTRAINT,
    CONTRACTIONS,
    IN_PLACE,
    INDEXED,
    MANUAL,
    READS_OUT_OF_PLACE,
    VIEWS,
)
from shardwright.ir.memory import HOST, moved_to, moves_between
from shardwright.ir.program import Op, Program, bits_of, is_elementwise
from shardwright.price.gathered import TABLE, Laid, taken_apart
from shardwright.price.kernel_order import done
from shardwright.price.kernels import Kernels
from shardwright.price.relaid import Relaid, find_relaid
from shardwright.price.results import Span, idle_before
from shardwright.price.stacked import Stacked, find_stacked


class Form(NamedTuple):
    """How a buffer holds a value: ``scale`` times its bytes, of which it is there as ``idle`` a part before it is made.

    ``rows`` are dimensions that are to be minor. A ``copy`` is there only where the value itself lies otherwise. What
    is ``brief`` may never come to the device's memory, if it is small enough to stay beside its units.
    """

    scale: float = 1.0
    rows: tuple[int, ...] = ()
    copy: bool = False
    brief: bool = False
    idle: float = 1.0


AS_IT_LIES = Form()


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of a value's (local) size in some form, from position ``start`` up to and with ``end``."""

    value: int
    start: int
    end: int
    form: Form = AS_IT_LIES


@dataclass(frozen=True)
class Buffers:
    """``held``: arguments, which are there all the time. ``temporary``: the rest, in no order.

    ``relaid``: results of loops that may be copied to another layout before the loop and back after it, with the
    buffers for it. ``laid``: what is laid out anew for gathers and scatters. ``stacked``: slices of stacks that loops
    write to and stack again. ``given_back``: results of loops that are copied to donated arguments. ``held_on_host``
    and ``on_host`` are those in the host's memory, which are none of the others.
    """

    held: tuple[int, ...]
    temporary: tuple[Buffer, ...]
    relaid: tuple[Relaid, ...] = ()
    laid: tuple[Laid, ...] = ()
    stacked: tuple[Stacked, ...] = ()
    given_back: tuple[int, ...] = ()
    held_on_host: tuple[int, ...] = ()
    on_host: tuple[Buffer, ...] = ()


def find_buffers(program: Program, kernels: Kernels) -> Buffers:
    """Share memory between values as the compiler does, and find out how long each buffer is needed."""
    return _Sharing(program, kernels).buffers()


class _Sharing:
    def __init__(self, program: Program, kernels: Kernels) -> None:
        self.program, self.kernels = program, kernels
        self.end_of_program = len(program.ops)
        self.arguments = {a.value for a in program.arguments}
        self.same: dict[int, int] = {}  # a value that lies in another's buffer
        self.nowhere: set[int] = set()  # needs no buffer
        self.relaid: dict[int, Relaid] = {}
        self.in_place: set[int] = set()  # of these, those that need no buffer of their own unless they are copied
        self.laid: list[Laid] = []
        self.stacked: list[Stacked] = []
        self.given_back: dict[int, int] = {}  # results of loops that are copied to donated arguments, by their loops
        self.contracting = {kernels.at[o] for o, op in enumerate(program.ops) if op.flops}
        self.reduced = _reduced(program, kernels)
        self.turned = _turned(program, kernels)
        self.positions = sorted({kernels.at[o] for o, op in enumerate(program.ops) if kernels.root[o] == o})
        self.start = [_start(program, kernels, v) for v in range(len(program.values))]
        self.last_use = self._last_uses()

    def home(self, v: int) -> int:
        """The value whose buffer a value lies in."""
        while v in self.same:
            v = self.same[v]
        return v

    def buffers(self) -> Buffers:
        program, kernels = self.program, self.kernels
        for o, op in enumerate(program.ops):
            if op.kind == "while":
                self._loop(o)
            elif op.kind == "optimization_barrier":
                for a, b in zip(op.operands, op.results, strict=True):
                    self._share(b, a)
            elif op.kind == MANUAL:
                for a, b in program.ties(op):  # what is inside is a device's part of what is outside
                    self._share(*((b, a) if program.values[b].op < 0 else (a, b)))
            elif op.kind in BRANCHES:
                for r in op.regions:
                    for a, b in zip(program.regions[r].results, op.results, strict=True):
                        if program.values[a].op > o:
                            self._share(a, b)
            elif op.kind == CONSTRAINT:
                self._constrained(op)
            elif moved_to(op) is not None:
                if not moves_between(program, o):
                    self._share(op.results[0], op.operands[0])
            elif (op.kind in VIEWS and kernels.stored[op.results[0]] and kernels.stored[op.operands[0]]) or (
                op.kind in IN_PLACE and self._may_overwrite(op.operands[0], o)
            ):
                made, given = op.results[0], op.operands[0]
                # As for a loop: a table of zeros has no sharding of its own.
                self._share(*((given, made) if program.free[given] else (made, given)))
            else:
                self._reuse(o)
        for v, instead in kernels.over.items():
            if self.last_use[v] <= kernels.at[program.values[instead].op]:
                self._share(v, instead)
        donated = self._donated()
        members: dict[int, list[int]] = defaultdict(list)
        for v in range(len(program.values)):
            if kernels.stored[v] or v in self.same:
                members[self.home(v)].append(v)
        in_rows, copies = self._in_rows()
        temporary = [
            self._buffer(v, min(self.start[m] for m in found), max(self.last_use[m] for m in found), in_rows.get(v, ()))
            for v, found in members.items()
            if v not in self.arguments and v not in donated and v not in self.nowhere and kernels.stored[v]
        ]
        spans = {buffer.value: (buffer.start, buffer.end) for buffer in temporary if buffer.value in self.in_place}
        temporary = [buffer for buffer in temporary if buffer.value not in spans]
        held = [a.value for a in program.arguments]
        host = program.on_host
        returned = self._given(temporary)
        device = [buffer for buffer in (*temporary, *returned, *copies, *self._hoisted()) if buffer.value not in host]
        return Buffers(
            tuple(v for v in held if v not in host),
            (*device, *self._pipelined()),
            tuple(
                relaid._replace(start=spans[v][0], end=spans[v][1]) if v in spans else relaid
                for v, relaid in self.relaid.items()
                if v not in host
            ),
            (*self.laid, *taken_apart(program)),
            tuple(
                stacked._replace(value=home, given_back=home in self.given_back)
                for stacked in self.stacked
                if (home := self.home(stacked.value)) not in host
            ),
            tuple(v for v in self.given_back if v not in host),
            tuple(v for v in held if v in host),
            tuple(buffer for buffer in temporary if buffer.value in host and not self._in_a_stack(buffer.value)),
        )

    def _buffer(self, v: int, start: int, end: int, rows: tuple[int, ...]) -> Buffer:
        """The buffer of a value; one that is made and used up within a few kernels of one region is brief."""
        maker, after = self.program.values[v].op, bisect_right(self.positions, end)
        few = after - bisect_left(self.positions, start) <= ON_CHIP.effect.most_kernels
        loops = any(self.program.ops[u].regions for u in self.program.users[v])
        made = maker >= 0 and not self.program.ops[maker].regions and v not in self.program.returned
        made = made and v not in self.program.on_host
        if v in self.given_back:
            end = self.program.regions[self.program.ops[self.given_back[v]].regions[-1]].stop
        return Buffer(v, start, end, Form(rows=rows, brief=few and made and not loops and not rows))

    def _given(self, temporary: list[Buffer]) -> list[Buffer]:
        """The memory of results before they are there, but for what lies in it then."""
        program = self.program
        results = {self.home(v) for v in program.regions[0].results} - self.given_back.keys()

        def span(buffer: Buffer) -> Span:
            return Span(program.values[buffer.value].bytes, buffer.start, buffer.end)

        others = [b for b in temporary if b.value not in results and program.values[b.value].region == 0]
        given = [b for b in temporary if b.value in results]
        idle = idle_before([span(b) for b in given], [span(b) for b in others])
        return [
            Buffer(b.value, start, end, b.form._replace(idle=part))
            for b, found in zip(given, idle, strict=True)
            for start, end, part in found
        ]

    def _pipelined(self) -> list[Buffer]:
        """What a loop moves to the host or back, once more: the move is under way while the next turn runs."""
        program = self.program
        found = []
        for o, op in enumerate(program.ops):
            region = program.regions[op.region]
            if region.role == PIPELINED.effect and moves_between(program, o):
                moved = op.operands[0] if moved_to(op) == HOST else op.results[0]
                found.append(Buffer(moved, region.start, region.stop - 1))
        return found

    def _in_a_stack(self, v: int) -> bool:
        """Whether a value on the host is a part of another, read or written where that lies."""
        program = self.program
        maker = program.values[v].op
        if maker >= 0 and moved_to(program.ops[maker]) is None:
            return not program.ops[maker].regions and program.ops[maker].kind not in IN_PLACE
        users = [program.ops[u] for u in program.users[v]]
        while len(users) == 1 and users[0].kind in ADDS_DIMENSIONS:
            v = users[0].results[0]
            users = [program.ops[u] for u in program.users[v]]
        return len(users) == 1 and users[0].kind == "dynamic_update_slice" and users[0].operands[0] != v

    def _constrained(self, op: Op) -> None:
        """A value that is given a sharding is the same buffer, unless it had another one before."""
        (made,), (before,) = op.results, op.operands
        now, was = (self.program.values[v].given for v in (made, before))
        if self.kernels.stored[made] and self.kernels.stored[before] and (now == was or was is None or not was.decides):
            self._share(*((made, before) if self.home(before) in self.arguments else (before, made)))

    def _share(self, v: int, other: int) -> None:
        home = self.home(other)
        if self.home(v) != home:
            self.same[self.home(v)] = home

    def _last_uses(self) -> list[int]:
        """The last position at which each value is needed; a value from outside a loop, until the loop ends."""
        program, kernels = self.program, self.kernels
        last = [max(self.start[v], 0) for v in range(len(program.values))]
        for o, op in enumerate(program.ops):
            for operand in op.operands:
                v, at = operand, kernels.last[o]
                if v in kernels.narrow and op.kind not in INDEXED:
                    v = kernels.narrow[v]
                inside = op.region
                while inside != program.values[v].region:
                    at = max(at, program.regions[inside].stop - 1)
                    inside = program.ops[program.regions[inside].op].region
                last[v] = max(last[v], at)
        for region in program.regions:
            for v in region.results:
                last[v] = max(last[v], region.stop if region.op >= 0 else self.end_of_program)
        for v in range(len(program.values) - 1, -1, -1):  # what is computed inside its users needs its own operands
            maker = program.values[v].op
            if maker >= 0 and not kernels.stored[v]:
                for a in program.ops[maker].operands:
                    read = kernels.narrow.get(a, a)
                    last[read] = max(last[read], last[v])
        return last

    def _loop(self, o: int) -> None:
        program = self.program
        op = program.ops[o]
        body = program.regions[op.regions[-1]]
        taken: set[int] = set()  # one table of zeros that several slots begin with can become only one of them
        for k, (before, after) in enumerate(zip(op.operands, op.results, strict=True)):
            parameter, result = body.parameters[k], body.results[k]
            if result == parameter and program.free[before]:  # made again inside, where it is needed
                self.nowhere.update((before, after, *(program.regions[r].parameters[k] for r in op.regions)))
                continue
            if result == parameter:  # unchanged: read where it lies
                for v in (after, *(program.regions[r].parameters[k] for r in op.regions)):
                    self._share(v, before)
                self.last_use[after] = max(self.last_use[after], body.stop - 1)
                continue
            of_caller = self.home(before) in self.arguments
            if of_caller and (relaid := find_relaid(program, after, parameter, result)):
                self.relaid[after] = relaid
                if self._may_overwrite(before, o):
                    self.in_place.add(after)
            elif before not in taken and self._may_overwrite(before, o):
                taken.add(before)
                # The buffer is called after what comes out: a table of zeros that goes in has no sharding of its own.
                self._share(*((after, before) if self.home(before) in self.arguments else (before, after)))
            if stacked := find_stacked(program, op, k, lambda v: self.home(v) in self.arguments):
                self.stacked.append(stacked)
            self.start[after] = o
            self.last_use[after] = max(self.last_use[after], body.stop - 1)
            for r in op.regions:
                self._share(program.regions[r].parameters[k], after)
            if self.kernels.stored[result] and self._next_takes_over(parameter, result, body.start):
                self._share(result, after)

    def _next_takes_over(self, parameter: int, result: int, body_start: int) -> bool:
        """Whether a loop's next content can be written where the current one lies."""
        v = result
        while (o := self.program.values[v].op) >= body_start:
            op = self.program.ops[o]
            if op.kind not in IN_PLACE and op.kind not in VIEWS:
                break
            v = op.operands[0]
        if v == parameter or self.last_use[parameter] < self.start[result]:
            return True
        return self.last_use[parameter] == self.start[result] and self.start[result] not in self.contracting

    def _may_overwrite(self, v: int, o: int) -> bool:
        """Nobody needs the old content after op ``o``, and it is not the caller's."""
        home = self.home(v)
        if home in self.arguments:
            argument = self.program.argument_of[home]
            return argument.donated and self.last_use[v] <= o
        return self.last_use[v] <= o and self.kernels.stored[v]

    def _reuse(self, o: int) -> None:
        """An elementwise kernel writes its result over an operand of the same type that it is the last to read.

        Not so one that turns the dimensions of a product around.
        """
        program, op = self.program, self.program.ops[o]
        if len(op.results) != 1 or not self.kernels.stored[op.results[0]] or op.flops or op.regions:
            return
        value = program.values[op.results[0]]
        kernel = self.kernels.joined.get(self.kernels.root[o], self.kernels.root[o])
        if op.kind in READS_OUT_OF_PLACE or self.reduced.get(kernel, 0) >= math.prod(value.shape):
            return
        if self.kernels.root[o] in self.turned:
            return
        for v in op.operands:
            other = program.values[v]
            same = other.shape == value.shape and other.dtype == value.dtype
            if (
                same
                and self.kernels.stored[v]
                and self.home(v) not in self.arguments
                and self.last_use[v] <= self.kernels.at[o]
            ):
                self.start[op.results[0]] += 1
                return

    def _donated(self) -> set[int]:
        """Buffers of results that take over a donated argument's, if that has been read when they are complete."""
        program, taken = self.program, set()
        for v, argument in program.donations.items():
            home = self.home(v)
            if home in self.relaid or home in self.arguments or self.last_use[argument] > self._written(v):
                continue
            maker = program.values[home].op
            if maker >= 0 and program.ops[maker].kind == "while" and self._reads(program.ops[maker], argument):
                self.given_back[home] = maker  # the loop reads the old content until it ends
            else:
                taken.add(home)
        return taken

    def _reads(self, loop: Op, argument: int) -> bool:
        """Whether a loop has an argument in all of its turns."""
        body = self.program.regions[loop.regions[-1]]
        slots = zip(loop.operands, body.parameters, body.results, strict=True)
        return any(self.home(v) == argument for v, parameter, result in slots if parameter == result)

    def _written(self, v: int) -> int:
        """When a result is complete."""
        o = self.program.values[v].op
        return self.end_of_program if o < 0 else done(self.program, self.kernels.last, o)

    def _in_rows(self) -> tuple[dict[int, tuple[int, ...]], list[Buffer]]:
        """The rows of buffers that lie in them all the time, and copies in rows of tables that do not.

        A table of zeros is filled in rows, and copied to where it is used; but where it updates few arguments, that is
        done in rows, for which the copies that they were gathered from are kept.
        """
        program, kernels = self.program, self.kernels
        found = [(o, op, _rows(op)) for o, op in enumerate(program.ops) if op.kind in INDEXED]
        outside = [(o, op, rows) for o, op, rows in found if rows and op.region == 0]
        in_rows: dict[int, tuple[int, ...]] = {}
        kept: set[int] = set()
        copies: list[Buffer] = []
        for o, op, rows in outside:
            if op.kind == "scatter" and program.free[op.operands[0]]:
                made = op.results[0]
                updated = self._updated(made)
                if 1 <= len(updated) <= ROWS.effect.most_updated:
                    kept |= updated
                    in_rows[self.home(made)] = rows
                else:
                    until = min((kernels.at[u] for u in program.users[made]), default=kernels.at[o])
                    copies.append(Buffer(made, kernels.at[o], until, Form(rows=rows, copy=True)))
                self.laid.append(Laid(made, rows, TABLE, o))
        for o, op, rows in outside:
            table = self.home(op.operands[0])
            if op.kind == "gather" and table in self.arguments:
                until = self.last_use[table] if table in kept else kernels.at[o]
                copies.append(Buffer(table, kernels.at[o], until, Form(rows=rows, copy=True)))
                self.laid.append(Laid(table, rows, TABLE, o))
        return in_rows, copies

    def _updated(self, v: int) -> set[int]:
        """The arguments that a value is brought together with, element by element, at once or on the way."""
        program, waiting, seen = self.program, [v], {v}
        while waiting:
            w = waiting.pop()
            maker = program.values[w].op
            for o in (*program.users[w], *((maker,) if maker >= 0 and w != v else ())):
                op = program.ops[o]
                if is_elementwise(program, op):
                    new = {*op.operands, *op.results} - seen
                    seen |= new
                    waiting += new - self.arguments
        return seen & self.arguments

    def _hoisted(self) -> list[Buffer]:
        """Loop-invariant stacks that the compiler converts to a narrower type once before the loop, not per slice."""
        program = self.program
        found: dict[tuple[int, str], list[int]] = {}
        for op in program.ops:
            if op.kind != "convert" or op.region == 0:
                continue
            stack = self._stack(op.operands[0])
            if stack is None:
                continue
            a, b = (bits_of(program.values[v].dtype) for v in (op.operands[0], op.results[0]))
            if b < a:
                span = self._outermost_loop(op.region)
                known = found.setdefault((stack, program.values[op.results[0]].dtype), list(span))
                known[0], known[1] = min(known[0], span[0]), max(known[1], span[1])
        return [
            Buffer(stack, start, end, Form(bits_of(dtype) / bits_of(program.values[stack].dtype)))
            for (stack, dtype), (start, end) in found.items()
        ]

    def _stack(self, v: int) -> int | None:
        """The buffer that a value is a slice of, if a loop carries it unchanged."""
        program = self.program
        sliced = False
        while (o := program.values[v].op) >= 0 and program.ops[o].kind in (*VIEWS, "dynamic_slice"):
            sliced = sliced or program.ops[o].kind == "dynamic_slice"
            v = program.ops[o].operands[0]
        value = program.values[v]
        if not sliced or value.op >= 0 or value.region == 0:
            return None
        region = program.regions[value.region]
        loop = program.ops[region.op]
        k = region.parameters.index(v)
        unchanged = loop.kind == "while" and program.regions[loop.regions[-1]].results[k] == v
        return self.home(v) if unchanged else None

    def _outermost_loop(self, region: int) -> tuple[int, int]:
        program = self.program
        span = program.regions[region]
        while program.ops[span.op].region != 0:
            span = program.regions[program.ops[span.op].region]
        return span.op, span.stop


def _rows(op: Op) -> tuple[int, ...]:
    """The dimensions of a gather's or a scatter's table that its indices do not choose from."""
    table, indices, moved = op.rule.operands[0], op.rule.operands[1], (*op.rule.operands, *op.rule.results)[2]
    chosen, factors = {f for dim in indices for f in dim}, {f for dim in moved for f in dim}
    return tuple(d for d, dim in enumerate(table) if dim and dim[0] in factors and dim[0] not in chosen)


def _reduced(program: Program, kernels: Kernels) -> dict[int, int]:
    """For each kernel that reduces something, in one with others or not, the most entries that it reduces."""
    found: dict[int, int] = defaultdict(int)
    for o, op in enumerate(program.ops):
        if op.kind == "reduce":
            kernel = kernels.joined.get(kernels.root[o], kernels.root[o])
            found[kernel] = max(found[kernel], math.prod(program.values[op.operands[0]].shape))
    return found


def _turned(program: Program, kernels: Kernels) -> set[int]:
    """The roots of kernels that turn the dimensions of a product's result around before they store it."""
    found = set[int]()
    for o, op in enumerate(program.ops):
        if op.kind in CONTRACTIONS and op.flops:
            users = program.users[op.results[0]]
            while len(users) == 1 and program.ops[users[0]].kind in (*VIEWS, CONSTRAINT):
                if kernels.root[users[0]] == kernels.root[o] and program.ops[users[0]].kind == "transpose":
                    found.add(kernels.root[o])
                users = program.users[program.ops[users[0]].results[0]]
    return found


def _start(program: Program, kernels: Kernels, v: int) -> int:
    """Where a value comes to be; constants and broadcasts of scalars where they are first needed."""
    value = program.values[v]
    if value.op < 0:
        return max(program.regions[value.region].op, 0)
    if program.free[v] and program.users[v]:
        return kernels.at[program.users[v][0]]
    return kernels.at[value.op]
