"""Weights in equal roles, sharded alike: keys and values of attention, a parameter and its optimizer state.

A difference between them that hardly pays is a riddle to whoever reads the plan, and a layout more for the compiler.
"""

from __future__ import annotations

from collections.abc import Iterable

from shardwright.price import CostModel
from shardwright.search.actions import Actions
from shardwright.search.improve import neighbours
from shardwright.search.lists import Lists
from shardwright.search.scores import Found, Scores

PAYS = 5e-3
"""Of a step: what a difference between weights in equal roles has to save at least."""


class Equals:
    """Sets of arguments that are to be sharded alike, and how far a state is from that."""

    def __init__(self, costs: CostModel, sets: Iterable[frozenset[int]]) -> None:
        self._costs = costs
        classes = [{costs.classes.of_value[v] for v in values} for values in sets]
        self._classes = [sorted(found) for found in classes if len(found) > 1]  # those of one class always are

    def apart(self, scores: Scores, lists: Lists) -> int:
        """How many shardings there are of what could have one, in all sets together."""
        view = self._costs.view(scores.state(lists).lists)
        number = self._costs.tensors.number
        return sum(len({number(c, view) for c in found}) - 1 for found in self._classes)


def made_alike(scores: Scores, actions: Actions, equals: Equals, found: Found, most_seconds: float) -> Found:
    """A state in which fewer weights in equal roles differ, change by change, for as long as there is one.

    It fits where ``found`` does, and takes at most ``most_seconds``.
    """
    current, apart = found, equals.apart(scores, found.lists)
    most_bytes = max(found.cost.peak_bytes, scores.limit_bytes)
    while apart:
        near = dict.fromkeys(scores.order.normal(lists) for lists in neighbours(current.lists, actions))
        closer = [(left, lists) for lists in near if (left := equals.apart(scores, lists)) < apart]
        good = [
            (left, cost.step_seconds, lists)
            for left, lists in closer
            if (cost := scores.cost(lists)).step_seconds <= most_seconds and cost.peak_bytes <= most_bytes
        ]
        if not good:
            break
        apart, _, lists = min(good)
        current = Found(lists, scores.cost(lists))
    return current
