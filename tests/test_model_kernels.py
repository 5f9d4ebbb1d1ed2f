"""Built-in models with kernels in the place of plain attention: the same results, and plans that split the kernels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardwright as sw
from programs import f32
from shardwright.errors import TargetError
from shardwright.models import build, kernels, layers
from shardwright.models.itx import attention as decoding_attention


def inputs(*shapes):
    random = np.random.default_rng(0)
    return [jnp.asarray(random.normal(size=shape.shape), shape.dtype) for shape in shapes]


@pytest.mark.parametrize(
    ("kernel", "causal", "kv_heads", "head_dim"),
    [
        ("flash", True, 4, 24),
        ("flash", False, 4, 24),
        ("flash", True, 1, 160),
        ("splash", True, 4, 24),
        ("splash", True, 2, 24),
        ("splash", True, 1, 24),
    ],
)
def test_padded_kernels_equal_plain_attention_forward_and_backward(kernel, causal, kv_heads, head_dim):
    def plain(q, k, v):
        rows = jnp.arange(q.shape[1])
        return layers.attention(q, k, v, rows[:, None] >= rows[None, :] if causal else None)

    def by_kernel(q, k, v):
        return kernels.attention(kernel, q, k, v, causal=causal)

    def gradients(attention):
        return jax.grad(lambda q, k, v: (attention(q, k, v) ** 2).sum(), argnums=(0, 1, 2))

    kv = f32(2, 40, *((kv_heads,) if kv_heads > 1 else ()), head_dim)
    args = f32(2, 40, 4, head_dim), kv, kv
    decisions = [("data", "q[0]")] if kv_heads == 1 else [("data", "q[0]"), ("model", "k[2]")]
    plan = sw.evaluate(gradients(by_kernel), *args, mesh={"data": 2, "model": 2}, device="tpu-v5e", decisions=decisions)
    assert not plan.whole_kernels
    values = inputs(*args)
    expected = jax.jit(gradients(plain))(*values)
    for got, wanted in zip(plan.jit()(*values), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "kernel", "sizes"),
    [("gpt", "flash", {}), ("gpt", "splash", {"kv_heads": 4}), ("moe", "flash", {}), ("vit", "flash", {})],
)
def test_training_steps_with_kernels_are_split_by_batch_and_heads(name, kernel, sizes):
    fn, args, _ = build(name, preset="tiny", attention=kernel, **sizes)
    batch = "batch.images[0]" if name == "vit" else "batch.tokens[0]"
    where = "sparse." if name == "moe" else ""
    decisions = [("data", batch), ("model", f"state.params.layers.{where}wk[2]")]
    plan = sw.evaluate(fn, *args, mesh={"data": 4, "model": 2}, device="tpu-v5e", decisions=decisions)
    assert not plan.whole_kernels
    assert {split for note in plan.analysis.kernels for split in [len(note.split)]} <= {2, 3}
    program = plan.analysis.program
    assert not any("kernel" in program.ops[c.op].attributes for c in plan.collectives)
    assert len(plan.analysis.kernels) >= 3


def paged(q, k, v, lengths, pages):
    return kernels.paged_attention(q, k, v, lengths, pages)


def test_paged_attention_is_split_by_sequences_and_heads_though_its_kernel_cannot_be():
    batch, heads, groups, width, each = 4, 2, 2, 128, 2
    pool = f32(heads, batch * each, kernels.PAGE, width)
    ints = jax.ShapeDtypeStruct((batch,), jnp.int32), jax.ShapeDtypeStruct((batch, each), jnp.int32)
    args = f32(batch, heads * groups, width), pool, pool, *ints
    (op,) = [op for op in sw.analyse(paged, *args, platform="tpu").program.ops if "function" in op.attributes]
    assert str(op.rule) == "a(bc)d,befd,befd,a,ag->a(bc)d whole=d,e,f,g"

    q, k, v = inputs(*args[:3])
    pages = np.random.default_rng(1).permutation(batch * each).reshape(batch, each)
    lengths = jnp.asarray([1, 128, 65, 64], jnp.int32)
    values = q, k, v, lengths, jnp.asarray(pages, jnp.int32)

    def planned(mesh, *decisions):
        return sw.evaluate(paged, *args, mesh=mesh, device="tpu-v5e", decisions=list(decisions)).jit()(*values)

    alone = planned({"data": 1})
    np.testing.assert_allclose(
        planned({"data": 2, "model": 2}, ("data", "q[0]"), ("model", "k[0]")), alone, rtol=1e-5, atol=1e-6
    )
    for b in range(batch):
        mine = [pool[:, pages[b]].reshape(heads, -1, width).swapaxes(0, 1)[None] for pool in (k, v)]
        expected = decoding_attention(q[b : b + 1], *mine, jnp.arange(each * kernels.PAGE) < lengths[b])
        np.testing.assert_allclose(alone[b : b + 1], expected, atol=2e-2)


def test_a_decoding_step_with_pages_plans_heads_and_gathers_no_page():
    fn, args, _ = build("itx", preset="tiny", attention="paged", head_dim=128, context=128, heads=8)
    assert args[1]["k"].shape == (2, 8, 48, 64, 128) and args[1]["pages"].shape == (24, 2)
    decisions = [("data", "tokens[0]"), ("model", "params.layers.wk[2]")]
    plan = sw.evaluate(fn, *args, mesh={"data": 2, "model": 4}, device="tpu-v5e", decisions=decisions, donate=1)
    pool = 48 * 64 * 128 * 2 * 4  # of a layer, on a device
    assert max(c.bytes for c in plan.collectives) < pool / 10
    assert plan.in_specs[1]["k"] == jax.sharding.PartitionSpec(None, "model")


def test_sizes_that_the_paged_kernel_does_not_take():
    with pytest.raises(TargetError, match=r"itx: head_dim \(16\) must be a multiple of 128 for paged attention"):
        build("itx", preset="tiny", attention="paged")
    with pytest.raises(TargetError, match="gpt: attention must be one of plain, flash, splash, not 'paged'"):
        build("gpt", attention="paged")


@pytest.mark.parametrize(
    ("name", "kernel"), [("gpt", "flash"), ("gpt", "splash"), ("moe", "flash"), ("vit", "flash"), ("itx", "paged")]
)
def test_full_sizes_trace_with_kernels(name, kernel):
    fn, args, _ = build(name, attention=kernel)
    assert "pallas_call" in str(jax.make_jaxpr(fn)(*args))
