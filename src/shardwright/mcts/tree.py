"""The tree, or rather the graph: a state that can be reached in several ways is one node."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic

from shardwright.mcts.base import A, Game, S


@dataclass(eq=False)
class Edge(Generic[S, A]):
    """An action from a node, the node it leads to, and what simulations through it have found."""

    action: A
    node: Node[S, A]
    prior: float = 0.0
    visits: int = 0
    total: float = 0.0
    best: float = float("-inf")


@dataclass(eq=False)
class Node(Generic[S, A]):
    """A state; ``value`` is that of stopping in it. ``pending`` are actions that no edge has yet.

    A node is ``solved`` when everything behind it has been seen, so that no simulation needs to go there again.
    """

    state: S
    value: float
    pending: list[A]
    edges: list[Edge[S, A]] = field(default_factory=list)
    visits: int = 0
    solved: bool = False


@dataclass(eq=False)
class Tree(Generic[S, A]):
    """All nodes by key, the best state and the range of values met so far, and how actions have done."""

    nodes: dict[Hashable, Node[S, A]] = field(default_factory=dict)
    best: tuple[float, S] | None = None
    lowest: float = float("inf")
    _gains: dict[A, tuple[int, float]] = field(default_factory=dict)

    def node(self, game: Game[S, A], state: S) -> Node[S, A]:
        """The node of a state; one that has no actions is solved at once."""
        key = game.key(state)
        node = self.nodes.get(key)
        if node is None:
            node = self.nodes[key] = Node(state, game.value(state), list(game.actions(state)))
            node.solved = not node.pending
            self.see(node.value, state)
        return node

    def see(self, value: float, state: S) -> None:
        """Take note of a state that was met."""
        self.lowest = min(self.lowest, value)
        if self.best is None or value > self.best[0]:
            self.best = (value, state)

    def scaled(self, value: float) -> float:
        """A value as a part of the range: 0 the worst met, 1 the best (as in MuZero, Schrittwieser et al. 2020)."""
        spread = self.best[0] - self.lowest if self.best else 0.0
        return (value - self.lowest) / spread if spread > 0 else 0.5

    def learn(self, action: A, gain: float) -> None:
        """Take note of what an action did to the value of a state."""
        count, total = self._gains.get(action, (0, 0.0))
        self._gains[action] = (count + 1, total + gain)

    def standing(self, action: A) -> float:
        """What an action has gained on average (the history heuristic, Schaeffer 1989)."""
        count, total = self._gains.get(action, (0, 0.0))
        return total / count if count else 0.0
