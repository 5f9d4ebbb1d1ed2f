"""Local improvement: one thing about a state changed for as long as that makes it better."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from shardwright.analysis import Analysis
from shardwright.price import Cost, CostModel
from shardwright.search.actions import Actions, find_actions
from shardwright.search.game import Keepers, Space
from shardwright.search.lists import Lists, replaced
from shardwright.search.scores import BudgetOver, Found, Scores
from shardwright.space.pinned import Kept
from shardwright.space.state import AnyEntry, Entry, State, Subject

_WORTH = 1e-4
"""Of a step: what is gained by less than this is taken, but not a reason to try everything once more."""
_SHORT = 6
"""The first entries of a list decide about most tensors: what is tried with every entry of a short list is tried with
these alone of a longer one."""


def improve(
    scores: Scores,
    start: Lists,
    actions: Actions,
    most_work: float = math.inf,
    keep: Callable[[Lists], Lists] | None = None,
) -> Found:
    """The state that no single change makes much better, or the best when so much is done (``Scores.work``).

    ``keep`` is done to a state after every change, so that what it decides stays while all else adapts to it.
    """
    current = _found(scores, start)
    place = tried = 0
    moves = list(neighbours(current.lists, actions))
    while tried < len(moves) and scores.work < most_work:
        move = moves[place % len(moves)]
        new = _found(scores, keep(move) if keep else move)
        place, tried = place + 1, tried + 1
        if scores.better(new, current):  # go on with the same kind of change: it is likely to help again
            worth = scores.gain(new, current) > _WORTH
            current, tried = new, 0 if worth else tried
            place %= len(moves)
            moves = list(neighbours(current.lists, actions))
    return current


def neighbours(lists: Lists, actions: Actions) -> Iterator[Lists]:
    """Every state that is one change away."""
    yield from _without(lists)
    yield from _with_tactic(lists, actions)
    yield from _on_all_axes(lists, actions)
    yield from _between_axes(lists, actions)
    yield from _on_one_axis(lists, actions)
    yield from _with_exception(lists, actions)


def _without(lists: Lists) -> Iterator[Lists]:
    """An entry dropped, or put in another place."""
    for axis, entries in enumerate(lists):
        for k in range(len(entries)):
            rest = (*entries[:k], *entries[k + 1 :])
            yield replaced(lists, axis, rest)
            for position in range(len(entries)) if len(entries) <= _SHORT else (0, k - 1, k + 1, len(entries) - 1):
                if position not in (k, -1, len(entries)):
                    yield replaced(lists, axis, _inserted(rest, position, entries[k]))


def _with_tactic(lists: Lists, actions: Actions) -> Iterator[Lists]:
    """The end of a list, or of all lists, exchanged for a tactic."""
    longest = min(max(map(len, lists)), _SHORT)
    for name in dict.fromkeys(name for found in actions.tactics for name in found):
        for k in range(longest + 1):
            changed = [
                _cut(entries, k, found[name]) if name in found else entries
                for entries, found in zip(lists, actions.tactics, strict=True)
            ]
            for axis, entries in enumerate(changed):
                if k <= len(lists[axis]):
                    yield replaced(lists, axis, entries)
            yield tuple(changed)


def _on_all_axes(lists: Lists, actions: Actions) -> Iterator[Lists]:
    """An entry added to all lists that allow it, dropped from all, or put before another or in its place in all."""
    if len(lists) < 2:
        return
    subjects = sorted({e.subject for entries in lists for e in entries[:_SHORT]})
    for entry in dict.fromkeys(e for found in actions.entries for e in found):
        axes = [axis for axis, allowed in enumerate(actions.entries) if entry in allowed]
        rest = [tuple(e for e in entries if e.subject != entry.subject) for entries in lists]
        yield tuple((*r, entry) if axis in axes else r for axis, r in enumerate(rest))
        yield tuple((entry, *r) if axis in axes else r for axis, r in enumerate(rest))
        for subject in subjects:
            if subject != entry.subject:
                for before in (False, True):
                    yield tuple(
                        _put(r, entry, subject, before=before) if axis in axes else r for axis, r in enumerate(rest)
                    )
    for subject in subjects:
        yield tuple(tuple(e for e in entries if e.subject != subject) for entries in lists)


def _between_axes(lists: Lists, actions: Actions) -> Iterator[Lists]:
    """Two lists exchanged, or an entry moved from one to another."""
    for axis, other in _pairs(len(lists)):
        exchanged = replaced(replaced(lists, axis, lists[other]), other, lists[axis])
        if axis < other and _allowed(exchanged, actions):
            yield exchanged
        for k, entry in enumerate(lists[axis]):
            if _plain(entry) in actions.entries[other] and all(e.subject != entry.subject for e in lists[other]):
                less = replaced(lists, axis, (*lists[axis][:k], *lists[axis][k + 1 :]))
                for position in dict.fromkeys((0, len(lists[other]))):
                    yield replaced(less, other, _inserted(lists[other], position, entry))


def _on_one_axis(lists: Lists, actions: Actions) -> Iterator[Lists]:
    """An entry added anywhere, exchanged for another, or its conflicts resolved differently."""
    for axis, entries in enumerate(lists):
        have = {e.subject: k for k, e in enumerate(entries)}
        for entry in actions.entries[axis]:
            if entry.subject in have:
                k = have[entry.subject]
                if entries[k] != entry:
                    yield replaced(lists, axis, (*entries[:k], entry, *entries[k + 1 :]))
                continue
            for position in dict.fromkeys((len(entries), *range(min(len(entries), _SHORT)))):
                yield replaced(lists, axis, _inserted(entries, position, entry))
            for k in range(min(len(entries), _SHORT)):
                yield replaced(lists, axis, (*entries[:k], entry, *entries[k + 1 :]))


def _with_exception(lists: Lists, actions: Actions) -> Iterator[Lists]:
    """An entry that passes by the tensors that have another group too, on its axis or on all; or no longer does."""
    for axis, entries in enumerate(lists):
        for k, entry in enumerate(entries[:_SHORT]):
            if not isinstance(entry, Entry):
                continue
            for unless in (-1, *actions.meets.get(entry.group, ())):
                if unless != entry.unless:
                    changed = entry._replace(unless=unless)
                    yield replaced(lists, axis, (*entries[:k], changed, *entries[k + 1 :]))
                    yield tuple(
                        tuple(
                            e._replace(unless=unless) if isinstance(e, Entry) and e.group == entry.group else e
                            for e in others
                        )
                        for others in lists
                    )


def _cut(entries: tuple[AnyEntry, ...], k: int, tactic: tuple[AnyEntry, ...]) -> tuple[AnyEntry, ...]:
    """The first entries, then a tactic's."""
    have = {e.subject for e in entries[:k]}
    return (*entries[:k], *(e for e in tactic if e.subject not in have))


