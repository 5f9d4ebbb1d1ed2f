"""The graph that an integer program over strategies chooses in: nodes, what each strategy costs, and edges.

The formulation of Alpa (Zheng et al., OSDI 2022, section 4.2). A node is an argument, what a loop carries, or an op
that matters (a contraction, a gather, …); its strategies are the ways to lay it out on the mesh. Ops that matter
little belong to the node of one of their operands, whose strategy says how they run; a broadcast belongs to the node of
its first user, so that the small tensor is moved and not the large one. An edge prices the resharding between what one
node leaves and what another wants.

A strategy's price is that of the common cost model as far as one node alone decides it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.baselines.strategies import value_shardings
from benchmarks.baselines.strategy_prices import Pricing, Vector
from benchmarks.baselines.strategy_runs import Run, Runs
from shardwright.ir.kinds import MOVES_DATA
from shardwright.ir.program import Op, Program, is_elementwise
from shardwright.price import CostModel
from shardwright.price.collectives import local_bytes
from shardwright.request import MeshShape
from shardwright.space.state import Sharding

Matrix = NDArray[np.float64]
"""Something for each pair of strategies of two nodes."""

_FOLLOWING = MOVES_DATA | {"clamp", "convert", "dynamic_update_slice", "reduce", "select"}
"""Ops that run as one of their operands lies, besides elementwise ones."""
_OF_FIRST = frozenset({"dynamic_slice", "dynamic_update_slice", "pad"})
"""Ops that follow their first operand, whichever was computed last."""


class Layout(NamedTuple):
    """How a value lies: the node that decides it, and the number of the shardings, one for each strategy."""

    node: int
    shardings: int


class Shared(NamedTuple):
    """A value that several nodes use in one body: brought to each sharding that any of them wants once.

    ``seconds[s, w]``: from strategy s of its ``node`` to wanted sharding w. ``users``: nodes, and for each of their
    strategies the sharding it wants.
    """

    node: int
    seconds: Matrix
    users: tuple[tuple[int, NDArray[np.int64]], ...]


@dataclass(frozen=True)
class Graph:
    """``seconds[n]`` of each node's strategies; ``edges[m, n]``, with m < n, of each pair of theirs.

    ``shared`` are the edges of more than two nodes. ``layouts[v]`` is how a value lies, or None if it is whole whatever
    is chosen. ``shardings`` are those that ``Layout`` refers to.
    """

    seconds: list[Vector]
    edges: dict[tuple[int, int], Matrix]
    shared: list[Shared]
    layouts: list[Layout | None]
    shardings: list[tuple[Sharding, ...]]

    def total(self, chosen: Sequence[int]) -> float:
        """Seconds of a step, when each node's strategy is chosen."""
        nodes = sum(float(found[s]) for found, s in zip(self.seconds, chosen, strict=True))
        edges = sum(float(found[chosen[m], chosen[n]]) for (m, n), found in self.edges.items())
        for node, seconds, users in self.shared:
            edges += sum(float(seconds[chosen[node], w]) for w in {int(wants[chosen[n]]) for n, wants in users})
        return nodes + edges

    def of_values(self, program: Program, mesh: MeshShape, chosen: Sequence[int]) -> list[Sharding]:
        """The sharding of every value, when each node's strategy is chosen."""
        out = []
        for value, found in zip(program.values, self.layouts, strict=True):
            sharding = self.shardings[found.shardings][chosen[found.node]] if found else ((),) * len(value.shape)
            # A slice may be a little smaller than what its axes divide.
            out.append(tuple([a if n % mesh.ways(a) == 0 else () for n, a in zip(value.shape, sharding, strict=True)]))
        return out


