"""``sw.compare``: a plan beside what experts would do, all priced by the plan's own cost model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardwright._amounts import exact_bytes, human_bytes, human_seconds
from shardwright._collector import collector_paused
from shardwright._console import plain_text
from shardwright.plan import Plan
from shardwright.price import Cost, CostModel
from shardwright.search.game import all_combined, combinations, tactics_by_axis
from shardwright.search.lists import Lists
from shardwright.space import TACTICS, Decisions, resolve
from shardwright.space.state import AnyEntry, KeepWhole, State

OURS, REPLICATED = "this plan", "replicated"
_TOGETHER = (
    "expert_parallel+data_parallel",
    "expert_parallel+fsdp",
    "expert_parallel+zero1",
    "context_parallel+fsdp",
    "context_parallel+zero1",
)
"""What is usually done together on one axis: experts are spread over the devices that share the batch, and weights are
stored in parts over those that share a sequence."""
_CHOICES = (*TACTICS, *_TOGETHER, "")
"""For an axis. Of two combinations that cost the same, the batch stands on the first axis: so are meshes written."""
_SAME = 0.005
_FEW_AXES = 3
"""On meshes of so many axes, all that a search starts from is priced, however much it is."""


@dataclass(frozen=True)
class Compared:
    """A strategy and its cost. ``name`` is what ``pin=`` takes, joined by " + "."""

    name: str
    step_seconds: float
    compute_seconds: float
    comm_seconds: float
    peak_bytes: int
    fits: bool
    ours: bool = False
    exposed_transfer_seconds: float = 0.0
    hidden_seconds: float = 0.0

    @property
    def exposed_comm_seconds(self) -> float:
        """The seconds of communication that no compute hides."""
        return self.comm_seconds - self.hidden_seconds

    @property
    def short_name(self) -> str:
        """As ``pin=`` takes it too: ``expert_parallel+fsdp:data,model`` for both on both axes."""
        if ":" not in self.name:
            return self.name
        by_axis: dict[str, list[str]] = {}
        for tactic, _, axis in (pin.partition(":") for pin in self.name.split(" + ")):
            by_axis.setdefault(axis, []).append(tactic)
        by_tactics: dict[str, list[str]] = {}
        for axis, tactics in by_axis.items():
            by_tactics.setdefault("+".join(tactics), []).append(axis)
        return " + ".join(f"{tactics}:{','.join(axes)}" for tactics, axes in by_tactics.items())


@dataclass(frozen=True)
class Comparison:
    """A plan beside tactics, as rows of a table.

    The plan comes first, then the tactics that fit, the fastest first, then those that do not, the smallest first.
    """

    program: str
    mesh: Mapping[str, int]
    device: str
    limit_bytes: int
    rows: tuple[Compared, ...]

    @property
    def transfers(self) -> bool:
        """Whether moves between host and device take time in any of the rows."""
        return any(row.exposed_transfer_seconds for row in self.rows)

    @property
    def hides(self) -> bool:
        """Whether compute hides communication in any of the rows."""
        return any(row.hidden_seconds for row in self.rows)

    @property
    def ours(self) -> Compared:
        """The row of the plan itself."""
        return self.rows[0]

    @property
    def best_expert(self) -> Compared | None:
        """The fastest of the other rows that fit; None if none does."""
        return next((row for row in self.rows[1:] if row.fits), None)

    def ratio(self, row: Compared) -> float:
        """Return a row's step as a multiple of the plan's step."""
        return row.step_seconds / self.ours.step_seconds if self.ours.step_seconds else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data that JSON can hold."""
        return {
            "program": self.program,
            "mesh": dict(self.mesh),
            "device": self.device,
            "limit_bytes": self.limit_bytes,
            "rows": [{**asdict(row), "ratio": self.ratio(row)} for row in self.rows],
        }

    def __str__(self) -> str:
        return plain_text(comparison_table(self))


