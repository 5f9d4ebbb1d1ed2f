"""Which of the measured margins holds for a program: kinds whose estimates are off differently."""

from __future__ import annotations

from shardwright.compiler import margins
from shardwright.compiler.margins import FORWARD, LOOPED, UNROLLED, Margin
from shardwright.ir.program import Program

_IN_LOOPS = 0.5


def kind_of(program: Program) -> str:
    """What kind of program it is, as far as the errors of estimates differ by it.

    A backward pass is known by the places in the source that its ops come from; a program that does not tell any may
    have one.
    """
    placed = any(op.source.file for op in program.ops)
    if placed and not any(op.source.backward for op in program.ops):
        return FORWARD
    total = looped = 0.0
    for op, repeats in zip(program.ops, program.repeats.tolist(), strict=True):
        if op.flops:
            total += op.flops * repeats
            looped += op.flops * repeats * (op.region != 0)
    return LOOPED if total and looped >= _IN_LOOPS * total else UNROLLED


def margin_of(program: Program, platform: str) -> Margin:
    """The margin of a program's estimates on a platform ("tpu", "gpu" or "cpu")."""
    return margins.margins()[platform][kind_of(program)]
