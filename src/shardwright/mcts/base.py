"""What a search is given: a game, as a few functions, and its own settings."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Generic, TypeVar

S = TypeVar("S")
A = TypeVar("A")


@dataclass(frozen=True)
class Game(Generic[S, A]):
    """A game for one player, without chance, who may start in several states and stop in any.

    Attributes:
        starts: the states that a game can start from. There is at least one.
        actions: what can be done in a state, always in the same order. Actions are hashable, and the same action can be
            possible in many states: what it was worth in one is expected of it in others.
        play: the state that an action ends in. It may do much more than the action says, such as improve what follows
            from it, and may end in a state that was met before.
        key: equal for states that are the same whichever way they were reached.
        value: of stopping in a state; higher is better.
        draw: another state to start from, where there are more than can be listed. It gets the search's random numbers
            and the best states that were met, the very best first, and may end in a state that was met before.

    """

    starts: Sequence[S]
    actions: Callable[[S], Sequence[A]]
    play: Callable[[S, A], S]
    key: Callable[[S], Hashable]
    value: Callable[[S], float]
    draw: Callable[[Random, Sequence[S]], S] | None = None


@dataclass(frozen=True)
class Settings:
    """How a search weighs what it knows against what it does not.

    Attributes:
        exploration: weight of what was visited little over what is known to be good (UCT, Kocsis and Szepesvári 2006).
        optimism: how much of a node's worth is the best that was found behind it; the rest is the mean.
        width: how many actions of a node are tried before one of those that it has is followed.
        widening: how many more, times the square root of its visits (progressive widening, Chaslot et al. 2008).
        drawn: the part of the simulations that draw another state to start from, in a game that has such.
        few: of the best states that were met, as many are told to who draws.
        vain: a game is exhausted when nothing is left to try in the tree, and so many draws in a row met nothing new.

    """

    exploration: float = 0.5
    optimism: float = 0.5
    width: int = 2
    widening: float = 1.0
    drawn: float = 0.5
    few: int = 5
    vain: int = 20