def compare(plan: Plan) -> Comparison:
    """Compare a plan with every tactic that applies to its program, and with combinations of tactics.

    Each tactic is shown alone, on the axis or axes where it does best, and in its best combination with others. The
    best is the fastest that fits, or the smallest if none fits. The figures of a row are those that ``sw.evaluate``
    gives for the same tactics.
    """
    with collector_paused():
        mine = _row(OURS, plan.estimate_cost, plan.memory_bytes, ours=True)
        found = [
            (choices, _row(_label(plan, choices), cost, plan.memory_bytes)) for choices, cost in _experts(plan).items()
        ]
    others = sorted({*_chosen(found)}, key=lambda row: (*_rank(row), row.name))
    program = plan.analysis.program.name
    return Comparison(program, plan.mesh, plan.device.name, plan.memory_bytes, (mine, *others))


Choices = tuple[str, ...]
"""For each axis the tactics that stand on it, joined by "+"."""


def _experts(plan: Plan) -> Mapping[Choices, Cost]:
    """Combinations of one choice of tactics an axis, and what they cost."""
    analysis, mesh = plan.analysis, plan.partitioned.mesh
    whole = list(plan.partitioned.state.whole)
    tactics: list[dict[str, tuple[AnyEntry, ...]]] = []
    for axis, found in enumerate(tactics_by_axis(analysis, mesh)):
        own = {choice: choice.split("+") for choice in _CHOICES if found.keys() >= {*choice.split("+")}}
        decisions = {choice: [d for name in names for d in found[name]] for choice, names in own.items()}
        tactics.append({choice: _entries(plan, axis, given, whole) for choice, given in decisions.items()})
    costs = plan.costs
    if len(whole) > len(plan.partitioned.state.whole):
        costs = CostModel(plan.partitioned.places, mesh, plan.device, tuple(whole))

    def price(lists: Lists) -> Cost:
        return costs.evaluate(State(lists, tuple(whole)))

    if len(tactics) <= _FEW_AXES or all_combined(tactics):
        return {names: price(lists) for names, lists in combinations(tactics)}
    return _sought(tactics, price, plan.memory_bytes)


def _sought(
    tactics: Sequence[Mapping[str, tuple[AnyEntry, ...]]], price: Callable[[Lists], Cost], limit_bytes: int
) -> Mapping[Choices, Cost]:
    """On a mesh of many axes, what may stand in the table; it is a small part of all that could be combined.

    A tactic stands on all axes, and on all but one. Then the best two of these stand beside every other choice, one of
    both on the second axis, which is neither the slowest nor the fastest, and the other on the rest. The best of each
    tactic's combinations is tried with another axis in the place of the second, and the best of all with another tactic
    on each of its axes.
    """
    known = list(dict.fromkeys(name for found in tactics for name in found))
    single = [choice for choice in known if "+" not in choice]
    axes = range(len(tactics))
    costs: dict[Choices, Cost] = {}

    def cost(wanted: Iterable[str]) -> Choices:
        names = tuple(name if name in found else "" for name, found in zip(wanted, tactics, strict=True))
        if names not in costs:
            costs[names] = price(tuple(found[name] if name else () for name, found in zip(names, tactics, strict=True)))
        return names

    def on(axis: int, one: str, rest: str) -> Choices:
        return cost(one if a == axis else rest for a in axes)

    def rank(names: Choices) -> tuple[bool, float]:
        return _rank(_row("", costs[names], limit_bytes))

    on_all = {choice: on(0, choice, choice) for choice in ("", *known)}
    for choice, axis in product(single, axes):
        on(axis, "", choice)
    best = sorted(single, key=lambda choice: rank(on_all[choice]))[:2]
    pairs = [pair for one, other in product(best, known) if one != other for pair in ((one, other), (other, one))]
    for tactic in single:
        having = [pair for pair in pairs if tactic in "+".join(pair).split("+")]
        one, rest = min(having, key=lambda pair: rank(on(1, *pair)))
        for axis in axes:
            on(axis, one, rest)
    fastest = min(costs, key=rank)
    for choice, axis in product(single, axes):
        cost(choice if a == axis else name for a, name in enumerate(fastest))
    return costs


