"""What a search knows: the cost of every state that it has met, the best of them, and when its time is over."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from shardwright.price import Cost, CostModel
from shardwright.search.lists import Lists, Order
from shardwright.space.state import State

_OVER, _PER_OVER = 0.2, 3.0
"""The penalty of a state that does not fit, in the logarithm of seconds: for being over the limit at all, and for each
factor e of it. So a state twice over the limit ranks with one that fits and takes ten times as long."""
_SAME = 1e-9


class BudgetOver(Exception):  # noqa: N818 (nothing went wrong)
    """The search has used up what it was given."""


class Enough(Exception):  # noqa: N818 (nothing went wrong)
    """Something fits, and that was all that was asked."""


class Found(NamedTuple):
    """A state by its lists and its cost."""

    lists: Lists
    cost: Cost


@dataclass(frozen=True)
class Milestone:
    """The best state at some time of a search. ``fits`` is false before the first that does."""

    seconds: float
    evaluations: int
    step_seconds: float
    peak_bytes: int
    fits: bool


class Scores:
    """Costs of states under a limit. ``pinned`` comes first on every axis, whatever the search puts after it.

    With ``any_fit`` the first state that fits is enough.
    """

    def __init__(
        self,
        costs: CostModel,
        order: Order,
        pinned: State,
        limit_bytes: int,
        *,
        deadline: float = math.inf,
        any_fit: bool = False,
        watch: Watch | None = None,
    ) -> None:
        self.costs, self.order, self.pinned, self.limit_bytes = costs, order, pinned, max(limit_bytes, 1)
        self.started = time.perf_counter()
        self.deadline, self.any_fit, self.watch = deadline, any_fit, watch
        self._priced = costs.priced_units
        self.known: dict[Lists, Cost] = {}
        self.best: Found | None = None
        self.history: list[Milestone] = []

    @property
    def evaluations(self) -> int:
        """States met so far."""
        return len(self.known)

    @property
    def work(self) -> int:
        """Prices worked out so far: time by a clock that runs the same on every machine."""
        return self.costs.priced_units - self._priced

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.perf_counter() - self.started

    def state(self, lists: Lists) -> State:
        """The state that these lists, after what is pinned, make."""
        entries = []
        for first, then in zip(self.pinned.lists, lists, strict=True):
            have = {e.subject for e in first}
            entries.append((*first, *[e for e in then if e.subject not in have]) if first else then)
        return State(tuple(entries), self.pinned.whole)

    def lists(self, state: State) -> Lists:
        """The lists that make this state after what is pinned."""
        both = zip(state.lists, self.pinned.lists, strict=True)
        return tuple(tuple(e for e in entries if e not in first) for entries, first in both)

    def cost(self, lists: Lists) -> Cost:
        """The cost of a state."""
        lists = self.order.normal(lists)
        cost = self.known.get(lists)
        if cost is None:
            if time.perf_counter() > self.deadline and self.best is not None:
                raise BudgetOver
            cost = self.known[lists] = self.costs.evaluate(self.state(lists))
            self._remember(Found(lists, cost))
            if self.watch is not None:
                self.watch(self)
            if self.any_fit and not cost.over_bytes(self.limit_bytes):
                raise Enough
        return cost

    def value(self, lists: Lists) -> float:
        """For the tree search: higher is better, and what does not fit is worth less the more it is over."""
        cost = self.cost(lists)
        over = max(cost.peak_bytes, self.limit_bytes + cost.over_bytes(self.limit_bytes)) / self.limit_bytes
        penalty = _OVER + _PER_OVER * math.log(over) if over > 1 else 0.0
        return -math.log(cost.step_seconds or 1e-12) - penalty

    def rank(self, cost: Cost) -> tuple[int, float]:
        """Lower is better: first what fits, then what is fast; what does not fit, by how much it is over."""
        return cost.over_bytes(self.limit_bytes), cost.step_seconds

    def better(self, new: Found, old: Found) -> bool:
        """Less over the limit, or faster, or as fast with less memory or fewer decisions."""
        (over, seconds), (old_over, old_seconds) = self.rank(new.cost), self.rank(old.cost)
        if over != old_over:
            return over < old_over
        if abs(seconds - old_seconds) > _SAME * old_seconds:
            return seconds < old_seconds
        return _size(new) < _size(old)

    def gain(self, new: Found, old: Found) -> float:
        """The part of a step that a better state saves; infinite where it is nearer to the limit of memory."""
        (over, seconds), (old_over, old_seconds) = self.rank(new.cost), self.rank(old.cost)
        return math.inf if over != old_over else (old_seconds - seconds) / (old_seconds or 1.0)

    def distinct(self, count: int, apart: float = 1e-6) -> list[Found]:
        """The best states that fit, none of them just another way to say the same: seconds differ by this part."""
        fitting = [Found(k, c) for k, c in self.known.items() if not c.over_bytes(self.limit_bytes)]
        fitting.sort(key=lambda f: (f.cost.step_seconds, *_size(f)))
        out: list[Found] = []
        for found in fitting:
            if all(abs(found.cost.step_seconds - o.cost.step_seconds) > apart * o.cost.step_seconds for o in out[-1:]):
                out.append(found)
                if len(out) == count:
                    break
        return out

    def front(self) -> list[Found]:
        """The states that no other beats in both time and memory, fastest first; of equals the shortest."""
        known = [Found(lists, cost) for lists, cost in self.known.items()]
        out: list[Found] = []
        for found in sorted(known, key=lambda f: (f.cost.step_seconds, *_size(f))):
            if not out or found.cost.peak_bytes < out[-1].cost.peak_bytes:
                out.append(found)
        return out

    def _remember(self, found: Found) -> None:
        if self.best is None or self.better(found, self.best):
            self.best = found
            cost = found.cost
            self.history.append(
                Milestone(
                    self.seconds,
                    self.evaluations,
                    cost.step_seconds,
                    cost.peak_bytes,
                    not cost.over_bytes(self.limit_bytes),
                )
            )


def _size(found: Found) -> tuple[int, int, Lists]:
    return found.cost.peak_bytes, sum(map(len, found.lists)), found.lists


Watch = Callable[[Scores], None]
"""Called whenever a search has met a better state."""
