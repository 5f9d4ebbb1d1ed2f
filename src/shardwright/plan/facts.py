"""What a plan knows beside its decisions: the program's own shardings, kernels that run whole, other meshes."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from jax.sharding import PartitionSpec

from shardwright._collector import collector_paused
from shardwright.ir.given import Given
from shardwright.ir.kinds import CONSTRAINT, MANUAL
from shardwright.ir.program import Program, Source
from shardwright.price import Cost, CostModel
from shardwright.search import Kept, LocalSearch
from shardwright.search.game import NO_KEEPERS, Keepers
from shardwright.space.state import State

if TYPE_CHECKING:
    from shardwright.plan.plan import Plan

_MOST_WORK = 20_000
"""Of a search without the program's shardings: about half a second."""
ARGUMENT, VALUE, REGION = "argument", "constraint", "shard_map"


class Decided(NamedTuple):
    """What a user has decided by ``pin`` and ``replicate``: the state that it is, and axes that no search may touch.

    ``keepers`` are the sets of arguments that a search may keep whole.
    """

    state: State
    kept: Kept
    keepers: Keepers = NO_KEEPERS


@dataclass(frozen=True)
class OwnSharding:
    """A sharding that the program has already, which is a pin on the value where it stands.

    ``what`` is "argument" (it is sharded, or was jitted so), "constraint" (``with_sharding_constraint``, or a type in
    explicit mode) or "shard_map" (a region, whose specs fix what goes in and comes out). ``name`` is the argument's
    path, else the tensor's type. ``value`` is that which the sharding is on, by number.
    """

    what: str
    name: str
    spec: PartitionSpec | None
    source: Source
    value: int


def find_own_shardings(program: Program) -> tuple[OwnSharding, ...]:
    """Those of arguments, then those inside in program order."""
    out = [
        OwnSharding(ARGUMENT, argument.path, _spec(given), Source(), argument.value)
        for argument in program.arguments
        if (given := program.values[argument.value].given) is not None and given.decides
    ]
    arguments = {own.value: program.values[own.value].given for own in out}
    for op in program.ops:
        if op.kind == MANUAL:
            out += [OwnSharding(REGION, "", None, op.source, v) for v in op.results[:1]]
        elif op.kind == CONSTRAINT:
            value = program.values[op.results[0]]
            goes_in = value.given is not None and value.given.barred
            # What a function was jitted with stands on its argument, and once more where the argument is first used.
            again = arguments.get(op.operands[0]) == value.given
            if value.given is not None and not goes_in and not again:
                out.append(OwnSharding(VALUE, str(value), _spec(value.given), op.source, op.results[0]))
    return tuple(out)


def cost_without(plan: Plan, own: Collection[OwnSharding], most_work: float = _MOST_WORK) -> Cost:
    """What the best plan would cost that a short search finds if some of the program's shardings were not there.

    It starts from the plan's own decisions, and what was pinned stays. So does a region: its shapes are local.
    """
    program, partitioned = plan.analysis.program, plan.partitioned
    values = {each.value for each in own if each.what != REGION}
    pairs = [(op.operands[0], op.results[0]) for op in program.ops if op.kind == CONSTRAINT]
    alike = [pair for pair in pairs if len({program.values[v].given for v in pair}) == 1]
    # With a constraint goes what is only made for it; with an argument, the constraint on its first use.
    freed = values.union(*(pair for pair in alike if values.intersection(pair)))
    state = partitioned.state
    decided = plan.decided
    if decided is None or decided.state.whole != state.whole:
        decided = Decided(State(((),) * len(state.lists), state.whole), {})
    with collector_paused():
        costs = CostModel(partitioned.places, partitioned.mesh, plan.device, state.whole, freed=frozenset(freed))
        local = LocalSearch(
            plan.analysis, costs, decided.state, plan.memory_bytes, NO_KEEPERS, decided.kept, deadline=math.inf
        )
        local.try_states([state])
        local.improve(most_work)
    return local.best.cost


def own_lines(own: Sequence[OwnSharding]) -> list[str]:
    """The source lines that they stand at, each once, in order."""
    return list(dict.fromkeys(str(each.source) for each in own if each.what != ARGUMENT))


def _spec(given: Given) -> PartitionSpec:
    entries = [
        PartitionSpec.UNCONSTRAINED if is_open and not axes else axes[0] if len(axes) == 1 else axes or None
        for axes, is_open in zip(given.axes, given.open, strict=True)
    ]
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


@dataclass(frozen=True)
class WholeKernel:
    """A kernel at a source line that no axis splits, and what its runs take in all."""

    name: str
    source: str
    seconds: float


def whole_kernels(plan: Plan) -> tuple[WholeKernel, ...]:
    """Those of a plan on several devices, the longest first."""
    if plan.partitioned.mesh.devices == 1:
        return ()
    program = plan.analysis.program
    whole = {
        (op.attributes["kernel"], op.source)
        for op, assignment in zip(program.ops, plan.partitioned.assignments, strict=True)
        if ("facts" in op.attributes or "function" in op.attributes)
        and (assignment is None or max(assignment.factors, default=-1) < 0)
    }
    seconds = dict.fromkeys(whole, 0.0)
    for cost in plan.estimate.kernels:
        if (cost.kind, cost.source) in seconds:
            seconds[cost.kind, cost.source] += cost.seconds
    found = [WholeKernel(name, str(source), taken) for (name, source), taken in seconds.items()]
    return tuple(sorted(found, key=lambda kernel: (-kernel.seconds, kernel.name, kernel.source)))


@dataclass(frozen=True)
class MeshChoice:
    """A shape of the mesh and the best that was found on it.

    ``effort`` is how hard it was tried: "carried over" (the best states of other shapes), "improved" or "searched".
    """

    mesh: dict[str, int]
    step_seconds: float
    peak_bytes: int
    fits: bool
    effort: str
