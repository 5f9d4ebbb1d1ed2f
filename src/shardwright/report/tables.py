"""The report's tables, from a plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from shardwright._amounts import human_bytes
from shardwright.apply import spec, spec_text
from shardwright.compare import Comparison
from shardwright.plan.tuning import correction_rows
from shardwright.plan.words import signed
from shardwright.price.collectives import local_bytes
from shardwright.price.estimate import place
from shardwright.report.cells import Cell, Table, count, duration, make_table, ratio, seconds_text, size, text
from shardwright.space import Decision, Whole

if TYPE_CHECKING:
    from shardwright.plan import Plan
    from shardwright.plan.tuning import Compiled, Tuning
    from shardwright.plan.verdicts import CompilerVerdict


def decisions_table(plan: Plan) -> Table:
    """What goes on which axis, in order."""
    described = {d.name: d for d in plan.analysis.descriptions}
    mesh = plan.partitioned.mesh
    rows = []
    for number, decision in enumerate(plan.decisions, 1):
        axis = mesh.names.index(decision.axis)
        group = described.get(decision.dimension) if isinstance(decision, Decision) else None
        rows.append(
            (
                count(number),
                Cell(decision.axis, axes=(axis,)),
                text(decision.path if isinstance(decision, Whole) else decision.dimension),
                count(group.size if group else None),
                count(group.tensors if group else None),
                text(_remark(plan, decision)),
            )
        )
    remarks = any(row[-1].text for row in rows)
    return make_table(
        "decisions-table",
        "Decisions in order of priority: a tensor takes the first of an axis’s dimensions that it has",
        "order:number, axis:axes, dimension:code, size:number, tensors:number" + ", remark:words" * remarks,
        rows if remarks else [row[:-1] for row in rows],
    )


def _remark(plan: Plan, decision: Decision | Whole) -> str:
    if isinstance(decision, Whole):
        return "stays whole"
    remarks = []
    group = next((d for d in plan.analysis.descriptions if d.name == decision.dimension), None)
    for k, side in enumerate(decision.sides):
        if side and group is not None:
            conflict = group.conflicts[k]
            remarks.append(f"at {conflict.source} on the side of {conflict.sides[side]}")
    if decision.unless:
        remarks.append(f"not in tensors that have {decision.unless}")
    return "; ".join(remarks)


def alive_table(plan: Plan) -> Table:
    """What a device holds at the peak."""
    alive = plan.estimate.alive
    largest = max((a.bytes for a in alive), default=0)
    rows = [(text(a.name), text(a.what), count(a.tensors), size(a.bytes, largest)) for a in alive]
    caption = "What a device holds at the peak, by argument or by the source line that makes it"
    return make_table(
        "alive-table", caption, "argument or line:code, what, tensors:number, bytes:number", rows, sorted_by="bytes"
    )


def advice_table(plan: Plan) -> Table:
    """What the plan would cost with other recomputation in the backward pass."""
    rows = [
        (
            text(a.action),
            Cell(seconds_text(a.step_seconds), a.step_seconds),
            Cell(signed(-a.saved_seconds, seconds_text), -a.saved_seconds),
            Cell(human_bytes(a.peak_bytes), a.peak_bytes),
            Cell(signed(-a.saved_bytes, human_bytes), -a.saved_bytes),
            text("yes" if a.fits else "no"),
        )
        for a in plan.advice
    ]
    columns = "if it had:code, step:number, change:number, memory:number, change:number, fits"
    return make_table("advice-table", "What the plan would cost if the program were written differently", columns, rows)


def collectives_table(plan: Plan) -> Table:
    """Every collective; those that are the same, at the same line, are one row."""
    merged: dict[tuple[str, tuple[str, ...], float, str, str], list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for c in plan.estimate.collectives:
        entry = merged[c.kind, c.axes, c.bytes, c.tensor, place(c.source)]
        entry[0] += c.times
        entry[1] += c.seconds
        entry[2] += c.hidden_seconds
    largest = max((seconds for _, seconds, _ in merged.values()), default=0.0)
    hides = bool(plan.estimate.hidden_seconds)
    rows = [
        (
            text(kind),
            Cell(", ".join(axes), axes=_numbers(plan, axes)),
            size(sent),
            count(times),
            duration(seconds, largest),
            *[duration(hidden)] * hides,
            text(tensor),
            text(line),
        )
        for (kind, axes, sent, tensor, line), (times, seconds, hidden) in merged.items()
    ]
    return make_table(
        "collectives-table",
        "All collectives. Bytes are what each device sends, once; time is of all times together",
        f"kind, axes:axes, bytes:number, times:number, time:number, {'hidden:number, ' * hides}tensor:code, line:code",
        rows,
        sorted_by="time",
    )


def kernels_table(plan: Plan) -> Table:
    """Where compute time goes."""
    kernels, total = plan.estimate.kernels, plan.estimate.compute_seconds
    largest = max((k.seconds for k in kernels), default=0.0)
    rows = [
        (
            text(k.kind),
            duration(k.seconds, largest),
            ratio(100 * k.seconds / total if total else 0.0, "{:.1f}%"),
            count(k.times),
            text(k.bound),
            text(k.tensor),
            text(place(k.source)),
        )
        for k in kernels
    ]
    return make_table(
        "kernels-table",
        "All kernels by kind and source line; elementwise work counts where it is fused into",
        "op, time:number, of compute:number, times:number, bound by, result:code, line:code",
        rows,
        sorted_by="time",
    )


def comparison_rows(plan: Plan, comparison: Comparison) -> Table:
    """The plan beside expert tactics."""
    rows = [
        (
            text(row.name),
            duration(row.step_seconds),
            duration(row.compute_seconds),
            duration(row.exposed_comm_seconds),
            *([duration(row.hidden_seconds)] * comparison.hides),
            *([duration(row.exposed_transfer_seconds)] * comparison.transfers),
            size(row.peak_bytes),
            text("yes" if row.fits else "no"),
            ratio(comparison.ratio(row)),
        )
        for row in comparison.rows
    ]
    return make_table(
        "comparison-table",
        f"This plan and expert tactics on the same mesh of {plan.device.name}, by the same cost model",
        "strategy:code, step:number, compute:number, communication:number, "
        + "hidden:number, " * comparison.hides
        + "transfers:number, " * comparison.transfers
        + "memory:number, fits, × ours:number",
        rows,
    )


def arguments_table(plan: Plan) -> Table:
    """Every argument of the function."""
    program, partitioned = plan.analysis.program, plan.partitioned
    rows = []
    remarks = bool(program.unused_arguments) or any(a.donated or a.memory_kind for a in program.arguments)
    for a in program.arguments:
        value, sharding = program.values[a.value], partitioned.values[a.value]
        here = local_bytes(value.bytes, sharding, partitioned.mesh)
        written = spec_text(spec(sharding, partitioned.mesh.names))
        donated = ", ".join(["on the host"] * bool(a.memory_kind) + ["donated"] * a.donated)
        rows.append((text(a.path), text(value), text(written), size(value.bytes), size(here), text(donated)))
    rows += [(text(path), Cell(), Cell(), Cell(), Cell(), text("not used")) for path in program.unused_arguments]
    return make_table(
        "arguments-table",
        "Every argument, and how much of it lies on each device",
        "argument:code, type:code, spec:code, whole:number, on each device:number" + ", remark" * remarks,
        rows if remarks else [row[:-1] for row in rows],
    )


_ON_HOST = (
    ("host_bytes", "on the host"),
    ("transfer_seconds", "transfers"),
    ("exposed_transfer_seconds", "transfers not hidden"),
)


def transfers_table(plan: Plan) -> Table:
    """Every move between the memories of host and device."""
    found = plan.estimate.transfers
    largest = max((t.seconds for t in found), default=0.0)
    rows = [
        (text(t.to), size(t.bytes), count(t.times), duration(t.seconds, largest), text(t.tensor), text(place(t.source)))
        for t in found
    ]
    caption = "What is moved to the host’s memory and back, by the line that says so"
    columns = "to, bytes:number, times:number, seconds:number, tensor:code, line:code"
    return make_table("transfers-table", caption, columns, rows, sorted_by="seconds")


def verdict_table(verdict: CompilerVerdict) -> Table:
    """The compiler's figures beside the estimate."""
    rows = []
    for name, label in (
        ("peak_bytes", "memory"),
        ("step_seconds", "step"),
        ("compute_seconds", "compute"),
        ("comm_seconds", "communication"),
        *(_ON_HOST if verdict.host_bytes or verdict.estimate.get("host_bytes") else ()),
    ):
        shown = size if name.endswith("_bytes") else duration
        found, guess = getattr(verdict, name), verdict.estimate.get(name)
        if found is not None:
            rows.append((text(label), shown(found), shown(guess), ratio(verdict.ratios.get(name))))
    return make_table(
        "verdict-table",
        f"{verdict.on}, beside the estimate",
        "figure, compiler:number, estimate:number, estimate ÷ compiler:number",
        rows,
    )


