"""An integer linear program over the strategies of every op: how Alpa and XLA's auto-sharding chose.

Alpa (Zheng et al., OSDI 2022, arXiv:2201.12023, section 4.2): each node of the graph chooses one of its strategies, a
binary variable for each; the product of two neighbours' variables, which prices the resharding between them, is a
matrix of variables whose rows and columns add up to theirs; at every point of the program what is alive has to fit.
Solved by HiGHS. Nothing is shared between the layers of a model, as in Alpa.

Before it is solved the program is made smaller without losing an optimum: strategies that another one beats whatever
the neighbours choose are dropped, and strategies that an edge cannot tell apart share its variables.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, sparse

from benchmarks.baselines.base import Baseline
from benchmarks.baselines.strategy_graph import Builder, Graph, Matrix, Shared
from benchmarks.baselines.strategy_prices import Pricing, Vector
from shardwright.price import Cost, CostModel
from shardwright.space.state import Sharding

_MOST_POINTS = 50
_MOST_ATTEMPTS = 6
_FIRST_PRICE, _PRICE_STEP = 0.05, 3.0
_GAP = 1e-3
_NANO = 1e-9
_DIGITS = 9


@dataclass(frozen=True)
class Memory:
    """Bytes at some points of the program: ``fixed`` of them, and those of each node's strategies, a row a point."""

    fixed: Vector
    of_node: list[Matrix]

    def peak(self, chosen: Sequence[int]) -> float:
        """The most bytes at any point, when each node's strategy is chosen."""
        return float((self.fixed + sum(found[:, s] for found, s in zip(self.of_node, chosen, strict=True))).max())


@dataclass(frozen=True)
class Choice:
    """What an integer program chose: a strategy for each node, or None, and its own estimate of seconds and bytes."""

    chosen: list[int] | None
    shardings: list[Sharding] | None
    seconds: float
    peak_bytes: float
    nodes: int
    variables: int
    note: str


def integer_program(costs: CostModel, limit_bytes: int, *, seconds: float = 120.0) -> Baseline:
    """The baseline: the cost of the shardings that the integer program chooses within so many seconds.

    Its memory is, as in Alpa, that of the tensors themselves, without their copies in other shardings. Where the choice
    therefore does not fit after all, it is solved again with a price on each byte of a copy, a higher one each time.
    """
    start = time.monotonic()
    best: tuple[Cost, str, list[Sharding]] | None = None
    price = 0.0
    for attempt in range(_MOST_ATTEMPTS):
        problem = build_problem(costs, price)
        left = seconds - (time.monotonic() - start)
        if attempt and left <= 0:
            break
        choice = solve(problem, limit_bytes, seconds=left)
        note = f"{choice.note}; {choice.nodes} nodes, {choice.variables} variables"
        if choice.shardings is None:
            break
        cost = CostModel.of_shardings(costs.classes.places, costs.mesh, costs.device, choice.shardings)
        if best is None or cost.peak_bytes < best[0].peak_bytes:
            best = (cost, f"{note}; copies priced" if price else note, choice.shardings)
        if cost.peak_bytes <= limit_bytes:
            break
        price = _PRICE_STEP * price if price else _FIRST_PRICE * cost.step_seconds / limit_bytes
    took = time.monotonic() - start
    if best is None:
        return Baseline("integer program", None, took, note)
    cost, note, shardings = best
    note = note if cost.peak_bytes <= limit_bytes else f"does not fit; {note}"
    return Baseline("integer program", cost, took, note, shardings)


@dataclass(frozen=True)
class Problem:
    """A graph to choose strategies in, and what they hold in memory."""

    costs: CostModel
    graph: Graph
    memory: Memory


def choose_shardings(costs: CostModel, limit_bytes: int, *, seconds: float = 120.0) -> Choice:
    """The sharding of every value that the integer program chooses; building it counts as part of the time."""
    start = time.monotonic()
    problem = build_problem(costs)
    return solve(problem, limit_bytes, seconds=seconds - (time.monotonic() - start))


