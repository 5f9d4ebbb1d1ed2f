"""Automap: a tree search over shardings of arguments, with propagation after each (arXiv:2112.02958).

An action is "split dimension d of an argument over axis x"; the sharding then spreads as far as it goes
(``propagate``), and the search goes on or stops. Arguments of one class, the copies of a layer's parameters, are
decided together, which is Automap's grouping of repeated layers. Its learned ranker of arguments is left out.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from benchmarks.baselines.base import Baseline
from benchmarks.baselines.propagate import Masks, Propagation
from shardwright.price import Cost, CostModel
from shardwright.space.state import State

S = TypeVar("S")
A = TypeVar("A")

# Between the best of some twenty settings, tried with four to six seeds on full-size gpt, itx and moe.
_EXPLORATION = 0.1
"""Of UCT. Small, for rewards of good states are close: a strategy for 16 devices costs about 1/16 of none."""
_STOPPING = 0.1
"""How likely a random play stops before each action. Long plays do better, as most splits save time and memory."""
_PENALTY = 1.0
"""Reward that a state loses for exceeding the limit by the limit itself: as much as the unsharded program costs."""


class Split(NamedTuple):
    """Split a place, a dimension of a class of arguments, over an axis."""

    place: int
    axis: int


def automap(
    costs: CostModel, limit_bytes: int, *, simulations: int = 300, seconds: float = 60.0, seed: int = 0
) -> Baseline:
    """The best strategy that Automap's search finds in so many simulations, or in so many seconds if that is less.

    Where no strategy that it met fits ``limit_bytes``, the smallest one.
    """
    began = time.perf_counter()
    propagation = Propagation(costs.classes, costs.mesh)
    splits = possible_splits(propagation)
    unsharded_seconds = costs.evaluate(State(((),) * len(costs.mesh.sizes))).step_seconds
    known: dict[Masks, Cost] = {}

    def actions(masks: Masks) -> list[Split]:
        return [split for split in splits if propagation.can_take(masks, *split)]

    def apply(masks: Masks, split: Split) -> Masks:
        return propagation.shard(masks, *split)

    def evaluate(masks: Masks) -> float:
        cost = known.get(masks)
        if cost is None:
            cost = known[masks] = costs.evaluate_shardings(propagation.shardings(masks))
        over = max(0.0, cost.peak_bytes / limit_bytes - 1)
        return -cost.step_seconds / unsharded_seconds - _PENALTY * over

    game = Game(actions, apply, evaluate)
    count = search(game, propagation.whole, random.Random(seed), simulations, began + seconds)
    masks, best = min(known.items(), key=lambda item: _order(item[1], limit_bytes))
    of_class = propagation.shardings(masks)
    note = f"{count} simulations, {len(known)} states, {len(splits)} splits of arguments"
    took = time.perf_counter() - began
    return Baseline("automap", best, took, note, [of_class[c] for c in costs.classes.of_value])


def _order(cost: Cost, limit_bytes: int) -> tuple[bool, float]:
    """What fits comes first, the fastest of it before the others; then what does not fit, the smallest first."""
    fits = cost.peak_bytes <= limit_bytes
    return not fits, cost.step_seconds if fits else cost.peak_bytes


def possible_splits(propagation: Propagation) -> list[Split]:
    """Every dimension of every class of arguments over every axis that divides it."""
    classes, whole = propagation.classes, propagation.whole
    arguments = dict.fromkeys(classes.of_value[argument.value] for argument in classes.program.arguments)
    return [
        Split(place, axis)
        for v in arguments
        for place in (propagation.place(v, d) for d in range(len(classes.values.keys[v].shape)))
        for axis in range(len(propagation.mesh.sizes))
        if propagation.can_take(whole, place, axis)
    ]


@dataclass(frozen=True)
class Game(Generic[S, A]):
    """What a search plays: ``evaluate`` is the reward of stopping in a state; the search adds the stop action."""

    actions: Callable[[S], Sequence[A]]
    apply: Callable[[S, A], S]
    evaluate: Callable[[S], float]


@dataclass
class Node(Generic[S, A]):
    """A state in the tree; ``untried`` are its actions without a child, None being to stop."""

    state: S
    untried: list[A | None]
    children: list[Node[S, A]] = field(default_factory=list)
    visits: int = 0
    total: float = 0.0

    def upper_bound(self, of_visits: int) -> float:
        """Of its mean reward: ``mean + c √(ln N / n)``, after n of its parent's N visits."""
        return self.total / self.visits + _EXPLORATION * math.sqrt(math.log(of_visits) / self.visits)


def search(game: Game[S, A], state: S, rng: random.Random, simulations: int, deadline: float) -> int:
    """Monte Carlo tree search with UCT (Kocsis and Szepesvári, 2006); how many simulations there was time for.

    The caller keeps the best state: all that is worth keeping goes through ``game.evaluate``.
    """
    root = _node(game, state, rng)
    for count in range(simulations):
        if count and time.perf_counter() >= deadline:
            return count
        path = select(root)
        if path[-1].untried:
            path.append(expand(game, path[-1], rng))
        backup(path, simulate(game, path[-1], rng))
    return simulations


def select(root: Node[S, A]) -> list[Node[S, A]]:
    """From the root to a node with untried actions, or to a stop, by upper confidence bounds."""
    path = [root]
    while not path[-1].untried and path[-1].children:
        parent = path[-1]
        bounds = [child.upper_bound(parent.visits) for child in parent.children]
        path.append(parent.children[bounds.index(max(bounds))])
    return path


def expand(game: Game[S, A], node: Node[S, A], rng: random.Random) -> Node[S, A]:
    """A child for the next untried action. Stopping leads to a node without actions."""
    action = node.untried.pop()
    child: Node[S, A]
    child = Node(node.state, []) if action is None else _node(game, game.apply(node.state, action), rng)
    node.children.append(child)
    return child


def simulate(game: Game[S, A], node: Node[S, A], rng: random.Random) -> float:
    """The reward of playing on at random from a node."""
    state = node.state
    if node.untried or node.children:
        while rng.random() >= _STOPPING:
            actions = game.actions(state)
            if not actions:
                break
            state = game.apply(state, rng.choice(actions))
    return game.evaluate(state)


def backup(path: Sequence[Node[S, A]], reward: float) -> None:
    """Count a reward for every node that led to it."""
    for node in path:
        node.visits += 1
        node.total += reward


def _node(game: Game[S, A], state: S, rng: random.Random) -> Node[S, A]:
    actions: list[A | None] = list(game.actions(state))
    rng.shuffle(actions)
    return Node(state, [*actions, None])  # tried from the end: to stop comes first
