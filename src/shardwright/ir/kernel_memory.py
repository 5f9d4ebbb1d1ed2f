"""What the steps of a kernel leave in memory for later ones.

A kernel starts on each part of its grid with memory as it comes. So what one part leaves there may not be read by the
next: every first step of a part has to write memory before it reads it.
"""

from __future__ import annotations

from shardwright._kernel import Atom, Code, Step
from shardwright.ir.kernel_proofs import Facts, Refused
from shardwright.ir.kernel_values import GridNumbers, Numbers

_GENERATOR = -1
"""The state of a core's generator of random numbers, as if it were memory."""


def check_memory(facts: Facts, k: int, ways: int, refs: frozenset[int]) -> None:
    """That a grid index leaves nothing in some memory from part to part."""
    kernel = facts.kernel
    part = kernel.grid[k] // ways
    first = tuple(slice(0, 1) if j > k else slice(None, None, part if j == k else 1) for j in range(len(kernel.grid)))
    numbers = facts.body
    if kernel.dynamic:  # those after the one that is split are 0 as well
        numbers = GridNumbers(kernel.grid, unknown=frozenset(j for j in kernel.dynamic if j < k))
        numbers.work_out(kernel.body)
    _Fresh(numbers, first, refs, kernel.body).walk(kernel.body, set())


class _Fresh:
    """Looks for memory that is read before it is written, in the ``first`` steps of the parts of a grid."""

    def __init__(self, numbers: GridNumbers, first: tuple[slice, ...], refs: frozenset[int], body: Code) -> None:
        self.numbers, self.first = numbers, first
        self.used = used_in(body)
        self.refs = refs & {
            access.ref for step in body.everything() if not self._only_writes(step) for access in step.accesses
        }

    def _only_writes(self, step: Step) -> bool:
        return step.op == "swap" and not self.used.intersection(step.outs)

    def walk(self, code: Code, written: set[int]) -> None:
        for step in code.steps:
            if step.op == "cond":
                self._cond(step, written)
                continue
            for body in step.bodies:  # of a loop, which may have no turn at all
                self.walk(body, written if step.op == "scoped" else set(written))
            overwrites = self._only_writes(step)
            for access in step.accesses:
                if access.ref in self.refs and access.ref not in written:
                    if not (overwrites and access.is_full):
                        raise Refused("is not declared parallel, and the kernel has memory that outlives a step")
                    written.add(access.ref)
            if step.op == "prng_seed":
                written.add(_GENERATOR)
            elif step.op.startswith("prng_") and _GENERATOR not in written:
                raise Refused("shares a generator of random numbers with the steps before it")

    def _cond(self, step: Step, written: set[int]) -> None:
        found = self.numbers.of(step.ins[0])
        taken = range(len(step.bodies))
        if found is not None:
            first: Numbers = found[self.first]
            if (first == first.flat[0]).all():
                taken = range(int(first.flat[0]), int(first.flat[0]) + 1)
        results = []
        for n in taken:
            results.append(set(written))
            self.walk(step.bodies[min(max(n, 0), len(step.bodies) - 1)], results[-1])
        written |= set.intersection(*results)


def used_in(code: Code) -> set[int]:
    """The variables that are read anywhere."""
    found: set[Atom] = set(code.outs)
    for step in code.everything():
        found.update(step.ins)
        found.update(atom for body in step.bodies for atom in body.outs)
        found.update(atom for access in step.accesses for atom in access.atoms)
    return {atom for atom in found if isinstance(atom, int)}
