"""What is laid out anew for gathers and scatters is priced as ``compiler/layouts.py`` has seen it."""

import jax
import jax.numpy as jnp
import pytest

import shardwright as sw
from programs import f32
from shardwright.price.gathered import SPREAD, SUMMED, TABLE


def step(ids_shape, hots=True):
    def fn(table, ids):
        def loss(table):
            rows = jnp.take(table, ids, axis=0, mode="clip")
            return jnp.sum(jnp.sin(jnp.sum(rows, axis=len(ids_shape) - 1) if hots else rows))

        return table - 0.1 * jax.grad(loss)(table)

    return fn


def laid(width, ids, hots=True, decisions=(), mesh=None):
    fn, args = step(ids, hots), (f32(1_000_000, width), jax.ShapeDtypeStruct(ids, jnp.int32))
    plan = sw.evaluate(fn, *args, mesh=mesh or {"x": 4}, device="tpu-v5e", decisions=decisions, donate=0)
    found: dict[str, float] = {}
    for k in plan.estimate.kernels:
        if k.kind in (TABLE, SUMMED, SPREAD):
            found[k.kind] = found.get(k.kind, 0.0) + 1e3 * k.seconds
    return found, plan


@pytest.mark.parametrize(
    ("width", "ids", "summed", "spread"),
    [  # milliseconds of the TPU compiler's cycles, copies and loops with them
        (128, (4096, 20, 8), 1.80, 1.23),
        (32, (4096, 20, 8), 2.42, 1.86),
        (16, (4096, 20, 8), 2.41, 1.84),
        (8, (4096, 20, 8), 1.85, 1.26),
        (16, (16384, 21, 8), 10.81, 8.60),
        (32, (4096, 8, 128), 4.41, 3.60),
    ],
)
def test_bags_of_rows_take_what_the_compiler_says(width, ids, summed, spread):
    found, _ = laid(width, ids)
    assert found[SUMMED] == pytest.approx(summed, rel=0.25)
    assert found[SPREAD] == pytest.approx(spread, rel=0.3)


def test_rows_that_are_not_added_up_are_not_taken_apart():
    assert laid(32, (4096, 160), hots=False)[0] == {}
    assert laid(32, (655360,), hots=False)[0] == {}


def test_copies_of_tables_take_time_too():
    found, _ = laid(64, (655360,), hots=False)
    assert found == {TABLE: pytest.approx(2 * 1.65, rel=0.1)}
    assert laid(128, (655360,), hots=False)[0] == {}


def test_the_copy_counts_and_adds_up():
    _, plan = laid(16, (4096, 20, 8))
    estimate = plan.estimate
    assert sum(each.bytes for each in estimate.alive) == estimate.peak_bytes
    assert any(each.what == "relaid copy" and each.bytes == 4096 * 20 * 8 * 128 * 4 for each in estimate.alive)


def test_rows_exchanged_between_devices_are_taken_apart_before():
    """Rows of 8 that become rows of 128 have been padded to 16 times their size on the way."""
    ids = (16384, 21, 8)
    by_width = [("x", "table[1]")]
    _, kept = laid(128, ids, decisions=by_width, mesh={"x": 16})
    found, moved = laid(128, ids, decisions=[("x", "ids[0]"), *by_width], mesh={"x": 16})
    assert found[SUMMED] == pytest.approx(1.5 + 2.67 + 0.44, rel=0.15)
    assert moved.estimate.peak_bytes > 1.5e9 and kept.estimate.peak_bytes > 1.5e9