def compiled_table(verdict: CompilerVerdict) -> Table:
    """The compiled program's collectives by kind."""
    rows = [(text(kind), count(verdict.counts.get(kind)), size(sent)) for kind, sent in verdict.bytes.items()]
    return make_table(
        "compiled-table",
        "Collectives of the compiled program",
        "kind, times:number, sent by each device:number",
        rows,
        sorted_by="sent by each device",
    )


def tuning_tables(tuning: Tuning) -> list[Table]:
    """What tuning compiled, and what was learned of the tuned plan."""
    compiled = [
        (text(c.what), text(", ".join(c.options)), duration(c.predicted_seconds), duration(c.step_seconds), _held(c))
        for c in tuning.compiled
    ]
    learned = [
        (text(what), text(at), duration(c.estimated_seconds), duration(c.compiled_seconds), text(why))
        for c, (what, at, _, _, why) in zip(tuning.corrections, correction_rows(tuning.corrections), strict=False)
    ]
    columns = "plan, options:words, predicted:number, compiled:number, each device"
    tables = [make_table("tuning-table", "What was compiled, in order", columns, compiled)]
    caption = "Where the tuned plan’s estimate and the compiler differ most"
    columns = "what, line:code, estimated:number, compiled:number, why:words"
    return [*tables, make_table("learned-table", caption, columns, learned)] if learned else tables


def _held(compiled: Compiled) -> Cell:
    return size(compiled.peak_bytes) if compiled.fits else text(compiled.message)


def _numbers(plan: Plan, axes: Iterable[str]) -> tuple[int, ...]:
    return tuple(plan.partitioned.mesh.names.index(axis) for axis in axes)
