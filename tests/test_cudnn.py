"""Attention by cuDNN, planned and lowered for GPUs where there is no GPU: sequences and heads are split."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.custom_partitioning import custom_partitioning  # noqa: F401 (what JAX wraps it in)

import shardwright as sw

MESH = {"data": 4, "model": 2}


def bf16(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def attention(q, k, v):
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")


def gradients(q, k, v):
    return jax.grad(lambda q, k, v: (attention(q, k, v).astype(jnp.float32) ** 2).sum(), argnums=(0, 1, 2))(q, k, v)


def calls(fn, *args):
    program = sw.analyse(fn, *args, platform="cuda").program
    return [op for op in program.ops if "function" in op.attributes]


def places(op):
    """Where each factor that can be split stands: operand or result, and dimension."""
    found = {}
    for t, d, f in op.rule.links:
        found.setdefault(f, []).append((t, d))
    return found


@pytest.mark.parametrize("kv_heads", [4, 8])
def test_sequences_and_heads_are_factors_forward_and_backward(kv_heads):
    q, k = bf16(8, 256, 8, 64), bf16(8, 256, kv_heads, 64)
    forward, backward = calls(gradients, q, k, k)
    inputs = [0, 1, 2]
    assert places(forward) == {
        0: [(t, 0) for t in (*inputs, 10, 11)],
        1: [*((t, 2) for t in (*inputs, 10)), (11, 1)],
    }
    assert places(backward) == {
        0: [(t, 0) for t in (*inputs, 10, 11, 12, 13, 14, 15)],
        1: [(0, 2), (1, 2), (2, 2), (10, 1), *((t, 2) for t in (11, 12, 13, 14, 15))],
    }
    scores = 8 * 8 * 256 * 256
    assert (forward.flops, backward.flops) == (2 * 2 * scores * 64, 2 * 5 * scores * 64)


def test_a_bias_goes_with_the_sequences_and_heads_that_it_has():
    q = bf16(8, 256, 8, 64)

    def fn(q, k, v, bias):
        return jax.nn.dot_product_attention(q, k, v, bias, implementation="cudnn")

    (op,) = calls(fn, q, q, q, bf16(1, 8, 256, 256))
    assert (3, 1) in places(op)[1] and (3, 0) not in places(op)[0]
    (op,) = calls(fn, q, q, q, bf16(8, 1, 256, 256))
    assert (3, 0) in places(op)[0] and (3, 1) not in places(op)[1]


def test_lengths_go_with_their_sequences():
    q, lengths = bf16(8, 256, 8, 64), jax.ShapeDtypeStruct((8,), jnp.int32)

    def fn(q, k, v, n):
        return jax.nn.dot_product_attention(
            q, k, v, query_seq_lengths=n, key_value_seq_lengths=n, implementation="cudnn"
        )

    (op,) = calls(fn, q, q, q, lengths)
    assert {(4, 0), (5, 0)} <= set(places(op)[0])


def test_a_training_step_calls_cudnn_on_local_arrays_and_gathers_nothing():
    def step(w, x):
        def loss(w):
            q, k, v = jnp.einsum("btd,dcnh->cbtnh", x, w["qkv"])
            return (jnp.einsum("btnh,nhd->btd", attention(q, k, v), w["out"]).astype(jnp.float32) ** 2).mean()

        return jax.tree.map(lambda w, g: w - 0.1 * g, w, jax.grad(loss)(w))

    args = {"qkv": bf16(256, 3, 8, 64), "out": bf16(8, 64, 256)}, bf16(8, 128, 256)
    decisions = [("data", "x[0]"), ("model", "w.qkv[2]")]
    plan = sw.evaluate(step, *args, mesh=MESH, device="a100-80", decisions=decisions)
    program = plan.analysis.program
    assert not any("function" in program.ops[c.op].attributes for c in plan.collectives)
    text = plan.export("cuda")[0].mlir_module()
    found = re.findall(r"custom_call @(__cudnn\$fmha\w+).*?\((tensor<[\dx]+bf16>)", text)
    assert found == [("__cudnn$fmhaSoftmax", "tensor<2x128x4x64xbf16>"), ("__cudnn$fmhaSoftmaxBackward", found[0][1])]


def test_a_search_splits_it():
    q = bf16(8, 256, 8, 64)
    plan = sw.partition(gradients, q, q, q, mesh=MESH, device="a100-80", progress=False)
    assert not plan.collectives


def test_for_a_tpu_it_is_refused_as_jax_refuses_it():
    q = bf16(8, 256, 8, 64)
    with pytest.raises(sw.TraceError, match="cuDNN is not detected"):
        sw.analyse(attention, q, q, q, platform="tpu")
