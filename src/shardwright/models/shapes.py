"""Shapes of arrays: how models describe parameters and inputs without allocating any."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

# Not every supported JAX annotates the constructor.
_array: Callable[[tuple[int, ...], Any], jax.ShapeDtypeStruct] = jax.ShapeDtypeStruct


def floats(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """Return the shape of a floating-point array."""
    return _array(shape, jnp.dtype(dtype))


def integers(*shape: int) -> jax.ShapeDtypeStruct:
    """Return the shape of an int32 array, such as token ids."""
    return _array(shape, jnp.dtype(jnp.int32))


def norm(width: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the parameters of a layer or group norm."""
    return {"scale": floats(width), "bias": floats(width)}


def heads(count: int) -> tuple[int, ...]:
    """Return the key-value head dimension; multi-query attention has none rather than one of size 1."""
    return () if count == 1 else (count,)


def stacked(layer: Any, count: int) -> Any:
    """Return ``layer`` with a leading dimension of ``count`` on every array, as ``lax.scan`` wants it."""
    return jax.tree.map(lambda s: _array((count, *s.shape), s.dtype), layer)


def repeated(layer: Any, count: int, *, scan: bool) -> Any:
    """Return the parameters of ``count`` equal layers: stacked for a scan, else a list."""
    return stacked(layer, count) if scan else [layer] * count
