"""Small programs and what the analysis must find in them, as text (see ``programs.found`` for the notation)."""

from textwrap import dedent

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from programs import f32, found, i32

GOLDEN = {}


def golden(*args):
    """Register a program with its arguments; its docstring is the expected text."""

    def register(fn):
        GOLDEN[fn.__name__] = (fn, args)
        return fn

    return register


@golden(f32(8, 16), f32(16, 32), f32(32, 4))
def matmul_chain(x, w1, w2):
    """
    a 8: x[0] result[0]
    b 16: x[1] w1[0]
    c 32: w1[1] w2[0]
    d 4: w2[1] result[1]
    """
    return jnp.maximum(x @ w1, 0) @ w2


@golden(f32(64, 16), f32(16, 8), f32(16, 8), f32(16, 12))
def attention(x, wq, wk, wv):
    """
    a 64: x[0] result[0]
      1x dot_general: operand 0 f32[64,8][0] | operand 1 f32[64,8][0]
    b 16: x[1] wq[0] wk[0] wv[0]
    c 8: wq[1] wk[1]
    d 12: wv[1] result[1]
    """
    scores = jnp.einsum("td,sd->ts", x @ wq, x @ wk)
    return jax.nn.softmax(scores, axis=-1) @ (x @ wv)


@golden(f32(64, 16), f32(16, 8), f32(16, 8), f32(16, 12))
def attention_gradient(x, wq, wk, wv):
    """
    a 64: x[0]
      1x dot_general: operand 0 f32[64,8][0] | operand 1 f32[64,8][0]
    b 16: x[1] wq[0] wk[0] wv[0] result.0[0] result.1[0] result.2[0]
    c 8: wq[1] wk[1] result.0[1] result.1[1]
    d 12: wv[1] result.2[1]
    """
    return jax.grad(lambda *w: jnp.sum(attention(x, *w) ** 2), argnums=(0, 1, 2))(wq, wk, wv)


@golden(f32(64, 16))
def transpose_symmetric_product(x):
    """
    a 64: x[0] result[0] result[1]
      1x dot_general: fixed
    b 16: x[1]
    """
    s = x @ x.T
    return s + s.T


@golden(f32(8, 64))
def reshape_split(x):
    """
    a 8: x[0] result[0]
    b 4/64: x[1] result[1]
    c 16: result[2]
    """
    return x.reshape(8, 4, 16) * 2.0


@golden(f32(8, 4, 16))
def reshape_merge(x):
    """
    a 8/32: x[0] result[0]
    b 4: x[1]
    c 16: x[2] result[1]
    """
    return x.reshape(32, 16) * 2.0


@golden(f32(8, 16), {"up": f32(3, 16, 32), "down": f32(3, 32, 16)})
def scan_with_stacked_weights(x, ws):
    """
    a 8: x[0] result[0]
    b 16: x[1] ws.down[2] ws.up[1] result[1]
    c 3: ws.down[0]
    d 32: ws.down[1] ws.up[2]
    e 3: ws.up[0]
    """
    return lax.scan(lambda h, w: (jnp.tanh(h @ w["up"]) @ w["down"], None), x, ws)[0]


@golden(f32(100, 16), i32(4, 8))
def embedding_lookup(table, tokens):
    """
    a 100: table[0]
    b 16: table[1] result[2]
    c 4: tokens[0] result[0]
    d 8: tokens[1] result[1]
    """
    return jnp.take(table, tokens, axis=0, mode="clip")


@golden(f32(4, 32, 16, 8), f32(3, 3, 8, 24))
def convolution(x, w):
    """
    a 4: x[0] result[0]
    b 16/32: x[1] result[1]
    c 8/16: x[2] result[2]
    d 8: x[3] w[2]
    e 3: w[0]
    f 3: w[1]
    g 24: w[3] result[3]
    """
    return lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


@golden(f32(4, 32, 16, 8), f32(3, 3, 8, 24))
def convolution_gradient(x, w):
    """
    a 4: x[0] result.0[0]
    b 16/32: x[1] result.0[1]
    c 8/16: x[2] result.0[2]
    d 8: x[3] w[2] result.0[3] result.1[2]
    e 3: w[0]
    f 3: w[1]
    g 24: w[3] result.1[3]
    h 3: result.1[0]
    i 3: result.1[1]
    """
    return jax.grad(lambda x, w: jnp.sum(convolution(x, w) ** 2), argnums=(0, 1))(x, w)


@golden(f32(10, 16), i32(40), i32(40), f32(16, 12))
def segment_sum(nodes, senders, receivers, w):
    """
    a 10: nodes[0]
    b 16: nodes[1] w[0]
    c 40: senders[0] receivers[0]
    d 12: w[1] result[1]
    e 10: result[0]
    """
    return jax.ops.segment_sum(nodes[senders] @ w, receivers, num_segments=10)


