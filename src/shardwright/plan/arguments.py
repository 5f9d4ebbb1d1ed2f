"""A plan's arguments in few rows: those with the same spec together, under a pattern for their paths."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from shardwright.apply import spec, spec_text
from shardwright.ir.program import Argument, Value
from shardwright.price.collectives import local_bytes

if TYPE_CHECKING:
    from shardwright.plan.plan import Plan

_MOST_ROWS = 16
_NARROWEST, _ANY_WIDTH = 28, 10**6


@dataclass(frozen=True)
class ArgumentRow:
    """Arguments with the same spec and types that are alike; ``bytes`` is what all of them take on each device.

    ``type`` has ``…`` for sizes that differ.
    """

    paths: tuple[str, ...]
    type: str
    spec: str
    bytes: int


def argument_rows(plan: Plan) -> list[ArgumentRow]:
    """The rows, in the order of the arguments; where they would be too many to read, by bytes, and fewer.

    In the latter case arguments go together that differ in sizes alone and have the same last two names.
    """
    rows = _rows(plan, lambda a, value: (str(value), a.memory_kind))
    if len(rows) <= _MOST_ROWS:
        return rows
    rows = _rows(
        plan, lambda argument, value: (_last_names(argument.path), value.dtype, len(value.shape), argument.memory_kind)
    )
    return sorted(rows, key=lambda row: -row.bytes)


def shown_rows(plan: Plan, width: int) -> tuple[list[tuple[str, ArgumentRow]], list[ArgumentRow]]:
    """The rows to show, each with a pattern that leaves room for the rest of a line, and those to leave out."""
    rows = argument_rows(plan)
    shown, left = rows[:_MOST_ROWS], rows[_MOST_ROWS:]
    taken = sum(max((len(text) for text in texts), default=0) for texts in zip(*map(_beside, shown), strict=True))
    room = max(width - taken, _NARROWEST)
    paths = [a.path for a in plan.analysis.program.arguments]

    others = [[path for path in paths if path not in own] for own in ({*row.paths} for row in shown)]

    def patterns(width: int, terse: bool = False) -> list[str]:
        return [pattern(row.paths, rest, width, terse) for row, rest in zip(shown, others, strict=True)]

    texts = patterns(room)
    if texts != patterns(_ANY_WIDTH):
        texts = patterns(room, terse=True)
    return list(zip(texts, shown, strict=True)), left


def argument_bytes(plan: Plan, value: int) -> int:
    """What an argument takes on each device."""
    whole = plan.analysis.program.values[value].bytes
    return int(local_bytes(whole, plan.partitioned.values[value], plan.partitioned.mesh))


def _beside(row: ArgumentRow) -> tuple[str, str, str]:
    return row.type, row.spec, f"× {len(row.paths)}"


def _rows(plan: Plan, kind: Callable[[Argument, Value], Hashable]) -> list[ArgumentRow]:
    program, axes = plan.analysis.program, plan.partitioned.mesh.names
    found: dict[tuple[Hashable, str], list[Argument]] = defaultdict(list)
    for a in program.arguments:
        found[kind(a, program.values[a.value]), spec_text(spec(plan.partitioned.values[a.value], axes))].append(a)
    return [
        ArgumentRow(
            tuple(a.path for a in same),
            _type([program.values[a.value] for a in same]) + ", on the host" * (same[0].memory_kind is not None),
            text,
            sum(argument_bytes(plan, a.value) for a in same),
        )
        for (_, text), same in found.items()
    ]


def _type(values: Sequence[Value]) -> str:
    sizes = (str(found[0]) if len({*found}) == 1 else "…" for found in zip(*(v.shape for v in values), strict=True))
    return f"{values[0].dtype}[{','.join(sizes)}]"


def _last_names(path: str) -> tuple[str, ...]:
    return tuple([name for name in path.split(".") if not name.isdigit()][-2:])


Tails = frozenset[tuple[str, ...]]
Part = str | tuple[str, ...]
"""A piece of a path, or several that stand in its place."""

ALL, SOME = "*", "…"
_LIKE = "*…"
_FEW, _SAYING = 3, 4


def pattern(paths: Sequence[str], others: Collection[str] = (), width: int = 48, terse: bool = False) -> str:
    """One pattern for some paths, and for none of the others unless ``…`` stands in it.

    It is no wider than ``width`` where leaving out pieces can achieve that. ``terse`` has ``*`` wherever it says the
    same as braces in braces.
    """
    parts = _factored(frozenset(tuple(path.split(".")) for path in paths))

    def without(k: int, sign: str) -> list[Part]:
        return [*parts[:k], sign, *parts[k + 1 :]]

    groups = [k for k, part in enumerate(parts) if isinstance(part, tuple)]
    for k in groups:
        many = len(parts[k]) > _FEW or all(piece.isdigit() for piece in parts[k])
        if (many or (terse and "{" in "".join(parts[k]))) and not _matches_any(without(k, ALL), others):
            parts = without(k, ALL)
    for sign in (_LIKE, ALL, SOME):
        for k in sorted(groups, key=lambda k: -len(_text([parts[k]]))):
            part = parts[k]
            if isinstance(part, tuple) and len(_text(parts)) > width:
                shorter = without(k, _alike(part) if sign == _LIKE else sign)
                if shorter[k] and (sign == SOME or not _matches_any(shorter, others)):
                    parts = shorter
    return _text(parts)


def _alike(pieces: tuple[str, ...]) -> str:
    """``*_norm`` for ``attention_norm`` and ``mlp_norm``; nothing where the ends are too short to say anything."""
    end = pieces[0]
    while not all(piece.endswith(end) for piece in pieces):
        end = end[1:]
    if len(end) < _SAYING or any("." in piece or "{" in piece for piece in pieces):
        return ""
    return ALL + end


def _matches_any(parts: Sequence[Part], paths: Collection[str]) -> bool:
    matches = matcher(parts)
    return any(matches(path) for path in paths)


def matcher(parts: Sequence[Part]) -> Callable[[str], object]:
    """Something that tells whether a pattern matches a path."""

    def expression(part: Part) -> str:
        if part in (ALL, SOME):
            return ".+"
        if isinstance(part, str):
            return re.escape(part).replace(r"\*", "[^.]*")
        return f"(?:{'|'.join(map(re.escape, _expanded(part)))})"

    return re.compile(r"\.".join(map(expression, parts))).fullmatch


def _expanded(pieces: Sequence[str]) -> list[str]:
    """Pieces without braces: ``opt.{m,v}`` is ``opt.m`` and ``opt.v``."""
    out: list[str] = []
    for piece in pieces:
        start = piece.find("{")
        if start < 0:
            out.append(piece)
            continue
        depth, cuts = 0, [start]
        for k in range(start, len(piece)):
            depth += (piece[k] == "{") - (piece[k] == "}")
            if depth == 0 or (depth == 1 and piece[k] == ","):
                cuts.append(k)
            if depth == 0:
                break
        inner = [piece[a + 1 : b] for a, b in pairwise(cuts)]
        out += _expanded([piece[:start] + one + piece[cuts[-1] + 1 :] for one in inner])
    return out


def _text(parts: Sequence[Part]) -> str:
    return ".".join(part if isinstance(part, str) else "{" + ",".join(part) + "}" for part in parts)


def _factored(tails: Tails) -> list[Part]:
    """The parts of a pattern for exactly these paths, each a sequence of pieces."""
    parts: list[Part] = []
    while tails != _END:
        part, tails = _step(tails)
        parts.append(part)
    return parts


_END: Tails = frozenset({()})


@lru_cache(maxsize=4096)
def _step(tails: Tails) -> tuple[Part, Tails]:
    """The first part of paths, and what follows it: the same for all that stands in its place.

    What begins with one piece may go on together before it can do so with the others: ``opt.{m,v}`` beside ``params``.
    The step is as short as can be, so that as much as possible is shared.
    """
    heads: dict[str, list[tuple[str, ...]]] = {}
    for tail in sorted(tails, key=_tree_order):
        heads.setdefault(tail[0] if tail else "", []).append(tail[1:])
    chains = {head: dict(_chain(head, frozenset(found))) for head, found in heads.items()}
    first, *others = chains.values()
    shared = next(rest for rest in first if all(rest in chain for chain in others))
    labels = [chain[shared] for chain in chains.values()]
    return (labels[0] if len(labels) == 1 else tuple(labels)), shared


def _chain(label: str, tails: Tails) -> list[tuple[Tails, str]]:
    """What can follow a piece, and the piece prolonged until there: ``opt``, ``opt.{m,v}``, ``opt.{m,v}.layers``, …."""
    out = [(tails, label)]
    while tails != _END:
        part, tails = _step(tails)
        label = f"{label}.{_text([part])}"
        out.append((tails, label))
    return out


def _tree_order(path: tuple[str, ...]) -> tuple[tuple[int, str], ...]:
    return tuple((int(piece), "") if piece.isdigit() else (-1, piece) for piece in path)
