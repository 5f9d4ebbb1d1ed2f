"""What is proved of a kernel's grid: index maps that compute, tables of scalars, sums, memory; and that it is true."""

from functools import partial
from inspect import signature

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.megablox import ops as megablox
from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

import shardwright as sw
from grammar.kernel_trials import judge
from grammar.kernels import draw_case
from programs import f32
from test_pallas import inputs, kernel_ops, notes, regions, splits

I32 = jnp.int32


def call(kernel, grid, ins, outs, shapes, scalars=0, scratch=(), **options):
    """A kernel by its index maps and blocks: ``ins`` and ``outs`` are pairs of both."""
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=scalars,
        grid=grid,
        in_specs=[pl.BlockSpec(block, index_map) for block, index_map in ins],
        out_specs=[pl.BlockSpec(block, index_map) for block, index_map in outs],
        scratch_shapes=scratch,
    )
    return pl.pallas_call(kernel, grid_spec=spec, out_shape=shapes, **options)


def grouped(divide, q, k, interpret=False):
    """Each head of queries with the head of keys of its group."""

    def kernel(q_ref, k_ref, out_ref):
        out_ref[...] = q_ref[...] * k_ref[...]

    whole = (None, 8, 128)
    own, shared = (whole, lambda h: (h, 0, 0)), (whole, lambda h: (divide(h), 0, 0))
    return call(kernel, (8,), [own, shared], [own], [q], interpret=interpret)(q, k)[0]


