"""Large changes: what leads an axis's list, or stays off it, while local improvement adapts all the rest to that.

From a state that no single change makes better, a large one leads further only if it is not taken back at once. So it
is kept while everything else is improved, and then it is let go.

Leaps stay near. So states are drawn, too, and improved: random lists on all axes, or on one axis of a good state, or a
list for each axis from one of the good states.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from shardwright.mcts import Game
from shardwright.search.game import Space
from shardwright.search.improve import improve
from shardwright.search.lists import Lists, replaced
from shardwright.search.scores import Scores
from shardwright.space.state import AnyEntry, Subject

_LONGEST = 5
"""Entries of a random list at most."""
_CROSSED, _ONE_AXIS = 0.34, 0.33
"""Parts of the draws: a list for each axis from one of the good states; a random list for one axis of a good state."""


class Leap(NamedTuple):
    """What leads an axis's list (an entry, or a tactic's), or what is off it."""

    axis: int
    leading: tuple[AnyEntry, ...] = ()
    off: Subject | None = None

    def made(self, lists: Lists) -> Lists:
        """The lists with it; once it is made, to make it again changes nothing."""
        gone = {self.off, *(e.subject for e in self.leading)}
        rest = tuple(e for e in lists[self.axis] if e.subject not in gone)
        return replaced(lists, self.axis, (*self.leading, *rest))


class Leaps:
    """The game of the tree search: its states are local optima, and its actions lead from one to another.

    A simulation does at most ``most_work`` (see ``Scores.work``), and none goes on when all together have done
    ``total_work``.
    """

    def __init__(self, space: Space, scores: Scores, most_work: float, total_work: float) -> None:
        self.space, self.scores = space, scores
        self.most_work, self.total_work = most_work, total_work
        self.leading = [
            Leap(axis, leading)
            for axis, (found, named) in enumerate(zip(space.actions.entries, space.actions.tactics, strict=True))
            for leading in dict.fromkeys((*((entry,) for entry in found), *named.values()))
        ]

    def game(self, starts: Sequence[Lists]) -> Game[Lists, Leap]:
        """The game, from some states."""
        return Game(starts, self.leaps, self.play, lambda lists: lists, self.scores.value, self.draw)

    def leaps(self, lists: Lists) -> list[Leap]:
        """Those that make another state of this one."""
        off = [Leap(axis, (), e.subject) for axis, entries in enumerate(lists) for e in entries]
        return [leap for leap in (*self.leading, *off) if self._made(leap, lists) != lists]

    def play(self, lists: Lists, leap: Leap) -> Lists:
        """The local optimum that a leap leads to: of what can be with it, and then of all from there."""
        scores, actions = self.scores, self.space.actions
        most = min(scores.work + self.most_work, self.total_work)
        kept = improve(scores, self._made(leap, lists), actions, most, lambda changed: self._made(leap, changed))
        return improve(scores, kept.lists, actions, most).lists

    def draw(self, random: Random, best: Sequence[Lists]) -> Lists:
        """The local optimum that some lists lead to: random ones, or such that take some axes from good states."""
        lists = self.random(random)
        how = random.random() if len(lists) > 1 else 1.0
        if how < _CROSSED:
            lists = tuple(random.choice(best)[axis] for axis in range(len(lists)))
        elif how < _CROSSED + _ONE_AXIS:
            axis = random.randrange(len(lists))
            lists = replaced(random.choice(best), axis, lists[axis])
        most = min(self.scores.work + self.most_work, self.total_work)
        return improve(self.scores, lists, self.space.actions, most).lists

    def random(self, random: Random) -> Lists:
        """A few entries on every axis, in random order."""
        lists = []
        for found in self.space.actions.entries:
            drawn = random.sample(found, min(len(found), random.randint(0, _LONGEST)))
            lists.append(tuple({e.subject: e for e in drawn}.values()))
        return tuple(lists)

    def _made(self, leap: Leap, lists: Lists) -> Lists:
        return self.space.order.normal(leap.made(lists))
