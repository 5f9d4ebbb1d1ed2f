"""As good, and simpler: what a state can do without, when to do as experts do, and equal roles sharded alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardwright.price import CostModel
from shardwright.price.class_prices import Projections, Seen
from shardwright.search.actions import Actions
from shardwright.search.improve import neighbours
from shardwright.search.lists import Lists, Order, replaced
from shardwright.search.scores import Found, Scores
from shardwright.space.state import State

AS_GOOD = 1e-3
"""What experts do is preferred to what is better by less than this part."""
SAME = 1e-6
"""An entry that changes the step time by less has no effect."""


def simplified(scores: Scores, found: Found, most_seconds: float) -> Found:
    """A state without the entries that it can do without, the least useful dropped first.

    It fits where ``found`` does, and takes at most ``most_seconds``.
    """
    current = found
    most_bytes = max(found.cost.peak_bytes, scores.limit_bytes)
    while True:
        tried = [Found(lists, scores.cost(lists)) for lists in _shorter(current.lists)]
        good = [f for f in tried if f.cost.step_seconds <= most_seconds and f.cost.peak_bytes <= most_bytes]
        good = [f for f in good if keeps_parts(scores, f, current)]
        if not good:
            return current
        current = min(good, key=lambda f: (complexity(f.lists), f.cost.step_seconds, f.lists))


def keeps_parts(scores: Scores, simpler: Found, found: Found) -> bool:
    """Whether arguments of a program that is sharded already lie in no larger parts than before.

    What its author has in parts is handed over in parts. A device that is given all of it, and takes its part, is no
    slower by the estimate; but the compiler's layouts are others, and a step that is all in one ``shard_map`` was
    0.05% slower for it than as its author runs it.
    """
    if not scores.costs.classes.program.is_sharded:
        return True
    return scores.costs.held_bytes(scores.state(simpler.lists)) <= scores.costs.held_bytes(scores.state(found.lists))


def without_idle(costs: CostModel, pinned: State, state: State) -> State:
    """A state, of those that a search from ``pinned`` meets, without the entries that have no effect."""
    cost = costs.evaluate(state)
    scores = Scores(costs, Order(costs.classes.places), pinned, cost.peak_bytes)
    return scores.state(simplified(scores, Found(scores.lists(state), cost), (1 + SAME) * cost.step_seconds).lists)


def complexity(lists: Lists) -> int:
    """How much there is to say about a state: axes with the same list are said together."""
    return sum(map(len, set(lists)))


def _shorter(lists: Lists) -> Iterator[Lists]:
    """Without an entry, on one axis or on all that have it, if that leaves less to say."""
    for entry in dict.fromkeys(entry for entries in lists for entry in entries):
        rest = [tuple(e for e in entries if e != entry) for entries in lists]
        for new in (tuple(rest), *(replaced(lists, axis, rest[axis]) for axis in range(len(lists)))):
            if complexity(new) < complexity(lists):
                yield new


PAYS = 5e-3
"""Of a step: what a difference between weights in equal roles has to save at least."""


class Equals:
    """Sets of arguments that are to be sharded alike, and how far a state is from that."""

    def __init__(self, costs: CostModel, sets: Iterable[frozenset[int]]) -> None:
        self._costs = costs
        classes = [{costs.classes.of_value[v] for v in values} for values in sets]
        self._classes = [sorted(found) for found in classes if len(found) > 1]  # those of one class always are
        groups = costs.classes.groups_of_values
        self._projections = Projections([frozenset().union(*[groups[c] for c in found]) for found in self._classes])
        self._known: list[dict[Seen, int]] = [{} for _ in self._classes]
        """For each set how far it is from being alike, by what it sees of a state."""

    def apart(self, scores: Scores, lists: Lists) -> int:
        """How many shardings there are of what could have one, in all sets together."""
        state = scores.state(lists).lists
        view, total = None, 0
        for seen, known, found in zip(self._projections.view(state).seen, self._known, self._classes, strict=True):
            if seen not in known:
                view = view or self._costs.view(state)
                known[seen] = len({self._costs.tensors.number(c, view) for c in found}) - 1
            total += known[seen]
        return total


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
