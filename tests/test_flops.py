"""FLOPs of contractions, against counts made by hand."""

import jax
import jax.numpy as jnp
from jax import lax

import shardwright as sw
from programs import f32
from shardwright.ir.flops import Window, convolution_flops


def total(fn, *args) -> int:
    program = sw.analyse(fn, *args).program
    return int(sum(op.flops * int(n) for op, n in zip(program.ops, program.repeats, strict=True)))


def test_dot():
    assert total(lambda x, w: x @ w, f32(8, 16), f32(16, 32)) == 2 * 8 * 16 * 32


def test_batched_dot():
    assert total(lambda x, w: jnp.einsum("bij,bjk->bik", x, w), f32(3, 4, 5), f32(3, 5, 6)) == 2 * 3 * 4 * 5 * 6


def test_valid_convolution():
    # 6x6 outputs, each of 3x3 taps, 4 features in, 5 out, batch 2
    assert total(lambda x, w: conv(x, w, 1, "VALID"), f32(2, 8, 8, 4), f32(3, 3, 4, 5)) == 2 * 2 * 36 * 9 * 4 * 5


def test_padding_is_not_counted():
    # SAME with 3 taps on 8: 6 inner outputs use 3 taps, the 2 at the rim use 2: 22 pairs in each dimension
    assert total(lambda x, w: conv(x, w, 1, "SAME"), f32(2, 8, 8, 4), f32(3, 3, 4, 5)) == 2 * 2 * 22 * 22 * 4 * 5


def test_holes_of_a_dilated_input_are_not_counted():
    # input 3 dilated to 5 (x0 0 x1 0 x2), window 3, no padding: outputs at 0,1,2 see taps {0,2}, {1}, {0,2}: 5 pairs
    assert convolution_flops(1, 1, [Window(size_in=3, size_out=3, taps=3, dilation_in=2)]) == 2 * 5


def test_gradient_of_a_convolution_costs_as_much_as_the_convolution():
    x, w = f32(2, 8, 8, 4), f32(3, 3, 4, 5)
    forward = total(lambda x, w: conv(x, w, 2, "SAME"), x, w)
    loss = lambda x, w: jnp.sum(conv(x, w, 2, "SAME") * 3.0)  # noqa: E731
    # the loss is linear in the convolution, so only the two gradient convolutions are left
    assert total(jax.grad(loss, argnums=0), x, w) == forward
    assert total(jax.grad(loss, argnums=1), x, w) == forward


def test_loops_count_as_often_as_they_run():
    def fn(x, ws):
        return lax.scan(lambda h, w: (h @ w, None), x, ws)[0]

    assert total(fn, f32(8, 16), f32(7, 16, 16)) == 7 * 2 * 8 * 16 * 16


def test_ragged_dot_multiplies_every_row_once():
    fn = lambda x, w, n: lax.ragged_dot(x, w, n)  # noqa: E731
    program = sw.analyse(fn, f32(16, 6), f32(2, 6, 5), jax.ShapeDtypeStruct((2,), jnp.int32), platform="tpu").program
    assert sum(op.flops for op in program.ops) == 2 * 16 * 6 * 5


def test_the_gradient_of_ragged_matrices_multiplies_every_row_once_but_is_computed_for_every_group():
    def fn(x, w, n, ct):
        return jax.vjp(lambda w: lax.ragged_dot(x, w, n), w)[1](ct)

    def plan(groups):
        counts = jax.ShapeDtypeStruct((groups,), jnp.int32)
        args = f32(4096, 512), f32(groups, 512, 512), counts, f32(4096, 512)
        return sw.evaluate(fn, *args, mesh={"x": 1}, device="tpu-v5e")

    few, many = plan(4), plan(16)
    for found in (few, many):
        assert sum(op.flops for op in found.analysis.program.ops) == 2 * 4096 * 512 * 512
    assert many.estimate.compute_seconds > 3.5 * few.estimate.compute_seconds


def conv(x, w, stride, padding):
    return lax.conv_general_dilated(x, w, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))
