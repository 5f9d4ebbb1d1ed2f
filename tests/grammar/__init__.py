"""A grammar of small programs of the ops that JAX users write, and of their gradients.

Case number k is always the same program: ``program(k)``. Values stay of the order of one, and nothing hangs on a
rounding: orders are of entries that are apart, indices and branches come from integers.
"""

from __future__ import annotations

from grammar import arrays, control, indexing, windows
from grammar.sketch import Program, Sketch, Step, Tensor

__all__ = ["KINDS", "SIZES", "Program", "Sketch", "Step", "Tensor", "program"]

SIZES = {"even": (2, 4, 8), "odd": (3, 5, 6, 7, 9), "mixed": (1, 2, 3, 4, 6, 8, 12), "empty": (0, 2, 4, 5)}
WEIGHTS = {"even": 3, "odd": 4, "mixed": 4, "empty": 1}

KINDS = {
    arrays.elementwise: 3,
    arrays.binary: 3,
    arrays.make_complex: 2,
    arrays.fft: 1,
    arrays.dot: 4,
    arrays.reduce: 3,
    arrays.argmax: 1,
    arrays.softmax: 2,
    arrays.transpose: 2,
    arrays.reverse: 1,
    arrays.reshape: 3,
    arrays.broadcast: 2,
    arrays.concatenate: 3,
    arrays.strided_slice: 4,
    arrays.pad: 4,
    arrays.mask: 2,
    arrays.factorise: 2,
    arrays.noise: 1,
    arrays.integers: 1,
    windows.convolution: 7,
    windows.reduce_window: 4,
    windows.cumulative: 2,
    indexing.gather: 3,
    indexing.scatter: 4,
    indexing.segment_sum: 1,
    indexing.dynamic_slice: 2,
    indexing.sort: 3,
    control.control: 8,
}
"""What draws a step, and how often next to the others."""


def program(case: int, *, gradient: bool | None = None, sizes: str | None = None) -> Program:
    """The program with this number: two to six steps; half of them are gradients."""
    sketch = Sketch(case, (), False)
    drawn = sketch.random.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
    sketch.sizes = SIZES[sizes or drawn]
    sketch.gradient = sketch.chance(0.5) if gradient is None else gradient
    for _ in range(sketch.integer(1, 2)):
        sketch.argument(sketch.shape(sketch.choose([1, 2, 2, 3])), "c" if sketch.chance(0.1) else "f")
    wanted = sketch.integer(2, 6)
    while len(sketch.steps) < wanted:
        sketch.random.choices([*KINDS], [*KINDS.values()])[0](sketch)
    found = sketch.program()
    inexact = any(found.tensors[r].dtype != "i" for r in found.results)
    return found if inexact or not found.gradient else program(case, gradient=False, sizes=sizes)
