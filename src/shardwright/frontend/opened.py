"""``shard_map`` regions opened: the same results on whole arrays, so that how they are split can be decided anew.

What a region computes on each device is mapped over blocks: a dimension that its specs split by an axis of four becomes
four blocks and a rest, and the function runs on each block. That is what the region means, whatever it computes, as
long as nothing in it asks for other devices or for where it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec


def on_blocks(
    body: Callable[..., tuple[Any, Sequence[PartitionSpec]]],
    args: Sequence[Any],
    sizes: Mapping[str, int],
    in_specs: Sequence[PartitionSpec],
    manual: Set[str],
) -> Any:
    """What a region returns for flat arguments.

    ``body`` runs on one device's parts, and returns a tree with the specs of its leaves. It raises ``NameError`` where
    it names an axis, as a collective does.
    """
    axes = [axis for axis in sizes if axis in manual]
    out_specs: list[PartitionSpec] = []

    def mapped(*parts: Any) -> Any:
        tree, specs = body(*parts)
        out_specs[:] = specs
        return tree

    blocks = [_blocks(x, _entries(spec, jnp.ndim(x)), sizes) for x, spec in zip(args, in_specs, strict=True)]
    for axis in reversed(axes):
        in_axes = tuple(0 if axis in own else None for _, own in blocks)
        mapped = jax.vmap(mapped, in_axes=in_axes, axis_size=sizes[axis])
    leaves, tree = jax.tree.flatten(mapped(*(x for x, _ in blocks)))
    whole = [_together(x, spec, axes, sizes) for x, spec in zip(leaves, out_specs, strict=True)]
    return jax.tree.unflatten(tree, whole)


def _entries(spec: PartitionSpec, rank: int) -> list[tuple[str, ...]]:
    """The axes of each dimension."""
    found = [() if entry is None else (entry,) if isinstance(entry, str) else tuple(entry) for entry in spec]
    return [*found, *[()] * (rank - len(found))]


def _blocks(x: Any, entries: Sequence[tuple[str, ...]], sizes: Mapping[str, int]) -> tuple[Any, frozenset[str]]:
    """An array with a dimension for each axis that splits it, in the mesh's order and in front; and these axes."""
    shape: list[int] = []
    place: dict[str, int] = {}
    for size, names in zip(jnp.shape(x), entries, strict=True):
        for axis in names:
            place[axis] = len(shape)
            shape.append(sizes[axis])
        shape.append(size // math.prod(sizes[axis] for axis in names))
    front = [place[axis] for axis in sizes if axis in place]
    rest = [d for d in range(len(shape)) if d not in front]
    return jnp.transpose(jnp.reshape(x, shape), (*front, *rest)), frozenset(place)


def _together(x: Any, spec: PartitionSpec, axes: Sequence[str], sizes: Mapping[str, int]) -> Any:
    """An array from its blocks, which lie in front; along axes that the spec does not have they are all the same."""
    rank = x.ndim - len(axes)
    entries = _entries(spec, rank)
    used = {axis for names in entries for axis in names}
    x = x[tuple(slice(None) if axis in used else 0 for axis in axes)]
    left = [axis for axis in axes if axis in used]
    order: list[int] = []
    shape: list[int] = []
    for d, names in enumerate(entries):
        order += [*(left.index(axis) for axis in names), len(left) + d]
        shape.append(math.prod(sizes[axis] for axis in names) * x.shape[len(left) + d])
    return jnp.reshape(jnp.transpose(x, order), shape)