def build_problem(costs: CostModel, seconds_per_byte: float = 0.0) -> Problem:
    """Strategies, their prices and their memory; ``seconds_per_byte`` as in ``Builder``."""
    builder = Builder(costs, seconds_per_byte)
    graph = builder.graph()
    return Problem(costs, graph, find_memory(costs, graph, builder.pricing))


def find_memory(costs: CostModel, graph: Graph, pricing: Pricing) -> Memory:
    """What is alive at the points where that may be most, under each strategy."""
    buffers = costs.classes.buffers
    spans = [(b.value, b.start, b.end, b.form.scale) for b in buffers.temporary if not b.form.copy]
    end = len(costs.classes.program.ops)
    spans += [(v, -1, end, 1.0) for v in buffers.held]
    at = np.unique(costs.at)
    starts, ends = (np.array([span[k] for span in spans], np.int64) for k in (1, 2))
    live = (starts <= at[:, None]) & (at[:, None] <= ends)
    sizes = np.array([costs.classes.program.values[v].bytes * scale for v, _, _, scale in spans], float)
    live = live[_most_alive(live, sizes)]
    fixed = np.zeros(len(live))
    of_node = [np.zeros((len(live), len(found))) for found in graph.seconds]
    for (v, _, _, scale), size, where in zip(spans, sizes.tolist(), live.T, strict=True):
        layout = graph.layouts[v]
        if layout is None:
            fixed += where * size
        else:
            of_node[layout.node] += where[:, None] * (pricing.local_bytes(v, layout.shardings) * scale)
    return Memory(fixed, of_node)


def _most_alive(live: NDArray[np.bool_], sizes: Vector) -> NDArray[np.int64]:
    """Points at which no less is alive than at a neighbour; of many, those with most bytes in the whole program.

    What is alive is alive without a break, so a point that has less than any other has less than a neighbour.
    """
    kept: list[int] = []
    for p in range(len(live)):
        if kept and not (live[p] & ~live[kept[-1]]).any():
            continue
        while kept and not (live[kept[-1]] & ~live[p]).any():
            kept.pop()
        kept.append(p)
    order = np.argsort(-(live[kept] @ sizes), kind="stable")[:_MOST_POINTS]
    return np.sort(np.array(kept, np.int64)[order])


def solve(problem: Problem, limit_bytes: int, *, seconds: float) -> Choice:
    """Choose a strategy for each node: the least seconds in all that fit the limit."""
    start = time.monotonic()
    graph, memory = problem.graph, problem.memory
    matrices = _Matrices(graph, memory, undominated(graph, memory), limit_bytes)
    time_limit = max(seconds - (time.monotonic() - start), 1.0)
    found = optimize.milp(
        matrices.objective,
        integrality=matrices.integrality,
        bounds=optimize.Bounds(0.0, 1.0),
        constraints=matrices.constraints,
        options={"time_limit": time_limit, "mip_rel_gap": _GAP},
    )
    size = (len(graph.seconds), len(matrices.objective))
    if found.x is None:
        note = {1: "time limit, nothing found", 2: "infeasible: does not fit the memory"}.get(
            found.status, found.message
        )
        return Choice(None, None, math.inf, math.inf, *size, note)
    chosen = matrices.chosen(found.x)
    note = "optimal" if found.status == 0 else f"time limit, gap {found.mip_gap:.0%}"
    shardings = graph.of_values(problem.costs.classes.program, problem.costs.mesh, chosen)
    return Choice(chosen, shardings, graph.total(chosen), memory.peak(chosen), *size, note)


