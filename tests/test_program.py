"""The program: what it holds, and that it stands on its own."""

import pickle
from textwrap import dedent

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import shardwright as sw
from programs import f32, i32
from shardwright.analysis.present import coloured_program
from shardwright.ir.program import bits_of

MODULE = """
func.func @main(%arg0: tensor<8x16xf32> loc("x"), %arg1: tensor<16x16xbf16> loc("w")) -> tensor<8x16xf32> {
  %0 = func.call @twice(%arg0) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %n = stablehlo.constant dense<0> : tensor<i32>
  %1:3 = stablehlo.while(%i = %n, %h = %0, %w = %arg1) : tensor<i32>, tensor<8x16xf32>, tensor<16x16xbf16>
  cond {
    %end = stablehlo.constant dense<4> : tensor<i32>
    %2 = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %2 = stablehlo.add %i, %one : tensor<i32>
    %3 = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0]
        : (tensor<8x16xf32>, tensor<16x16xbf16>) -> tensor<8x16xf32>
    stablehlo.return %2, %3, %w : tensor<i32>, tensor<8x16xf32>, tensor<16x16xbf16>
  }
  return %1#1 : tensor<8x16xf32>
}
func.func private @twice(%arg0: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.add %arg0, %arg0 : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
"""


@pytest.fixture
def program(tmp_path):
    from shardwright.frontend import stablehlo_program

    file = tmp_path / "loop.mlir"
    file.write_text(MODULE)
    return stablehlo_program(file)


def test_text(program):
    without_lines = "\n".join(line.split("  #")[0] for line in str(program).splitlines())
    assert without_lines == dedent("""\
        program loop (
          %0 = x : f32[8,16]
          %1 = w : bf16[16,16]
        )
          %2 = add(%0, %0) : f32[8,16]  {ab,ab->ab}
          %3 = constant() : i32[]
          %4, %5, %6 = while(%3, %2, %1) : i32[], f32[8,16], bf16[16,16]  ×4
          condition (%7, %8, %9)
            %10 = constant() : i32[]
            %11 = compare(%7, %10) : i1[]
            yield %11
          body (%12, %13, %14)
            %15 = constant() : i32[]
            %16 = add(%12, %15) : i32[]
            %17 = dot_general(%13, %14) : f32[8,16]  {ac,cb->ab reduction=c}
            yield %16, %17, %14
          return result.0 = %5""")


def test_coloured_text(program):
    from shardwright.analysis import analyse_program

    text = coloured_program(analyse_program(program))
    assert "%0 = x : f32[8a,16b]" in text
    assert "%1 = w : bf16[16b,16b]" in text
    assert "dot_general(%13, %14) : f32[8a,16b]" in text


def test_regions_are_contiguous_and_repeats_follow_the_loop(program):
    loop = next(op for op in program.ops if op.kind == "while")
    condition, body = (program.regions[r] for r in loop.regions)
    assert (condition.role, body.role) == ("condition", "body")
    assert [program.ops[o].kind for o in range(body.start, body.stop)] == ["constant", "add", "dot_general"]
    assert program.repeats.tolist() == [1, 1, 1, 4, 4, 4, 4, 4]


def test_it_is_immutable_and_knows_nothing_of_mlir(program):
    again = pickle.loads(pickle.dumps(program))
    assert again == program
    for thing, field in ((program, "ops"), (program.ops[0], "kind"), (program.values[0], "shape")):
        with pytest.raises(AttributeError):  # FrozenInstanceError is one
            setattr(thing, field, ())


def test_a_function_called_twice_is_there_twice():
    twice = jax.jit(lambda x, w: jnp.tanh(x @ w))
    program = sw.analyse(lambda x, v, w: twice(twice(x, v), w), f32(4, 8), f32(8, 8), f32(8, 8)).program
    assert [op.kind for op in program.ops].count("dot_general") == 2
    first, second = (op for op in program.ops if op.kind == "dot_general")
    assert first.signature == second.signature
    assert first.rule is second.rule


def test_branches_see_the_values_outside():
    def fn(flag, x, w):
        return lax.cond(flag > 0, lambda: x @ w, lambda: x * 2.0)

    program = sw.analyse(fn, i32(), f32(4, 8), f32(8, 8)).program
    case = next(op for op in program.ops if op.kind == "case")
    x = program.arguments[1].value
    for r in case.regions:
        region = program.regions[r]
        assert any(x in program.ops[o].operands for o in range(region.start, region.stop))


def test_arguments_are_called_as_a_person_would():
    def step(state, batch, *rest):
        return jax.tree.map(lambda s: s + batch["tokens"].sum() + rest[1], state)

    layers = [{"w1": f32(2)}, {"w1": f32(2)}]
    batch = {"tokens": f32(3), "mask": f32(3)}
    program = sw.analyse(step, {"layers": layers}, batch, f32(), f32(), donate=(0,)).program
    assert [(a.path, a.donated) for a in program.arguments] == [
        ("state.layers.0.w1", True),
        ("state.layers.1.w1", True),
        ("batch.tokens", False),
        ("rest.1", False),
    ]
    assert program.unused_arguments == ("batch.mask", "rest.0")
    assert program.results == ("result.layers.0.w1", "result.layers.1.w1")


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [("f32", 32), ("bf16", 16), ("i1", 8), ("ui8", 8), ("i4", 4), ("f8E4M3FN", 8), ("complex<f32>", 64), ("!token", 0)],
)
def test_bits(dtype, bits):
    assert bits_of(dtype) == bits
