"""Random programs with random decisions, really run on eight CPU devices, give the unpartitioned result."""

import os

import jax
import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

import shardwright as sw
from programs import f32
from random_programs import programs

MESHES = ({"a": 2}, {"a": 4, "b": 2}, {"a": 2, "b": 2, "c": 2})
PARTS = 4
"""The examples are drawn in parts with seeds of their own, so that several processes share them."""
EXAMPLES = int(os.environ.get("SHARDWRIGHT_EXAMPLES", "160"))


@st.composite
def decided_programs(draw, **options):
    program = draw(programs(**options))
    args = [f32(*shape) for shape in program.arguments]
    mesh = draw(st.sampled_from(MESHES))
    analysis = sw.analyse(program, *args)
    decisions = []
    for axis in mesh:
        for _ in range(draw(st.integers(0, 3))):
            group = draw(st.integers(0, len(analysis.groups) - 1))
            sides = tuple(draw(st.integers(0, 1)) for _ in analysis.groups[group].conflicts)
            decisions.append(sw.Decision(axis, analysis.descriptions[group].name, sides))
    return program, args, mesh, decisions


def check(case):
    program, args, mesh, decisions = case
    plan = sw.evaluate(program, *args, mesh=mesh, decisions=decisions)
    random = np.random.default_rng(0)
    inputs = [random.normal(size=a.shape).astype(np.float32) for a in args]
    quick = {"xla_backend_optimization_level": 0}
    expected = jax.jit(program).lower(*inputs).compile(compiler_options=quick)(*inputs)
    jitted = plan.jit(plan.make_mesh())
    found = jitted.lower(*inputs).compile(compiler_options=quick)(
        *[plan.place(x, argument=i) for i, x in enumerate(inputs)]
    )
    for x, y in zip(expected, found, strict=True):
        x, y = np.asarray(x), np.asarray(y)
        assert x.shape == y.shape
        np.testing.assert_allclose(y, x, rtol=1e-4, atol=1e-4 * (np.abs(x).max(initial=0) + 1e-6))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_random_decisions_compute_the_same(part):
    drawn = given(decided_programs())(lambda case: check(case))
    seed(part)(settings(max_examples=EXAMPLES // PARTS, deadline=None, derandomize=False, database=None)(drawn))()


@pytest.mark.slow
def test_uneven_decisions_compute_the_same():
    """Sizes that hardly any axis divides, and one result, so that most tensors lie inside and may be padded."""
    padded = []

    def checked(case):
        program, args, mesh, decisions = case
        check(case)
        padded.append(bool(sw.evaluate(program, *args, mesh=mesh, decisions=decisions).partitioned.padded))

    drawn = given(decided_programs(sizes=(3, 5, 6, 7, 8), results=1))(checked)
    seed(0)(settings(max_examples=EXAMPLES // PARTS, deadline=None, derandomize=False, database=None)(drawn))()
    assert sum(padded) >= len(padded) / 20
