"""What becomes of the results of a random kernel's steps: set, added up, kept in scratch memory, written out by a mask.

A sum in scratch memory is copied to the result in the last of its steps. How is in words: *always written*, *doubled*,
*rounded* to bfloat16; *alike*: the last step and all others add in branches of their own, which begin alike; *twice in
the last*: the same, but the last adds once more; *copied first*: also copied by the first step; *read before*: what
stays where the mask is not is read before another copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

PLAIN_MODES = ("set",) * 6 + ("scratch within a step", "scratch kept")
TOGETHER_MODES = (
    *("sum",) * 4,
    *("scratch sum",) * 9,
    *("set", "sum from one", "most", "decay", "scratch kept"),
)
MASKS = ("rows",) * 2 + ("table",) * 4 + ("another number", "number", "table by number", "block", "sum")


@dataclass(frozen=True)
class Here:
    """A step of the grid, as its body sees it: by Pallas, or with NumPy."""

    number: Callable[[int], Any]
    count: Callable[[int], Any]
    lib: Any

    def when(self, met: Any) -> Any:
        return pl.when(met) if self.lib is jnp else lambda f: f() if met else None

    def either(self, met: Any, one: Callable[[], None], other: Callable[[], None]) -> None:
        if self.lib is jnp:
            lax.cond(met, one, other)
        else:
            (one if met else other)()

    def at(self, indices: tuple[int, ...], *, last: bool = False) -> Any:
        """Whether these grid indices are at their first number, or at their last."""
        met = True
        for k in indices:
            met = met & (self.number(k) == (self.count(k) - 1 if last else 0))
        return met

    def positions(self, shape: tuple[int, ...]) -> list[Any]:
        """The number of each entry of a block, by its dimensions."""
        if self.lib is jnp:
            return [lax.broadcasted_iota(np.int32, shape, d) for d in range(len(shape))]
        return list(np.indices(shape))

    def pattern(self, shape: tuple[int, ...]) -> Any:
        """Numbers that tell the entries of a block apart."""
        made = self.lib.ones(shape, np.float32)
        for d, counted in enumerate(self.positions(shape)):
            made = made + (0.25 + d) * counted.astype(np.float32)
        return made


@dataclass(frozen=True)
class Mask:
    """Every other entry of a block, which ones by a number: ``k`` is a grid index, or an operand's number."""

    kind: str
    k: int = 0
    table: int = 0

    def of(self, here: Here, blocks: Any, scalars: Any, memory: Any) -> Callable[[], Any]:
        """What makes it; that may be in a branch, where the interpreter does not know a step's number."""
        asks = self.kind in ("number", "another number", "table", "table by number")
        return partial(self._made, here.number(self.k) if asks else self.k, here, blocks, scalars, memory)

    def _made(self, number: Any, here: Here, blocks: Any, scalars: Any, memory: Any) -> Any:
        match self.kind:
            case "sum":
                return memory[...] > 1.0
            case "table" | "table by number":
                number = scalars[self.table][number]
            case "block":
                number = here.lib.where(here.lib.sum(blocks[self.k][...]) > 0.3, 1, 0)
        return (sum(here.positions(memory.shape)) + number) % 2 == 0


@dataclass(frozen=True)
class Store:
    """What a step does with a result; sums are over the grid indices ``over``."""

    mode: str
    over: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    mask: Mask | None = None

    def __str__(self) -> str:
        masked = [f"by {self.mask.kind}"] if self.mask else []
        return ", ".join([self.mode, *self.words, *masked])

    @property
    def in_scratch(self) -> bool:
        return "scratch" in self.mode

    @property
    def rounds(self) -> bool:
        return "rounded" in self.words

    def run(self, out: Any, made: Any, memory: Any, here: Here, blocks: Any, scalars: Any) -> None:
        def begin(ref: Any, value: float) -> None:
            @here.when(here.at(self.over))
            def _() -> None:
                ref[...] = here.lib.full(ref.shape, value, np.float32)

        match self.mode:
            case "set":
                out[...] = made
            case "sum":
                begin(out, 0.0)
                out[...] += made
            case "sum from one":
                begin(out, 1.0)
                out[...] += made
            case "most":
                begin(out, -1e9)
                out[...] = here.lib.maximum(out[...], made)
            case "decay":
                begin(out, 0.0)
                out[...] = 0.5 * out[...] + made
            case "added to":
                out[...] = out[...] + made
            case "scratch sum":
                begin(memory, 0.0)
                self._sum(out, made, memory, here, blocks, scalars)
            case "scratch kept":
                begin(memory, 0.0)
                memory[...] = 0.5 * memory[...] + made
                out[...] = memory[...] + made
            case "scratch within a step":
                memory[...] = made
                out[...] = 2.0 * memory[...]

    def _sum(self, out: Any, made: Any, memory: Any, here: Here, blocks: Any, scalars: Any) -> None:
        mask = self.mask.of(here, blocks, scalars, memory) if self.mask else None

        def add() -> None:
            memory[...] += made

        def total() -> Any:
            value = 2.0 * memory[...] if "doubled" in self.words else memory[...]
            return value.astype(jnp.bfloat16).astype(out.dtype) if self.rounds else value

        def write(before: Any = None) -> None:
            if mask is None:
                out[...] = total()
                return
            out[...] = here.lib.where(mask(), total(), out[...] if before is None else before)

        def last() -> None:
            add()
            if "twice in the last" in self.words:
                add()
            write()

        at_last = here.at(self.over, last=True)
        if "alike" in self.words or "twice in the last" in self.words:
            here.either(at_last, last, add)
            return
        add()
        before = None
        if "copied first" in self.words:

            @here.when(here.at(self.over))
            def _() -> None:
                out[...] = total()

        elif "read before" in self.words:
            before = out[...] if here.lib is jnp else out.copy()
            out[...] = total()
        if "always written" in self.words:
            write(before)
        else:
            here.when(at_last)(lambda: write(before))
