"""Splits that XLA computes wrongly: no plan has them, and what a plan does instead is right, gradients included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shardwright as sw
from programs import f32, i32
from shardwright.compiler.miscompiled import TABLE
from shardwright.frontend.stablehlo import stablehlo_program


def differences(fn, args, plan):
    """How far each leaf of the plan's result is from the plain function's, relative to its largest entry."""
    random = np.random.default_rng(0)
    inputs = jax.tree.map(lambda a: random.normal(size=a.shape).astype(a.dtype), args)
    expected = jax.jit(fn)(*inputs)
    mesh = plan.make_mesh()
    found = plan.jit(mesh)(*[plan.place(x, mesh, argument=i) for i, x in enumerate(inputs)])
    return [
        float(np.abs(np.asarray(x) - np.asarray(y)).max() / np.abs(x).max())
        for x, y in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True)
    ]


def convolution(x, w, groups, layout="NHWC", stride=1, padding="SAME"):
    return lax.conv_general_dilated(
        x, w, (stride, stride), padding, dimension_numbers=(layout, "HWIO", layout), feature_group_count=groups
    )


def shuffled_gradients(params, x):
    """Of a block as ShuffleNet has it: grouped points, a convolution of each channel alone, grouped points."""

    def loss(params):
        h = jax.nn.relu(convolution(x, params["expand"], 4))
        h = jax.nn.relu(convolution(h, params["depthwise"], 64))
        return jnp.mean(convolution(h, params["project"], 4) ** 2)

    return jax.grad(loss)(params)


PARAMS = {"expand": f32(1, 1, 16, 64), "depthwise": f32(3, 3, 1, 64), "project": f32(1, 1, 16, 64)}
IMAGES = f32(4, 8, 8, 64)


def test_a_plan_for_grouped_convolutions_has_the_right_gradients():
    plan = sw.partition(shuffled_gradients, PARAMS, IMAGES, mesh={"a": 2}, device="tpu-v5e")
    assert max(differences(shuffled_gradients, (PARAMS, IMAGES), plan)) < 1e-5


@pytest.mark.parametrize("dimension", ["x[0]", "x[1]", "x[3]", "params.expand[3]", "params.expand[2]"])
def test_whatever_is_asked_of_grouped_convolutions_is_right(dimension):
    plan = sw.evaluate(shuffled_gradients, PARAMS, IMAGES, mesh={"a": 4}, decisions=[("a", dimension)])
    assert max(differences(shuffled_gradients, (PARAMS, IMAGES), plan)) < 1e-5


@pytest.mark.parametrize(("size", "parts"), [(28, 4), (28, 2), (24, 4), (32, 8), (40, 8)])
def test_gradients_of_every_second_entry(size, parts):
    """They are padded inside; XLA gets it wrong where the entries themselves are not divided evenly."""
    fn = jax.grad(lambda x: jnp.sum(jnp.tanh(x[::2]) ** 2))
    plan = sw.evaluate(fn, f32(size), mesh={"a": parts}, decisions=[("a", "x[0]")])
    assert max(differences(fn, (f32(size),), plan)) < 1e-6


@pytest.mark.parametrize("record", TABLE, ids=[record.name for record in TABLE])
def test_every_record_says_what_happens_and_how_it_is_known(record):
    assert record.ops and record.what and record.effect.instead and record.evidence


def test_explain_says_which_split_is_avoided_and_why():
    plan = sw.evaluate(shuffled_gradients, PARAMS, IMAGES, mesh={"a": 4}, decisions=[("a", "x[0]")])
    text = str(plan.explain("convolution"))
    assert "grouped convolution" in text and "XLA gives" in text and "instead" in text


@pytest.mark.parametrize("mesh", [{"a": 2}, {"a": 2, "b": 2}])
def test_gradients_of_a_diagonal_of_odd_size(mesh):
    """They are scattered; padded updates are added up with the others where a mesh has further axes."""
    fn = jax.grad(lambda x: jnp.sum(jnp.sin(jnp.diagonal(x))))
    inside = [d.name for d in sw.analyse(fn, f32(6, 5)).descriptions]
    for name in inside:
        plan = sw.evaluate(fn, f32(6, 5), mesh=mesh, decisions=[("a", name)])
        assert max(differences(fn, (f32(6, 5),), plan)) < 1e-6, name


@pytest.mark.parametrize(("window", "stride"), [(3, 1), (2, 1), (3, 2), (2, 2)])
def test_gradients_of_a_maximum_over_windows(window, stride):
    fn = jax.grad(lambda x: jnp.sum(jnp.sin(lax.reduce_window(x, -jnp.inf, lax.max, (window,), (stride,), "SAME"))))
    plan = sw.evaluate(fn, f32(32), mesh={"a": 4}, decisions=[("a", "x[0]")])
    assert max(differences(fn, (f32(32),), plan)) < 1e-6


def test_every_group_of_the_gradient_of_overlapping_windows():
    """XLA splits the scattering inside wrongly, whatever its operand comes from."""
    fn = jax.grad(lambda x: jnp.sum(jnp.sin(lax.reduce_window(x, -jnp.inf, lax.max, (3, 1), (1, 2), "SAME"))))
    args = (f32(6, 8),)
    for description in sw.analyse(fn, *args).descriptions:
        plan = sw.evaluate(fn, *args, mesh={"a": 2}, decisions=[("a", description.name)])
        assert max(differences(fn, args, plan)) < 1e-6


def grouped(x, w):
    out = lax.conv_general_dilated(
        x, w, (1,), [(3, 2)], (3,), dimension_numbers=("NHC", "IHO", "NHC"), feature_group_count=3
    )
    return jnp.sum(jnp.sin(out))


def test_every_group_of_the_gradient_of_a_grouped_convolution():
    """By its kernel it has groups of the batch, which leave a rest of the batch that is no group."""
    fn, args = jax.grad(grouped, argnums=(0, 1)), (f32(6, 7, 6), f32(2, 2, 3))
    for description in sw.analyse(fn, *args).descriptions:
        plan = sw.evaluate(fn, *args, mesh={"a": 2}, decisions=[("a", description.name)])
        assert max(differences(fn, args, plan)) < 1e-6


@pytest.mark.parametrize("groups", [4, 16])
@pytest.mark.parametrize("dimension", ["x[0]", "x[1]", "x[3]", "w[3]"])
def test_gradients_of_grouped_kernels_on_two_axes(groups, dimension):
    """Sums over the batch on one axis are counted once for each device of the other."""
    fn = jax.grad(lambda w, x: jnp.sum(jnp.sin(convolution(x, w, groups))))
    args = f32(3, 3, 16 // groups, 16), f32(8, 8, 8, 16)
    plan = sw.evaluate(fn, *args, mesh={"a": 2, "b": 2}, decisions=[("a", dimension)])
    assert max(differences(fn, args, plan)) < 1e-5


def test_a_spread_out_image_that_is_cut():
    """The partitioner ends the process where padding cuts off a part of a step."""

    def fn(x, w):
        out = lax.conv_general_dilated(x, w, (1,), [(-1, 1)], (2,), dimension_numbers=("NHC", "HIO", "NHC"))
        return jnp.tanh(out)

    args = f32(4, 16, 8), f32(1, 8, 8)
    plan = sw.evaluate(fn, *args, mesh={"a": 2}, decisions=[("a", "x[1]")])
    assert max(differences(fn, args, plan)) < 1e-5


@pytest.mark.parametrize("dimension", [0, 1])
def test_a_fourier_transform_whose_result_is_split(dimension):
    def fn(x, y):
        return jnp.abs(jnp.fft.fft(x)) + y

    args = f32(16, 8), f32(16, 8)
    plan = sw.evaluate(fn, *args, mesh={"a": 2}, decisions=[("a", f"y[{dimension}]")])
    assert max(differences(fn, args, plan)) < 1e-5


@pytest.mark.parametrize("index", [3, 8, 12, 100, -5])
@pytest.mark.parametrize("dimension", ["x[0]", "y[0]"])
def test_a_dynamic_slice_is_clamped(index, dimension):
    def fn(x, y, i):
        return jnp.tanh(lax.dynamic_slice(x, (i,), (8,)) + y)

    plan = sw.evaluate(fn, f32(16), f32(8), i32(), mesh={"a": 2}, decisions=[("a", dimension)])
    inputs = np.arange(16, dtype=np.float32) / 16, np.zeros(8, np.float32), np.int32(index)
    mesh = plan.make_mesh()
    found = plan.jit(mesh)(*[plan.place(x, mesh, argument=k) for k, x in enumerate(inputs)])
    np.testing.assert_allclose(np.asarray(found), np.asarray(jax.jit(fn)(*inputs)))


@pytest.mark.parametrize("dimension", ["x[0]", "y[0]"])
def test_windows_over_what_is_spread_out(dimension):
    def fn(x, y):
        return y + lax.reduce_window(x, 0.0, lax.add, (3,), (1,), [(1, 1)], base_dilation=(2,))

    args = f32(16), f32(31)
    plan = sw.evaluate(fn, *args, mesh={"a": 2}, decisions=[("a", dimension)])
    assert max(differences(fn, args, plan)) < 1e-6


@pytest.mark.parametrize("gap", [1, 2])
@pytest.mark.parametrize("dimension", ["x[0]", "z[0]"])
def test_windows_over_two_tensors(dimension, gap):
    """The partitioner ends the process where the tensors are split and the results are whole, or the other way."""

    def larger(a, b):
        return lax.max(a[0], b[0]), lax.select(a[0] > b[0], a[1], b[1])

    def fn(x, y, z):
        first, second = lax.reduce_window(
            (x, y), (-jnp.inf, jnp.float32(0)), larger, (3,), (1,), [(1, 1)], base_dilation=(gap,)
        )
        return jnp.sort(first + z), second

    args = f32(16), f32(16), f32(gap * 15 + 1)
    plan = sw.evaluate(fn, *args, mesh={"a": 2}, decisions=[("a", dimension)])
    (op,) = [op for op in plan.analysis.program.ops if op.kind == "reduce_window"]
    assert "windows over several tensors whose results are whole" in op.rule.records
    assert max(differences(fn, args, plan)) < 1e-6


def sorted_along(x, y):
    keys, values = lax.sort((x, y), dimension=1, num_keys=1)
    return jnp.sum(jnp.sin(keys) * values)


def transformed(x):
    z = jnp.fft.fft(x, axis=1)
    return jnp.sum(jnp.sin(z.real)) + jnp.sum(jnp.tanh(z.imag))


def convolved_once(x, w):
    """The kernel has one place in the image."""
    out = lax.conv_general_dilated(x, w, (2,), "VALID", dimension_numbers=("NCH", "OIH", "HNC"), feature_group_count=4)
    return jnp.sum(jnp.sin(out))


@pytest.mark.parametrize(
    ("fn", "args", "parts"),
    [
        (sorted_along, (f32(7, 9), f32(7, 9)), 4),
        (transformed, (f32(8, 8, 4),), 2),
        (convolved_once, (f32(6, 4, 3), f32(8, 1, 3)), 4),
    ],
)
def test_every_group_of_gradients_of(fn, args, parts):
    gradients = jax.grad(fn, argnums=tuple(range(len(args))))
    for description in sw.analyse(gradients, *args).descriptions:
        plan = sw.evaluate(gradients, *args, mesh={"a": parts}, decisions=[("a", description.name)])
        assert max(differences(gradients, args, plan)) < 1e-5


def test_one_tap_on_an_image_that_is_spread_out_and_moved():
    def fn(x, w):
        return x + lax.conv_general_dilated(x, w, (3,), [(1, -1)], (3,), dimension_numbers=("HNC", "HIO", "HNC"))

    args = f32(4, 6, 1), f32(1, 1, 1)
    plan = sw.evaluate(fn, *args, mesh={"a": 4}, decisions=[("a", "x[0]")])
    assert max(differences(fn, args, plan)) < 1e-6


@pytest.mark.parametrize(
    ("size", "taps", "padding", "gap", "dilation", "parts"),
    [(4, 3, (1, 2), 2, 2, 2), (3, 3, (1, 0), 3, 1, 3), (8, 3, (1, 2), 2, 1, 4)],
)
def test_an_image_that_is_spread_out_in_parts(size, taps, padding, gap, dilation, parts):
    """Parts of the result may begin between two entries of the image."""

    def fn(x, w):
        out = lax.conv_general_dilated(
            x, w, (1,), [padding], (gap,), (dilation,), dimension_numbers=("NHC", "HIO", "NHC")
        )
        return jnp.tanh(out)

    args = f32(2, size, 3), f32(taps, 3, 2)
    plan = sw.evaluate(fn, *args, mesh={"a": parts}, decisions=[("a", "x[1]")])
    assert max(differences(fn, args, plan)) < 1e-5


def test_sums_over_the_image_in_groups_of_features():
    """The gradient by the kernel of a convolution with groups of the batch has groups of features."""
    numbers = ("NHC", "HIO", "NCH")
    fn = jax.grad(
        lambda w, x: jnp.sum(
            jnp.sin(lax.conv_general_dilated(x, w, (1,), "SAME", dimension_numbers=numbers, batch_group_count=4))
        )
    )
    args = f32(2, 1, 4), f32(4, 8, 1)
    plan = sw.evaluate(fn, *args, mesh={"a": 2, "b": 2}, decisions=[("a", "x[1]")])
    assert max(differences(fn, args, plan)) < 1e-5


@pytest.mark.parametrize(
    ("taps", "stride", "padding"), [(3, 1, "SAME"), (3, 2, "SAME"), (2, 2, "VALID"), (3, 3, "VALID")]
)
@pytest.mark.parametrize(
    "dimensions", [["x[0]"], ["x[1]"], ["w[0]"], ["x[1]", "x[2]"], ["x[1]", "w[3]"], ["x[1]", "x[3]"]]
)
def test_gradients_of_kernels_on_some_of_the_axes(taps, stride, padding, dimensions):
    """Sums over the image are counted once for each device of an axis that splits nothing."""
    fn = jax.grad(lambda w, x: jnp.sum(jnp.sin(convolution(x, w, 1, stride=stride, padding=padding))))
    args = f32(taps, taps, 4, 6), f32(4, 12, 12, 4)
    mesh = {"a": 2, "b": 2, "c": 2}
    plan = sw.evaluate(fn, *args, mesh=mesh, decisions=list(zip(mesh, dimensions, strict=False)))
    assert max(differences(fn, args, plan)) < 1e-5


@pytest.mark.parametrize(
    ("layout", "x", "w", "dimension", "options"),
    [
        (
            ("NCH", "OIH", "NHC"),
            (6, 3, 4),
            (2, 3, 3),
            "x[2]",
            {"padding": [(1, 2)], "lhs_dilation": (2,), "rhs_dilation": (2,)},
        ),
        (("HNC", "OIH", "NCH"), (8, 4, 2), (2, 1, 3), "x[2]", {"padding": "SAME", "feature_group_count": 2}),
        (("NCH", "HIO", "HNC"), (4, 2, 8), (3, 1, 2), "x[1]", {"padding": "SAME", "feature_group_count": 2}),
    ],
)
def test_convolutions_whose_image_and_result_are_laid_out_differently(layout, x, w, dimension, options):
    def fn(x, w):
        return lax.conv_general_dilated(x, w, (1,), dimension_numbers=layout, **options)

    args = f32(*x), f32(*w)
    plan = sw.evaluate(fn, *args, mesh={"a": 2}, decisions=[("a", dimension)])
    assert max(differences(fn, args, plan)) < 1e-5


def test_a_convolution_that_names_no_window(tmp_path):
    """Text of StableHLO leaves out what is as usual."""
    file = tmp_path / "plain.mlir"
    image, kernel, result = "tensor<8x16x16x8xf32>", "tensor<3x3x8x8xf32>", "tensor<8x14x14x8xf32>"
    file.write_text(
        f"func.func public @main(%x: {image}, %w: {kernel}) -> {result} {{\n"
        "  %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {} "
        f"{{batch_group_count = 1 : i64, feature_group_count = 1 : i64}} : ({image}, {kernel}) -> {result}\n"
        f"  return %0 : {result}\n}}\n"
    )
    (op,) = stablehlo_program(file).ops
    assert op.rule.records and op.rule.apart


@pytest.mark.parametrize(("dimension", "stride"), [("x[0]", 1), ("x[1]", 1), ("x[1]", 2), ("x[2]", 1), ("w[2]", 1)])
def test_a_convolution_whose_window_is_turned_around(tmp_path, dimension, stride):
    """As files of other frameworks may have it; JAX turns the kernel instead."""
    file = tmp_path / "reversed.mlir"
    image, kernel, result = "tensor<4x16x8xf32>", "tensor<3x8x8xf32>", f"tensor<4x{16 // stride}x8xf32>"
    window = f"{{stride = [{stride}], pad = [[{2 - stride}, 1]], lhs_dilate = [1], rhs_dilate = [1], reverse = [true]}}"
    file.write_text(
        f"func.func public @main(%x: {image}, %w: {kernel}) -> {result} {{\n"
        f"  %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {window} "
        f"{{batch_group_count = 1 : i64, feature_group_count = 1 : i64}} : ({image}, {kernel}) -> {result}\n"
        f"  return %0 : {result}\n}}\n"
    )
    module = sw.read_stablehlo(file)
    plan = sw.evaluate(module, *module.args, mesh={"a": 4}, decisions=[("a", dimension)])

    def turned(x, w):
        pads = [(2 - stride, 1)]
        return lax.conv_general_dilated(x, w[::-1], (stride,), pads, dimension_numbers=("NHC", "HIO", "NHC"))

    assert max(differences(turned, module.args, plan)) < 1e-5


LOOKED_UP = (f32(6, 2, 4), i32(6), i32(6))


def looked_up(x, rows, columns):
    found = jnp.tanh(x)[rows, columns]
    return found @ found.T


def test_partial_sums_of_a_gather_are_not_scattered_unevenly():
    plan = sw.evaluate(
        looked_up,
        *LOOKED_UP,
        mesh={"a": 2, "b": 2, "c": 2},
        decisions=[("a", "rows[0]"), ("b", "rows[0]"), ("b", "x[1]"), ("c", "x[2]")],
    )
    assert plan.partitioned.padded
    assert max(differences(looked_up, LOOKED_UP, plan)) < 1e-5


@pytest.mark.parametrize(("start", "stop", "step"), [(1, 2, 3), (2, 3, 4), (1, 4, 5), (0, 1, 3), (3, 4, 2)])
@pytest.mark.parametrize("parts", [2, 4])
def test_a_slice_with_steps_that_keeps_one_entry_is_that_entry(start, stop, step, parts):
    def sliced(x):
        return jnp.sin(jnp.cos(x)[:, start:stop:step])

    plan = sw.evaluate(sliced, f32(6, 4), mesh={"a": parts}, decisions=[("a", "x[1]")])
    assert max(differences(sliced, (f32(6, 4),), plan)) < 1e-6


def test_a_pad_that_cuts_off_a_part_of_a_step():
    def fn(x):
        return jax.lax.pad(x, 0.0, [(-1, 0, 1), (0, 0, 0)])

    plan = sw.evaluate(fn, f32(16, 8), mesh={"a": 4}, decisions=[("a", "x[1]")])
    op = next(op for op in plan.analysis.program.ops if op.kind == "pad")
    assert "a pad that cuts off a part of a step" in op.rule.records and 0 in op.rule.whole
    assert max(differences(fn, (f32(16, 8),), plan)) < 1e-6
