"""Leaves of arguments that are no arrays, or that lie in the host's memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from shardwright.frontend.names import function_name
from shardwright.ir.memory import is_on_host


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


_ALONE = AbstractMesh((1,), ("device",), axis_types=(AxisType.Auto,))
"""The mesh of an argument that lies on one device's host, whose shape has no other way to tell."""


def memory_kind_of(leaf: Any) -> str | None:
    """Where an argument lies if that is on the host, as JAX calls it."""
    return kind_on_host(getattr(leaf, "sharding", None))


def kind_on_host(sharding: Any) -> str | None:
    """The memory kind of a sharding, if that is of the host."""
    kind: str | None = getattr(sharding, "memory_kind", None)
    return kind if is_on_host(kind) else None


def host_sharding(kind: str) -> NamedSharding:
    """A sharding that says nothing but where an argument lies."""
    return NamedSharding(_ALONE, PartitionSpec(), memory_kind=kind)


def put_on_host(leaf: Any, kind: str | None) -> Any:
    """While tracing, a value moved to the host if that is where it lies."""
    return jax.device_put(leaf, jax.memory.Space.Host) if is_on_host(kind) else leaf
