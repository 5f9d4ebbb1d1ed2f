"""A plan for the terminal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardwright._amounts import exact_bytes, human_bytes, human_seconds
from shardwright.analysis.describe import ConflictDescription
from shardwright.plan.arguments import argument_bytes, shown_rows
from shardwright.plan.facts import ARGUMENT, REGION, VALUE, own_lines
from shardwright.plan.strategy_names import common_names
from shardwright.plan.tuning import Tuning, compiled_table, corrections_table, tuning_lines
from shardwright.plan.words import signed
from shardwright.price.estimate import host_text, place, waiting_text
from shardwright.request.targets import target_of
from shardwright.space import Decision, Whole

if TYPE_CHECKING:
    from shardwright.plan.plan import Plan

WIDTH = 120
_MOST_COLLECTIVES, _MOST_DECISIONS, _MOST_WHOLE, _MOST_MESHES, _MOST_KERNELS = 10, 8, 4, 8, 3
_WIDEST_SPEC = 52
_SAME = 1e-3
"""Steps that differ by less than this part take as long."""
_GAP, _EACH = 2, "each device"
_STYLES = {True: "bold green", False: "bold red", None: "bold yellow"}


def plan_table(plan: Plan) -> RenderableType:
    """Headline, decisions by axis, arguments by pattern, the costliest collectives, other meshes, advice."""
    parts: list[RenderableType] = [*_headline(plan), Text(), *_decisions(plan), Text(), _arguments(plan)]
    if plan.collectives:
        parts += [Text(), _collectives(plan)]
    if plan.tuning is not None:
        parts += _tuning(plan.tuning)
    if plan.meshes:
        parts += [Text(), _meshes(plan)]
    if plan.advice:
        parts += [Text(), _advice(plan)]
    return Group(*parts)


def _tuning(tuning: Tuning) -> list[RenderableType]:
    """What tuning brought, what was compiled, and what was learned."""
    parts: list[RenderableType] = [Text(), *map(Text, tuning_lines(tuning))]
    if tuning.compiled:
        parts += [Text(), compiled_table(tuning.compiled)]
    if tuning.corrections:
        parts += [Text(), corrections_table(tuning.corrections)]
    return parts


def headline(plan: Plan) -> str:
    """Whether it fits, how long a step takes and what of, as one sentence."""
    estimate = plan.estimate
    return (
        f"{_fits(plan)}; step {human_seconds(estimate.step_seconds)} = "
        f"{human_seconds(estimate.compute_seconds)} compute + {waiting_text(estimate)}; "
        f"{100 * estimate.peak_fraction:.0f}% of the devices' peak."
    )


def _fits(plan: Plan) -> str:
    limit = plan.memory_bytes
    needed, by = plan.estimate_cost.peak_bytes, ""
    if plan.fits_by == "compiler" and plan.verdict is not None and plan.verdict.peak_bytes is not None:
        needed, by = plan.verdict.peak_bytes, " by the compiler"
    if plan.fits is None:
        return f"May fit: {_of(needed, limit)}"
    over = f" by {human_bytes(needed - limit)}" if needed > limit else ""
    if plan.estimate_cost.host_over_bytes:
        over += f"{' and' * bool(over)} on the host by {human_bytes(plan.estimate_cost.host_over_bytes)}"
    return f"{'Fits' if plan.fits else f'Does not fit{over}'}{by}: {_of(needed, limit)}"


def unsure(plan: Plan) -> str:
    """Why nobody knows whether a plan fits, and who would, as one sentence; empty where somebody does."""
    if plan.fits is not None:
        return ""
    least, most = map(human_bytes, plan.bytes_range)
    said = f"Too close to the limit to tell: by what estimates are known to be off, it needs {least} to {most}"
    if plan.verdict is not None:
        return f"{said}, and the compiler for {plan.verdict.on} gave no answer: {plan.verdict.message}."
    target = target_of(plan.device, plan.partitioned.mesh.devices)
    if target is None:
        return f"{said}, and no compiler is known for these devices."
    return f"{said}; the compiler would know, but was not asked: plan.verify({target.name!r})."


def _headline(plan: Plan) -> list[Text]:
    mesh, program = plan.partitioned.mesh, plan.analysis.program
    held = sum(argument_bytes(plan, a.value) for a in program.arguments if a.memory_kind is None)
    whole = sum(program.values[a.value].bytes for a in program.arguments)
    moved = sum(c.total_bytes for c in plan.estimate.collectives)
    runs = sum(c.times for c in plan.estimate.collectives)
    axes = " × ".join(f"{name} {size}" for name, size in plan.mesh.items())
    out = [
        Text(f"{program.name} on {mesh.devices} × {plan.device.name} ({axes})", style="bold"),
        Text(headline(plan), style=_STYLES[plan.fits]),
        *([Text(unsure(plan), style="yellow")] if plan.fits is None else []),
        Text(
            f"Each device holds {human_bytes(held)} of the {human_bytes(whole)} of arguments"
            + (f" and sends {human_bytes(moved)} in {runs:,} collectives." if runs else "; nothing is sent.")
        ),
    ]
    if on_host := host_text(plan.estimate):
        out.append(Text(on_host, style="red" if plan.estimate_cost.host_over_bytes else ""))
    if plan.own_shardings:
        out.append(Text(own_text(plan)))
    if plan.whole_kernels:
        out.append(Text(kernels_text(plan), style="yellow"))
    if plan.search is not None and plan.search.evaluations > 1:
        found = plan.search
        until = {"seconds": ", until its time was over", "interrupted": ", until it was interrupted"}
        took = f"Found in {human_seconds(found.seconds)}: {found.evaluations:,} states met"
        out.append(Text(f"{took}{until.get(found.ended, '')}.", style="dim"))
    if plan.verdict is not None:
        out.append(Text(f"The compiler, {plan.verdict.on}: {plan.verdict.message}."))
    return out


def own_text(plan: Plan) -> str:
    """How many shardings the program has already, where, and what they cost, as one sentence."""
    own = plan.own_shardings
    counts = Counter(each.what for each in own)
    words = {ARGUMENT: "argument", VALUE: "constraint", REGION: "shard_map region"}
    named = [f"{n:,} {words[what]}{'s' * (n > 1)}" for what in words if (n := counts[what])]
    listed = f"{', '.join(named[:-1])} and {named[-1]}" if len(named) > 1 else named[0]
    lines = own_lines(own)
    rest = len(lines) - 1
    at = f" (at {lines[0]}{f' and {rest} more line' + 's' * (rest > 1) if rest else ''})" if lines else ""
    kept = f"Keeps the program's own shardings of {listed}{at}"
    if not (counts[ARGUMENT] or counts[VALUE]):
        return f"{kept}."
    without, step = plan.cost_without_own.step_seconds, plan.estimate_cost.step_seconds
    differs = abs(without - step) > _SAME * step
    return f"{kept}; without them the step would take {human_seconds(without) if differs else 'as long'}."


def kernels_text(plan: Plan) -> str:
    """The kernels that no axis splits, and their parts of the step, as one sentence."""
    step = plan.estimate.step_seconds or 1.0
    parts = [f"{k.name} at {k.source}, {100 * k.seconds / step:.0f}% of the step" for k in plan.whole_kernels]
    more = f"; and {len(parts) - _MOST_KERNELS} more" if len(parts) > _MOST_KERNELS else ""
    return f"Every device runs all of the kernel{'s' * (len(parts) > 1)} {'; '.join(parts[:_MOST_KERNELS])}{more}."


def _of(part: int, limit: int) -> str:
    """``9.13 of 15.75 GiB``; each with its unit where they differ."""
    shown, unit = exact_bytes(limit).split()
    small, of = exact_bytes(part).split()
    return f"{small} of {shown} {unit}" if of == unit else f"{human_bytes(part)} of {shown} {unit}"


def _decisions(plan: Plan) -> list[RenderableType]:
    """For each axis, or axes with the same list, what that is called and the dimensions in order of priority."""
    names = common_names(plan)
    axes_of: dict[tuple[tuple[str, ...], tuple[Decision | Whole, ...]], list[str]] = defaultdict(list)
    for axis in plan.mesh:
        own = tuple(_on_no_axis(d) for d in plan.decisions if d.axis == axis)
        axes_of[names[axis], own].append(axis)
    out: list[RenderableType] = []
    for (called, decisions), axes in axes_of.items():
        title = Text(", ".join(axes), style="bold green")
        if called:
            title.append(f": {'; '.join(called)}", style="bold")
        out.append(title if decisions else title.append(": unused", style="dim"))
        if chosen := [d for d in decisions if isinstance(d, Decision)]:
            out.append(_list(plan, chosen))
        if whole := [d.path for d in decisions if isinstance(d, Whole)]:
            out.append(_whole(whole))
    return out


def _list(plan: Plan, decisions: Sequence[Decision]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    described = {d.name: d for d in plan.analysis.descriptions}
    heavy = sorted(decisions, key=lambda d: -described[d.dimension].flops if d.dimension in described else 0)
    shown = set(heavy[:_MOST_DECISIONS])
    for number, decision in enumerate(decisions, 1):
        if decision in shown:
            found = described.get(decision.dimension)
            text = Text(decision.dimension, style="cyan")
            text.append(f", but not beside {decision.unless}" if decision.unless else "", style="default")
            text.append(_sides(found.conflicts, decision.sides) if found else "", style="default")
            table.add_row(f" {number}", text, f"{found.size:,}" if found else "")
    if len(decisions) > len(shown):
        rest = len(decisions) - len(shown)
        table.add_row("", Text(f"… and {rest} more, of fewer FLOPs: see plan.decisions", style="dim"))
    return table


def _whole(paths: Sequence[str]) -> Text:
    more = f" and {len(paths) - _MOST_WHOLE} more" if len(paths) > _MOST_WHOLE else ""
    verb = "stays" if len(paths) == 1 else "stay"
    return Text(f"    {', '.join(paths[:_MOST_WHOLE])}{more} {verb} whole", style="dim")


def _on_no_axis(decision: Decision | Whole) -> Decision | Whole:
    if isinstance(decision, Whole):
        return Whole("", decision.path)
    return Decision("", decision.dimension, decision.sides, decision.unless)


def _sides(conflicts: Sequence[ConflictDescription], sides: Sequence[int]) -> str:
    """Which of two places is taken where the dimension meets itself; what the backward pass does is left out."""
    taken = [*sides, *(0,) * (len(conflicts) - len(sides))]
    found = [(c, side) for c, side in zip(conflicts, taken, strict=True) if c.consistent and not c.source.backward]
    words = dict.fromkeys(f"{_role(c, side)} at {c.source}" for c, side in found)
    return f", of the {' and the '.join(words)}" if words else ""


def _role(conflict: ConflictDescription, side: int) -> str:
    role = conflict.sides[side].role
    if role in ("operand 0", "operand 1"):
        return "left operand" if role == "operand 0" else "right operand"
    return f"dimension {conflict.sides[side].dimension}"


def _arguments(plan: Plan) -> Table:
    shown, left = shown_rows(plan, WIDTH - len(_EACH) - 4 * _GAP)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("argument", overflow="fold", style="cyan")
    table.add_column("", justify="right", no_wrap=True, style="dim")
    table.add_column("type", no_wrap=True)
    widest = max((len(row.spec) for _, row in shown), default=0)
    table.add_column("spec", no_wrap=widest <= _WIDEST_SPEC, overflow="fold")
    table.add_column(_EACH, justify="right", no_wrap=True)
    for name, row in shown:
        count = f"× {len(row.paths)}" if len(row.paths) > 1 else ""
        table.add_row(name, count, row.type, row.spec, human_bytes(row.bytes))
    if left:
        count = f"× {sum(len(row.paths) for row in left):,}"
        table.add_row(Text("… and smaller ones", style="dim"), count, "", "", human_bytes(sum(r.bytes for r in left)))
    return table


def _collectives(plan: Plan) -> Table:
    """The costliest, those of one kind at one line together."""
    found: dict[tuple[str, tuple[str, ...], float, str, str], list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for c in plan.estimate.collectives:
        entry = found[c.kind, c.axes, c.bytes, c.tensor, place(c.source)]
        entry[0] += c.times
        entry[1] += c.seconds
        entry[2] += c.hidden_seconds
    hides = bool(plan.estimate.hidden_seconds)
    ordered = sorted(found.items(), key=lambda item: -item[1][1])
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("collective", "axes", "bytes", "times", "seconds", *["hidden"] * hides, "tensor", "at"):
        right = name in ("bytes", "times", "seconds", "hidden")
        table.add_column(name, justify="right" if right else "left", no_wrap=name != "at", overflow="fold")
    for (kind, axes, count, tensor, where), (times, *seconds) in ordered[:_MOST_COLLECTIVES]:
        shown = (human_bytes(count), f"{int(times):,}", *map(human_seconds, seconds[: 1 + hides]), tensor, where)
        table.add_row(kind, ", ".join(axes), *shown)
    left = ordered[_MOST_COLLECTIVES:]
    if left:
        times, *seconds = (sum(found[k] for _, found in left) for k in (0, 1, 2))
        dim = Text("… and smaller", style="dim")
        table.add_row(dim, "", "", f"{int(times):,}", *map(human_seconds, seconds[: 1 + hides]))
    return table


def _meshes(plan: Plan) -> Table:
    """The shapes that the mesh could have had, and the best that was found on each."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("mesh", no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True, style="dim")
    table.add_column(_EACH, justify="right", no_wrap=True)
    table.add_column("how well it was searched")
    for k, found in enumerate(plan.meshes[:_MOST_MESHES]):
        axes = " × ".join(f"{name} {size}" for name, size in found.mesh.items())
        more = f"+{100 * (found.step_seconds / plan.meshes[0].step_seconds - 1):.1f}%" if k and found.fits else ""
        size = Text(human_bytes(found.peak_bytes), style="" if found.fits else "red")
        effort = f"{found.effort}{', and chosen' if not k else '' if found.fits else ', does not fit'}"
        table.add_row(axes, human_seconds(found.step_seconds), more, size, effort, style="" if k else "bold green")
    if len(plan.meshes) > _MOST_MESHES:
        table.add_row(Text(f"… and {len(plan.meshes) - _MOST_MESHES} more: see plan.meshes", style="dim"))
    return table


def _advice(plan: Plan) -> Table:
    """What the plan would cost with other recomputation in the backward pass."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("if the program had", overflow="fold")
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True, style="dim")
    table.add_column(_EACH, justify="right", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True, style="dim")
    for a in plan.advice:
        step = (human_seconds(a.step_seconds), signed(-a.saved_seconds, human_seconds))
        peak = (human_bytes(a.peak_bytes), signed(-a.saved_bytes, human_bytes))
        table.add_row(a.action, *step, *peak, style="" if a.fits else "red")
    return table
