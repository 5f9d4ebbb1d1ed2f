"""``sw.diff``: two plans of one function side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from jax.sharding import PartitionSpec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardwright._amounts import human_bytes, human_seconds
from shardwright._console import Rows, plain_text
from shardwright.apply import spec, spec_text
from shardwright.errors import PlanError
from shardwright.ir.program import Source
from shardwright.plan.words import plain, signed_seconds
from shardwright.price.collectives import local_bytes
from shardwright.price.estimate import place
from shardwright.space import Decision, Whole

if TYPE_CHECKING:
    from shardwright.plan.plan import Plan

SECONDS, BYTES, COUNT, PART = "seconds", "bytes", "count", "part"
_SAME = 1e-6
"""Seconds that differ by no more are called equal."""


@dataclass(frozen=True)
class Figure:
    """A figure of both plans; ``unit`` is "seconds", "bytes", "count" or "part" (of one)."""

    name: str
    unit: str
    a: float
    b: float

    @property
    def ratio(self) -> float | None:
        """The second as a multiple of the first."""
        return self.b / self.a if self.a else None


@dataclass(frozen=True)
class AxisChange:
    """Decisions on an axis that one plan has and the other lacks; ``moved`` are those whose order differs."""

    axis: str
    only_a: tuple[Decision | Whole, ...]
    only_b: tuple[Decision | Whole, ...]
    moved: tuple[Decision | Whole, ...]


@dataclass(frozen=True)
class SpecChange:
    """Arguments of one type that one plan shards in one way and the other in another; bytes are of all on a device."""

    paths: tuple[str, ...]
    type: str
    a: PartitionSpec
    b: PartitionSpec
    a_bytes: int
    b_bytes: int


@dataclass(frozen=True)
class CollectiveChange:
    """Collectives of one kind over the same axes in both plans, at one source line or (None) at all of them."""

    kind: str
    axes: tuple[str, ...]
    source: Source | None
    a_times: int
    b_times: int
    a_seconds: float
    b_seconds: float

    @property
    def difference_seconds(self) -> float:
        """How much longer they take in the second plan."""
        return self.b_seconds - self.a_seconds


@dataclass(frozen=True)
class Difference:
    """What ``sw.diff`` says; ``print`` shows it, and ``to_dict()`` gives it as plain data.

    ``a`` and ``b`` are the plans' devices and meshes in words. The other fields have only what differs: ``kinds`` are
    all collectives of a kind over the same axes, ``collectives`` those at one source line.
    """

    program: str
    a: str
    b: str
    a_fits: bool
    b_fits: bool
    figures: tuple[Figure, ...]
    decisions: tuple[AxisChange, ...]
    arguments: tuple[SpecChange, ...]
    kinds: tuple[CollectiveChange, ...]
    collectives: tuple[CollectiveChange, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything, of JSON's types alone."""
        out: dict[str, Any] = plain(self)
        for figure, written in zip(self.figures, out["figures"], strict=True):
            written["ratio"] = figure.ratio
        return out

    def __rich__(self) -> RenderableType:
        return difference_table(self)

    def __str__(self) -> str:
        return plain_text(self.__rich__())


def diff(a: Plan, b: Plan) -> Difference:
    """Compare two plans of one function; their meshes and devices may differ.

    It raises ``PlanError`` if the plans are not for the same function and arguments.
    """
    for given in (a, b):
        if not hasattr(given, "partitioned"):
            raise PlanError(f"diff compares two plans, not {given!r}; sw.load reads a plan from its file.")
    _check_alike(a, b)
    return Difference(
        a.analysis.program.name,
        _title(a),
        _title(b),
        a.estimated_to_fit,
        b.estimated_to_fit,
        _figures(a, b),
        _decisions(a, b),
        _arguments(a, b),
        _collectives(a, b, at_lines=False),
        _collectives(a, b, at_lines=True),
    )


def _check_alike(a: Plan, b: Plan) -> None:
    one, two = a.analysis.program, b.analysis.program
    if one.name != two.name:
        raise PlanError(
            f"these are plans of different functions, {one.name} and {two.name}; there is nothing to compare."
        )
    types_a, types_b = ({arg.path: str(p.values[arg.value]) for arg in p.arguments} for p in (one, two))
    if types_a != types_b:
        path = next(p for p in {**types_a, **types_b} if types_a.get(p) != types_b.get(p))
        kinds = " and ".join(types.get(path, "missing") for types in (types_a, types_b))
        raise PlanError(f"these are plans for different arguments: {path} is {kinds}; plan for the same to compare.")


def _title(plan: Plan) -> str:
    axes = " × ".join(f"{name} {size}" for name, size in plan.mesh.items())
    return f"{plan.partitioned.mesh.devices} × {plan.device.name} ({axes})"