class Builder:
    """Goes through a program once and collects its graph.

    ``seconds_per_byte`` is a price for each byte of a tensor that is brought to another sharding, besides the time.
    """

    def __init__(self, costs: CostModel, seconds_per_byte: float = 0.0) -> None:
        self.seconds_per_byte = seconds_per_byte
        self.costs, self.mesh = costs, costs.mesh
        self.program = costs.classes.program
        self.free = self.program.free.tolist()
        self.repeats = self.program.repeats.tolist()
        self.seconds: list[Vector] = []
        self.layouts: list[Layout | None] = [None] * len(self.program.values)
        self.runs = Runs(costs)
        self.pricing = Pricing(costs, self.runs)
        self._waiting: set[int] = set()  # values that will lie as their first user wants them
        self._depth = [0] * len(self.program.values)
        self._uses: dict[tuple[int, int], dict[Layout, None]] = {}
        self._region_repeats: dict[int, int] = {}

    def graph(self) -> Graph:
        """The graph of the program."""
        program = self.program
        for argument in program.arguments:
            self._own_node(argument.value)
        for o, op in enumerate(program.ops):
            self._region_repeats[op.region] = self.repeats[o]
            if all(not program.values[v].shape or self.free[v] for v in op.results) and not op.regions:
                self._whole_operands(o, op)
            elif op.rule.tensors:
                self._op(o, op)
            else:
                self._border(op)
        returned = self._close()
        for relaid in self.costs.units.relaid:
            carried = self.layouts[relaid.value]
            if carried is not None:
                self.seconds[carried.node] += self.pricing.relayout(relaid, carried.shardings)
        for node, seconds in self.pricing.kernels():
            self.seconds[node] += seconds
        edges, shared = self._edges()
        for v, layout in returned.items():
            self.layouts[v] = layout
        return Graph(self.seconds, edges, shared, self.layouts, self.runs.shardings)

    # Nodes.

    def _node(self, count: int) -> int:
        self.seconds.append(np.zeros(count))
        return len(self.seconds) - 1

    def _own_node(self, v: int) -> Layout | None:
        """A node for a value alone: every axis on any dimension that it divides, or on none."""
        shape = self.program.values[v].shape
        if not shape:
            return None
        found = self.runs.number(value_shardings(shape, self.mesh.sizes))
        layout = Layout(self._node(len(self.runs.shardings[found])), found)
        self.layouts[v] = layout
        return layout

    def _op(self, o: int, op: Op) -> None:
        """Let an op follow an operand, wait for its first user, or make it a node."""
        shaped = [(k, v) for k, v in enumerate(op.operands) if self.program.values[v].shape and not self.free[v]]
        depth = 1 + max((self._depth[v] for _, v in shaped), default=0)
        for v in op.results:
            self._depth[v] = depth
        known = [(k, v) for k, v in shaped if v not in self._waiting]
        if shaped and self._follows(op):
            if op.kind != "reduce" and (not known or self._expands(op)):
                self._waiting.update(op.results)
                return
            if known:
                if op.kind in _OF_FIRST and known[0][0] == 0:
                    known = known[:1]
                k, v = max(known, key=lambda found: self._depth[found[1]])
                layout = self.layouts[v]
                assert layout is not None
                self._run(o, layout.node, self.runs.following(o, k, layout.shardings))
                return
        run = self.runs.strategies(o)
        self._run(o, self._node(len(run.factors)), run)

    def _follows(self, op: Op) -> bool:
        return len(op.results) == 1 and (op.kind in _FOLLOWING or is_elementwise(self.program, op))

    def _expands(self, op: Op) -> bool:
        a, b = self.program.values[op.operands[0]], self.program.values[op.results[0]]
        return op.kind == "broadcast_in_dim" and b.bytes > a.bytes

    def _border(self, op: Op) -> None:
        """One node for each tensor that a loop carries or a branch returns; a barrier changes nothing."""
        if op.kind == "optimization_barrier":
            for a, b in zip(op.operands, op.results, strict=True):
                self._depth[b] = self._depth[a]
                if self.free[a]:
                    self._own_node(b)
                elif self.program.values[a].shape:
                    self.layouts[b] = self._known_layout(a)
            return
        for k, b in enumerate(op.results):
            layout = self._own_node(b)
            if layout is not None and op.kind == "while":
                self._use(op.region, op.operands[k], layout)
                for r in op.regions:
                    self.layouts[self.program.regions[r].parameters[k]] = layout

    def _known_layout(self, v: int) -> Layout | None:
        """How a value lies; one that waits for a user gets a node of its own."""
        if v in self._waiting:
            found = self.runs.number(value_shardings(self.program.values[v].shape, self.mesh.sizes))
            self._settle(v, Layout(self._node(len(self.runs.shardings[found])), found))
        return self.layouts[v]

    def _whole_operands(self, o: int, op: Op) -> None:
        """An op whose result is a scalar: its operands lie as they do, and the sum of their parts is all-reduced."""
        for k, v in enumerate(op.operands):
            if self.program.values[v].shape and not self.free[v] and op.rule.tensors:
                layout = self._known_layout(v)
                assert layout is not None
                self._run(o, layout.node, self.runs.following(o, k, layout.shardings))
                return

    def _close(self) -> dict[int, Layout]:
        """What bodies and branches return is brought to what the loop carries; results to the arguments they become.

        Gives the values that then lie as what they become, not as they were computed.
        """
        program = self.program
        returned: dict[int, Layout] = {}

        def bring(region: int, v: int, layout: Layout | None) -> None:
            if layout is not None and not self.free[v]:
                self._use(region, v, layout)
                maker = program.values[v].op
                if maker >= 0 and program.values[v].region == region and program.ops[maker].rule.tensors:
                    returned.setdefault(v, layout)

        for op in program.ops:
            for r in op.regions:
                region = program.regions[r]
                if region.role != "condition" and not op.rule.tensors:
                    for v, b in zip(region.results, op.results, strict=True):
                        bring(r, v, self.layouts[b])
        for v, argument in program.donations.items():
            bring(0, v, self.layouts[argument])
        for v in program.regions[0].results:
            if v in self._waiting:
                self._known_layout(v)
        return returned

    # How ops run.

    def _run(self, o: int, node: int, run: Run) -> None:
        """Enter how an op runs: its results, what it wants of its operands, and what it costs."""
        op, program = self.program.ops[o], self.program
        for k, v in enumerate(op.operands):
            if program.values[v].shape and not self.free[v]:
                self._use(op.region, v, Layout(node, run.tensors[k]))
        for v, left in zip(op.results, run.left, strict=True):
            if program.values[v].shape:
                self.layouts[v] = Layout(node, left)
        self.seconds[node] += self.pricing.reduction(o, run)
        self.pricing.add_op(o, node, run)

    def _use(self, region: int, v: int, want: Layout) -> None:
        """A node wants a value in certain shardings."""
        if self.free[v]:
            return
        if v in self._waiting:
            self._settle(v, want)
        if self.layouts[v] is not None:
            self._uses.setdefault((region, v), {})[want] = None

    def _settle(self, v: int, want: Layout) -> None:
        """Let a value that waited for its first user lie as that wants it."""
        self._waiting.discard(v)
        o = self.program.values[v].op
        k = len(self.program.ops[o].operands)  # its only result
        self._run(o, want.node, self.runs.following(o, k, want.shardings))

    # Edges.

    def _edges(self) -> tuple[dict[tuple[int, int], Matrix], list[Shared]]:
        """Resharding: of each value, for all its uses in a body that want the same, once."""
        edges: dict[tuple[int, int], Matrix] = {}
        several: list[Shared] = []
        for (region, v), wants in self._uses.items():
            have = self.layouts[v]
            assert have is not None
            found = self._shared(v, have, self._region_repeats.get(region, 1), wants)
            if not found.seconds.any():
                continue
            inside = _pairs(found, have.node)
            if inside is not None:
                self.seconds[have.node] += np.diagonal(inside)
            found = found._replace(users=tuple([user for user in found.users if user[0] != have.node]))
            nodes = {node for node, _ in found.users}
            if len(nodes) > 1:
                several.append(found)
                continue
            for node in nodes:
                matrix = _pairs(found, node)
                assert matrix is not None
                key, matrix = ((have.node, node), matrix) if have.node < node else ((node, have.node), matrix.T)
                edges[key] = edges[key] + matrix if key in edges else matrix
        return edges, several

    def _shared(self, v: int, have: Layout, times: int, wants: Iterable[Layout]) -> Shared:
        """All uses of a value in one body."""
        size = float(self.program.values[v].bytes)
        befores, rows = self.runs.distinct[have.shardings]
        afters: dict[Sharding, int] = {}
        users = []
        for want in wants:
            distinct, which = self.runs.distinct[want.shardings]
            users.append((want.node, np.array([afters.setdefault(s, len(afters)) for s in distinct], np.int64)[which]))
        small = times * np.array([[self.pricing.move(size, a, b) for b in afters] for a in befores], float)
        if self.seconds_per_byte:
            sizes = np.array([local_bytes(size, b, self.mesh) for b in afters])
            small += np.where(small > 0, self.seconds_per_byte * sizes, 0.0)
        return Shared(have.node, small[rows], tuple(users))


def _pairs(shared: Shared, node: int) -> Matrix | None:
    """Seconds for each pair of strategies of the value's node and of one that uses it, once or more often."""
    total: Matrix | None = None
    seen: list[NDArray[np.int64]] = []
    for user, wants in shared.users:
        if user == node:
            moved = shared.seconds[:, wants]
            if seen:
                moved = moved * ~np.any([wants == other for other in seen], axis=0)
            total = moved if total is None else total + moved
            seen.append(wants)
    return total