def undominated(graph: Graph, memory: Memory) -> list[NDArray[np.int64]]:
    """The strategies of each node that are worth considering.

    One is not if another takes less time and memory whatever the neighbours choose (Goldstein's criterion of dead-end
    elimination, 1994).
    """
    left = [np.arange(len(found)) for found in graph.seconds]
    neighbours: list[list[tuple[int, Matrix]]] = [[] for _ in left]
    for (m, n), matrix in graph.edges.items():
        neighbours[m].append((n, matrix))
        neighbours[n].append((m, matrix.T))
    from_node: list[list[Shared]] = [[] for _ in left]
    to_node: list[list[tuple[Shared, NDArray[np.int64]]]] = [[] for _ in left]
    around: list[set[int]] = [{other for other, _ in found} for found in neighbours]
    for shared in graph.shared:
        from_node[shared.node].append(shared)
        nodes = {shared.node, *(user for user, _ in shared.users)}
        for user, wants in shared.users:
            to_node[user].append((shared, wants))
        for node in nodes:
            around[node] |= nodes - {node}
    waiting = dict.fromkeys(range(len(left)))
    while waiting:
        node = next(iter(waiting))
        del waiting[node]
        own = left[node]
        if len(own) == 1:
            continue
        seconds = graph.seconds[node][own]
        worse = seconds[:, None] - seconds[None, :]  # at most, of the first instead of the second
        for other, matrix in neighbours[node]:
            seen = np.unique(matrix[np.ix_(own, left[other])], axis=1)
            worse += (seen[:, None, :] - seen[None, :, :]).max(axis=2)
        for shared in from_node[node]:
            wanted = np.unique(np.concatenate([wants[left[user]] for user, wants in shared.users]))
            seen = shared.seconds[np.ix_(own, wanted)]
            more = seen[:, None, :] - seen[None, :, :]
            # At least one of the shardings is wanted, and at most all.
            worse += np.maximum(more.max(axis=2), np.maximum(more, 0.0).sum(axis=2))
        for shared, wants in to_node[node]:
            most = shared.seconds[left[shared.node]].max(axis=0)[wants[own]]
            worse += np.where(wants[own][:, None] == wants[own], 0.0, most[:, None])  # the other may be there anyway
        held = np.unique(memory.of_node[node][:, own], axis=0)
        better = (worse <= _NANO) & (held[:, :, None] <= held[:, None, :]).all(axis=0)
        earlier = np.arange(len(own))[:, None] < np.arange(len(own))[None, :]
        beaten = (better & (~better.T | earlier)).any(axis=0)
        if beaten.any():
            left[node] = own[~beaten]
            waiting.update(dict.fromkeys(sorted(around[node])))
    return left


