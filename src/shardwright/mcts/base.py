"""What a search is given: a game, as four functions, and its own settings."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S")
A = TypeVar("A")


@dataclass(frozen=True)
class Game(Generic[S, A]):
    """A game for one player, without chance. Stopping is allowed in every state and is not an action of its own.

    Attributes:
        root: where a game starts.
        actions: what can be done in a state, always in the same order. Actions are hashable.
        apply: the state that an action leads to.
        key: equal for states that are the same whichever way they were reached. Games are finite: no action leads back
            to a key that was met before.
        value: of stopping in a state; higher is better.

    """

    root: S
    actions: Callable[[S], Sequence[A]]
    apply: Callable[[S, A], S]
    key: Callable[[S], Hashable]
    value: Callable[[S], float]


@dataclass(frozen=True)
class Settings:
    """How a search weighs what it knows against what it does not.

    Attributes:
        exploration: weight of the prior over visits in PUCT (Rosin 2011; Silver et al. 2017).
        temperature: of the softmax that turns the look-ahead's values into priors, as a part of their spread.
        optimism: how much of an edge's worth is the best that was found behind it; the rest is the mean.
        width: how many children of a node are looked at when it is first reached.
        widening: how many more with each visit.
        rollout_steps: the most actions that a simulation plays beyond the tree.
        rollout_stop: the chance that it stops after each of them.
        rollout_draws: of so many actions drawn at random, the one that has done best elsewhere is played.

    """

    exploration: float = 1.0
    temperature: float = 0.15
    optimism: float = 0.5
    width: int = 8
    widening: float = 1.0
    rollout_steps: int = 2
    rollout_stop: float = 0.2
    rollout_draws: int = 3