def _figures(a: Plan, b: Plan) -> tuple[Figure, ...]:
    def figure(name: str, unit: str, of: Callable[[Plan], float]) -> Figure:
        return Figure(name, unit, of(a), of(b))

    on_host = any(p.analysis.program.on_host for p in (a, b))
    hides = any(p.estimate.hidden_seconds for p in (a, b))
    return (
        figure("step", SECONDS, lambda p: p.estimate.step_seconds),
        figure("compute", SECONDS, lambda p: p.estimate.compute_seconds),
        figure("communication", SECONDS, lambda p: p.estimate.comm_seconds),
        *([figure("of it not hidden", SECONDS, lambda p: p.estimate.exposed_comm_seconds)] * hides),
        *([figure("transfers not hidden", SECONDS, lambda p: p.estimate.exposed_transfer_seconds)] * on_host),
        figure("peak", BYTES, lambda p: p.estimate.peak_bytes),
        *([figure("on the host", BYTES, lambda p: p.estimate.host_bytes)] * on_host),
        figure("arguments", BYTES, lambda p: p.estimate.argument_bytes),
        figure("sent", BYTES, lambda p: sum(c.total_bytes for c in p.estimate.collectives)),
        figure("collectives", COUNT, lambda p: sum(c.times for c in p.estimate.collectives)),
        figure("of the devices' peak", PART, lambda p: p.estimate.peak_fraction),
    )


def _decisions(a: Plan, b: Plan) -> tuple[AxisChange, ...]:
    out = []
    for axis in dict.fromkeys((*a.mesh, *b.mesh)):
        own, other = ([d for d in p.decisions if d.axis == axis] for p in (a, b))
        only_a, only_b = (tuple(d for d in x if d not in y) for x, y in ((own, other), (other, own)))
        change = AxisChange(axis, only_a, only_b, _moved(own, other))
        if change.only_a or change.only_b or change.moved:
            out.append(change)
    return tuple(out)


def _moved(a: list[Decision | Whole], b: list[Decision | Whole]) -> tuple[Decision | Whole, ...]:
    """As few of the decisions that both have as it takes to bring the rest into one order."""
    common_a, common_b = ([str(d) for d in x if d in y] for x, y in ((a, b), (b, a)))
    blocks = SequenceMatcher(None, common_a, common_b, autojunk=False).get_matching_blocks()
    kept = {text for block in blocks for text in common_a[block.a : block.a + block.size]}
    return tuple(d for d in a if str(d) in common_a and str(d) not in kept)


def _arguments(a: Plan, b: Plan) -> tuple[SpecChange, ...]:
    found: dict[tuple[str, PartitionSpec, PartitionSpec], list[tuple[str, int, int]]] = defaultdict(list)
    value_of = {arg.path: arg.value for arg in b.analysis.program.arguments}
    for argument in a.analysis.program.arguments:
        value = a.analysis.program.values[argument.value]
        shardings = a.partitioned.values[argument.value], b.partitioned.values[value_of[argument.path]]
        specs = [spec(s, p.partitioned.mesh.names) for s, p in zip(shardings, (a, b), strict=True)]
        if specs[0] != specs[1]:
            sizes = [
                int(local_bytes(value.bytes, s, p.partitioned.mesh)) for s, p in zip(shardings, (a, b), strict=True)
            ]
            found[str(value), specs[0], specs[1]].append((argument.path, sizes[0], sizes[1]))
    out = [
        SpecChange(
            tuple(p for p, _, _ in rows), type_, one, two, sum(x for _, x, _ in rows), sum(y for _, _, y in rows)
        )
        for (type_, one, two), rows in found.items()
    ]
    return tuple(sorted(out, key=lambda c: (-abs(c.a_bytes - c.b_bytes), -c.a_bytes)))


def _collectives(a: Plan, b: Plan, *, at_lines: bool) -> tuple[CollectiveChange, ...]:
    found: dict[tuple[str, tuple[str, ...], Source | None], list[float]] = defaultdict(lambda: [0, 0, 0.0, 0.0])
    for k, plan in enumerate((a, b)):
        for c in plan.estimate.collectives:
            axes = tuple(axis for axis in plan.mesh if axis in c.axes)
            total = found[c.kind, axes, _line(c.source) if at_lines else None]
            total[k] += c.times
            total[2 + k] += c.seconds
    out = [
        CollectiveChange(kind, axes, source, int(times_a), int(times_b), seconds_a, seconds_b)
        for (kind, axes, source), (times_a, times_b, seconds_a, seconds_b) in found.items()
        if times_a != times_b or abs(seconds_a - seconds_b) > _SAME * max(seconds_a, seconds_b)
    ]
    return tuple(sorted(out, key=lambda c: -abs(c.difference_seconds)))


