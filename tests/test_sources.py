"""Locations become the line of code that a person would point at."""

import jax
import jax.numpy as jnp

import shardwright as sw
from programs import f32
from shardwright.ir.program import Source
from shardwright.ir.sources import parse_location


def test_innermost_frame_of_the_user():
    text = 'loc("jit(f)/dot_general"(callsite("Block.mlp"("/home/me/a.py":3:4 to :9) at "f"("/home/me/b.py":8:0))))'
    assert parse_location(text) == Source("/home/me/a.py", 3, "mlp", "jit(f)/dot_general")


def test_frames_of_jax_are_passed_over():
    text = f'loc("add"(callsite("inner"("{jax.__file__}":3:4) at "f"("/home/me/b.py":8:0))))'
    assert parse_location(text) == Source("/home/me/b.py", 8, "f", "add")


def test_frames_of_installed_packages_give_way_to_the_users_own():
    import rich

    package = f'"dense"("{rich.__file__}":3:4)'
    assert parse_location(f'loc("add"(callsite({package} at "f"("/home/me/b.py":8:0))))').file == "/home/me/b.py"
    assert parse_location(f'loc("add"({package}))').file == rich.__file__


def test_nothing_beyond_the_boundary():
    text = 'loc("add"(callsite("trace"("/x/trace.py":3:4) at "f"("/home/me/b.py":8:0))))'
    assert parse_location(text, frozenset({"/x/trace.py"})) == Source(scope="add")


def test_location_without_a_name():
    assert parse_location('loc("model.py":12:3)') == Source("model.py", 12)
    assert parse_location("loc(unknown)") == Source()


def layer(x, w):
    return jnp.tanh(x @ w)


def test_every_op_of_a_real_program_has_its_line():
    line = layer.__code__.co_firstlineno + 1

    @jax.jit
    def inner(x, w):
        return layer(x, w)

    def loss(w, x):
        return jnp.sum(jax.checkpoint(inner)(x, w))

    program = sw.analyse(jax.grad(loss), f32(16, 32), f32(8, 16)).program
    contractions = [op for op in program.ops if op.kind in ("dot_general", "tanh")]
    assert len(contractions) == 3
    for op in contractions:
        assert (op.source.file, op.source.line, op.source.function) == (__file__, line, "layer")
    assert all(op.source.file for op in program.ops)
    assert [op.source.backward for op in contractions] == [True] * 3


def test_inside_of_a_library_function_takes_the_callers_line():
    def fn(x):
        return jnp.fft.fft(x)

    op = next(op for op in sw.analyse(fn, f32(8)).program.ops if op.kind == "fft")
    assert str(op.source) == f"test_sources.py:{fn.__code__.co_firstlineno + 1} (fn)"
