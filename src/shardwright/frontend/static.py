"""Leaves of arguments that are no arrays, such as a module's activation function: part of the program, not its data.

JAX traces arrays and numbers alone. Sealed, anything else becomes part of a pytree's structure, which JAX takes as it
is; the function finds it opened again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from shardwright.frontend.paths import function_name


@jax.tree_util.register_static
@dataclass(frozen=True)
class Static:
    """What is no array, as a pytree without leaves."""

    value: Any


class Sealed:
    """A function with all that is no array sealed in its arguments and its result."""

    def __init__(self, fn: Callable[..., Any], *, numbers: bool) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.__name__ = function_name(fn)
        self.argument_names = getattr(fn, "argument_names", None)
        self.inside = fn
        self._numbers = numbers

    def __call__(self, *args: Any) -> Any:
        """Take and return sealed trees."""
        return self.seal(self.inside(*opened(args)))

    def seal(self, tree: Any) -> Any:
        """The tree with what is no array, and no number that JAX is to trace, in ``Static``."""
        return jax.tree.map(lambda leaf: Static(leaf) if self._is_static(leaf) else leaf, tree)

    def _is_static(self, leaf: Any) -> bool:
        return not is_array(leaf) and (self._numbers or callable(leaf))


def sealed(fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A function and its arguments as JAX can trace them.

    Functions among the leaves are sealed. Equinox's own callables (``filter_jit`` and the like) go further: to them
    whatever is no array is a constant, even a number.
    """
    if not isinstance(fn, Sealed):
        filters = type(fn).__module__.partition(".")[0] == "equinox"
        if not filters and not any(callable(leaf) and not is_array(leaf) for leaf in jax.tree.leaves(args)):
            return fn, args
        fn = Sealed(fn, numbers=filters)
    return fn, fn.seal(args)


def opened(tree: Any, replace: Callable[[Any], Any] = lambda value: value) -> Any:
    """The tree with every ``Static`` replaced, by what is in it unless told otherwise."""
    return jax.tree.map(
        lambda leaf: replace(leaf.value) if isinstance(leaf, Static) else leaf,
        tree,
        is_leaf=lambda leaf: isinstance(leaf, Static),
    )


def is_array(leaf: Any) -> bool:
    """An array or what stands for one."""
    return isinstance(leaf, np.generic) or (hasattr(leaf, "shape") and hasattr(leaf, "dtype"))
