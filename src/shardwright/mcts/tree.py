"""The tree: states as nodes, each below the one from which it was met first, and how actions have done."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from heapq import nlargest
from random import Random
from typing import Generic

from shardwright.mcts.base import A, Game, S


@dataclass(eq=False)
class Node(Generic[S, A]):
    """A state, what was met behind it, and the actions that are yet to be tried.

    ``value`` is that of stopping in the state. A node is ``solved`` when every action of it and of all nodes below it
    has been tried, so that no simulation needs to go there again.
    """

    state: S
    value: float
    pending: list[A]
    children: list[Node[S, A]] = field(default_factory=list)
    visits: int = 0
    total: float = 0.0
    best: float = float("-inf")
    solved: bool = False


@dataclass(eq=False)
class Tree(Generic[S, A]):
    """All nodes by key, the best and the worst value met so far, and what actions have gained."""

    game: Game[S, A]
    random: Random
    nodes: dict[Hashable, Node[S, A]] = field(default_factory=dict)
    best: Node[S, A] | None = None
    lowest: float = float("inf")
    _gains: dict[A, tuple[int, float]] = field(default_factory=dict)

    def add(self, state: S) -> Node[S, A] | None:
        """A node for a state, where it has none yet. Its actions are in random order."""
        key = self.game.key(state)
        if key in self.nodes:
            return None
        value, pending = self.game.value(state), list(self.game.actions(state))
        self.random.shuffle(pending)
        node = self.nodes[key] = Node(state, value, pending, best=value)
        self.lowest = min(self.lowest, value)
        if self.best is None or value > self.best.value:
            self.best = node
        return node

    def leading(self, count: int) -> list[S]:
        """The best states that were met, the very best first."""
        return [node.state for node in nlargest(count, self.nodes.values(), key=lambda node: node.value)]

    def scaled(self, value: float) -> float:
        """A value as a part of the range: 0 the worst met, 1 the best (as in MuZero, Schrittwieser et al. 2020)."""
        spread = self.best.value - self.lowest if self.best else 0.0
        return (value - self.lowest) / spread if spread > 0 else 0.5

    def learn(self, action: A, gain: float) -> None:
        """Take note of what an action did to the value of a state."""
        count, total = self._gains.get(action, (0, 0.0))
        self._gains[action] = (count + 1, total + gain)

    def standing(self, action: A) -> float:
        """What an action has gained on average, wherever it was tried; 0 where it was not.

        That is the history heuristic (Schaeffer 1989), or the value of an action in all of a tree (RAVE, Gelly and
        Silver 2007).
        """
        count, total = self._gains.get(action, (0, 0.0))
        return total / count if count else 0.0
