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
            split = [k for k in range(len(kernel.grid)) if k not in op.rule.whole]
            whole = tuple((k, reason) for k, reason in obstacles(kernel, read) if k not in split)
            found[kernel.name, str(op.source), tuple(_dimension(kernel, op, k) for k in split), whole] += 1
    return tuple(KernelNote(name, source, count, split, whole) for (name, source, split, whole), count in found.items())


def _dimension(kernel: Kernel, op: Op, k: int) -> str:
    """The first dimension that goes with a grid index, operands before results."""
    for t, dims in enumerate(op.rule.tensors):
        for d, factors in enumerate(dims):
            if factors[:1] == (k,):
                parts, steps = op.rule.sizes[k], kernel.grid[k]
                most = "" if parts == steps else f" in {parts} parts"
                summed = ", added up" if k in op.rule.reduction else ""
                return f"dimension {d} of {kernel.tensor(t)} ({steps} steps{most}{summed})"
    return f"grid index {k}"
