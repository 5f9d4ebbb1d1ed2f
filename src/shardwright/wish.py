"""What a plan must respect, and the search for one that does."""

from __future__ import annotations

from dataclasses import dataclass
from operator import index
from typing import Any, SupportsIndex

import numpy as np

from shardwright._collector import collector_paused
from shardwright.devices import Device
from shardwright.errors import PlanError
from shardwright.plan.facts import Decided
from shardwright.plan.pins import as_decisions, decided, replicated
from shardwright.price import Cost, CostModel
from shardwright.request import MeshShape
from shardwright.search import Glance, Keepers, Kept, Outcome, find_keepers, find_state
from shardwright.space import implied_decisions, resolve
from shardwright.space.state import Entry, State
from shardwright.traced import Traced

_SHORT_SECONDS = 2.0


def check_budget(seconds: Any, **counts: Any) -> None:
    """Seconds and counts of a search must be numbers of at least 0."""
    number = isinstance(seconds, (int, float, np.number)) and not isinstance(seconds, bool)
    if seconds is not None and not (number and seconds >= 0):  # not a number is not at least 0 either
        raise PlanError(f"seconds={seconds!r} is no time to search for; give a number of at least 0, or None.")
    for name, count in counts.items():
        if count is not None and (isinstance(count, bool) or not isinstance(count, SupportsIndex) or index(count) < 0):
            raise PlanError(f"{name}={count!r} cannot be counted to; give a whole number of at least 0.")


@dataclass(frozen=True)
class Wish:
    """What a plan must respect: the devices, their memory, and what the user has decided."""

    device: Device
    limit_bytes: int
    pin: Any = None
    replicate: Any = ()

    def search(
        self,
        traced: Traced,
        mesh: MeshShape,
        *,
        costs: CostModel | None = None,
        like: CostModel | None = None,
        **budget: Any,
    ) -> tuple[CostModel, Outcome]:
        """The best state of a program on a mesh, and what prices it.

        ``costs`` are those of an earlier search on this mesh, ``like`` those of one on another.
        """
        pinned, keepers, kept = self._start(traced, mesh)
        own = self._own(traced, mesh, pinned, kept)
        budget["starts"] = (*own, *budget.get("starts", ()))
        with collector_paused():
            costs = costs or CostModel(traced.places, mesh, self.device, pinned.whole, like=like)
            outcome = find_state(traced.analysis, costs, pinned, self.limit_bytes, keepers=keepers, kept=kept, **budget)
        return costs, outcome

    def glance(self, traced: Traced, mesh: MeshShape, like: CostModel | None, deadline: float) -> Glance:
        """At the states of a program on a mesh."""
        pinned, keepers, kept = self._start(traced, mesh)
        costs = CostModel(traced.places, mesh, self.device, pinned.whole, like=like)
        return Glance(traced.analysis, costs, pinned, self.limit_bytes, keepers, kept, deadline=deadline)

    def decided(self, traced: Traced, mesh: MeshShape) -> Decided:
        """What the user's pins amount to on a mesh."""
        pinned, _, kept = self._start(traced, mesh)
        return Decided(pinned, kept)

    def best_cost(self, traced: Traced, mesh: MeshShape) -> Cost:
        """The cost of what a short search finds."""
        return self.search(traced, mesh, simulations=1, seconds=_SHORT_SECONDS)[1].cost

    def _own(self, traced: Traced, mesh: MeshShape, pinned: State, kept: Kept) -> tuple[State, ...]:
        """The state that the program's own shardings amount to, where it has any, but for what must not be touched."""
        if not traced.module.program.is_sharded:
            return ()
        implied = resolve(traced.analysis, mesh, implied_decisions(traced.analysis, mesh))

        def more(axis: str, first: tuple[Entry, ...], entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
            known = {e.group for e in first}
            return tuple(
                e for e in entries if e.group not in known and axis not in kept and (axis, e.group) not in kept
            )

        lists = zip(mesh.names, pinned.lists, implied.lists, strict=True)
        return (State(tuple((*first, *more(axis, first, e)) for axis, first, e in lists), pinned.whole),)

    def _start(self, traced: Traced, mesh: MeshShape) -> tuple[State, Keepers, Kept]:
        """What is decided already, what the search may keep whole, and what it must not touch."""
        analysis = traced.analysis
        kept_axes, kept_arguments = replicated(analysis, mesh, self.replicate, self.pin)
        start = resolve(analysis, mesh, as_decisions(analysis, mesh, [kept_arguments, self.pin]))
        whole, keepers = find_keepers(analysis, start.whole)
        return State(start.lists, whole), keepers, {**kept_axes, **decided(analysis, mesh, self.pin)}
