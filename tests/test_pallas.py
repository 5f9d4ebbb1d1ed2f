"""Programs that call Pallas kernels: what their grids say, what keeps a grid whole, and that plans of them run."""

import importlib.util
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention, mha_reference
from jax.sharding import PartitionSpec as P

import shardwright as sw
from programs import f32

MESH = {"data": 4, "model": 2}
X, Y = f32(64, 256), f32(64, 256)
STACKED = f32(64, 256), f32(3, 256, 256)


def scaled_sum(x, y, interpret=False):
    """The sum of two arrays, in 8 × 2 blocks."""

    def add_kernel(x_ref, y_ref, out_ref):
        out_ref[...] = 2 * x_ref[...] + y_ref[...]

    block = pl.BlockSpec((8, 128), lambda i, j: (i, j))
    call = pl.pallas_call(
        add_kernel,
        grid=(8, 2),
        in_specs=[block, block],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        interpret=interpret,
    )
    return call(x, y)


def product(x, w, interpret=False, semantics=("parallel", "parallel", "arbitrary")):
    """A matrix product that sums up over the last grid index in scratch memory."""

    def product_kernel(x_ref, w_ref, out_ref, sum_ref):
        @pl.when(pl.program_id(2) == 0)
        def _():
            sum_ref[...] = jnp.zeros_like(sum_ref)

        sum_ref[...] += jnp.dot(x_ref[...], w_ref[...])

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _():
            out_ref[...] = sum_ref[...]

    call = pl.pallas_call(
        product_kernel,
        grid=(8, 2, 2),
        in_specs=[pl.BlockSpec((8, 128), lambda i, _, k: (i, k)), pl.BlockSpec((128, 128), lambda _, j, k: (k, j))],
        out_specs=pl.BlockSpec((8, 128), lambda i, j, _: (i, j)),
        out_shape=jax.ShapeDtypeStruct((x.shape[0], w.shape[1]), x.dtype),
        scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=semantics) if semantics else None,
        interpret=interpret,
    )
    return call(x, w)


def one_array(kernel, index_map, block=(8, 256), out_map=None, grid=(8,), **options):
    """A kernel from one array to another of its shape."""

    def fn(x):
        call = pl.pallas_call(
            kernel,
            grid=grid,
            in_specs=[pl.BlockSpec(block, index_map)],
            out_specs=pl.BlockSpec(block, out_map or index_map),
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            **options,
        )
        return call(x)

    return fn


def copy_kernel(x_ref, out_ref):
    out_ref[...] = x_ref[...]


def kernel_ops(fn, *args, **options):
    return [op for op in sw.analyse(fn, *args, **options).program.ops if "kernel" in op.attributes]


def splits(op):
    """The grid indices that can be split, each with the places where it stands: tensor and dimension."""
    found = {}
    for t, d, f in op.rule.links:
        found.setdefault(f, []).append((t, d))
    return found


def notes(fn, *args):
    (note,) = sw.analyse(fn, *args).kernels
    return dict(note.whole)


def test_blocks_go_with_the_grid():
    (op,) = kernel_ops(scaled_sum, X, Y)
    assert op.attributes["kernel"] == "add_kernel"
    assert str(op.rule) == "(ac)(bd),(ae)(bf)->(ag)(bh) whole=c,d,e,f,g,h"
    assert op.rule.sizes[:4] == (8, 2, 8, 128)


def test_a_product_is_split_by_rows_and_columns_and_by_what_it_sums_over():
    (op,) = kernel_ops(product, X, f32(256, 256))
    assert splits(op) == {0: [(0, 0), (2, 0)], 1: [(1, 1), (2, 1)], 2: [(0, 1), (1, 0)]}
    assert op.rule.reduction == {2}
    assert op.flops == 2 * 64 * 256 * 256


def test_flash_attention_is_split_by_batch_and_heads_forward_and_backward():
    def loss(q, k, v):
        return flash_attention(q, k, v, causal=True).sum()

    q = f32(4, 4, 256, 128)
    ops = kernel_ops(jax.grad(loss, argnums=(0, 1, 2)), q, q, q, platform="tpu")
    assert [op.attributes["kernel"] for op in ops] == [
        "_flash_attention_kernel",
        "_flash_attention_dkv_kernel",
        "_flash_attention_dq_kernel",
    ]
    for op in ops:
        everywhere = range(len(op.operands) + len(op.results))
        assert splits(op) == {0: [(t, 0) for t in everywhere], 1: [(t, 1) for t in everywhere]}


