"""Shardings as JAX has them, and as a person writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from shardwright.space.state import Sharding


def spec(sharding: Sharding, names: Sequence[str]) -> PartitionSpec:
    """A value's sharding as JAX writes it, without trailing Nones."""
    parts: list[Any] = [
        None if not axes else names[axes[0]] if len(axes) == 1 else tuple(names[a] for a in axes) for axes in sharding
    ]
    while parts and parts[-1] is None:
        parts.pop()
    return PartitionSpec(*parts)


def named(mesh: Any, specs: Any, memory_kinds: Sequence[str | None] = ()) -> Any:
    """A tree of ``NamedSharding`` from a tree of ``PartitionSpec``.

    ``memory_kinds`` tells, leaf by leaf, where one lies that is not in the device's own memory.
    """
    leaves, structure = jax.tree.flatten(specs, is_leaf=lambda s: isinstance(s, PartitionSpec))
    kinds = memory_kinds or [None] * len(leaves)
    shardings = [NamedSharding(mesh, s, memory_kind=kind) for s, kind in zip(leaves, kinds, strict=True)]
    return jax.tree.unflatten(structure, shardings)


def spec_text(spec: PartitionSpec) -> str:
    """A spec as Python: ``P(None, ("data", "model"))``."""

    def entry(axes: Any) -> str:
        if isinstance(axes, (tuple, list)):
            inner = ", ".join(map(entry, axes))
            return f"({inner},)" if len(axes) == 1 else f"({inner})"
        if axes is PartitionSpec.UNCONSTRAINED:
            return "P.UNCONSTRAINED"
        return "None" if axes is None else f'"{axes}"'

    return f"P({', '.join(map(entry, spec))})"
