"""Functions that bring a sharding rule, by JAX's ``custom_partitioning``: they keep it, and plans run their parts."""

import importlib.util
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardwright as sw
from programs import f32

MESH = {"data": 4, "model": 2}


def taken(*reduced):
    """A partition that takes what it is given, and sums over the axes that these dimensions of the first are on."""

    def partition(fn, mesh, args, result):
        axes = [a for d in reduced for a in [args[0].sharding.spec[d]] if a is not None]

        def part(*arrays):
            out = fn(*arrays)
            return lax.psum(out, tuple(axes)) if axes else out

        return mesh, part, result.sharding, tuple(arg.sharding for arg in args)

    return partition


@custom_partitioning
def product(x, w):
    return x @ w


product.def_partition(partial(taken(1), lambda x, w: x @ w), sharding_rule="i k, k j -> i j", reduction_factors=("k",))


@custom_partitioning
def ranks(x):
    """Of every element in its row; nothing that XLA would split along rows by itself."""
    return jnp.argsort(jnp.argsort(x, axis=1), axis=1)


ranks.def_partition(
    partial(taken(), lambda x: jnp.argsort(jnp.argsort(x, axis=1), axis=1)),
    sharding_rule="rows columns -> rows columns",
    need_replication_factors=("columns",),
)


def layers(x, w):
    def layer(h, w):
        return jnp.tanh(product(h, w)), None

    return lax.scan(layer, x, w)[0]


LAYERS = f32(16, 32), f32(3, 32, 32)


def inputs(*shapes):
    random = np.random.default_rng(0)
    return [jnp.asarray(random.normal(size=shape.shape) / 4, shape.dtype) for shape in shapes]


def functions(fn, *args, **options):
    return [op for op in sw.analyse(fn, *args, **options).program.ops if "function" in op.attributes]


def regions(plan):
    text = plan.export("cpu")[0].mlir_module()
    return [line for line in text.splitlines() if "sdy.manual_computation" in line]


def test_the_rule_is_kept_and_work_counted():
    (op,) = functions(layers, *LAYERS)
    assert str(op.rule) == "ab,bc->ac reduction=b"
    assert op.flops == 2 * 16 * 32 * 32
    assert op.attributes["kernel"] == "product"
    (op,) = functions(ranks, f32(64, 32))
    assert str(op.rule) == "ab->ab whole=b"


@pytest.mark.parametrize("decisions", [[("data", "x[0]")], [("data", "x[0]"), ("model", "w[1]")], [("model", "w[2]")]])
def test_each_device_runs_the_part_that_partition_gives_it(decisions):
    plan = sw.evaluate(layers, *LAYERS, mesh=MESH, device="tpu-v5e", decisions=decisions)
    (region,) = regions(plan)
    assert 'manual_axes={"data", "model"}' in region
    values = inputs(*LAYERS)
    np.testing.assert_allclose(plan.jit()(*values), jax.jit(layers)(*values), rtol=1e-5, atol=1e-5)


def test_under_vmap_less_scan_and_checkpoint_a_gradient_is_the_same():
    @jax.custom_vjp
    def multiply(x, w):
        return product(x, w)

    multiply.defvjp(
        lambda x, w: (product(x, w), (x, w)), lambda saved, g: (product(g, saved[1].T), product(saved[0].T, g))
    )

    def loss(w, x):
        return (lax.scan(jax.checkpoint(lambda h, w: (jnp.tanh(multiply(h, w)), None)), x, w)[0] ** 2).sum()

    args = f32(3, 32, 32), f32(16, 32)
    plan = sw.evaluate(jax.grad(loss), *args, mesh=MESH, device="tpu-v5e", decisions=[("data", "x[0]")])
    assert len(regions(plan)) == 4
    values = inputs(*args)
    np.testing.assert_allclose(plan.jit()(*values), jax.grad(loss)(*values), rtol=1e-4, atol=1e-5)


def test_what_must_not_be_split_is_gathered():
    def fn(x):
        return ranks(jnp.sin(x)) * 2

    plan = sw.evaluate(fn, f32(64, 32), mesh=MESH, device="tpu-v5e", decisions=[("data", "x[0]"), ("model", "x[1]")])
    (region,) = regions(plan)
    assert "tensor<16x32xf32>" in region
    (x,) = inputs(f32(64, 32))
    np.testing.assert_array_equal(plan.jit()(x), jax.jit(fn)(x))


def test_a_partition_may_ask_for_other_shardings_than_its_rule_says():
    @custom_partitioning
    def choosy(x):
        return jnp.cumsum(x, axis=1)

    def partition(mesh, args, _result):
        own = NamedSharding(mesh, P(args[0].sharding.spec[0], None))
        return mesh, lambda x: jnp.cumsum(x, axis=1), own, (own,)

    choosy.def_partition(partition, sharding_rule="i j -> i j")

    def fn(x):
        return choosy(x * 2)

    plan = sw.evaluate(fn, f32(64, 32), mesh=MESH, device="tpu-v5e", decisions=[("data", "x[0]"), ("model", "x[1]")])
    (x,) = inputs(f32(64, 32))
    np.testing.assert_allclose(plan.jit()(x), jax.jit(fn)(x), rtol=1e-5)