def test_a_dimension_that_vmap_adds_can_be_split_and_shifts_the_numbers_that_the_kernel_asks_for():
    def numbered(x_ref, out_ref):
        out_ref[...] = x_ref[...] + pl.program_id(0)

    fn = jax.vmap(one_array(numbered, lambda i: (i, 0)))
    (op,) = kernel_ops(fn, f32(6, 64, 256))
    assert splits(op) == {0: [(0, 0), (1, 0)]}


def steps(x_ref, out_ref):
    out_ref[...] = x_ref[...] + pl.program_id(0)


def inside_a_branch(x_ref, out_ref):
    out_ref[...] = lax.cond(x_ref[0, 0] > 0, lambda: x_ref[...] + pl.program_id(0), lambda: x_ref[...])


def kept(x_ref, out_ref, sum_ref):
    sum_ref[...] += x_ref[...]
    out_ref[...] = sum_ref[...]


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (one_array(steps, lambda i: (i, 0)), "asked for by number"),
        (one_array(inside_a_branch, lambda i: (i, 0)), "asked for by number"),
        (one_array(copy_kernel, lambda i: (7 - i, 0)), "computes with it"),
        (one_array(copy_kernel, lambda i: (i, 0), out_map=lambda i: (7 - i, 0)), "computes with it"),
        (one_array(copy_kernel, lambda i: (i, i), (8, 32)), "along several dimensions"),
        (one_array(copy_kernel, lambda i: (i, 0), out_map=lambda _: (0, 0)), "written by all of its steps"),
        (one_array(copy_kernel, lambda i: (i, 0), grid=(7,)), "in whole blocks"),
        (one_array(copy_kernel, lambda i: (i, 0), (10, 256), grid=(7,)), "in whole blocks"),
        (one_array(kept, lambda i: (i, 0), scratch_shapes=[pltpu.VMEM((8, 256), jnp.float32)]), "outlives a step"),
    ],
)
def test_what_keeps_a_grid_whole(fn, reason):
    (op,) = kernel_ops(fn, X)
    assert not op.rule.links
    assert reason in notes(fn, X)[0]
    assert reason in " ".join(str(sw.analyse(fn, X)).split())


def test_where_blocks_are_looked_up_the_table_is_split_and_the_array_is_not():
    def kernel(_, x_ref, out_ref):
        out_ref[...] = x_ref[...]

    def fn(order, x):
        grid_spec = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(8, 2),
            in_specs=[pl.BlockSpec((8, 128), lambda i, j, order: (order[i], j))],
            out_specs=pl.BlockSpec((8, 128), lambda i, j, _: (i, j)),
        )
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(kernel, grid_spec=grid_spec, out_shape=shape)(order, x)

    (op,) = kernel_ops(fn, jax.ShapeDtypeStruct((8,), jnp.int32), X)
    assert splits(op) == {0: [(0, 0), (2, 0)], 1: [(1, 1), (2, 1)]}


def test_a_result_that_nobody_reads_may_be_written_by_all_steps():
    def kernel(x_ref, out_ref, last_ref):
        out_ref[...] = last_ref[...] = x_ref[...]

    def both(x):
        block = pl.BlockSpec((8, 256), lambda i: (i, 0))
        shape = jax.ShapeDtypeStruct((8, 256), x.dtype)
        call = pl.pallas_call(
            kernel,
            grid=(8,),
            in_specs=[block],
            out_specs=[block, pl.BlockSpec((8, 256), lambda _: (0, 0))],
            out_shape=[x, shape],
        )
        return call(x)

    (op,) = kernel_ops(both, X)
    assert not splits(op)
    (op,) = kernel_ops(lambda x: both(x)[0], X)
    assert splits(op) == {0: [(0, 0), (1, 0)]}


def test_rules_by_the_name_of_a_kernel():
    fn = one_array(steps, lambda i: (i, 0))
    (op,) = kernel_ops(fn, X, rules={"steps": "rows columns -> rows columns"})
    assert splits(op) == {0: [(0, 0), (1, 0)]}
    (op,) = kernel_ops(fn, X, rules={"tpu_custom_call": "rows columns -> rows columns"})
    assert splits(op)
    with pytest.raises(sw.RuleError, match="it has steps, tpu_custom_call; did you mean steps"):
        sw.analyse(fn, X, rules={"step": "rows columns -> rows columns"})
    with pytest.raises(sw.RuleError, match="for the kernel 'steps', the rule splits none of the dimensions by which"):
        sw.analyse(fn, X, rules={"steps": "rows columns -> a b"})
    with pytest.raises(sw.RuleError, match="for the kernel 'steps', the sharding rule 'a -> a' gives 1 dimensions"):
        sw.analyse(fn, X, rules={"steps": "a -> a"})


