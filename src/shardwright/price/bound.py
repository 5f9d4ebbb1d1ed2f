"""A bound: seconds that no state of a program takes less than, by the prices of its cost model.

With the symbols of the package's own page, a step is at least its compute, since no more is hidden than is moved::

    step(s) = compute(s) + comm(s) − hidden(s) + …  ≥  compute(s)  ≥  Σ_k n_k · min_s kernel(k, s)

The least of a kernel is relaxed once more: each of its ops may run in any way at all, whatever the others do and
whichever groups are on the lists, and gives each unit of the device the least work that any way gives it
(``_least_work``). What a kernel takes does not fall where one of its ops has more to do (``compute.kernel_seconds``);
whether it is cut by what is moved is tried both ways.

So the bound is close where compute fills a step, and loose where devices have to wait for communication, which it knows
nothing of.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardwright._amounts import human_seconds
from shardwright._memo import Memo
from shardwright.price.class_prices import OpWork
from shardwright.price.cost_model import CostModel
from shardwright.price.ways import Split, candidates, every_combination


@dataclass(frozen=True)
class Bound:
    """Seconds that no plan of a program on this mesh takes less than by the same prices, and a plan's own.

    ``exposed_seconds`` of the plan's step are communication that it waits for. The bound knows nothing of
    communication, so it is off by these, and usually by more.
    """

    least_seconds: float
    step_seconds: float
    exposed_seconds: float

    @property
    def gap(self) -> float:
        """By how much of the bound, at most, a better plan could be faster: 0.03 is within 3% of the best there is."""
        return self.step_seconds / self.least_seconds - 1 if self.least_seconds else math.inf

    def __str__(self) -> str:
        if not self.least_seconds:
            return "No bound: nothing of this program has a price but what is moved."
        most = f"{self.gap:.1%} more than" if self.gap < 1 else f"{1 + self.gap:.1f} times"
        waits = self.exposed_seconds / self.step_seconds
        return (
            f"No plan on this mesh takes less than {human_seconds(self.least_seconds)} by these prices; this one takes "
            f"{human_seconds(self.step_seconds)}, at most {most} the best there is. The bound has no communication "
            f"in it, which makes up {waits:.0%} of the step."
        )


def least_step_seconds(costs: CostModel) -> float:
    """Seconds that no state takes less than."""
    classes = costs.classes
    least = Memo[int, OpWork](lambda op_class: _least_work(costs, op_class))
    total = 0.0
    for k, (kernel, members) in enumerate(
        zip(classes.kernel_classes.keys, classes.kernel_classes.members, strict=True)
    ):
        if costs.kernels.works(k):
            total += len(members) * kernel.repeats * costs.kernels.least_seconds(k, least.__getitem__)
    return total


def _least_work(costs: CostModel, op_class: int) -> OpWork:
    """For each unit of the device the least that an op asks of it, whichever way it runs."""
    op, mesh = costs.classes.op(op_class), costs.mesh
    every = range(len(op.rule.sizes))
    allowed = tuple(candidates(op, tuple(every), frozenset(every), size, frozenset(every)) for size in mesh.sizes)
    splits: dict[tuple[int, ...], Split] = {}  # by which axis a factor is split is all the same
    for factors in every_combination(op, allowed, mesh):
        parts = tuple([math.prod([n for n, g in zip(mesh.sizes, factors, strict=True) if g == f]) for f in every])
        if parts not in splits:
            splits[parts] = Split.of(op, factors, mesh)
    found = [costs.ops.work_of(op_class, split) for split in splits.values()]
    reads = tuple([min(sizes) for sizes in zip(*[work.reads for work in found], strict=True)])
    return OpWork(
        min([work.matrix_seconds for work in found]),
        min([work.vector_ops for work in found]),
        reads,
        min([work.writes for work in found]),
        min([work.entries for work in found]),
        min([work.packed_bytes for work in found]),
    )
