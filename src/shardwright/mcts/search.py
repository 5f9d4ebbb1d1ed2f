"""The search: select a node, try one more of its actions, and back up what was found; or draw another root."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Generic

from shardwright.mcts.base import A, Game, S, Settings
from shardwright.mcts.tree import Node, Tree


@dataclass(frozen=True)
class Result(Generic[S]):
    """The best state that a simulation ended in.

    ``exhausted`` means that no action was left to try in any node, and that no more was to be drawn.
    """

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
    tree = Tree(game, Random(seed))
    roots = [node for state in game.starts if (node := tree.add(state)) is not None]
    top = Node[S, A](roots[0].state, roots[0].value, [], roots)
    done = vain = 0
    most_vain = settings.vain if game.draw else 0
    turn = 0.0
    while not (exhausted := top.solved and vain >= most_vain) and done < simulations:
        turn += settings.drawn
        if game.draw and (top.solved or turn >= 1):
            turn = max(turn - 1, 0.0)
            vain = 0 if draw(tree, top, settings) else vain + 1
        elif path := select(tree, top, settings):
            backup(path, simulate(tree, path[-1]))
        else:
            continue  # all of the tree is solved now
        done += 1
        if after is not None and after(done):
            break
    best = tree.best or roots[0]
    return Result(best.state, best.value, done, len(tree.nodes), exhausted)


def select(tree: Tree[S, A], top: Node[S, A], settings: Settings) -> list[Node[S, A]]:
    """From the top along the most promising nodes to one that is due to try another action; none if all is solved."""
    path = [top]
    while not _due(path[-1], settings):
        node = path[-1]
        left = [child for child in node.children if not child.solved]
        if left:
            path.append(max(left, key=partial(_promise, tree, node, settings)))
        else:
            node.solved = True
            path = path[:-1]
            if not path:
                break
    return path


def simulate(tree: Tree[S, A], node: Node[S, A]) -> float:
    """Try the action that has gained most elsewhere. Where it ends in a new state, that becomes a child."""
    action = max(node.pending, key=tree.standing)
    node.pending.remove(action)
    state = tree.game.play(node.state, action)
    value = tree.game.value(state)
    tree.learn(action, value - node.value)
    child = tree.add(state)
    if child is not None:
        child.visits, child.total = 1, value
        node.children.append(child)
    return value


def draw(tree: Tree[S, A], top: Node[S, A], settings: Settings) -> bool:
    """Draw another root, from which the tree goes on like from any other. Whether it is a new state."""
    assert tree.game.draw is not None
    child = tree.add(tree.game.draw(tree.random, tree.leading(settings.few)))
    top.visits += 1
    if child is None:
        return False
    child.visits, child.total = 1, child.value
    top.children.append(child)
    top.solved = False
    return True


def backup(path: list[Node[S, A]], value: float) -> None:
    """Tell every node on the path what was found behind it."""
    for node in path:
        node.visits += 1
        node.total += value
        node.best = max(node.best, value)


def _due(node: Node[S, A], settings: Settings) -> bool:
    """Whether a node is to try another action before one of its children is followed."""
    tried = len(node.children)
    return bool(node.pending) and (
        all(child.solved for child in node.children)
        or tried < settings.width + settings.widening * math.sqrt(node.visits)
    )


def _promise(tree: Tree[S, A], node: Node[S, A], settings: Settings, child: Node[S, A]) -> float:
    """What a child is known to be worth, and a bonus for what visits have not shown yet."""
    best = tree.scaled(child.best)
    mean = tree.scaled(child.total / child.visits) if child.visits else best
    worth = settings.optimism * best + (1 - settings.optimism) * mean
    share = math.sqrt((node.visits + 1) / len(node.children))
    return worth + settings.exploration * share / (1 + child.visits)
