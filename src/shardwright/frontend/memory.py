"""Arguments that lie in the host's memory, as JAX tells it: by a sharding with a memory kind."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from shardwright.ir.memory import is_on_host

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