def _found(scores: Scores, lists: Lists) -> Found:
    lists = scores.order.normal(lists)
    return Found(lists, scores.cost(lists))


def _put(entries: tuple[AnyEntry, ...], new: AnyEntry, subject: Subject, *, before: bool) -> tuple[AnyEntry, ...]:
    """An entry in the place of another, or before it; where that is missing, nothing is put anywhere."""
    out: list[AnyEntry] = []
    for entry in entries:
        if entry.subject == subject:
            out.append(new)
        if entry.subject != subject or before:
            out.append(entry)
    return tuple(out)


def _inserted(entries: tuple[AnyEntry, ...], position: int, entry: AnyEntry) -> tuple[AnyEntry, ...]:
    return (*entries[:position], entry, *entries[position:])


def _plain(entry: AnyEntry) -> AnyEntry:
    """An entry as actions have it: without an exception."""
    return entry._replace(unless=-1) if isinstance(entry, Entry) else entry


def _pairs(count: int) -> Iterator[tuple[int, int]]:
    return ((a, b) for a in range(count) for b in range(count) if a != b)


def _allowed(lists: Lists, actions: Actions) -> bool:
    return all(_plain(e) in allowed for entries, allowed in zip(lists, actions.entries, strict=True) for e in entries)


@dataclass(frozen=True)
class Seen:
    """A state and its cost."""

    state: State
    cost: Cost


class LocalSearch:
    """The states of a program on a mesh that have been tried so far, by one price list."""

    def __init__(
        self,
        analysis: Analysis,
        costs: CostModel,
        pinned: State,
        limit_bytes: int,
        keepers: Keepers,
        kept: Kept,
        *,
        deadline: float,
    ) -> None:
        actions = find_actions(analysis, costs.mesh, kept=kept, places=costs.classes.places)
        self.costs, self.pinned = costs, pinned
        self._space = Space(analysis, costs, actions, pinned.whole, keepers, pinned=pinned.lists)
        self._scores = Scores(costs, self._space.order, pinned, limit_bytes, deadline=deadline)
        self._scores.cost(self._space.root)

    @property
    def best(self) -> Seen:
        """The best state that was seen."""
        assert self._scores.best is not None
        return self._seen(self._scores.best)

    @property
    def evaluations(self) -> int:
        """States tried."""
        return self._scores.evaluations

    def few(self, count: int) -> list[Seen]:
        """The best states that fit, or the best one of those that do not."""
        return [self._seen(found) for found in self._scores.distinct(count, apart=0.01)] or [self.best]

    def try_states(self, states: Sequence[State]) -> None:
        """Price some states, as far as the time lasts."""
        try:
            for state in states:
                self._scores.cost(self._scores.lists(state))
        except BudgetOver:
            return

    def try_tactics(self) -> None:
        """Price every combination of tactics, as far as the time lasts."""
        try:
            for _, lists in self._space.combinations():
                self._scores.cost(lists)
        except BudgetOver:
            return

    def improve(self, most_work: float) -> None:
        """Improve the best by single changes until so much work is done."""
        best = self._scores.best
        assert best is not None
        try:
            improve(self._scores, best.lists, self._space.actions, self._scores.work + most_work)
        except BudgetOver:
            return

    def _seen(self, found: Found) -> Seen:
        return Seen(self._scores.state(found.lists), found.cost)