def _line(source: Source) -> Source:
    """A source without its scope, which differs between lowerings, but for whether it is backward."""
    return Source(source.file, source.line, source.function, "transpose()" if source.backward else "")


_MOST_DECISIONS = 8
_MANY = 1000.0
"""A ratio above this says no more than that it is large."""


def difference_table(d: Difference) -> RenderableType:
    """The figures of both, then what differs."""
    return Group(*_parts(d))


def _parts(d: Difference) -> Iterator[RenderableType]:
    where = f"a and b on {d.a}" if d.a == d.b else f"a on {d.a}, b on {d.b}"
    yield Text(f"{d.program}: {where}", style="bold")
    yield Text(_verdict(d), style="bold")
    yield Text()
    figures = Rows("", "a", "b", "b / a", numbers=[1, 2, 3])
    for f in d.figures:
        ratio = "" if f.ratio is None or f.ratio > _MANY else f"{f.ratio:.2f}"
        figures.add(f.name, _figure(f, f.a), _figure(f, f.b), ratio)
    yield figures.done()
    yield Text()
    yield _decision_rows(d) if d.decisions else Text("The decisions are the same.")
    if d.arguments:
        yield Text()
        yield _argument_rows(d)
    for changes in (d.kinds, d.collectives):
        if changes:
            yield Text()
            yield _collective_rows(changes)


def _argument_rows(d: Difference) -> Table:
    rows = Rows("argument", "arguments", "type", "a", "b", "bytes in a", "in b", numbers=[1, 5, 6])
    for c in d.arguments:
        first = f"{c.paths[0]} …" if len(c.paths) > 1 else c.paths[0]
        about = (f"{len(c.paths):,}", c.type, spec_text(c.a), spec_text(c.b))
        rows.add(Text(first, style="cyan"), *about, human_bytes(c.a_bytes), human_bytes(c.b_bytes))
    return rows.done()


def _collective_rows(changes: Sequence[CollectiveChange]) -> Table:
    lines = any(c.source is not None for c in changes)
    columns = ("collective", "axes", *["at"] * lines, "times in a", "in b", "seconds in a", "in b", "b - a")
    rows = Rows(*columns, numbers=range(2 + lines, 7 + lines))
    for c in changes:
        at = [place(c.source)] if c.source is not None else []
        figures = (f"{c.a_times:,}", f"{c.b_times:,}", _seconds(c.a_seconds), _seconds(c.b_seconds))
        rows.add(c.kind, ", ".join(c.axes), *at, *figures, signed_seconds(c.difference_seconds))
    return rows.done()


def _verdict(d: Difference) -> str:
    if d.a_fits != d.b_fits:
        return f"Only {'a' if d.a_fits else 'b'} fits."
    step = d.figures[0]
    fits = "Both fit" if d.a_fits else "Neither fits"
    slow, fast = max(step.a, step.b), min(step.a, step.b)
    if not fast or slow / fast < 1.0005:
        return f"{fits}, and they take equally long."
    return f"{fits}; {'a' if step.a < step.b else 'b'} is {slow / fast:.3g} times as fast."


def _decision_rows(d: Difference) -> Table:
    moved = ["in another order"] * any(change.moved for change in d.decisions)
    rows = Rows("axis", "only in a", "only in b", *moved, numbers=(), most=1000)
    for change in d.decisions:
        columns = [_texts(found) for found in (change.only_a, change.only_b, change.moved)][: 2 + len(moved)]
        for k in range(max(map(len, columns))):
            cells = [Text(c[k] if k < len(c) else "", style="cyan") for c in columns]
            rows.add(Text("" if k else change.axis, style="green"), *cells)
    return rows.done()


def _texts(decisions: Sequence[Decision | Whole]) -> list[str]:
    """Decisions without their axis; what stays whole together."""
    whole = [d.path for d in decisions if isinstance(d, Whole)]
    others = [str(d).partition(": ")[2] for d in decisions if isinstance(d, Decision)]
    texts = [f"{', '.join(whole)} whole", *others] if whole else others
    rest = len(texts) - _MOST_DECISIONS
    return [*texts[:_MOST_DECISIONS], f"… and {rest} more"] if rest > 0 else texts


def _figure(f: Figure, value: float) -> str:
    if f.unit == "seconds":
        return human_seconds(value)
    return human_bytes(value) if f.unit == "bytes" else f"{value:,.0f}" if f.unit == "count" else f"{value:.0%}"


def _seconds(seconds: float) -> str:
    return human_seconds(seconds) if seconds else "-"