@pytest.mark.parametrize(
    "divide", [lambda h: h // 4, lambda h: lax.div(h, I32(4)), lambda h: h >> 2, lambda h: jnp.floor_divide(h, 4)]
)
def test_heads_in_groups_are_split_by_groups(divide):
    (op,) = kernel_ops(partial(grouped, divide), f32(8, 8, 128), f32(2, 8, 128))
    assert splits(op) == {0: [(0, 0), (1, 0), (2, 0)]}
    assert op.rule.sizes[0] == 2
    assert str(op.rule).startswith("(ab)")


def test_groups_run_where_their_keys_are():
    fn = partial(grouped, lambda h: h // 4)
    args = f32(8, 8, 128), f32(2, 8, 128)
    plan = sw.evaluate(fn, *args, mesh={"a": 2}, device="tpu-v5e", decisions=[("a", "q[0]")])
    assert "tensor<1x8x128xf32>" in regions(plan)[0]
    q, k = inputs(*args)
    np.testing.assert_allclose(plan.jit()(q, k), q * np.repeat(k, 4, axis=0), rtol=1e-6)


def copies(index_map, shape, block, grid, out_map):
    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...]

    def fn(x):
        out = jax.ShapeDtypeStruct(tuple(n * b for n, b in zip(grid, block, strict=True)), x.dtype)
        return call(kernel, grid, [(block, index_map)], [(block, out_map)], [out])(x)[0]

    return fn, f32(*shape)


@pytest.mark.parametrize(
    ("index_map", "shape", "parts"),
    [
        (lambda i, j: (i, j), (64, 512), (8, 4)),
        (lambda i, j: (i % 8, j), (64, 512), (8, 4)),
        (lambda i, j: (i % 4, j), (32, 512), (2, 4)),
        (lambda i, j: (i // 2, j), (32, 512), (4, 4)),
        (lambda i, j: (2 * i, j), (128, 512), (8, 4)),
        (lambda i, j: (2 * i + 1, j), (128, 512), (8, 4)),
        (lambda i, j: (4 * i + j, 0), (256, 128), (8, 1)),
        (lambda i, j: (i // 3, j), (24, 512), (1, 4)),
        (lambda i, j: (i + 1, j), (72, 512), (1, 4)),
        (lambda i, j: (7 - i, j), (64, 512), (1, 4)),
        (lambda i, j: (jnp.where(i < j, i, 0), j), (64, 512), (1, 1)),
        (lambda i, j: ((i + j) % 8, j), (64, 512), (1, 1)),
    ],
)
def test_what_index_maps_compute(index_map, shape, parts):
    fn, x = copies(index_map, shape, (8, 128), (8, 4), lambda i, j: (i, j))
    (op,) = kernel_ops(fn, x)
    assert op.rule.sizes[:2] == parts


def looked_up(kernel, table, x):
    """Blocks whose numbers stand in a table; the kernel is given that as well."""
    block = (8, 128)
    ins, outs = [(block, lambda i, t: (t[i], 0))], [(block, lambda i, _: (i, 0))]
    return call(kernel, (8,), ins, outs, [jax.ShapeDtypeStruct((64, 128), x.dtype)], scalars=1)(table, x)[0]


def test_a_table_is_split_if_all_that_read_it_do_so_at_the_grid_index():
    def plain(_, x_ref, out_ref):
        out_ref[...] = x_ref[...]

    def at_own(table, x_ref, out_ref):
        out_ref[...] = x_ref[...] * table[pl.program_id(0)]

    def at_first(table, x_ref, out_ref):
        out_ref[...] = x_ref[...] * table[0]

    args = jax.ShapeDtypeStruct((8,), I32), f32(32, 128)
    for kernel in (plain, at_own):
        (op,) = kernel_ops(partial(looked_up, kernel), *args)
        assert splits(op) == {0: [(0, 0), (2, 0)]}
    (op,) = kernel_ops(partial(looked_up, at_first), *args)
    assert not splits(op)
    assert "dimension 0 of operand 0 used in several ways" in notes(partial(looked_up, at_first), *args)[0]
    plan = sw.evaluate(
        partial(looked_up, at_own), *args, mesh={"a": 4}, device="tpu-v5e", decisions=[("a", "table[0]")]
    )
    assert "tensor<2xi32>" in regions(plan)[0]
    table, x = np.array([3, 1, 0, 2, 2, 3, 1, 0], np.int32), inputs(args[1])[0]
    expected = x.reshape(4, 8, 128)[table] * table[:, None, None]
    np.testing.assert_allclose(plan.jit()(table, x), expected.reshape(64, 128), rtol=1e-6)


def added_up(body, x, dtype=jnp.float32, scratch=True, grid=(2, 4)):
    """Rows of blocks added up over the second grid index by the body's own means."""
    memory = [pltpu.VMEM((8, 128), jnp.float32)] if scratch else []
    ins, outs = [((8, 128), lambda i, k: (i, k))], [((8, 128), lambda i, _: (i, 0))]
    shape = jax.ShapeDtypeStruct((8 * grid[0], 128), dtype)
    work = pl.CostEstimate(flops=10**12, transcendentals=0, bytes_accessed=0)  # worth an all-reduce
    return call(body, grid, ins, outs, [shape], scratch=memory, cost_estimate=work)(x)[0]


def zero_first(ref, k=1):
    @pl.when(pl.program_id(k) == 0)
    def _():
        ref[...] = jnp.zeros_like(ref)


def in_the_result(x_ref, out_ref):
    zero_first(out_ref)
    out_ref[...] += 2 * x_ref[...]


def sometimes(x_ref, out_ref):
    zero_first(out_ref)

    @pl.when(x_ref[0, 0] > 0)
    def _():
        out_ref[...] = x_ref[...] + out_ref[...]


def slice_by_slice(x_ref, out_ref):
    zero_first(out_ref)

    def turn(n, _):
        out_ref[pl.ds(2 * n, 2)] += x_ref[pl.ds(2 * n, 2)]

    lax.fori_loop(0, 4, turn, None)


def in_scratch(x_ref, out_ref, sum_ref):
    zero_first(sum_ref)
    sum_ref[...] += x_ref[...]

    @pl.when(pl.program_id(1) == pl.num_programs(1) - 1)
    def _():
        out_ref[...] = sum_ref[...]


def written_always(x_ref, out_ref, sum_ref):
    zero_first(sum_ref)
    sum_ref[...] += x_ref[...]
    out_ref[...] = sum_ref[...]


@pytest.mark.parametrize("body", [in_the_result, sometimes, slice_by_slice, in_scratch, written_always])
def test_sums_are_split_and_added_up_by_the_devices(body):
    fn = partial(added_up, body, scratch=body in (in_scratch, written_always))
    x = f32(16, 512)
    (op,) = kernel_ops(fn, x)
    assert splits(op) == {0: [(0, 0), (1, 0)], 1: [(0, 1)]}
    assert op.rule.reduction == {1}
    plan = sw.evaluate(fn, x, mesh={"a": 2, "b": 2}, device="tpu-v5e", decisions=[("a", "x[0]"), ("b", "x[1]")])
    assert "tensor<8x256xf32>" in regions(plan)[0]
    assert any(c.kind == "all-reduce" for c in plan.collectives)
    (value,) = inputs(x)
    blocks = value.reshape(2, 8, 4, 128)
    kept = blocks[:, :1, :, :1] > 0 if body is sometimes else np.ones(1, bool)
    expected = (2 if body is in_the_result else 1) * np.where(kept, blocks, 0).sum(2).reshape(16, 128)
    np.testing.assert_allclose(plan.jit()(value), expected, rtol=1e-4, atol=1e-5)


def not_zero(x_ref, out_ref):
    @pl.when(pl.program_id(1) == 0)
    def _():
        out_ref[...] = jnp.ones_like(out_ref)

    out_ref[...] += x_ref[...]


def zero_too_late(x_ref, out_ref):
    out_ref[...] += x_ref[...]
    zero_first(out_ref)


def zero_in_the_second(x_ref, out_ref):
    @pl.when(pl.program_id(1) == 1)
    def _():
        out_ref[...] = jnp.zeros_like(out_ref)

    out_ref[...] += x_ref[...]


def averaged(x_ref, out_ref):
    zero_first(out_ref)
    out_ref[...] = 0.5 * (out_ref[...] + x_ref[...])


def also_looked_at(x_ref, out_ref):
    zero_first(out_ref)
    out_ref[...] += x_ref[...] * out_ref[0, 0]


def added_by_number(x_ref, out_ref):
    zero_first(out_ref)
    out_ref[...] += x_ref[...] * pl.program_id(1)


def zero_by_rows(x_ref, out_ref):
    zero_first(out_ref, k=0)
    out_ref[...] += x_ref[...]


def rounded(x_ref, out_ref, sum_ref):
    zero_first(sum_ref)
    sum_ref[...] += x_ref[...]
    out_ref[...] = sum_ref[...].astype(out_ref.dtype)


def masked_by_what_comes(x_ref, out_ref, sum_ref):
    zero_first(sum_ref)
    sum_ref[...] += x_ref[...]
    out_ref[...] = jnp.where(x_ref[...] > 0, sum_ref[...], out_ref[...])


def masked_by_number(x_ref, out_ref, sum_ref):
    zero_first(sum_ref)
    sum_ref[...] += x_ref[...]
    mask = lax.broadcasted_iota(I32, (8, 128), 0) > pl.program_id(1)
    out_ref[...] = jnp.where(mask, sum_ref[...], out_ref[...])


def rows_written(sum_ref, before):
    return jnp.where(lax.broadcasted_iota(I32, (8, 128), 0) % 2 == 0, sum_ref[...], before)


def copied_by_the_first(x_ref, out_ref, sum_ref):
    """Where the mask is not, the first step's part of the sum stays."""
    zero_first(sum_ref)
    sum_ref[...] += x_ref[...]

    @pl.when(pl.program_id(1) == 0)
    def _():
        out_ref[...] = sum_ref[...]

    @pl.when(pl.program_id(1) == pl.num_programs(1) - 1)
    def _():
        out_ref[...] = rows_written(sum_ref, out_ref[...])


def read_before_a_copy(x_ref, out_ref, sum_ref):
    """Where the mask is not, what the step before copied comes back."""
    zero_first(sum_ref)
    sum_ref[...] += x_ref[...]
    before = out_ref[...]
    out_ref[...] = sum_ref[...]

    @pl.when(pl.program_id(1) == pl.num_programs(1) - 1)
    def _():
        out_ref[...] = rows_written(sum_ref, before)


def other_in_the_last(x_ref, out_ref, sum_ref):
    zero_first(sum_ref)

    def last():
        sum_ref[...] += 2 * x_ref[...]
        out_ref[...] = sum_ref[...]

    def others():
        sum_ref[...] += x_ref[...]

    lax.cond(pl.program_id(1) == pl.num_programs(1) - 1, last, others)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (not_zero, "not provably added up"),
        (zero_too_late, "not provably added up"),
        (zero_in_the_second, "not set to zero by just the first"),
        (averaged, "not provably added up"),
        (also_looked_at, "not provably added up"),
        (added_by_number, "asked for by number"),
        (zero_by_rows, "not set to zero by just the first"),
        (rounded, "not provably added up"),
        (masked_by_what_comes, "not provably added up"),
        (masked_by_number, "not provably added up"),
        (copied_by_the_first, "not provably added up"),
        (read_before_a_copy, "not provably added up"),
        (other_in_the_last, "not provably added up"),
    ],
)
def test_what_is_no_sum_stays_whole(body, reason):
    in_memory = "sum_ref" in signature(body).parameters
    dtype = jnp.float8_e4m3fn if body is rounded else jnp.float32
    fn = partial(added_up, body, dtype=dtype, scratch=in_memory)
    assert reason in notes(fn, f32(16, 512))[1]


def test_a_sum_is_rounded_by_each_device_as_that_of_a_product_is():
    fn, x = partial(added_up, rounded, dtype=jnp.bfloat16), f32(16, 512)
    (op,) = kernel_ops(fn, x)
    assert op.rule.reduction == {1}
    plan = sw.evaluate(fn, x, mesh={"b": 4}, device="tpu-v5e", decisions=[("b", "x[1]")])
    assert "tensor<16x128xf32>" in regions(plan)[0]
    (value,) = inputs(x)
    expected = value.reshape(16, 4, 128).sum(1)
    np.testing.assert_allclose(np.asarray(plan.jit()(value), np.float32), expected, rtol=2e-2, atol=2e-2)


def some_rows_each(table_ref, x_ref, out_ref, sum_ref):
    """Each step of the first index adds up its own, and writes the rows that a table gives it."""
    zero_first(sum_ref)
    row, i = lax.broadcasted_iota(I32, (8, 128), 0), pl.program_id(0)

    def last():
        sum_ref[...] += x_ref[...]
        first, end = table_ref[i], table_ref[i + 1]
        out_ref[...] = jnp.where((row >= first) & (row < end), sum_ref[...], out_ref[...])

    def others():
        sum_ref[...] += x_ref[...]

    lax.cond(pl.program_id(1) == pl.num_programs(1) - 1, last, others)


def test_a_sum_that_goes_where_a_mask_says_is_split_and_added_up_by_the_devices():
    def fn(table, x):
        ins, outs = [((8, 128), lambda i, k, _: (i, k))], [((8, 128), lambda *_: (0, 0))]
        memory = [pltpu.VMEM((8, 128), jnp.float32)]
        shapes = [jax.ShapeDtypeStruct((8, 128), jnp.float32)]
        work = pl.CostEstimate(flops=10**12, transcendentals=0, bytes_accessed=0)  # worth an all-reduce
        kernel = call(some_rows_each, (3, 4), ins, outs, shapes, scalars=1, scratch=memory, cost_estimate=work)
        return kernel(table, x)[0]

    args = jax.ShapeDtypeStruct((4,), I32), f32(24, 512)
    (op,) = kernel_ops(fn, *args)
    assert op.rule.reduction == {1}
    plan = sw.evaluate(fn, *args, mesh={"b": 4}, device="tpu-v5e", decisions=[("b", "x[1]")])
    assert "tensor<24x128xf32>" in regions(plan)[0]
    table, x = np.array([0, 3, 4, 8], np.int32), inputs(args[1])[0]
    sums = x.reshape(3, 8, 4, 128).sum(2)
    expected = np.concatenate([sums[i, table[i] : table[i + 1]] for i in range(3)])
    np.testing.assert_allclose(plan.jit()(table, x), expected, rtol=1e-4, atol=1e-5)


def test_a_sum_over_two_indices_is_split_by_one_of_them_at_a_time():
    def body(x_ref, out_ref):
        @pl.when((pl.program_id(0) == 0) & (pl.program_id(1) == 0))
        def _():
            out_ref[...] = jnp.zeros_like(out_ref)

        out_ref[...] += x_ref[...]

    def fn(x):
        block = (8, 128)
        ins, outs = [(block, lambda i, k: (i, k))], [(block, lambda *_: (0, 0))]
        return call(body, (2, 4), ins, outs, [jax.ShapeDtypeStruct(block, x.dtype)])(x)[0]

    (op,) = kernel_ops(fn, f32(16, 512))
    assert op.rule.reduction == {0, 1}
    assert op.rule.apart == ((0, 1),)


def test_a_result_whose_places_come_again_is_no_sum():
    def fn(x):
        ins, outs = [((8, 128), lambda k: (k, 0))], [((8, 128), lambda k: (k % 2, 0))]

        def body(x_ref, out_ref):
            out_ref[...] = jnp.zeros_like(out_ref)
            out_ref[...] += x_ref[...]

        return call(body, (4,), ins, outs, [jax.ShapeDtypeStruct((16, 128), x.dtype)])(x)[0]

    assert "and so have others" in notes(fn, f32(32, 128))[0]


def kept_from(reset, grid=(4, 4)):
    """A result that hangs on what the steps before left in scratch memory, since it was reset at a grid index."""

    def body(x_ref, out_ref, memory):
        @pl.when(pl.program_id(reset) == 0)
        def _():
            memory[...] = jnp.zeros_like(memory)

        memory[...] = 0.5 * memory[...] + x_ref[...]
        out_ref[...] = memory[...]

    def fn(x):
        ins = [((8, 128), lambda i, k: (i, k))]
        return call(body, grid, ins, ins, [x], scratch=[pltpu.VMEM((8, 128), jnp.float32)])(x)[0]

    return fn


def test_memory_that_is_written_first_is_not_handed_on():
    (op,) = kernel_ops(kept_from(1), f32(32, 512))
    assert splits(op) == {0: [(0, 0), (1, 0)]}
    assert "asked for by number" in notes(kept_from(1), f32(32, 512))[1]
    found = notes(kept_from(0), f32(32, 512))
    assert "asked for by number" in found[0]
    assert "memory that outlives a step" in found[1]


def test_an_operand_that_a_kernel_writes_to_is_memory():
    def body(flag, x_ref, out_ref):
        out_ref[...] = x_ref[...] * flag[0]
        flag[0] = flag[0] + 1

    def fn(flag, x):
        ins = [((8, 128), lambda i, _: (i, 0))]
        return call(body, (4,), ins, ins, [x], scalars=1)(flag, x)[0]

    assert "memory that outlives a step" in notes(fn, jax.ShapeDtypeStruct((1,), I32), f32(32, 128))[0]


def test_rows_of_an_array_that_every_step_has_whole():
    def body(x_ref, row_ref, out_ref):
        out_ref[...] = x_ref[...] + row_ref[pl.program_id(0)]

    def fn(x, rows):
        ins = [((8, 128), lambda i: (i, 0)), ((4, 128), lambda _: (0, 0))]
        return call(body, (4,), ins, ins[:1], [x])(x, rows)[0]

    args = f32(32, 128), f32(4, 128)
    (op,) = kernel_ops(fn, *args)
    assert splits(op) == {0: [(0, 0), (1, 0), (2, 0)]}
    plan = sw.evaluate(fn, *args, mesh={"a": 4}, device="tpu-v5e", decisions=[("a", "x[0]")])
    x, rows = inputs(*args)
    np.testing.assert_allclose(plan.jit()(x, rows), x + np.repeat(rows, 8, axis=0), rtol=1e-6)
    batched = f32(2, 32, 128), f32(2, 4, 128)
    (op,) = kernel_ops(jax.vmap(fn), *batched)
    assert splits(op)[1] == [(0, 1), (1, 1), (2, 1)]


@pytest.mark.parametrize(("offset", "split"), [(0, True), (4, False)])
def test_slices_of_an_array_that_every_step_has_whole(offset, split):
    def body(x_ref, more_ref, out_ref):
        start = 8 * pl.program_id(0) + offset
        out_ref[...] = x_ref[...] + more_ref[pl.ds(start, 8)]

    def fn(x, more):
        ins = [((8, 128), lambda i: (i, 0)), ((40, 128), lambda _: (0, 0))]
        return call(body, (5,), ins, ins[:1], [x])(x, more)[0]

    args = f32(40, 128), f32(40, 128)
    (op,) = kernel_ops(fn, *args)
    assert splits(op) == ({0: [(0, 0), (1, 0), (2, 0)]} if split else {})
    if split:
        plan = sw.evaluate(fn, *args, mesh={"a": 5}, device="tpu-v5e", decisions=[("a", "x[0]")])
        x, more = inputs(*args)
        np.testing.assert_allclose(plan.jit()(x, more), x + more, rtol=1e-6)


def test_rows_of_a_result_that_every_step_has_whole():
    def body(x_ref, out_ref):
        i, j = pl.program_id(0), pl.program_id(1)

        @pl.when(j == 0)
        def _():
            out_ref[i] = jnp.zeros((128,), jnp.float32)

        out_ref[i] += x_ref[...].sum(0)

    def fn(x):
        ins, outs = [((8, 128), lambda i, j: (i, j))], [((4, 128), lambda *_: (0, 0))]
        return call(body, (4, 2), ins, outs, [jax.ShapeDtypeStruct((4, 128), x.dtype)])(x)[0]

    (op,) = kernel_ops(fn, f32(32, 256))
    assert splits(op) == {0: [(0, 0), (1, 0)]}
    plan = sw.evaluate(fn, f32(32, 256), mesh={"a": 4}, device="tpu-v5e", decisions=[("a", "x[0]")])
    assert "tensor<8x256xf32>" in regions(plan)[0]
    (x,) = inputs(f32(32, 256))
    np.testing.assert_allclose(plan.jit()(x), x.reshape(4, 8, 2, 128).sum((1, 2)), rtol=1e-4, atol=1e-5)


def test_paged_attention_stays_whole():
    pages, lengths = f32(2, 16, 8, 128), jax.ShapeDtypeStruct((4,), I32)
    fn = partial(paged_attention, pages_per_compute_block=2)
    args = f32(4, 4, 128), pages, pages, lengths, jax.ShapeDtypeStruct((4, 4), I32)
    (note,) = sw.analyse(fn, *args, platform="tpu").kernels
    assert not note.split


@pytest.mark.slow
@pytest.mark.parametrize(("split", "part"), [("right[2]", "4x256x128"), ("right[1]", "4x128x256")])
def test_grouped_products_are_split_by_columns_and_added_up_by_rows(split, part):
    def fn(left, right, sizes, interpret=False):
        return megablox.gmm(left, right, sizes, jnp.float32, (128, 128, 128), interpret=interpret)

    args = f32(256, 256), f32(4, 256, 256), jax.ShapeDtypeStruct((4,), I32)
    plan = sw.evaluate(fn, *args, mesh={"a": 2}, device="tpu-v5e", decisions=[("a", split)])
    assert f"tensor<{part}xf32>" in regions(plan)[0]
    left, right = inputs(*args[:2])
    sizes = np.array([60, 100, 0, 96], np.int32)
    expected = np.concatenate([p @ w for p, w in zip(np.split(left, np.cumsum(sizes)[:-1]), right, strict=True)])
    np.testing.assert_allclose(plan.jit()(left, right, sizes), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_splash_attention_with_grouped_heads_planned_equals_plain_attention():
    blocks = dict.fromkeys(("block_q", "block_kv", "block_kv_compute", "block_q_dkv", "block_kv_dkv"), 128)
    blocks |= dict.fromkeys(("block_kv_dkv_compute", "block_q_dq", "block_kv_dq"), 128)

    def fast(q, k, v):
        mask = masks.MultiHeadMask([masks.CausalMask((256, 256)), masks.LocalMask((256, 256), (64, 0), 0)] * 2)
        kernel = splash.make_splash_mha(mask, head_shards=1, q_seq_shards=1, block_sizes=splash.BlockSizes(**blocks))
        return jax.vmap(kernel)(q, k, v)

    def plain(q, k, v):
        k, v = (jnp.repeat(each, 2, axis=1) for each in (k, v))
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k)
        i, j = jnp.arange(256)[:, None], jnp.arange(256)
        near = jnp.stack([j <= i, (j <= i) & (i - j <= 64)] * 2)
        return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(jnp.where(near, scores, -1e30)), v)

    def step(attention, q, k, v):
        return jax.grad(lambda *a: (attention(*a) ** 2).sum(), argnums=(0, 1, 2))(q, k, v)

    args = f32(2, 4, 256, 128), f32(2, 2, 256, 128), f32(2, 2, 256, 128)
    plan = sw.evaluate(
        partial(step, fast), *args, mesh={"a": 2, "b": 2}, device="tpu-v5e", decisions=[("a", "q[0]"), ("b", "q[1]")]
    )
    assert not plan.whole_kernels
    assert all("tensor<1x2x256x128xf32>" in region for region in regions(plan))
    values = [0.2 * x for x in inputs(*args)]
    for got, wanted in zip(plan.jit()(*values), step(plain, *values), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-3, atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("number", [99, 106, 144, 218])
def test_random_kernels(number):
    """``benchmarks/kernels.py`` runs hundreds."""
    verdict = judge(draw_case(number))
    assert verdict.ran
    assert not verdict.wrong
    assert verdict.is_complete