def _entries(plan: Plan, axis: int, decisions: Decisions, whole: list[frozenset[int]]) -> tuple[AnyEntry, ...]:
    """A tactic's list; the sets that it keeps whole are added to ``whole`` where they are new."""
    state = resolve(plan.analysis, plan.partitioned.mesh, decisions)
    out: list[AnyEntry] = []
    for entry in state.lists[axis]:
        if isinstance(entry, KeepWhole):
            kept = state.whole[entry.number]
            if kept not in whole:
                whole.append(kept)
            entry = KeepWhole(whole.index(kept))
        out.append(entry)
    return tuple(out)


def _chosen(found: list[tuple[tuple[str, ...], Compared]]) -> Iterator[Compared]:
    """Nothing sharded; each tactic at its best alone; each in its best combination with others."""
    alone: dict[str, list[tuple[tuple[str, ...], Compared]]] = {}
    mixed: dict[str, list[tuple[tuple[str, ...], Compared]]] = {}
    for choices, row in found:
        used = {name for choice in choices if choice for name in choice.split("+")}
        if not used:
            yield row
        for name in used:
            (alone if len(used) == 1 else mixed).setdefault(name, []).append((choices, row))
    for by_tactic in (alone, mixed):
        for rows in by_tactic.values():
            yield min(rows, key=lambda item: (*_rank(item[1]), *map(_CHOICES.index, item[0])))[1]


def _rank(row: Compared) -> tuple[bool, float]:
    return not row.fits, row.step_seconds if row.fits else row.peak_bytes


def _row(name: str, cost: Cost, limit_bytes: int, ours: bool = False) -> Compared:
    fits = not cost.over_bytes(limit_bytes)
    return Compared(
        name,
        cost.step_seconds,
        cost.compute_seconds,
        cost.comm_seconds,
        int(cost.peak_bytes),
        fits,
        ours,
        cost.exposed_transfer_seconds,
        cost.hidden_seconds,
    )


def _label(plan: Plan, choices: tuple[str, ...]) -> str:
    pins = (
        f"{name}:{axis}"
        for choice, axis in zip(choices, plan.mesh, strict=True)
        if choice
        for name in choice.split("+")
    )
    return " + ".join(pins) or REPLICATED


def comparison_table(comparison: Comparison) -> RenderableType:
    """A row a strategy: memory, step, what it is made of, and its step as a multiple of the plan's."""
    axes = " × ".join(f"{name} {size}" for name, size in comparison.mesh.items())
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("strategy", overflow="fold")
    transfers = ["transfers"] * comparison.transfers
    hidden = ["hidden"] * comparison.hides
    for name in ("memory", "step", "compute", "communication", *hidden, *transfers, "× ours"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in comparison.rows:
        table.add_row(
            row.short_name,
            human_bytes(row.peak_bytes),
            human_seconds(row.step_seconds),
            human_seconds(row.compute_seconds),
            human_seconds(row.exposed_comm_seconds),
            *(human_seconds(row.hidden_seconds) for _ in hidden),
            *(human_seconds(row.exposed_transfer_seconds) for _ in transfers),
            f"{comparison.ratio(row):.2f}",
            "" if row.fits else "does not fit",
            style="bold" if row.ours else "" if row.fits else "dim",
        )
    devices = math.prod(comparison.mesh.values())
    limit = exact_bytes(comparison.limit_bytes)
    title = f"{comparison.program} on {devices} × {comparison.device} ({axes}), {limit} each"
    return Group(Text(title, style="bold"), Text(_verdict(comparison)), Text(), table)


def _verdict(comparison: Comparison) -> str:
    ours, best = comparison.ours, comparison.best_expert
    if best is None:
        return "No expert strategy fits." if ours.fits else "Nothing fits, neither this plan nor any expert strategy."
    if not ours.fits:
        return f"This plan does not fit; {best.short_name} does."
    ratio = comparison.ratio(best)
    if abs(ratio - 1) < _SAME:
        return f"As fast as the best expert strategy that fits, {best.short_name}."
    if ratio < 1:
        return f"{best.short_name} fits and is faster: {100 * ratio:.0f}% of this plan's step."
    return f"{ratio:.2f} times as fast as the best expert strategy that fits, {best.short_name}."