class _Matrices:
    """The matrices of the linear program. Time is in milliseconds, memory in parts of the limit."""

    def __init__(self, graph: Graph, memory: Memory, left: list[NDArray[np.int64]], limit_bytes: int) -> None:
        self.left = left
        counts = [len(found) for found in left]
        self.first = np.append(0, np.cumsum(counts))
        self._own = [1e3 * seconds[found] for seconds, found in zip(graph.seconds, left, strict=True)]
        self._pairs: list[Vector] = []
        self._rows: list[NDArray[np.int64]] = []
        self._columns: list[NDArray[np.int64]] = []
        self._entries: list[Vector] = []
        self._low: list[Vector] = []
        self._high: list[Vector] = []
        self._next_row = 0
        binaries = self.variables = int(self.first[-1])
        self._add(np.repeat(np.arange(len(left)), counts), np.arange(binaries), np.ones(binaries))
        self._close(len(left), 1.0, 1.0)
        for (m, n), matrix in graph.edges.items():
            self._edge(m, n, 1e3 * matrix[np.ix_(left[m], left[n])])
        for shared in graph.shared:
            self._shared(shared)
        for fixed, *held in zip(memory.fixed, *memory.of_node, strict=True):
            local = np.concatenate([found[own] for found, own in zip(held, left, strict=True)])
            self._add(np.zeros(binaries, np.int64), np.arange(binaries), local / limit_bytes)
            self._close(1, -np.inf, 1.0 - fixed / limit_bytes)
        entries = (np.concatenate(self._entries), (np.concatenate(self._rows), np.concatenate(self._columns)))
        self.constraints = optimize.LinearConstraint(
            sparse.coo_array(entries, shape=(self._next_row, self.variables)).tocsc(),
            np.concatenate(self._low),
            np.concatenate(self._high),
        )
        self.objective = np.concatenate([*self._own, *self._pairs])
        self.integrality = (np.arange(self.variables) < binaries).astype(np.int64)

    def chosen(self, solution: Vector) -> list[int]:
        """The strategy of each node in a solution."""
        return [
            int(own[np.argmax(solution[first : first + len(own)])])
            for own, first in zip(self.left, self.first[:-1].tolist(), strict=True)
        ]

    def _edge(self, m: int, n: int, cost: Matrix) -> None:
        """Variables for pairs of strategies; what a strategy costs at least goes to its node."""
        by_row = cost.min(axis=1)
        by_column = (cost - by_row[:, None]).min(axis=0)
        self._own[m], self._own[n] = self._own[m] + by_row, self._own[n] + by_column
        cost = np.round(cost - by_row[:, None] - by_column, _DIGITS)
        if cost.any():
            cost, rows = np.unique(cost, axis=0, return_inverse=True)
            cost, columns = np.unique(cost, axis=1, return_inverse=True)
            self._couple((m, rows), (n, columns), cost)

    def _shared(self, shared: Shared) -> None:
        """Variables for pairs of strategies of the value's node and each user's, and one for what users share.

        That is: that the value is brought to a sharding at a price. It is at least each user's part of it.
        """
        users = [(user, wants[self.left[user]]) for user, wants in shared.users]
        wanted, places = np.unique(np.concatenate([wants for _, wants in users]), return_inverse=True)
        cost = np.round(1e3 * shared.seconds[np.ix_(self.left[shared.node], wanted)], _DIGITS)
        cost, rows = np.unique(cost, axis=0, return_inverse=True)
        of_user = np.split(places, np.cumsum([len(wants) for _, wants in users])[:-1])
        wishes = np.sum([np.isin(np.arange(len(wanted)), found) for found in of_user], axis=0)
        numbers = []
        for (user, _), found in zip(users, of_user, strict=True):
            here, columns = np.unique(found, return_inverse=True)
            alone = np.where(wishes[here] == 1, cost[:, here], 0.0)
            pairs = np.full(cost.shape, -1)
            pairs[:, here] = self._couple((shared.node, rows), (user, columns), alone)
            numbers.append(pairs)
        for w in np.flatnonzero(wishes > 1).tolist():
            for price in np.unique(cost[:, w]).tolist():
                if price:
                    self._pairs.append(np.array([price]))
                    for pairs in numbers:
                        own = pairs[cost[:, w] == price, w]
                        if own[0] >= 0:
                            self._add(
                                np.zeros(len(own) + 1, np.int64), np.append(own, self.variables), _at_most(len(own))
                            )
                            self._close(1, -np.inf, 0.0)
                    self.variables += 1

    def _couple(
        self, one: tuple[int, NDArray[np.int64]], other: tuple[int, NDArray[np.int64]], cost: Matrix
    ) -> NDArray[np.int64]:
        """A variable for each pair of classes of two nodes' strategies, which add up to the choice of each class."""
        numbers = self.variables + np.arange(cost.size).reshape(cost.shape)
        self.variables += cost.size
        self._pairs.append(cost.ravel())
        for (node, classes), of_class in ((one, numbers), (other, numbers.T)):
            count = len(of_class)
            self._add(np.repeat(np.arange(count), cost.size // count), of_class.ravel(), np.ones(cost.size))
            self._add(classes, self.first[node] + np.arange(len(classes)), -np.ones(len(classes)))
            self._close(count, 0.0, 0.0)
        return numbers

    def _add(self, rows: NDArray[np.int64], columns: NDArray[np.int64], entries: Vector) -> None:
        """Entries of the next rows, the first of which is 0."""
        self._rows.append(self._next_row + rows)
        self._columns.append(columns)
        self._entries.append(entries)

    def _close(self, count: int, low: float, high: float) -> None:
        """The next rows are complete."""
        self._low.append(np.full(count, low))
        self._high.append(np.full(count, high))
        self._next_row += count


def _at_most(count: int) -> Vector:
    """The coefficients of: so many variables add up to no more than one that follows them."""
    return np.append(np.ones(count), -1.0)
