"""The largest size by the compiler, near the largest by the estimate."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from shardwright.choose import judged_plan
from shardwright.fit.attempts import Attempts
from shardwright.fit.found import COMPILED, Tried
from shardwright.fit.largest import largest
from shardwright.plan import Plan
from shardwright.request import MeshShape
from shardwright.verify.compile import verify_compiled

MOST_COMPILED = 8
"""Compiling takes a minute or several."""
_GUESSES = 4
"""After so many compilations, what is left is halved."""
_SMALLER = 0.995


@dataclass(eq=False)
class Judge:
    """Asks the compiler about sizes. ``accepted`` are the plans that it took, by size."""

    attempts: Attempts
    mesh: MeshShape
    on: str
    step: int
    most: int = MOST_COMPILED
    accepted: dict[int, Plan] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    compiled: int = 0
    _off: float = 1.0
    """The estimate as a multiple of the compiler's figure, where it was last asked."""

    def ask(self, size: int) -> bool:
        """Find the largest size that the compiler takes, from a first one on; False where too much would be compiled.

        The next size to ask about is the largest that would fit if the estimate were as far off there as it was here.
        """
        while size > 0 and (size not in self.accepted and size not in self.refused):
            if self.compiled >= self.most:
                return False
            self._judge(size)
            size = self._next()
        return True

    def _next(self) -> int:
        """A size between what was taken and what was refused; 0 where there is none."""
        low, high = max(self.accepted, default=0), min(self.refused, default=None)
        middle = 2 * low if high is None else (low + high) // 2
        size = self._guess(low or high or 0) if self.compiled < _GUESSES else middle
        size = max(size // self.step * self.step, low + self.step)
        if high is not None:
            size = min(size, (high - 1) // self.step * self.step)
        return size if size > low else 0

    def _guess(self, near: int) -> int:
        """The largest size whose estimate is within the limit, corrected by how far off the estimate was."""
        given = self.attempts.problem
        corrected = given.within(int(given.limit_bytes * self._off))
        attempts = dataclasses.replace(self.attempts, problem=corrected, tried=[], made={}, sure={})
        return largest(lambda size: attempts.fits(size, self.mesh), near, self.step) or 0

    def _judge(self, size: int) -> None:
        """Compile the fastest plan that fits by the estimate; where it is refused, or none fits, the smallest."""
        attempt = self.attempts.attempt(size, self.mesh)
        if attempt is None:
            self.refused.add(size)
            return
        plan = self.attempts.plan(attempt)
        if not self._compile(size, plan) and self.compiled < self.most:
            smallest = self.attempts.smallest_plan(attempt)
            if smallest.estimate_cost.peak_bytes < _SMALLER * plan.estimate_cost.peak_bytes:
                self._compile(size, smallest)
        if size not in self.accepted:
            self.refused.add(size)

    def _compile(self, size: int, plan: Plan) -> bool:
        self.compiled += 1
        self.attempts.watch(f"{self.attempts.dimension.name} of {size:,}, compiled for {self.on}")
        verdict = verify_compiled(plan, self.on)
        if verdict.peak_bytes:
            self._off = plan.estimate_cost.peak_bytes / verdict.peak_bytes
        why = f"{self.on}: {verdict.message}"
        self.attempts.tried.append(Tried(COMPILED, size, plan.mesh, verdict.peak_bytes, verdict.ok, why))
        if verdict.ok:
            self.accepted[size] = judged_plan(plan, verdict)
        return verdict.ok
