"""Corrections: what a compiler made of plans of one program, as factors on the prices of that program.

A price belongs to a source line, in the forward or the backward pass: what its kernels compute, and what moves there,
as sums of partial results (all-reduce, reduce-scatter) or as operands (all-gather, all-to-all, permute). Copies to
another layout belong to no line, since the compiler seldom says of which they are. With ``f`` the factor of a price
and ``h`` what more of a move is hidden than was estimated, as a part of it::

    corrected seconds = f · seconds        corrected hidden seconds = hidden seconds + h · f · seconds
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from shardwright.ir.kinds import CONSTRAINT, CONTRACTIONS
from shardwright.ir.program import Program, Source
from shardwright.price.collectives import ALL_REDUCE, REDUCE_SCATTER

COMPUTE, SUMS, OPERANDS, COPIES = "compute", "sums", "operands", "copies"


class Priced(NamedTuple):
    """What a price belongs to: ``what`` of the above, at a line as it is shown, in the backward pass or not."""

    what: str
    line: str = ""
    backward: bool = False


@dataclass(frozen=True)
class Corrections:
    """Factors on prices, and what more of moves is hidden; what is not in them is priced as it was."""

    factors: Mapping[Priced, float] = field(default_factory=lambda: MappingProxyType({}))
    hidden_parts: Mapping[Priced, float] = field(default_factory=lambda: MappingProxyType({}))

    def __bool__(self) -> bool:
        return bool(self.factors or self.hidden_parts)

    def factor(self, what: str, sources: Iterable[Source] = ()) -> float:
        """The factor of a price that belongs to some lines: their mean; where nothing is known of one, that of all."""
        otherwise = self.factors.get(Priced(what), 1.0)
        return _mean([self.factors.get(each, otherwise) for each in _priced(what, sources)])

    def hidden_part(self, what: str, sources: Iterable[Source]) -> float:
        """What more of moves at some lines is hidden: the mean of theirs."""
        return _mean([self.hidden_parts.get(each, 0.0) for each in _priced(what, sources)])


NONE = Corrections()


def priced(what: str, source: Source) -> Priced:
    """What a price at a place in the source belongs to."""
    return Priced(what, str(source), source.backward)


def moved_as(kind: str) -> str:
    """As what a collective moves."""
    return SUMS if kind in (ALL_REDUCE, REDUCE_SCATTER) else OPERANDS


def heaviest(program: Program, ops: Iterable[int], root: int) -> int:
    """The op of a kernel whose line is shown: its product, if it has one."""
    kept = [o for o in ops if program.ops[o].kind != CONSTRAINT] or [root]
    return next((o for o in kept if program.ops[o].kind in CONTRACTIONS), kept[-1])


def _priced(what: str, sources: Iterable[Source]) -> list[Priced]:
    return [priced(what, source) for source in sources] or [Priced(what)]


def _mean(found: list[float]) -> float:
    return sum(found) / len(found)