def test_a_partition_that_refuses_what_its_rule_allows():
    @custom_partitioning
    def strict(x):
        return jnp.cumsum(x, axis=1)

    def partition(mesh, args, result):
        if args[0].sharding.spec[1] is not None:
            raise ValueError("columns must be whole")
        return mesh, lambda x: jnp.cumsum(x, axis=1), result.sharding, (args[0].sharding,)

    strict.def_partition(partition, sharding_rule="i j -> i j")
    options = {"mesh": MESH, "device": "tpu-v5e", "decisions": [("model", "x[1]")]}

    def fn(x):
        return strict(x)

    plan = sw.evaluate(fn, f32(64, 32), **options)
    with pytest.raises(sw.PlanError, match=r"the partition of 'strict' does not take .* \(columns must be whole\)"):
        plan.export("cpu")
    plan = sw.evaluate(fn, f32(64, 32), **options, rules={"strict": "i j -> i k"})
    (x,) = inputs(f32(64, 32))
    np.testing.assert_allclose(plan.jit()(x), np.cumsum(x, axis=1), rtol=1e-4, atol=1e-4)


def test_a_rule_that_is_computed_and_arguments_that_are_static():
    @partial(custom_partitioning, static_argnums=(1,))
    def scaled(x, factor):
        return x * factor

    def partition(factor, mesh, args, result):
        return mesh, lambda x: x * factor, result.sharding, (args[0].sharding,)

    def rule(factor, _mesh, operands, results):
        assert factor == 3 and operands[0].shape == results[0].shape
        return "i j -> i j"

    scaled.def_partition(partition, sharding_rule=rule)

    def fn(x):
        return scaled(x, 3)

    plan = sw.evaluate(fn, f32(64, 32), mesh=MESH, device="tpu-v5e", decisions=[("data", "x[0]")])
    (x,) = inputs(f32(64, 32))
    np.testing.assert_allclose(plan.jit()(x), 3 * x)


def test_one_without_a_rule_is_put_in_its_place():
    @custom_partitioning
    def plain(x):
        return jnp.sin(x)

    plain.def_partition(partial(taken(), jnp.sin))
    program = sw.analyse(plain, f32(64, 32)).program
    assert [op.kind for op in program.ops] == ["sine"]


def test_one_in_a_region_of_the_users_own_stays_there():
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def fn(x, w):
        specs = {"in_specs": (P("data"), P()), "out_specs": P("data"), "check_vma": False}
        return jax.shard_map(product, mesh=mesh, **specs)(x, w)

    assert not functions(fn, f32(16, 32), f32(32, 32))
    plan = sw.evaluate(fn, f32(16, 32), f32(32, 32), device="tpu-v5e", decisions=[])
    values = inputs(f32(16, 32), f32(32, 32))
    np.testing.assert_allclose(plan.jit()(*values), values[0] @ values[1], rtol=1e-5, atol=1e-5)


def test_a_kernel_that_knows_its_own_shapes_is_traced_again_on_the_local_ones():
    def reversed_rows(x):
        """A kernel that could not run on a part of its grid: it has the number of rows in it."""

        def kernel(x_ref, out_ref):
            last = x_ref.shape[0] // 8 - 1
            out_ref[...] = x_ref[pl.ds(8 * (last - pl.program_id(0)), 8), :] + last

        return pl.pallas_call(
            kernel,
            grid=(x.shape[0] // 8,),
            in_specs=[pl.BlockSpec(x.shape, lambda _: (0, 0))],
            out_specs=pl.BlockSpec((8, x.shape[1]), lambda i: (i, 0)),
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            interpret=True,
        )(x)

    @custom_partitioning
    def each(x):
        return jax.vmap(reversed_rows)(x)

    each.def_partition(partial(taken(), jax.vmap(reversed_rows)), sharding_rule="b i j -> b i j")
    shape = f32(8, 64, 256)

    def fn(x):
        return each(x)

    plan = sw.evaluate(fn, shape, mesh=MESH, device="tpu-v5e", decisions=[("data", "x[0]"), ("model", "x[2]")])
    (x,) = inputs(shape)
    expected = np.asarray(x).reshape(8, 8, 8, 256)[:, ::-1].reshape(8, 64, 256) + 7
    np.testing.assert_allclose(plan.jit()(x), expected, rtol=1e-5)


def test_to_stablehlo_has_the_parts(tmp_path):
    plan = sw.evaluate(layers, *LAYERS, mesh=MESH, device="tpu-v5e", decisions=[("data", "x[0]"), ("model", "w[1]")])
    plan.to_stablehlo(tmp_path / "planned.mlir")
    text = (tmp_path / "planned.mlir").read_text()
    assert "CustomSPMDPartitioning" not in text and "shardwright" not in text
    assert "sdy.manual_computation" in text and "all_reduce" in text


def test_a_lowering_of_the_users_own_has_its_calls():
    sw.evaluate(layers, *LAYERS, mesh=MESH, device="tpu-v5e", decisions=[("data", "x[0]")]).export("cpu")
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = NamedSharding(mesh, P("data"))
    text = jax.jit(layers, in_shardings=(sharding, None)).lower(*LAYERS).as_text()
    assert "@CustomSPMDPartitioning" in text and "shardwright" not in text


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="the TPU compiler is not installed")
def test_the_tpu_compiler_takes_the_parts():
    plan = sw.evaluate(layers, *LAYERS, mesh=MESH, device="tpu-v5e", decisions=[("data", "x[0]"), ("model", "w[1]")])
    found = plan.verify("tpu:v5e:2x4")
    assert found, found.message
    assert {c.axes for c in found.collectives} == {("model",)}


@pytest.mark.slow
def test_verify_runs_them():
    plan = sw.evaluate(layers, *LAYERS, mesh=MESH, device="tpu-v5e", decisions=[("data", "x[0]"), ("model", "w[1]")])
    assert plan.verify("run")
