"""The designed collectives: every kind over the axes of a slice, from a few bytes to many."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from shardwright.price.collectives import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, PERMUTE, REDUCE_SCATTER

SIZES = [2**14, 2**17, 2**20, 2**24, 2**28]
"""Bytes of the larger of what a device gives and what it gets."""
_LANES = 128


@dataclass(frozen=True)
class DesignedCollective:
    """A collective over some axes of a slice, on an array of f32 in rows of 128."""

    kind: str
    topology: str
    mesh: tuple[int, ...]
    axes: tuple[int, ...]
    bytes: int

    @property
    def key(self) -> str:
        """A name that no other has."""
        lengths = "x".join(map(str, self.mesh))
        return f"{self.kind} over {''.join('xyz'[a] for a in self.axes)} of {lengths} on {self.topology} {self.bytes}"

    @property
    def names(self) -> tuple[str, ...]:
        """The axes' names in the mesh ``xyz``."""
        return tuple("xyz"[a] for a in self.axes)

    @property
    def devices(self) -> int:
        """How many devices take part in one of its groups."""
        count = 1
        for axis in self.axes:
            count *= self.mesh[axis]
        return count

    @property
    def given_bytes(self) -> int:
        """What a device gives."""
        return self.bytes // self.devices if self.kind == ALL_GATHER else self.bytes

    @property
    def sent_bytes(self) -> float:
        """What each device sends, by the formulas of ``price.collectives``."""
        part = (self.devices - 1) / self.devices
        return self.bytes * {ALL_REDUCE: 2 * part, PERMUTE: 1.0}.get(self.kind, part)


def designed_collectives(slices: dict[str, tuple[tuple[int, ...], ...]]) -> list[DesignedCollective]:
    """All of them, for the meshes of each topology."""
    found = []
    for topology, meshes in slices.items():
        for mesh in meshes:
            sets = [tuple(range(n)) for n in range(1, len(mesh) + 1)]  # dimensions of a slice are alike
            for axes, kind, size in itertools.product(sets, _BODIES, SIZES):
                if kind != PERMUTE or len(axes) == 1:
                    found.append(DesignedCollective(kind, topology, mesh, axes, size))
    return found


def body_of(collective: DesignedCollective) -> Callable[[jax.Array], jax.Array]:
    """What each device runs."""
    return partial(_BODIES[collective.kind], names=collective.names, devices=collective.devices)


def local_shape(collective: DesignedCollective) -> tuple[int, ...]:
    """What each device has: rows enough to be split among the devices."""
    rows = max(collective.given_bytes // 4 // _LANES, 1)
    n = collective.devices
    return (-(-rows // n) * n, _LANES) if collective.kind in (ALL_TO_ALL, REDUCE_SCATTER) else (rows, _LANES)


def _all_gather(x: jax.Array, names: tuple[str, ...], devices: int) -> jax.Array:
    return lax.all_gather(x, names, axis=0, tiled=True)


def _all_reduce(x: jax.Array, names: tuple[str, ...], devices: int) -> jax.Array:
    return lax.psum(x, names)


def _reduce_scatter(x: jax.Array, names: tuple[str, ...], devices: int) -> jax.Array:
    return lax.psum_scatter(x, names, scatter_dimension=0, tiled=True)


def _all_to_all(x: jax.Array, names: tuple[str, ...], devices: int) -> jax.Array:
    return lax.all_to_all(x, names, split_axis=0, concat_axis=0, tiled=True)


def _permute(x: jax.Array, names: tuple[str, ...], devices: int) -> jax.Array:
    return lax.ppermute(x, names, [(k, (k + 1) % devices) for k in range(devices)])


_BODIES: dict[str, Callable[..., jax.Array]] = {
    ALL_GATHER: _all_gather,
    ALL_REDUCE: _all_reduce,
    REDUCE_SCATTER: _reduce_scatter,
    ALL_TO_ALL: _all_to_all,
    PERMUTE: _permute,
}


def element() -> jnp.dtype:
    """The type of what is moved."""
    return jnp.dtype(jnp.float32)


def collective_of(key: str) -> DesignedCollective:
    """The collective of that key."""
    kind, _, axes, _, lengths, _, topology, size = key.split(" ")
    mesh = tuple(map(int, lengths.split("x")))
    return DesignedCollective(kind, topology, mesh, tuple("xyz".index(a) for a in axes), int(size))
