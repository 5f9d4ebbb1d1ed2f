"""Explanations for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardwright._amounts import human_bytes, human_seconds
from shardwright._console import Rows
from shardwright.apply import spec_text
from shardwright.explain.alternatives import Alternative
from shardwright.explain.choices import Choice
from shardwright.explain.moves import ITSELF, Moved
from shardwright.explain.reasons import NO_DECISION, SPLIT, Reason
from shardwright.explain.source_lines import OpKind
from shardwright.explain.uneven_sizes import Padded, Uneven
from shardwright.plan.tuning import corrections_table, option_lines
from shardwright.plan.words import many, more, short, signed_percent, signed_seconds
from shardwright.price.estimate import place

if TYPE_CHECKING:
    from shardwright.explain.explanation import Explanation, Tensor

_MOST_OPS, _MOST_ALTERNATIVES, _MOST_OWN = 10, 16, 4


def explanation_table(e: Explanation) -> RenderableType:
    """An explanation, with what matters most first."""
    return Group(*(_arguments(e) if e.tensors else _line(e)), *_tuned(e))


def _tuned(e: Explanation) -> Iterator[RenderableType]:
    """Options of the compiler that belong to the plan, and what the compiler has here in place of the estimate."""
    if e.options or e.learned:
        yield Text()
    yield from map(Text, option_lines(e.options))
    if e.learned:
        yield corrections_table(e.learned)


def _arguments(e: Explanation) -> Iterator[RenderableType]:
    yield from _one(e.tensors[0]) if len(e.tensors) == 1 else _several(e)
    yield from _own(e)
    for u in e.uneven:
        yield Text()
        yield uneven_text(u, e)
    if len(e.alternatives) > 1:
        yield Text()
        yield _alternatives(e)
        yield _verdict(e)
    if e.left_out:
        yield Text(f"Not priced, as the program is large: {e.left_out}. sw.evaluate tells.", style="dim")
    yield Text()
    yield _moves(e.collectives, of=True) if e.collectives else Text("No collective moves it or its update.")
    yield from _choices(e.conflicts)


def _own(e: Explanation) -> Iterator[RenderableType]:
    """Shardings that the program has already, and what the step would take without them."""
    if not e.own:
        return
    yield Text()
    specs = dict.fromkeys(f"{own.name} {spec_text(own.spec)}" if own.spec is not None else own.what for own in e.own)
    text = f"Yours: {'; '.join(list(specs)[:_MOST_OWN])}{' …' if len(specs) > _MOST_OWN else ''}."
    if e.step_seconds_without is not None:
        them = "them" if len(e.own) > 1 else "it"
        text += f" Without {them} the step would take {human_seconds(e.step_seconds_without)}."
    yield Text(text)


def _one(t: Tensor) -> Iterator[RenderableType]:
    where = "on the host for each device" if t.on_host else "on each device"
    size = f"{human_bytes(t.device_bytes)} of {human_bytes(t.bytes)} {where}"
    yield Text(f"{more(t.paths[0], len(t.paths))}: {t.type}, {spec_text(t.spec)}, {size}", style="bold")
    if t.unused:
        yield Text("The result does not depend on it.")
    if not t.dimensions:
        return
    rows = Rows("dimension", "size", "sharded with", "axis", "", numbers=[1], most=1000)
    for d in t.dimensions:
        first = (f"[{d.number}]", f"{d.size:,}", Text(d.name, style="cyan"))
        if not d.reasons:
            rows.add(*first, "", "whole: there is nothing to split")
        for k, ((outcome, text), found) in enumerate(groupby(d.reasons, key=lambda r: (r.outcome, r.text))):
            axes = Text(", ".join(r.axis for r in found), style="green")
            rows.add(*(first if k == 0 else ("", "", "")), axes, f"{'split' if outcome == SPLIT else 'whole'}: {text}")
    yield Text()
    yield rows.done()


def _several(e: Explanation) -> Iterator[RenderableType]:
    count = sum(len(t.paths) for t in e.tensors)
    held, whole = (sum(getattr(t, n) * len(t.paths) for t in e.tensors) for n in ("device_bytes", "bytes"))
    size = f"{human_bytes(held)} of {human_bytes(whole)} on each device"
    yield Text(f"{e.about}: {many(count, 'argument')} of {many(len(e.tensors), 'kind')}, {size}", style="bold")
    yield Text()
    alike: dict[tuple[str, str, str], list[str]] = {}
    for t in e.tensors:
        alike.setdefault((t.type, spec_text(t.spec), _short(t)), []).extend(t.paths)
    rows = Rows("argument", "arguments", "type", "spec", "why", numbers=[1])
    for (type_, shown, why), paths in alike.items():
        first = f"{paths[0]} …" if len(paths) > 1 else paths[0]
        rows.add(Text(first, style="cyan"), f"{len(paths):,}", type_, shown, why)
    yield rows.done("more kinds")
    yield Text(f"plan.explain({e.tensors[0].paths[0]!r}) and the like tell what else could be done.", style="dim")


def _short(t: Tensor) -> str:
    if t.unused:
        return "the result does not depend on it"
    split = [f"[{d.number}] over {', '.join(d.axes)}: {d.name}" for d in t.dimensions if d.axes]
    if split:
        return "; ".join(split)
    reasons: list[Reason] = [r for d in t.dimensions for r in d.reasons]
    named = [r.text for r in reasons if r.decision is not None]
    return (named or [NO_DECISION if reasons else ""])[0]


def _alternatives(e: Explanation) -> Table:
    one = len(e.tensors) == 1
    columns = ("alternative", *["spec"] * one, "step", "", "", "peak", "fits")
    rows = Rows(*columns, numbers=range(1 + one, 5 + one), most=_MOST_ALTERNATIVES)
    for a in _different(e.alternatives):
        change = ("", "")
        if not a.ours:
            change = signed_seconds(a.difference_seconds), signed_percent(a.difference_seconds, e.step_seconds)
        name = Text(a.change, style="bold" if a.ours else "cyan")
        figures = (human_seconds(a.step_seconds), *change, human_bytes(a.peak_bytes), _yes(a.fits))
        rows.add(name, *[spec_text(a.spec)] * one, *figures, style="bold" * a.ours, always=a.ours)
    return rows.done()


def _different(alternatives: Sequence[Alternative]) -> list[Alternative]:
    """Of the ways to put a dimension on an axis those that differ in cost."""
    found: dict[tuple[str, int | str, str, int], Alternative] = {}
    for a in alternatives:
        what = a.change if a.dimension is None else a.dimension
        found.setdefault((a.axis, what, human_seconds(a.step_seconds), a.peak_bytes), a)
    return list(found.values())


def _verdict(e: Explanation) -> Text:
    best = e.better
    if best is None:
        return Text("None is clearly better. Each changes one thing, for all tensors that it is about.", style="dim")
    why = f"{human_seconds(-best.difference_seconds)} less a step" if best.difference_seconds < 0 else "it fits"
    return Text(f"By the estimate this would be better than the plan: {best.change} ({why}).", style="bold yellow")


def _moves(moves: Sequence[Moved], *, of: bool) -> Table:
    total = human_seconds(sum(m.seconds for m in moves))
    hides = any(m.hidden_seconds for m in moves)
    figured = ("bytes", "times", "seconds", *["hidden"] * hides)
    rows = Rows(
        *(f"collectives, {total}", "axes", "tensor", *["of"] * of, *figured, "at"),
        numbers=range(3 + of, 6 + of + hides),
    )
    for m in moves:
        owner = ["it" if m.of == ITSELF else m.of] * of
        hidden = [human_seconds(m.hidden_seconds)] * hides
        figures = (human_bytes(m.bytes), f"{m.times:,}", human_seconds(m.seconds), *hidden)
        rows.add(m.kind, ", ".join(m.axes), m.tensor, *owner, *figures, place(m.source))
    return rows.done("smaller")


def _choices(choices: Sequence[Choice]) -> Iterator[RenderableType]:
    for name, found in groupby((c for c in choices if not c.axes), key=lambda c: c.dimension):
        where = "; ".join(dict.fromkeys(f"{c.kind}, {place(c.source)}" for c in found))
        yield Text()
        yield Text(f"{name} meets itself at {where}: no decision splits it, so there is nothing to resolve.")
    taken = [c for c in choices if c.axes]
    if not taken:
        return
    rows = Rows("conflict of", "at", "axis", "split", "not split", "the other way", "fits", numbers=[5])
    for c in taken:
        side = c.side or 0
        other = (signed_seconds(c.other.difference_seconds), _yes(c.other.fits)) if c.other else ("no choice", "")
        about = (
            Text(c.dimension, style="cyan"),
            f"{c.kind}, {place(c.source)}",
            Text(", ".join(c.axes), style="green"),
        )
        rows.add(*about, str(c.sides[side]), str(c.sides[1 - side]), *other)
    yield Text()
    yield rows.done()


def _line(e: Explanation) -> Iterator[RenderableType]:
    compute, comm = human_seconds(e.compute_seconds), human_seconds(e.comm_seconds)
    taken = e.compute_seconds + e.comm_seconds - e.hidden_seconds
    part = taken / e.step_seconds if e.step_seconds else 0.0
    title = f"{e.about}: {many(len(e.ops), 'kind')} of ops, {compute} of kernels + {comm} of collectives"
    title += f" ({human_seconds(e.hidden_seconds)} of it hidden)" if e.hidden_seconds else ""
    yield Text(f"{title}, {part:.1%} of a step of {human_seconds(e.step_seconds)}", style="bold")
    if e.ops:
        yield Text()
        yield _ops(e.ops)
        for avoided in dict.fromkeys(record for op in e.ops for record in op.avoided):
            yield Text()
            yield Text(f"Avoided: {avoided.name}. XLA gives {avoided.what}; instead {avoided.instead}.")
    yield from _own(e)
    if e.padded:
        yield Text()
        yield padded_text(e.padded)
    if e.kernels:
        rows = Rows("kernels", "tensor", "times", "seconds", "bound by", "at", numbers=[2, 3])
        for k in e.kernels:
            rows.add(k.kind, k.tensor, f"{k.times:,}", human_seconds(k.seconds), k.bound, place(k.source))
        yield Text()
        yield rows.done("smaller")
    yield Text()
    yield _moves(e.collectives, of=False) if e.collectives else Text("Nothing is moved here.")
    yield from _choices(e.conflicts)


def _ops(ops: Sequence[OpKind]) -> Table:
    several = len({(op.source.file, op.source.line) for op in ops}) > 1
    heaviest = sorted(ops, key=lambda op: (-op.flops * op.times, -op.bytes * op.times))
    rows = Rows("op", "times", "result", "spec", "runs", *["at"] * several, "pass", numbers=[1], most=_MOST_OPS)
    shown, rest = set(heaviest[:_MOST_OPS]), heaviest[_MOST_OPS:]
    for op in (*(op for op in ops if op in shown), *rest):
        runs = "; ".join(
            f"{', '.join(s.axes)} on {short(s.dimension)}{' (partial sums)' * s.partial}" for s in op.splits
        )
        at = [f"{op.source.file.rsplit('/', 1)[-1]}:{op.source.line}"] * several
        specs = ", ".join(map(spec_text, op.specs))
        which = "backward" if op.source.backward else "forward"
        rows.add(op.kind, f"{op.times:,}", ", ".join(op.results), specs, runs or "whole", *at, which)
    return rows.done("smaller")


def _yes(fits: bool) -> str:
    return "yes" if fits else "no"


_MOST_PADDED = 4


def uneven_text(u: Uneven, e: Explanation) -> Text:
    """What an argument's dimension misses for its size."""
    text = Text(f"{u.devices} devices do not divide {u.size:,}", style="yellow")
    where = f"[{u.dimension}] is whole on {' and '.join(u.axes)}"
    if u.padded_size:
        where += f", though padded to {u.padded_size:,} inside of the program"
    text.append(f": {where}. ", style="default")
    more = f"With {u.better_size:,} ({u.better_size - u.size:,} more){f', and {u.change},' if u.change else ''}"
    now = e.tensors[0].device_bytes
    size = human_bytes(u.device_bytes)
    held = size + " of it" if size == human_bytes(now) else f"{size} of it in place of {human_bytes(now)}"
    text.append(f"{more} each device would hold {held}{_cost(u, e)}.", style="default")
    return text


def _cost(u: Uneven, e: Explanation) -> str:
    if u.step_seconds is None or u.peak_bytes is None:
        return ""
    step = _change(human_seconds(u.step_seconds), human_seconds(e.step_seconds))
    peak = _change(human_bytes(u.peak_bytes), human_bytes(e.peak_bytes))
    verdict = "; that would be no better" if u.step_seconds >= e.step_seconds and u.peak_bytes >= e.peak_bytes else ""
    return f", and a step would take {step} with {peak}{verdict}"


def _change(then: str, now: str) -> str:
    return f"{then} as now" if then == now else f"{then} in place of {now}"


def padded_text(padded: Sequence[Padded]) -> Text:
    """The tensors of a line that are padded."""
    shown = [
        f"{p.type} {' and '.join(f'in [{d}] from {size:,} to {to:,}' for d, size, to in p.dimensions)}"
        for p in padded[:_MOST_PADDED]
    ]
    rest = f"; and {len(padded) - _MOST_PADDED} more" if len(padded) > _MOST_PADDED else ""
    return Text(f"Padded, as the devices do not divide it: {'; '.join(shown)}{rest}.")
