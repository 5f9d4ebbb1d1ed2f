"""``sw.Problem``: a function to partition and all that is given with it; what every way to a plan starts from."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from shardwright._collector import collector_paused
from shardwright.analysis import Analysis
from shardwright.devices import Device, parse_bytes
from shardwright.errors import MeshError
from shardwright.frontend.calls import Donate, Names
from shardwright.frontend.own_shardings import KEEP
from shardwright.frontend.trace import lowering_platform
from shardwright.ir.loops import TripCounts
from shardwright.ir.program import Program
from shardwright.plan import Plan, make_plan
from shardwright.plan.clashes import check_specs
from shardwright.plan.facts import Decided, MeshChoice
from shardwright.price import Cost, CostModel, Places
from shardwright.request import Budget, MeshLike, MeshShape, PinLike, Pins
from shardwright.request.mesh import Machine, find_machine
from shardwright.search import Keepers, Kept, LocalSearch, Outcome, Search, Watch, find_keepers, find_state
from shardwright.space import Decisions, describe, implied_decisions, resolve
from shardwright.space.pinned import as_decisions, decided, replicated
from shardwright.space.state import State
from shardwright.traced import Traced

_SHORT = Budget(seconds=2.0, simulations=1)


class Start(NamedTuple):
    """Where a search starts: what is decided already, what it may keep whole, and what it must not touch."""

    state: State
    keepers: Keepers
    kept: Kept


class Problem:
    """A function that was traced and analysed, with its mesh, device, limit of memory and pins.

    Each stage of planning can be run alone. ``problem.analysis`` says what there is to decide, ``problem.search()``
    finds the best states, ``problem.price(state)`` says what a state costs, and ``problem.plan(state)`` makes a plan of
    it. Where only a number of devices is given, ``problem.shapes`` are the meshes that they can make, and
    ``problem.on(shape)`` is the problem on one of them.

    Args:
        fn: a JAX callable.
        *args: its arguments: pytrees of arrays or ``jax.ShapeDtypeStruct``; only shapes are looked at.
        mesh: as in ``sw.partition``.
        device: as in ``sw.partition``.
        memory: as in ``sw.partition``.
        kwargs: as in ``sw.partition``.
        static_argnames: as in ``sw.partition``.
        donate: as in ``sw.partition``.
        pin: as in ``sw.partition``.
        replicate: as in ``sw.partition``.
        platform: as in ``sw.partition``.
        trip_counts: as in ``sw.analyse``.
        rules: as in ``sw.analyse``.
        constraints: as in ``sw.partition``.

    """

    traced: Traced
    device: Device
    limit_bytes: int
    pins: Pins
    shapes: tuple[MeshShape, ...]

    def __init__(
        self,
        fn: Callable[..., Any],
        *args: Any,
        mesh: MeshLike = None,
        device: str | Device | None = None,
        memory: int | str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        static_argnames: Names = (),
        donate: Donate = (),
        pin: PinLike = None,
        replicate: str | Sequence[str] = (),
        platform: str | None = None,
        trip_counts: TripCounts = None,
        rules: Mapping[str, str] | None = None,
        constraints: str = KEEP,
    ) -> None:
        pins = Pins.of(pin, replicate)
        machine = find_machine(mesh, device, pins)
        limit_bytes = machine.device.usable_bytes if memory is None else parse_bytes(memory)
        lowered_for = platform or lowering_platform(machine.device.platform)
        traced = Traced.of(fn, args, donate, lowered_for, trip_counts, rules, kwargs, static_argnames, constraints)
        self._be(traced, machine.device, limit_bytes, pins, shapes_for(machine, traced.module.program))

    @classmethod
    def of(
        cls, traced: Traced, device: Device, limit_bytes: int, shapes: tuple[MeshShape, ...], pins: Pins | None = None
    ) -> Problem:
        """Make a problem of a function that is traced already."""
        out = cls.__new__(cls)
        out._be(traced, device, limit_bytes, pins or Pins(), shapes)
        return out

    def _be(self, traced: Traced, device: Device, limit_bytes: int, pins: Pins, shapes: tuple[MeshShape, ...]) -> None:
        self.traced, self.device, self.limit_bytes, self.pins, self.shapes = traced, device, limit_bytes, pins, shapes
        self._costs: CostModel | None = None
        self._like: CostModel | None = None

    @property
    def analysis(self) -> Analysis:
        """The colours, conflicts and groups of the program."""
        return self.traced.analysis

    @property
    def program(self) -> Program:
        """The traced program."""
        return self.analysis.program

    @property
    def places(self) -> Places:
        """The group of every dimension and factor."""
        return self.traced.places

    @property
    def mesh(self) -> MeshShape:
        """The mesh of the problem; ``MeshError`` is raised if there are several to choose from."""
        if len(self.shapes) > 1:
            raise MeshError(
                f"the shape of the mesh is open; take one of the {len(self.shapes)} in problem.shapes by "
                "problem.on(shape), or have sw.partition choose."
            )
        return self.shapes[0]

    def on(self, mesh: MeshShape, like: CostModel | None = None) -> Problem:
        """Return the same problem on one mesh; what it shares with the prices of another mesh, ``like``, is reused."""
        out = Problem.of(self.traced, self.device, self.limit_bytes, (mesh,), self.pins)
        out._like = like
        return out

    def among(self, shapes: tuple[MeshShape, ...]) -> Problem:
        """Return the same problem on a mesh that may have any of these shapes."""
        return Problem.of(self.traced, self.device, self.limit_bytes, shapes, self.pins)

    def within(self, limit_bytes: int) -> Problem:
        """Return the same problem under another limit of memory; its prices are reused."""
        out = Problem.of(self.traced, self.device, limit_bytes, self.shapes, self.pins)
        out._costs = self.costs if len(self.shapes) == 1 else None
        return out

    def again(self, *, shapes: Sequence[Any] | None = None, donate: Sequence[int] | None = None) -> Problem:
        """Trace the function again, with arguments of other shapes or with other donated arguments."""
        return self.with_traced(self.traced.again(shapes=shapes, donate=donate))

    def with_traced(self, traced: Traced) -> Problem:
        """Return the same problem for another traced function."""
        return Problem.of(traced, self.device, self.limit_bytes, self.shapes, self.pins)

    @cached_property
    def start(self) -> Start:
        """The state that the pins amount to on this mesh, and what the search must not change."""
        analysis, mesh, pins = self.analysis, self.mesh, self.pins
        kept_axes, kept_arguments = replicated(analysis, mesh, pins)
        words = dict.fromkeys([*kept_arguments, *as_decisions(analysis, mesh, pins.pins)])
        state = resolve(analysis, mesh, list(words))
        whole, keepers = find_keepers(analysis, state.whole)
        return Start(State(state.lists, whole), keepers, {**kept_axes, **decided(analysis, mesh, pins)})

    @property
    def costs(self) -> CostModel:
        """The cost model that prices the states of this problem on its mesh."""
        if self._costs is None:
            self._costs = CostModel(self.places, self.mesh, self.device, self.start.state.whole, like=self._like)
        return self._costs

    def price(self, state: State) -> Cost:
        """Return what a state costs, in seconds and bytes."""
        return self.costs.evaluate(state)

    def search(
        self,
        budget: Budget | None = None,
        *,
        few: int = 1,
        differ: bool = False,
        any_fit: bool = False,
        starts: Sequence[State] = (),
        use_tactics: bool = True,
        watch: Watch | None = None,
    ) -> Outcome:
        """Search for the best states on this mesh, within the limit of memory and with the pins.

        ``few`` is how many of the best states are wanted, with ``differ`` such that a compiler would see a difference,
        and ``starts`` are further states to start from. With
        ``any_fit`` the search ends at the first state that fits. Without ``use_tactics`` it starts from nothing.
        ``watch`` is called whenever a better state was met.
        """
        budget, start, began = budget or Budget(), self.start, time.perf_counter()
        with collector_paused():
            costs = self.costs
            budget = budget.less(time.perf_counter() - began)
            return find_state(
                self.analysis,
                costs,
                start.state,
                self.limit_bytes,
                keepers=start.keepers,
                kept=start.kept,
                seconds=budget.seconds,
                simulations=budget.simulations,
                seed=budget.seed,
                few=few,
                differ=differ,
                any_fit=any_fit,
                starts=(*self._own_starts(), *starts),
                use_tactics=use_tactics,
                watch=watch,
            )

    def local_search(self, deadline: float) -> LocalSearch:
        """Return a search that only improves states locally, one step at a time, until a deadline."""
        start = self.start
        return LocalSearch(
            self.analysis, self.costs, start.state, self.limit_bytes, start.keepers, start.kept, deadline=deadline
        )

    def best_cost(self) -> Cost:
        """Return the cost of the best state that a short search finds."""
        return self.search(_SHORT).cost

    def plan(self, state: State, *, search: Search | None = None, meshes: tuple[MeshChoice, ...] = ()) -> Plan:
        """Make a plan of a state; ``search`` says how it was found, and ``meshes`` which meshes were tried."""
        start = self.start
        costs = self.costs if state.whole == start.state.whole else None
        words = describe(self.analysis, self.mesh, state)
        known = {
            "costs": costs,
            "search": search,
            "meshes": meshes,
            "decided": Decided(start.state, start.kept, start.keepers),
        }
        return self._plan(words, state, **known)

    def plan_of(self, pin: PinLike) -> Plan:
        """Make a plan of the pins and of further decisions, without any search."""
        pins = (*self.pins.pins, *Pins.of(pin).pins)
        words = as_decisions(self.analysis, self.mesh, pins)
        plan = self._plan(words, resolve(self.analysis, self.mesh, words))
        check_specs(plan.partitioned, pins)
        return plan

    def check(self, plan: Plan) -> None:
        """Raise ``PinError`` where a plan does not keep a spec that was pinned."""
        check_specs(plan.partitioned, self.pins.pins)

    def _plan(self, words: Decisions, state: State, **known: Any) -> Plan:
        lowering = self.traced.lowering
        return make_plan(
            self.traced.fn,
            lowering.shapes,
            lowering.result,
            self.places,
            self.mesh,
            self.device,
            words,
            state,
            limit_bytes=self.limit_bytes,
            donate=self.traced.donate,
            options=self.traced.options,
            **known,
        )

    def _own_starts(self) -> tuple[State, ...]:
        """The state that the program's own shardings amount to, where it has any, but for what must not be touched."""
        if not self.program.is_sharded:
            return ()
        mesh, (pinned, _, kept) = self.mesh, self.start
        implied = resolve(self.analysis, mesh, implied_decisions(self.analysis, mesh))
        lists = []
        for axis, first, entries in zip(mesh.names, pinned.lists, implied.lists, strict=True):
            known = {entry.subject for entry in first}
            free = [e for e in entries if axis not in kept and (axis, e.subject) not in kept]
            lists.append((*first, *(e for e in free if e.subject not in known)))
        return (State(tuple(lists), pinned.whole),)


def shapes_for(machine: Machine, program: Program) -> tuple[MeshShape, ...]:
    """The shapes of the mesh: that of the program's own shardings, which must be the one that was given, if any was."""
    if not program.is_sharded or program.own_mesh is None:
        if not machine.shapes:
            raise MeshError(
                "without mesh= the program's own mesh is taken, but it has none; give one, such as "
                "{'data': 4, 'model': 2}."
            )
        return machine.shapes
    own = MeshShape.of(program.own_mesh, program.axis_order)
    if len(machine.shapes) == 1 and machine.shapes[0] != own:
        given, have = (mesh.axes for mesh in (machine.shapes[0], own))
        raise MeshError(
            f"the plan is for the mesh {given}, but the program has shardings on {have}; name its axes alike and "
            "in this order, leave mesh= out, or plan with constraints='drop'."
        )
    if machine.shapes and machine.shapes[0].devices != own.devices:
        raise MeshError(
            f"the plan is for {machine.shapes[0].devices} devices, but the program has shardings on {own.devices}, "
            f"{dict(program.own_mesh)}; plan for as many, or with constraints='drop'."
        )
    return (own,)
