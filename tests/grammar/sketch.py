"""Programs of a few steps, and what draws them: the same number always gives the same program."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

DTYPES = {"f": np.float32, "c": np.complex64, "i": np.int32}
LARGEST = 2048
"""Elements of a tensor, at most."""


@dataclass(frozen=True)
class Tensor:
    """What is known of a tensor while a program is drawn."""

    shape: tuple[int, ...]
    dtype: str
    """``"f"``, ``"c"`` or ``"i"``."""
    distinct: bool = False
    """No two entries are nearly equal, so that their order is not a matter of rounding."""

    @property
    def struct(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.shape, DTYPES[self.dtype])


@dataclass(frozen=True)
class Step:
    """Makes tensor ``out`` from earlier ones."""

    kind: str
    text: str
    inputs: tuple[int, ...]
    fn: Callable[..., Any]
    out: int

    def __str__(self) -> str:
        return f"%{self.out}={self.kind}({', '.join(f'%{i}' for i in self.inputs)}){self.text}"


@dataclass(frozen=True)
class Program:
    """Steps from arguments to results; as a gradient, what it returns is the derivatives of a sum of the results."""

    tensors: tuple[Tensor, ...]
    arguments: tuple[int, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    gradient: bool = False

    @property
    def structs(self) -> list[jax.ShapeDtypeStruct]:
        return [self.tensors[a].struct for a in self.arguments]

    @property
    def kinds(self) -> list[str]:
        return sorted({step.kind for step in self.steps})

    def __call__(self, *arguments: Any) -> Any:
        if not self.gradient:
            return self.forward(*arguments)
        inexact = [k for k, a in enumerate(self.arguments) if self.tensors[a].dtype != "i"]

        def loss(inexact_arguments: list[Any]) -> Any:
            given = list(arguments)
            for k, value in zip(inexact, inexact_arguments, strict=True):
                given[k] = value
            return sum(map(smooth_sum, self.forward(*given)))

        return jax.grad(loss)([arguments[k] for k in inexact])

    def forward(self, *arguments: Any) -> tuple[Any, ...]:
        values = dict(zip(self.arguments, arguments, strict=True))
        for step in self.steps:
            values[step.out] = step.fn(*(values[i] for i in step.inputs))
        return tuple(values[r] for r in self.results)

    def live(self) -> Program:
        """The same without steps and arguments that no result needs."""
        needed = set(self.results)
        for step in reversed(self.steps):
            if step.out in needed:
                needed |= set(step.inputs)
        return replace(
            self,
            arguments=tuple(a for a in self.arguments if a in needed),
            steps=tuple(s for s in self.steps if s.out in needed),
        )

    def inputs(self, seed: int) -> list[np.ndarray]:
        """Values for the arguments: normal where they are numbers, small and not negative where they are indices."""
        generator = np.random.default_rng(seed)
        out = []
        for struct in self.structs:
            if struct.dtype == np.int32:
                out.append(generator.integers(0, 64, size=struct.shape, dtype=np.int32))
                continue
            value = generator.normal(size=struct.shape)
            if struct.dtype == np.complex64:
                value = value + 1j * generator.normal(size=struct.shape)
            out.append(np.asarray(value).astype(struct.dtype))
        return out

    def __str__(self) -> str:
        arguments = ", ".join(f"%{a}:{self.tensors[a].dtype}{list(self.tensors[a].shape)}" for a in self.arguments)
        shapes = "; ".join(
            f"{step}:{self.tensors[step.out].dtype}{list(self.tensors[step.out].shape)}" for step in self.steps
        )
        of = "gradient of " if self.gradient else ""
        return f"{of}({arguments}) -> {shapes} -> {', '.join(f'%{r}' for r in self.results)}"


def smooth_sum(x: Any) -> Any:
    """A real number that depends on every entry; none of an integer."""
    if jnp.issubdtype(x.dtype, jnp.integer):
        return 0.0
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return jnp.sum(jnp.sin(x.real)) + jnp.sum(jnp.tanh(x.imag - 0.5))
    return jnp.sum(jnp.sin(x + 0.2))


class Sketch:
    """A program that is being drawn, and the source of its random choices."""

    def __init__(self, seed: int, sizes: Sequence[int], gradient: bool) -> None:
        self.random = random.Random(seed)
        self.sizes = sizes
        self.gradient = gradient
        self.tensors: list[Tensor] = []
        self.arguments: list[int] = []
        self.steps: list[Step] = []

    # What steps choose from.

    def choose(self, options: Sequence[Any]) -> Any:
        return options[self.random.randrange(len(options))]

    def integer(self, low: int, high: int) -> int:
        """From low to high, both included."""
        return self.random.randint(low, high)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def order(self, count: int) -> tuple[int, ...]:
        return tuple(self.random.sample(range(count), count))

    def size(self) -> int:
        return self.choose(self.sizes)

    def shape(self, rank: int) -> tuple[int, ...]:
        return tuple(self.size() for _ in range(rank))

    def pick(
        self, dtypes: str = "fc", ranks: Sequence[int] = (1, 2, 3, 4), fits: Callable[[Tensor], bool] = bool
    ) -> int:
        """A tensor, one that nothing reads yet if the dice say so; a new argument where there is none."""
        found = [i for i, t in enumerate(self.tensors) if t.dtype in dtypes and len(t.shape) in ranks and fits(t)]
        unread = [i for i in found if not any(i in step.inputs for step in self.steps)]
        if unread and self.chance(0.6):
            return self.choose(unread)
        if found:
            return self.choose(found)
        if fits is not bool:
            return -1
        return self.argument(self.shape(self.choose([r for r in ranks if r <= 3] or ranks)), dtypes[0])

    def argument(self, shape: Sequence[int], dtype: str = "f") -> int:
        self.tensors.append(Tensor(tuple(shape), dtype, distinct=dtype == "f"))
        self.arguments.append(len(self.tensors) - 1)
        return len(self.tensors) - 1

    def __getitem__(self, i: int) -> Tensor:
        return self.tensors[i]

    # What steps make.

    def step(self, kind: str, text: str, inputs: Sequence[int], fn: Callable[..., Any], distinct: bool = False) -> bool:
        """Add a step, unless JAX does not know it or it grows too large."""
        try:
            out = jax.eval_shape(fn, *(self.tensors[i].struct for i in inputs))
        except (TypeError, ValueError, NotImplementedError):
            return False
        names = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
        if out.size > LARGEST or len(out.shape) > 5 or out.dtype not in names:
            return False
        self.tensors.append(Tensor(out.shape, names[out.dtype], distinct))
        self.steps.append(Step(kind, text, tuple(inputs), fn, len(self.tensors) - 1))
        return True

    def program(self) -> Program:
        """All steps; what no step reads is returned."""
        read = {i for step in self.steps for i in step.inputs}
        results = [s.out for s in self.steps if s.out not in read]
        return Program(
            tuple(self.tensors), tuple(self.arguments), tuple(self.steps), tuple(results), self.gradient
        ).live()


def apart(x: Any) -> Any:
    """x so shifted that no two entries are nearly equal, whatever they were: by constants in no order."""
    count = max(x.size, 1)
    places = np.arange(x.size).reshape(x.shape) * 7919 % count  # a prime, so that each is there once
    gap = min(0.2, 4 / count)
    return (0.2 * gap * jnp.tanh(x) + gap * places).astype(jnp.float32)
