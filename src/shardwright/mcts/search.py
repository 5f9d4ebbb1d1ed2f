"""The search: again and again select a leaf, expand it, simulate from it, and back up what was found."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Generic

from shardwright.mcts.base import A, Game, S, Settings
from shardwright.mcts.tree import Edge, Node, Tree


@dataclass(frozen=True)
class Result(Generic[S]):
    """The best state that was ever met. ``exhausted`` means that there is no other."""

    state: S
    value: float
    simulations: int
    nodes: int
    exhausted: bool


def search(
    game: Game[S, A],
    *,
    simulations: int,
    seed: int = 0,
    settings: Settings | None = None,
    after: Callable[[int], bool] | None = None,
) -> Result[S]:
    """Run simulations. ``after`` is told the number of each when it is done, and may end the search by returning True.

    The same game, seed and number of simulations give the same result.
    """
    settings = settings or Settings()
    random, tree = Random(seed), Tree[S, A]()
    root = tree.node(game, game.root)
    done = 0
    while done < simulations:
        path = select(tree, root, settings)
        if root.solved:
            break
        leaf = path[-1].node if path else root
        expand(game, tree, leaf, settings, everything=not path)
        backup(root, path, simulate(game, tree, leaf, random, settings))
        done += 1
        if after is not None and after(done):
            break
    value, state = tree.best or (root.value, root.state)
    return Result(state, value, done, len(tree.nodes), root.solved)


def select(tree: Tree[S, A], root: Node[S, A], settings: Settings) -> list[Edge[S, A]]:
    """From the root along the most promising edges to a node that has children yet to be looked at, and is due."""
    path: list[Edge[S, A]] = []
    node = root
    while not root.solved and not _due(node, settings):
        left = [edge for edge in node.edges if not edge.node.solved]
        if left:
            path.append(max(left, key=partial(_promise, tree, node, settings)))
            node = path[-1].node
        elif node.pending:
            break
        else:  # all was seen behind it on other ways: look for another from the start
            node.solved = True
            path, node = [], root
    return path


def expand(
    game: Game[S, A], tree: Tree[S, A], node: Node[S, A], settings: Settings, *, everything: bool = False
) -> None:
    """Look one action ahead: children are valued, and the values become the priors of the edges.

    At first the few actions that have done best elsewhere in the tree, later one at a time (progressive widening,
    Chaslot et al. 2008); at the root all of them, which is what the rest is judged by.
    """
    fresh = not node.edges
    if fresh:
        node.pending.sort(key=tree.standing, reverse=True)
    count = len(node.pending) if everything else settings.width if fresh else 1
    have = {id(edge.node) for edge in node.edges}
    while node.pending and count:
        action = node.pending.pop(0)
        child = tree.node(game, game.apply(node.state, action))
        tree.learn(action, child.value - node.value)
        if id(child) not in have:
            have.add(id(child))
            node.edges.append(Edge(action, child, best=child.value))
            count -= 1
    values = [tree.scaled(edge.node.value) for edge in node.edges]
    highest, lowest = max(values, default=0.0), min(values, default=0.0)
    heat = settings.temperature * max(highest - lowest, 1e-12)
    weights = [math.exp((value - highest) / heat) for value in values]
    total = sum(weights)
    for edge, weight in zip(node.edges, weights, strict=True):
        edge.prior = weight / total


def simulate(game: Game[S, A], tree: Tree[S, A], node: Node[S, A], random: Random, settings: Settings) -> float:
    """Play on at random, the first action by its prior; the value is the best that was met on the way."""
    best = max((edge.node.value for edge in node.edges), default=node.value)
    if not node.edges:
        return max(best, node.value)
    state = random.choices(node.edges, [edge.prior for edge in node.edges])[0].node.state
    for _ in range(settings.rollout_steps):
        actions = game.actions(state)
        if not actions or random.random() < settings.rollout_stop:
            break
        drawn = random.choices(actions, k=min(settings.rollout_draws, len(actions)))
        state = game.apply(state, max(drawn, key=tree.standing))
        value = game.value(state)
        tree.see(value, state)
        best = max(best, value)
    return max(best, node.value)


def backup(root: Node[S, A], path: list[Edge[S, A]], value: float) -> None:
    """Tell every edge on the path what was found behind it, and every node whether there is more to find."""
    for edge in path:
        edge.visits += 1
        edge.total += value
        edge.best = max(edge.best, value)
    for node in (*(edge.node for edge in reversed(path)), root):
        node.visits += 1
        node.solved = not node.pending and all(edge.node.solved for edge in node.edges)


def _due(node: Node[S, A], settings: Settings) -> bool:
    """Whether a node is to be given more children before one of those that it has is followed."""
    return bool(node.pending) and len(node.edges) < settings.width + settings.widening * node.visits


def _promise(tree: Tree[S, A], node: Node[S, A], settings: Settings, edge: Edge[S, A]) -> float:
    """PUCT: what an edge is known to be worth, and a bonus for what its prior promises and visits have not shown."""
    best = tree.scaled(edge.best)
    mean = tree.scaled(edge.total / edge.visits) if edge.visits else best
    worth = settings.optimism * best + (1 - settings.optimism) * mean
    return worth + settings.exploration * edge.prior * math.sqrt(node.visits + 1) / (1 + edge.visits)
