"""Where a tensor passes between two shardings."""

import itertools

import pytest

from shardwright.price.collectives import stations
from shardwright.request import MeshShape

MESH = MeshShape.of({"x": 4, "y": 4, "z": 2})
X, Y, Z = 0, 1, 2
SHAPE = (64, 64, 64)


@pytest.mark.parametrize(
    ("have", "want", "expected"),
    [
        # One step is nothing between.
        (((), (X,), ()), ((), (), ()), []),
        (((), (X,), ()), ((X,), (), ()), []),
        (((), (), ()), ((X,), (Y,), ()), []),
        (((X, Y), (), ()), ((), (X, Y), ()), []),  # both together
        (((X, Y), (), ()), ((Y,), (), ()), []),  # a permutation, and a gather
        # One moves, another of its dimension is gathered.
        (((), (X, Y), ()), ((Y,), (), ()), [((Y,), (X,), ())]),
        (((), (X, Y), ()), ((X,), (), ()), [((X,), (Y,), ())]),
        # From one dimension to two, the minor one first; from two into one.
        (((), (), (X, Y)), ((X,), (Y,), ()), [((), (Y,), (X,))]),
        (((), (X,), (Y,)), ((X, Y), (), ()), [((X,), (), (Y,))]),
        (((), (X,), (Y,)), ((Y, X), (), ()), [((Y,), (X,), ())]),
        # Sliced before it is gathered or moved.
        (((), (), (X,)), ((), (Y,), ()), [((), (Y,), (X,))]),
        (((), (), (X,)), ((X,), (Y,), ()), [((), (Y,), (X,))]),
        # Three steps.
        (((), (), (X, Y)), ((Z,), (Y,), ()), [((Z,), (), (X, Y)), ((Z,), (Y,), (X,))]),
        # What a permutation does.
        (((X,), (Y,), ()), ((Y,), (X,), ()), []),
        (((X,), (Y,), ()), ((), (X,), ()), []),
        (((X,), (Z,), ()), ((), (X,), ()), [((), (Z, X), ())]),  # not of two sizes
        # One leaves, another is sliced off in its place.
        (((), (), (X,)), ((), (X,), (Y,)), []),
    ],
)
def test_stations(have, want, expected):
    assert list(stations(SHAPE, have, want, MESH)) == expected


def test_a_station_divides_the_tensor():
    have, want = ((), (), (X, Y)), ((X,), (Y,), ())
    assert stations((64, 64, 64), have, want, MESH) == (((), (Y,), (X,)),)
    assert stations((64, 66, 64), have, want, MESH) == ()


def _shardings():
    lists = [tuple(axes) for n in range(3) for axes in itertools.permutations((X, Y, Z), n)]
    for sharding in itertools.product(lists, repeat=2):
        axes = [axis for dim in sharding for axis in dim]
        if len(axes) == len(set(axes)):
            yield sharding


def test_every_step_is_of_one_kind_and_of_one_pair_of_dimensions():
    """But for the last, which may gather as well where nothing is left to move."""
    for have, want in itertools.product(_shardings(), repeat=2):
        passed = stations((64, 64), have, want, MESH)
        for before, after in itertools.pairwise((have, *passed)):
            at = {axis: d for d, axes in enumerate(before) for axis in axes}
            to = {axis: d for d, axes in enumerate(after) for axis in axes}
            assert at.keys() <= to.keys()  # nothing is gathered on the way
            new = to.keys() - at.keys()
            moved = {(at[axis], to[axis]) for axis in at if at[axis] != to[axis]}
            assert bool(new) + len(moved) == 1
        if passed:
            gone = {axis for axes in have for axis in axes} - {axis for axes in want for axis in axes}
            last = {axis: d for d, axes in enumerate(passed[-1]) for axis in axes}
            moved = {(last[axis], d) for d, axes in enumerate(want) for axis in axes if last[axis] != d}
            assert not (gone and moved)
            assert len(moved) <= 1
