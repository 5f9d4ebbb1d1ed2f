"""Trip counts: what the program says, what it only bounds, what it does not say, and what the user may set."""

import jax.numpy as jnp
import pytest
from jax import lax

import shardwright as sw
from programs import f32, i32

X = f32(4)


def loops(fn, *args, **options):
    return [(l.trips, l.known) for l in sw.analyse(fn, *args, **options).program.loops]


def test_scan():
    assert loops(lambda x, ys: lax.scan(lambda c, y: (c + y, None), x, ys)[0], X, f32(12, 4)) == [(12, "exact")]


def test_reverse_scan():
    fn = lambda x, ys: lax.scan(lambda c, y: (c + y, None), x, ys, reverse=True)[0]  # noqa: E731
    assert loops(fn, X, f32(12, 4)) == [(12, "exact")]


def test_fori_loop_with_bounds():
    assert loops(lambda x: lax.fori_loop(3, 10, lambda _, c: c * 2, x), X) == [(7, "exact")]


@pytest.mark.parametrize(
    ("start", "condition", "step", "trips"),
    [
        (0, lambda i: i < 10, 3, 4),
        (0, lambda i: i <= 9, 3, 4),
        (20, lambda i: i > 2, -5, 4),
        (20, lambda i: i >= 0, -5, 5),
        (0, lambda i: i != 12, 4, 3),
        (0, lambda i: i < 10, 1, 10),
        (5, lambda i: i < 5, 1, 0),
    ],
)
def test_while_loop_that_counts(start, condition, step, trips):
    def fn(x):
        return lax.while_loop(lambda c: condition(c[0]), lambda c: (c[0] + step, c[1] * 2), (start, x))

    assert loops(fn, X) == [(trips, "exact")]


def test_nested_loops_multiply():
    def fn(x):
        return lax.fori_loop(0, 3, lambda _, c: lax.fori_loop(0, 5, lambda _, c: jnp.tanh(c), c), x)

    program = sw.analyse(fn, X).program
    assert [l.trips for l in program.loops] == [3, 5]
    tanh = next(k for k, op in enumerate(program.ops) if op.kind == "tanh")
    assert program.repeats[tanh] == 15


def test_limit_carried_through_an_outer_loop():
    def inner(x, n):
        return lax.while_loop(lambda c: c[0] < c[2], lambda c: (c[0] + 1, c[1] * 2, c[2]), (0, x, n))[1]

    def fn(x):
        return lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, inner(c[1], c[2]), c[2]), (0, x, 6))[1]

    assert loops(fn, X) == [(2, "exact"), (6, "exact")]


def test_second_condition_makes_it_a_bound():
    def fn(x):
        return lax.while_loop(lambda c: (c[0] < 100) & (c[1][0] > 0.5), lambda c: (c[0] + 1, c[1] * 0.9), (0, x))

    assert loops(fn, X) == [(100, "at most")]


def unknown(x):
    return lax.while_loop(lambda c: jnp.sum(c) > 1.0, lambda c: c * 0.5, x)


def test_unknown_counts_once_and_is_said():
    analysis = sw.analyse(unknown, X)
    assert [(l.trips, l.known) for l in analysis.program.loops] == [(1, "unknown")]
    assert "(unknown) runs an unknown number of times and counts once" in " ".join(str(analysis).split())


def test_limit_from_an_argument_is_unknown():
    assert loops(lambda x, n: lax.fori_loop(0, n, lambda _, c: c * 2, x), X, i32()) == [(1, "unknown")]


def test_user_sets_it():
    line = unknown.__code__.co_firstlineno + 1
    for given in (50, {f"test_loops.py:{line}": 50}, {"test_loops.py:*": 50}, {"unknown": 50}):
        assert loops(unknown, X, trip_counts=given) == [(50, "set")]


def test_user_names_a_loop_that_is_not_there():
    with pytest.raises(
        sw.TargetError, match=r"no loop of unknown length is at 'model.py:3'; those that are: test_loops"
    ):
        loops(unknown, X, trip_counts={"model.py:3": 50})


@pytest.mark.parametrize("count", [0, -3, 2.5, True, "many"])
def test_user_gives_nonsense(count):
    with pytest.raises(sw.TargetError, match="whole number of at least 1"):
        loops(unknown, X, trip_counts={"*": count})
