"""What the Pallas kernels of a program can be split by, and why not by more."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from shardwright._kernel import Kernel
from shardwright.ir.kernel_rules import obstacles
from shardwright.ir.program import Op, Program


@dataclass(frozen=True)
class KernelNote:
    """A kernel at a source line, how often it stands there, and the indices of its grid.

    ``split`` are the dimensions that go with an index that can be split, ``whole`` the indices that cannot with what
    is in the way of each.
    """

    name: str
    source: str
    count: int
    split: tuple[str, ...]
    whole: tuple[tuple[int, str], ...]

    def __str__(self) -> str:
        times = f" ({self.count} times)" if self.count > 1 else ""
        can = f"can be split by {', '.join(self.split)}" if self.split else "is computed whole"
        cannot = "".join(f"; grid index {k} {reason}" for k, reason in self.whole)
        return f"The kernel {self.name} at {self.source}{times} {can}{cannot}."


def kernel_notes(program: Program) -> tuple[KernelNote, ...]:
    """One for each kernel at each line."""
    found: Counter[tuple[str, str, tuple[str, ...], tuple[tuple[int, str], ...]]] = Counter()
    for op in program.ops:
        if "facts" in op.attributes:
            kernel, read = op.attributes["facts"]
            split = [k for k, size in enumerate(kernel.grid) if k not in op.rule.whole and size > 1]
            whole = tuple(
                (k, reason) for k, reason in obstacles(kernel, read).items() if k not in split and kernel.grid[k] > 1
            )
            found[kernel.name, str(op.source), tuple(_dimension(kernel, op, k) for k in split), whole] += 1
    return tuple(KernelNote(name, source, count, split, whole) for (name, source, split, whole), count in found.items())


def _dimension(kernel: Kernel, op: Op, k: int) -> str:
    """The first dimension that goes with a grid index, operands before results."""
    for t, dims in enumerate(op.rule.tensors):
        for d, factors in enumerate(dims):
            if factors[:1] == (k,):
                count = len(op.operands)
                name = f"operand {t}" if t < count else f"result {t - count}"
                return f"dimension {d} of {name} ({kernel.grid[k]} steps)"
    return f"grid index {k}"