def inputs(*shapes):
    random = np.random.default_rng(0)
    return [jnp.asarray(random.normal(size=shape.shape), shape.dtype) for shape in shapes]


def regions(plan):
    """The manual regions of the module that a plan runs."""
    text = plan.export("cpu")[0].mlir_module()
    return [line for line in text.splitlines() if "sdy.manual_computation" in line]


def two_kernels(x, w, interpret=False):
    def layer(h, w):
        h = product(h, w, interpret)
        return scaled_sum(h, jnp.tanh(h), interpret), h.sum()

    return lax.scan(layer, x, w)


BOTH = [("data", "x[0]"), ("model", "w[2]")]


def test_a_plan_runs_each_device_on_its_part_of_the_grid():
    plan = sw.evaluate(two_kernels, *STACKED, mesh=MESH, device="tpu-v5e", decisions=BOTH)
    assert not plan.whole_kernels
    assert all("tensor<16x" in region for region in regions(plan))
    assert len(regions(plan)) == 2
    values = inputs(*STACKED)
    expected = jax.jit(partial(two_kernels, interpret=True))(*values)
    for got, wanted in zip(jax.tree.leaves(plan.jit()(*values)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=1e-6 * abs(wanted).max())


def test_on_a_tpu_the_kernel_is_called_on_local_arrays(tmp_path):
    plan = sw.evaluate(two_kernels, *STACKED, mesh=MESH, device="tpu-v5e", decisions=BOTH)
    plan.to_stablehlo(tmp_path / "planned.mlir")
    text = (tmp_path / "planned.mlir").read_text()
    calls = [line for line in text.splitlines() if "@tpu_custom_call" in line]
    # The product sums up over the axis that splits the columns of what it is given, the sum over them keeps its own.
    assert [line.rpartition("->")[2].split()[0] for line in calls] == ["tensor<16x256xf32>", "tensor<16x128xf32>"]
    assert "stablehlo.all_reduce" in text
    assert "shardwright.kernel" not in text


@pytest.mark.parametrize("kind", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit])
def test_a_mesh_that_is_set_does_not_matter_to_a_kernel(kind):
    with jax.set_mesh(jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind,) * 2)):
        plan = sw.evaluate(scaled_sum, X, Y, mesh=MESH, device="tpu-v5e", decisions=[("data", "x[0]")])
        assert "@tpu_custom_call" in plan.export("tpu")[0].mlir_module()


def test_a_lowering_of_the_users_own_has_its_kernels():
    sw.evaluate(two_kernels, *STACKED, mesh=MESH, device="tpu-v5e", decisions=BOTH).export("tpu")
    lowered = jax.jit(two_kernels).trace(*STACKED).lower(lowering_platforms=("tpu",))
    assert "shardwright" not in lowered.as_text()


@jax.custom_vjp
def doubled(x):
    return scaled_sum(x, jnp.zeros_like(x))


doubled.defvjp(lambda x: (doubled(x), None), lambda _, g: (scaled_sum(g, jnp.zeros_like(g)),))


def test_a_gradient_under_vmap_and_checkpoint_is_the_same():
    def loss(w, x):
        return (jax.checkpoint(jax.vmap(doubled))(x * w) ** 2).sum()

    def plain(w, x):
        return ((2 * x * w) ** 2).sum()

    args = f32(256), f32(4, 64, 256)
    step = jax.value_and_grad(loss)
    plan = sw.evaluate(step, *args, mesh=MESH, device="tpu-v5e", decisions=[("data", "x[0]"), ("model", "x[1]")])
    assert all("tensor<1x32x256xf32>" in region for region in regions(plan))
    values = inputs(*args)
    for got, wanted in zip(plan.jit()(*values), jax.value_and_grad(plain)(*values), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4)


def test_the_count_of_steps_in_a_kernel_stays_that_of_the_whole_grid():
    def counted(x_ref, out_ref):
        out_ref[...] = x_ref[...] * pl.num_programs(0)

    plan = sw.evaluate(
        one_array(counted, lambda i: (i, 0)), X, mesh=MESH, device="tpu-v5e", decisions=[("data", "x[0]")]
    )
    assert not plan.whole_kernels
    (x,) = inputs(X)
    np.testing.assert_allclose(plan.jit()(x), 8 * x, rtol=1e-6)


