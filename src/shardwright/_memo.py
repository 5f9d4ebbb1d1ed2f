"""Dictionaries that fill themselves: what was worked out once is looked up from then on."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Memo(dict[K, V]):
    """A function that remembers: ``memo[key]`` is ``make(key)``, worked out when it is first asked for.

    What is known is found as fast as in any dictionary, without a call. ``make`` should not hold on to the owner of the
    memo: with such a circle, what is large would wait for the garbage collector, which is paused where models are made.
    """

    __slots__ = ("make",)

    def __init__(self, make: Callable[[K], V]) -> None:
        self.make = make

    def __missing__(self, key: K) -> V:
        found = self[key] = self.make(key)
        return found


class Numbers(dict[K, int]):
    """Numbers things in the order in which they are first asked for; ``things[number]`` leads back."""

    __slots__ = ("things",)

    def __init__(self) -> None:
        self.things: list[K] = []

    def __missing__(self, thing: K) -> int:
        number = self[thing] = len(self.things)
        self.things.append(thing)
        return number
