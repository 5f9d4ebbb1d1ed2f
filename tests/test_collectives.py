"""Bytes that collectives move, against values worked out by hand (ring algorithms; see the module for the source)."""

import pytest

from shardwright.price.collectives import Move, local_bytes, reduce_partial, reduced, reshard
from shardwright.request import MeshShape

MESH = MeshShape.of({"x": 4, "y": 2})
X, Y = 0, 1
TENSOR = 800.0


def test_local_bytes():
    assert local_bytes(TENSOR, ((X,), (Y,)), MESH) == 100


@pytest.mark.parametrize(
    ("have", "want", "moves"),
    [
        (((X,), ()), ((X,), ()), []),
        (((), ()), ((X,), (Y,)), []),  # slices are local
        (((X,), ()), ((), ()), [Move("all-gather", (X,), 800 * 3 / 4)]),
        (((X, Y), ()), ((), ()), [Move("all-gather", (X, Y), 800 * 7 / 8)]),
        (((X,), (Y,)), ((X,), ()), [Move("all-gather", (Y,), 200 * 1 / 2)]),
        (((X,), ()), ((), (X,)), [Move("all-to-all", (X,), 200 * 3 / 4)]),
        (((X,), ()), ((), (X, Y)), [Move("all-to-all", (X,), 100 * 3 / 4)]),  # sliced over y first
        (((X,), (Y,)), ((Y,), ()), [Move("all-to-all", (Y,), 100 * 1 / 2), Move("all-gather", (X,), 400 * 3 / 4)]),
        (((Y, X), ()), ((X, Y), ()), [Move("collective-permute", (Y, X), 100)]),
        (((X, Y), ()), ((X,), (Y,)), [Move("all-to-all", (Y,), 100 / 2)]),  # the minor axis leaves: nothing to permute
        (
            ((X, Y), ()),
            ((Y,), (X,)),  # the major one leaves
            [Move("collective-permute", (X, Y), 100), Move("all-to-all", (X,), 100 * 3 / 4)],
        ),
    ],
)
def test_reshard(have, want, moves):
    assert list(reshard(TENSOR, have, want, MESH)) == moves


@pytest.mark.parametrize(
    ("have", "partial", "want", "moves"),
    [
        (((), ()), (X,), ((), ()), [Move("all-reduce", (X,), 2 * 800 * 3 / 4)]),
        (((), ()), (X,), ((X,), ()), [Move("reduce-scatter", (X,), 800 * 3 / 4)]),
        (((Y,), ()), (X,), ((Y,), ()), [Move("all-reduce", (X,), 2 * 400 * 3 / 4)]),
        (
            ((), ()),
            (X, Y),
            ((X,), ()),
            [Move("reduce-scatter", (X,), 800 * 3 / 4), Move("all-reduce", (Y,), 2 * 200 * 1 / 2)],
        ),
        (((), ()), (X, Y), ((), ()), [Move("all-reduce", (X, Y), 2 * 800 * 7 / 8)]),
        (((Y,), ()), (X,), ((), (X,)), [Move("reduce-scatter", (X,), 400 * 3 / 4), Move("all-gather", (Y,), 200 / 2)]),
        (((X,), ()), (Y,), ((X, Y), ()), [Move("reduce-scatter", (Y,), 200 * 1 / 2)]),
        (  # scattered within its parts, and these are permuted
            ((Y,), ()),
            (X,),
            ((X, Y), ()),
            [Move("reduce-scatter", (X,), 400 * 3 / 4, scale=2.0), Move("collective-permute", (Y, X), 100)],
        ),
    ],
)
def test_reduce_partial(have, partial, want, moves):
    assert list(reduce_partial(TENSOR, have, partial, want, MESH)) == moves


@pytest.mark.parametrize(
    ("have", "partial", "want", "expected"),
    [
        (((), ()), (X, Y), ((X, Y), ()), ((X, Y), ())),
        (((), ()), (X, Y), ((Y, X), ()), ((Y, X), ())),
        (((Y,), ()), (X,), ((X, Y), ()), ((Y, X), ())),
        (((Y,), ()), (X,), ((), (X,)), ((Y,), (X,))),
        (((Y,), ()), (X,), ((), (Y,)), ((Y,), ())),
    ],
)
def test_where_partial_sums_are_scattered(have, partial, want, expected):
    assert reduced(have, partial, want) == expected


def test_what_is_gathered_along_two_dimensions_is_not_in_place():
    (both,) = reshard(800, ((X,), (Y,)), ((), ()), MESH)
    (one,) = reshard(800, ((X, Y), ()), ((), ()), MESH)
    assert (both.bytes, one.bytes) == (700, 700)
    assert (both.in_place, one.in_place) == (False, True)


def test_sums_that_go_to_several_dimensions_are_reduced_whole():
    mesh = MeshShape(("x", "y"), (2, 4))
    (apart,) = reduce_partial(8e6, ((), ()), (0, 1), ((0,), (1,)), mesh)
    (one,) = reduce_partial(8e6, ((), ()), (0, 1), ((0, 1), ()), mesh)
    assert (apart.kind, apart.scale) == (one.kind, 2.0) and one.scale == 1.0 and apart.bytes == one.bytes


def test_xla_reduces_whole_what_is_scattered_before_an_axis_of_the_dimension():
    def scale(have, partial, want):
        return reduce_partial(800, have, partial, want, MESH)[0].scale

    assert scale(((Y,), ()), (X,), ((X, Y), ())) == 2
    assert scale(((X,), ()), (Y,), ((X, Y), ())) == 1
    assert scale(((Y,), ()), (X,), ((Y,), (X,))) == 1
    assert reduce_partial(800, ((), ()), (X,), ((X,), ()), MESH, whole=True)[0].scale == 2