def test_a_kernel_that_stays_whole_is_said_and_runs():
    def fn(x):
        return one_array(steps, lambda i: (i, 0))(jnp.sin(x)) * 2

    plan = sw.evaluate(fn, X, mesh=MESH, device="tpu-v5e", decisions=[("data", "x[0]")])
    (whole,) = plan.whole_kernels
    assert whole.name == "steps"
    assert 0 < whole.seconds < plan.estimate.step_seconds
    assert "Every device runs all of the kernel steps at test_pallas.py" in " ".join(str(plan).split())
    (x,) = inputs(X)
    np.testing.assert_allclose(plan.jit()(x), 2 * (np.sin(x) + np.repeat(np.arange(8), 8)[:, None]), rtol=1e-5)


def test_a_kernel_in_a_region_of_the_users_own_stays_as_it_is():
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    local = one_array(steps, lambda i: (i, 0), grid=(2,), interpret=True)

    def fn(x):
        return jax.shard_map(local, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False)(x) * 2

    plan = sw.evaluate(fn, X, device="tpu-v5e", decisions=[])
    assert not plan.whole_kernels
    (x,) = inputs(X)
    np.testing.assert_allclose(plan.jit()(x), jax.jit(fn)(x), rtol=1e-5)


def test_a_kernel_in_a_region_that_leaves_an_axis_is_run_in_another():
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    specs = {"in_specs": P("data"), "out_specs": P("data"), "axis_names": {"data"}, "check_vma": False}

    def fn(x):
        return jax.shard_map(one_array(copy_kernel, lambda i: (i, 0), grid=(2,)), mesh=mesh, **specs)(x) * 2

    plan = sw.evaluate(fn, X, device="tpu-v5e", decisions=[])
    assert [line.partition("manual_axes=")[2].split("}")[0] for line in regions(plan)] == ['{"data"', '{"model"']
    (x,) = inputs(X)
    np.testing.assert_allclose(plan.jit()(x), 2 * x)


def test_work_is_divided_by_what_splits_a_kernel():
    def seconds(*decisions):
        plan = sw.evaluate(two_kernels, *STACKED, mesh=MESH, device="tpu-v5e", decisions=list(decisions))
        return sum(k.seconds for k in plan.estimate.kernels if k.kind == "product_kernel")

    assert seconds(("data", "x[0]")) < seconds()


def test_flash_attention_planned_equals_plain_attention():
    def loss(attention, q, k, v):
        return (attention(q, k, v) ** 2).sum()

    def flash(q, k, v):
        return flash_attention(q, k, v, causal=True)

    def plain(q, k, v):
        return mha_reference(q, k, v, None, causal=True)

    q = f32(4, 2, 128, 128)
    step = jax.grad(partial(loss, flash), argnums=(0, 1, 2))
    plan = sw.evaluate(step, q, q, q, mesh=MESH, device="tpu-v5e", decisions=[("data", "q[0]"), ("model", "q[1]")])
    assert len(regions(plan)) == 3
    assert all("tensor<1x1x128x128xf32>" in region for region in regions(plan))
    assert not any(c.kind == "all-gather" for c in plan.collectives)
    values = inputs(q, q, q)
    for got, wanted in zip(
        plan.jit()(*values), jax.grad(partial(loss, plain), argnums=(0, 1, 2))(*values), strict=True
    ):
        np.testing.assert_allclose(got, wanted, rtol=2e-3, atol=2e-3)


@pytest.mark.slow
def test_verify_runs_kernels_interpreted():
    plan = sw.evaluate(two_kernels, *STACKED, mesh=MESH, device="tpu-v5e", decisions=BOTH)
    assert plan.verify("run")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="the TPU compiler is not installed")
def test_attention_on_a_tpu_gathers_nothing():
    def step(w, x):
        def loss(w):
            q, k, v = jnp.einsum("bsd,dchk->cbhsk", x, w["qkv"])
            return (jnp.einsum("bhsk,hkd->bsd", flash_attention(q, k, v, causal=True), w["out"]) ** 2).mean()

        return jax.tree.map(lambda w, g: w - 0.1 * g, w, jax.grad(loss)(w))

    args = {"qkv": f32(256, 3, 2, 128), "out": f32(2, 128, 256)}, f32(8, 256, 256)
    decisions = [("data", "x[0]"), ("model", "w.qkv[2]")]
    plan = sw.evaluate(step, *args, mesh=MESH, device="tpu-v5e", decisions=decisions)
    assert not plan.whole_kernels
    found = plan.verify("tpu:v5e:2x4")
    assert found, found.message
    # Heads are gathered once after the kernels, for the product that sums over them; nothing is for a kernel.
    program = plan.analysis.program
    assert not any("kernel" in program.ops[c.op].attributes for c in plan.collectives)
    gathered = sum(c.total_bytes for c in found.collectives if c.kind != "all-reduce")
    assert gathered <= sum(c.total_bytes for c in plan.collectives if c.kind != "all-reduce")


