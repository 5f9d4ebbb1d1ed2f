"""One op with one set of attributes and sizes, as a function of its operands, and inputs that show what goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Input:
    """A shape, a type, and what may stand in it.

    ``holds``: "distinct" (no zeros, no two alike), "indices" (from 0 up to ``below``, some twice), "positive definite",
    "triangular", or "sizes" (counts that add up to ``below``, along the last dimension).
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    holds: str = "distinct"
    below: int = 0

    def draw(self, random: np.random.Generator) -> np.ndarray:
        """Random entries."""
        if self.holds == "indices":
            return random.integers(0, self.below, self.shape).astype(self.dtype)
        if self.holds == "sizes":
            inner = random.permuted(np.tile(np.arange(1, self.below), (*self.shape[:-1], 1)), axis=-1)
            cuts = np.sort(inner[..., : self.shape[-1] - 1])
            return np.diff(cuts, prepend=0, append=self.below).astype(self.dtype)
        if self.holds == "positive definite":
            half = random.normal(size=self.shape)
            return (half @ half.swapaxes(-1, -2) + self.shape[-1] * np.eye(self.shape[-1])).astype(self.dtype)
        if self.holds == "triangular":
            lower = np.tril(random.uniform(0.5, 1.5, self.shape))
            return (lower + self.shape[-1] * np.eye(self.shape[-1])).astype(self.dtype)
        return self._distinct(random)

    def _distinct(self, random: np.random.Generator) -> np.ndarray:
        order = random.permutation(prod(self.shape)).reshape(self.shape)
        if self.dtype == "bool":
            return order % 2 == 0
        if np.issubdtype(self.dtype, np.integer):
            return (order + 1).astype(self.dtype)
        numbers = 0.5 + order / max(prod(self.shape), 1)
        signed = numbers * random.choice([-1, 1], self.shape)
        if np.issubdtype(self.dtype, np.complexfloating):
            return (signed + 1j * numbers[..., ::-1]).astype(self.dtype)
        return signed.astype(self.dtype)


@dataclass(frozen=True)
class Case:
    """An op, its attributes and its sizes.

    ``family`` heads its row of the page, ``op`` is its StableHLO name, ``attributes`` are words and numbers that tell
    the cases of a family apart. ``fn`` takes the op's operands and returns its results. ``focus``, where it is not
    empty, are dimensions of operands, as (operand, dimension): only splits of one of them are tried.
    ``pairs``: whether factors are split in pairs as well. ``platform`` is the one whose lowering has the op; it runs on
    CPU all the same, as JAX lowers it there.
    """

    family: str
    op: str
    attributes: Mapping[str, Any]
    fn: Callable[..., Any]
    inputs: tuple[Input, ...]
    focus: tuple[tuple[int, int], ...] = ()
    pairs: bool = True
    platform: str = "cpu"

    @property
    def name(self) -> str:
        """It tells the case from all others, and does not depend on the order of the list."""
        words = " ".join(f"{key}={_word(value)}" for key, value in self.attributes.items())
        sizes = ",".join("x".join(map(str, i.shape)) or "scalar" for i in self.inputs)
        return f"{self.family} {words} {sizes}".replace("  ", " ")


def _word(value: Any) -> str:
    return "x".join(map(_word, value)) if isinstance(value, list | tuple) else str(value)