@golden(f32(32, 16), f32(16, 6), f32(6, 16, 48), f32(6, 48, 16))
def mixture_of_experts_dispatch(x, router, w1, w2):
    """
    a 32/64: x[0] result[0]
    b 16: x[1] router[0] w1[1]
    c 6: router[1]
    d 6: w1[0] w2[0]
    e 48: w1[2] w2[1]
    f 16: w2[2] result[1]
    g 2: -
    h 20: -
    """
    top, index = lax.top_k(jax.nn.softmax(x @ router), 2)
    chosen = jax.nn.one_hot(index, 6)
    position = jnp.cumsum(chosen.reshape(64, 6), axis=0).reshape(32, 2, 6)
    slot = jax.nn.one_hot(jnp.sum(position * chosen, -1).astype(jnp.int32), 20)
    dispatch = jnp.einsum("tke,tkc->tec", chosen, slot)
    combine = jnp.einsum("tk,tke,tkc->tec", top, chosen, slot)
    h = jnp.einsum("tec,td->ecd", dispatch, x)
    h = jnp.tanh(jnp.einsum("ecd,edf->ecf", h, w1))
    return jnp.einsum("tec,ecd->td", combine, jnp.einsum("ecf,efd->ecd", h, w2))


@golden(i32(), f32(8, 12), f32(12, 16))
def cond(flag, x, w):
    """
    a 8: x[0] result[0]
    b 12: x[1] w[0]
    c 16: w[1] result[1]
    """
    return lax.cond(flag > 0, lambda: x @ w, lambda: jnp.zeros((8, 16)))


@golden(f32(8, 16), f32(3, 16, 16))
def nested_loops(x, ws):
    """
    a 8: x[0] result[0]
    b 16: x[1] ws[1] ws[2] result[1]
      1x value: argument f32[3,16,16][1] | argument f32[3,16,16][2]
    c 3: ws[0]
    """

    def outer(h, w):
        return lax.fori_loop(0, 5, lambda _, h: jnp.tanh(h @ w), h), None

    return lax.scan(outer, x, ws)[0]


@golden(f32(8, 16), [f32(16, 16)] * 5)
def square_layers_alternate(x, ws):
    """
    a 8: x[0] result[0]
    b 16: x[1] ws.0[0]
    c e 16: ws.0[1] ws.1[0] ws.2[1] ws.3[0]
    d f 16: ws.1[1] ws.2[0] ws.3[1] ws.4[0]
    g 16: ws.4[1] result[1]
    """
    for w in ws:
        x = jnp.tanh(x @ w)
    return x


@golden(f32(8, 16), [{"up": f32(16, 32), "down": f32(32, 16)}] * 3)
def residual_layers_are_one_group(x, ws):
    """
    a 8: x[0] result[0]
    b 16: x[1] ws.0.down[1] ws.0.up[0] ws.1.down[1] ws.1.up[0] ws.2.down[1] ws.2.up[0] result[1]
    c d e 32: ws.0.down[0] ws.0.up[1] ws.1.down[0] ws.1.up[1] ws.2.down[0] ws.2.up[1]
    """
    for w in ws:
        x = x + jnp.tanh(x @ w["up"]) @ w["down"]
    return x


@golden(f32(16, 32), f32(16, 24))
def zeros_do_not_tie_what_they_are_added_to(x, y):
    """
    a 16: x[0] result.0[0]
    b 32: x[1] result.0[1]
    c 16: y[0] result.1[0]
    d 24: y[1] result.1[1]
    """
    zeros = jnp.zeros(16)
    return x + zeros[:, None], y + zeros[:, None]


@golden(f32(8, 16), f32(16, 48))
def fused_projection_is_cut_apart(x, w):
    """
    a 8: x[0] result[0]
    b 16: x[1] w[0]
    c 48: w[1]
    d 16: result[1]
    """
    q, k, v = jnp.split(x @ w, 3, axis=-1)
    return q * k * v


@golden(f32(64, 16))
def shift_by_one_stays_together(x):
    """
    a 63/64: x[0] result[0]
    b 16: x[1] result[1]
    """
    return x + jnp.roll(x, 1, axis=0)


@golden(f32(64, 16))
def cumulative_sum_is_computed_whole(x):
    """
    a 64: x[0]
    b 16: x[1] result[1]
    c 64: result[0]
    """
    return jnp.cumsum(x, axis=0)


@golden(f32(4, 12, 12), f32(12, 12))
def three_of_one_colour(x, w):
    """
    a 4: x[0] result[0]
    b 12: x[1] x[2] w[0] w[1] result[1] result[2]
      1x value: argument f32[4,12,12][1] | argument f32[4,12,12][2]
      1x value: argument f32[12,12][0] | argument f32[12,12][1]
      1x dot_general: operand 0 f32[4,12,12][1] | operand 1 f32[12,12][1]
    """
    return jnp.einsum("bij,jk->bik", x, w) + jnp.einsum("bij,ik->bkj", x, w)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name):
    fn, args = GOLDEN[name]
    assert found(fn, *args) == dedent(fn.__doc__).strip()