def flash_training_step():
    def loss(q, k, v):
        return flash_attention(q, k, v, causal=True).sum()

    q = f32(4, 4, 256, 128)
    return jax.grad(loss, argnums=(0, 1, 2)), (q, q, q)


def test_each_kernel_of_a_training_step_can_be_described_by_its_own_name():
    fn, args = flash_training_step()
    ops = kernel_ops(fn, *args, platform="tpu")
    whole = {op.attributes["kernel"]: len(op.operands) for op in ops}

    def rule(operands, results):
        """By heads alone: every tensor has its own other dimensions."""
        tensors = [f"b{t} n x{t} y{t}" for t in range(operands + results)]
        return f"{', '.join(tensors[:operands])} -> {', '.join(tensors[operands:])}"

    rules = {op.attributes["kernel"]: rule(len(op.operands), len(op.results)) for op in ops}
    assert len(rules) == 3 and len(set(rules.values())) == 3
    described = kernel_ops(fn, *args, platform="tpu", rules=rules)
    assert [list(splits(op)) for op in described] == [[1]] * 3
    only = {"_flash_attention_dkv_kernel": rules["_flash_attention_dkv_kernel"]}
    assert [list(splits(op)) for op in kernel_ops(fn, *args, platform="tpu", rules=only)] == [[0, 1], [1], [0, 1]]
    assert whole["_flash_attention_kernel"] == 3
    with pytest.raises(sw.RuleError, match=r"no custom call of that name; it has .*; did you mean _flash_attention_dq"):
        sw.analyse(fn, *args, platform="tpu", rules={"_flash_attention_dq": "a -> a"})


def test_code_to_paste_has_the_regions_that_kernels_need():
    def fn(x, y):
        return scaled_sum(jnp.sin(x), y) * 2

    plan = sw.evaluate(fn, X, Y, mesh=MESH, device="tpu-v5e", decisions=[("data", "x[0]"), ("model", "x[1]")])
    code = plan.to_python()
    assert "JAX does not partition Pallas kernels" in code
    (line,) = [line.strip("# ") for line in code.splitlines() if "jax.shard_map" in line]
    scope = {"fn": partial(fn)}
    exec(code, scope)
    values = inputs(X, Y)
    wrapped = eval(line.partition("  #")[0], scope | {"f": partial(scaled_sum, interpret=True)})
    placed = [
        jax.device_put(v, jax.sharding.NamedSharding(scope["mesh"], s))
        for v, s in zip(values, scope["in_specs"], strict=True)
    ]
    got = jax.jit(wrapped)(*placed)
    np.testing.assert_allclose(got, 2 * values[0] + values[1], rtol=1e-6)
    assert {shard.data.shape for shard in got.addressable_shards} == {(16, 128)}


def test_code_to_paste_names_a_kernel_once_and_not_its_backward_pass():
    fn, args = flash_training_step()
    plan = sw.evaluate(fn, *args, mesh=MESH, device="tpu-v5e", decisions=[("data", "q[0]"), ("model", "q[1]")])
    lines = [line for line in plan.to_python().splitlines() if "test_pallas.py" in line and "kernel" in line]
    assert len(lines) == 1 and "_flash_attention_kernel" in lines[0]
    alone = sw.evaluate(fn, *args, mesh={"data": 1}, device="tpu-v5e", decisions=[])
    assert "shard_map" not in alone.to_python()


def test_a_kernel_that_stays_whole_is_said_in_the_report(tmp_path):
    def fn(x):
        return one_array(steps, lambda i: (i, 0))(jnp.sin(x)) * 2

    plan = sw.evaluate(fn, X, mesh=MESH, device="tpu-v5e", decisions=[("data", "x[0]")])
    plan.report(tmp_path / "plan.html")
    assert "Every device runs all of the kernel steps at test_pallas.py" in (tmp_path / "plan.html").read_text()
