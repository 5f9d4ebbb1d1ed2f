"""Everything that JAX users write can be traced and analysed, and what cannot is said in one sentence."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardwright as sw
from programs import f32, found, i32
from shardwright import _jax
from shardwright.frontend import stablehlo_program, trace

KEY = jax.eval_shape(lambda: jax.random.key(0))
MESH = AbstractMesh((64, 64), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


@jax.custom_vjp
def clipped(x):
    return jnp.clip(x, -1, 1)


clipped.defvjp(lambda x: (clipped(x), x), lambda x, g: (g * (jnp.abs(x) < 1),))


@jax.custom_jvp
def softplus(x):
    return jnp.log1p(jnp.exp(x))


softplus.defjvp(lambda p, t: (softplus(*p), t[0] * jax.nn.sigmoid(p[0])))


def everything_nested(x, w):
    """Grad of vmap of scan of cond of remat of jit, with custom rules inside."""

    @jax.jit
    @jax.checkpoint
    def layer(h, w):
        return softplus(clipped(h @ w))

    def step(h, w):
        h = lax.cond(jnp.sum(h) > 0, lambda h: layer(h, w), lambda h: h, h)
        return lax.switch(jnp.int32(1), [lambda h: h, lambda h: h * 2], h), None

    def loss(w):
        return jnp.sum(jax.vmap(lambda row: lax.scan(step, row, w)[0])(x))

    return jax.grad(loss)(w)


PROGRAMS = {
    "nested": (everything_nested, f32(8, 16), f32(3, 16, 16)),
    "random": (
        lambda key, x: x + jax.random.normal(key, x.shape) * jax.random.bernoulli(key, 0.5, x.shape),
        KEY,
        f32(8, 4),
    ),
    "split keys": (lambda key: jax.vmap(lambda k: jax.random.uniform(k, (4,)))(jax.random.split(key, 8)), KEY),
    "sort": (lambda x: (jnp.sort(x, 1), jnp.argsort(x, 0), lax.top_k(x, 3), jnp.argmax(x, 1)), f32(8, 16)),
    "scans": (lambda x: (jnp.cumsum(x, 0), jnp.cumprod(x, 1), lax.associative_scan(jnp.add, x)), f32(8, 16)),
    "fft": (lambda x: (jnp.fft.rfft(x), jnp.fft.fft2(x)), f32(8, 16)),
    "linear algebra": (lambda x: (jnp.linalg.qr(x), jnp.linalg.cholesky(x @ x.T), jnp.linalg.eigh(x)), f32(8, 8)),
    "gather and scatter": (
        lambda x, i: (x[i], x.at[i].add(1.0), x.at[:, i].set(0.0), jnp.take_along_axis(x, x.argsort(0), 0)),
        f32(16, 16),
        i32(4),
    ),
    "dynamic slices": (
        lambda x, i: lax.dynamic_update_slice(x, lax.dynamic_slice(x, (i, 0), (2, 16)) * 2, (0, i)),
        f32(8, 16),
        i32(),
    ),
    "pooling": (lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (2, 2), "SAME"), f32(8, 16)),
    "special functions": (lambda x: lax.erf(x) + lax.lgamma(x) + lax.bessel_i0e(x) + lax.erf_inv(x), f32(8, 16)),
    "ragged": (lambda x, w, n: lax.ragged_dot(x, w, n), f32(16, 6), f32(2, 6, 5), i32(2)),
    "while": (lambda x: lax.while_loop(lambda c: jnp.sum(c) > 1, lambda c: c / 2, x), f32(8)),
    "scalars": (lambda x, n, flag: x * n if flag is None else x + n, f32(8), 3, 2.5),
    "numpy": (lambda x, y: x @ y, np.ones((4, 8), np.float32), np.ones((8, 2), np.float16)),
    "partial": (functools.partial(lambda n, x: x * n, 3), f32(8)),
    "already jitted": (jax.jit(lambda x: {"y": x * 2}), {"a": f32(8)}["a"]),
    "no arguments": (lambda: jnp.arange(8.0) * 2,),
    "returns an argument": (lambda x, y: (y, x, None), f32(8), f32(4)),
    "empty": (lambda x: x[:, :0].sum(), f32(8, 4)),
}


@pytest.mark.parametrize("platform", ["cpu", "tpu", "cuda"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_analysed(name, platform):
    analysis = sw.analyse(*PROGRAMS[name], platform=platform)
    assert str(analysis)
    assert str(analysis.program)
    described = {d.name for d in analysis.descriptions}
    assert len(described) == len(analysis.groups)


def test_bound_methods_and_callable_objects():
    class Model:
        def __call__(self, params, x):
            return x @ params

    for fn in (Model(), Model().__call__):
        program = trace(fn, f32(4, 8), f32(2, 4))
        assert [a.path for a in program.arguments] == ["params", "x"]


def test_closed_over_constants_are_part_of_the_program():
    table = jnp.arange(64.0).reshape(8, 8) ** 2
    text = found(lambda x: x @ table, f32(4, 8))
    assert text == "a 4: x[0] result[0]\nb 8: x[1]\nc 8: result[1]"


def test_the_inside_of_a_shard_map_is_part_of_the_program():
    def fn(x):
        y = jax.shard_map(lambda x: lax.psum(x, "data"), mesh=MESH, in_specs=P("data"), out_specs=P())(x * 2)
        return y + 1

    analysis = sw.analyse(fn, f32(128, 16))
    assert not analysis.opaque
    assert [op.kind for op in analysis.program.ops if op.region] == ["all_reduce"]
    assert "b 16: x[1] result[1]" in found(fn, f32(128, 16))


def test_sharding_constraints_of_the_user_pass_through_on_4096_devices():
    def fn(x):
        return lax.with_sharding_constraint(x * 2, NamedSharding(MESH, P("data", "model"))) + 1

    assert found(fn, f32(128, 64)) == "a 128: x[0] result[0]\nb 64: x[1] result[1]"


def test_a_callback_is_lowered_for_the_platform_that_is_present():
    def fn(x):
        jax.debug.print("{}", x.sum())
        return x @ x

    with pytest.warns(sw.PlanWarning, match=r"fn calls back into Python .* for cpu alone where no tpu is") as caught:
        analysis = sw.analyse(fn, f32(8, 8), platform="tpu")
    assert caught[0].filename == __file__
    assert str(analysis.program) == str(trace(fn, f32(8, 8), platform="cpu"))


def test_tokens_of_ordered_effects_are_no_arguments_and_no_results():
    def fn(x):
        out = jax.experimental.io_callback(lambda x: x, jax.ShapeDtypeStruct((), jnp.float32), x.sum(), ordered=True)
        return x * out

    program = trace(fn, f32(8), donate=0)
    assert [(a.path, a.donated) for a in program.arguments] == [("x", True)]
    assert [str(program.values[v]) for v in program.regions[0].results] == ["f32[8]"]
    assert program.results == ("result",)


def test_a_callback_is_opaque_until_the_user_gives_its_rule():
    def fn(x, w):
        out = jax.ShapeDtypeStruct((8, 32), jnp.float32)
        return jax.pure_callback(lambda x, w: np.asarray(x) @ np.asarray(w), out, x, w) * 2

    args = f32(8, 16), f32(16, 32)
    analysis = sw.analyse(fn, *args)
    ((kind, source, _),) = analysis.opaque
    assert source == f"test_frontend.py:{fn.__code__.co_firstlineno + 2} (fn)"
    target = kind.split("@")[1]
    assert len(analysis.groups) == 6
    assert found(fn, *args, rules={target: "b d, d f -> b f"}) == (
        "a 8: x[0] result[0]\nb 16: x[1] w[0]\nc 32: w[1] result[1]"
    )
    with pytest.raises(
        sw.RuleError, match=f"for the custom call '{target}', the sharding rule 'b d -> b' has 1 operands"
    ):
        sw.analyse(fn, *args, rules={target: "b d -> b"})


def test_nothing_is_allocated():
    huge = jax.ShapeDtypeStruct((1 << 24, 1 << 20), jnp.float32)  # 64 TiB
    before = len(jax.live_arrays())
    analysis = sw.analyse(lambda x, w: x @ w, huge, jax.ShapeDtypeStruct((1 << 20, 1 << 20), jnp.float32))
    assert len(jax.live_arrays()) == before
    assert analysis.descriptions[0].bytes == 2 * 4 << 44


def test_jax_keeps_its_own_module():
    def fn(x, w):
        return x @ w

    args = f32(8, 16), f32(16, 32)
    before = jax.jit(fn).lower(*args).as_text()
    sw.analyse(fn, *args)
    assert jax.jit(fn).lower(*args).as_text() == before


def test_the_same_program_gives_the_same_analysis():
    fn, *args = PROGRAMS["nested"]
    assert sw.analyse(fn, *args).to_dict() == sw.analyse(fn, *args).to_dict()


def test_not_a_callable():
    with pytest.raises(sw.TraceError, match=r"expected a JAX function to partition, got a str \('gpt'\)"):
        sw.analyse("gpt")


def test_arguments_that_do_not_fit():
    def train_step(state, batch):
        return state, batch

    with pytest.raises(sw.TraceError, match=r"train_step\(state, batch\) cannot be called with 1 positional"):
        sw.analyse(train_step, f32(8))


def test_an_argument_that_is_no_array():
    with pytest.raises(sw.TraceError, match=r"argument 'batch.name' is a str \('x'\), not an array"):
        sw.analyse(lambda batch: batch, {"name": "x"})


def test_an_exception_inside_is_kept_as_the_cause():
    class MyError(Exception):
        pass

    def fn(_):
        raise MyError("the mask is missing\nsecond line")

    with pytest.raises(sw.TraceError, match=r"^tracing fn failed with MyError: the mask is missing$") as caught:
        sw.analyse(fn, f32(8))
    assert isinstance(caught.value.__cause__, MyError)
    assert str(caught.value.__cause__) == "the mask is missing\nsecond line"


def test_shapes_that_do_not_match():
    with pytest.raises(sw.TraceError, match="dot_general requires contracting dimensions"):
        sw.analyse(lambda x, w: x @ w, f32(8, 16), f32(8, 16))


def test_donating_an_argument_that_is_not_there():
    with pytest.raises(sw.TraceError, match=r"donate names argument 2, but there are 1 arguments"):
        sw.analyse(lambda x: x, f32(8), donate=(2,))


def test_unknown_platform():
    with pytest.raises(sw.TraceError, match="no platform 'gpu'; choose one of cpu, cuda, rocm, tpu"):
        sw.analyse(lambda x: x, f32(8), platform="gpu")


def module_of(fn, *args):
    return jax.export.export(jax.jit(fn), platforms=["tpu"])(*args)


def test_stablehlo_as_text_bytecode_and_portable_artifact(tmp_path):
    exported = module_of(lambda x, w: jnp.tanh(x @ w), f32(8, 16), f32(16, 32))
    text, portable = tmp_path / "text.mlir", tmp_path / "portable.mlir"
    text.write_text(exported.mlir_module())
    portable.write_bytes(exported.mlir_module_serialized)
    bytecode = tmp_path / "bytecode.mlirbc"
    lowered = jax.jit(lambda x, w: jnp.tanh(x @ w)).lower(f32(8, 16), f32(16, 32))
    with open(bytecode, "wb") as file:
        lowered.compiler_ir("stablehlo").operation.write_bytecode(file)
    for path in (text, portable, bytecode):
        program = stablehlo_program(path)
        assert [op.kind for op in program.ops if op.rule.tensors] == ["dot_general", "tanh"]
        assert [str(program.values[a.value]) for a in program.arguments] == ["f32[8,16]", "f32[16,32]"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("garbage {", r"bad.mlir is not a valid StableHLO module: line 1: custom op 'garbage' is unknown"),
        (
            "func.func @main() {\n  %0 = stablehlo.add %1, %1 : tensor<f32>\n  return\n}",
            r"module: line 2: use of undec",
        ),
        (b"ML\xefR\x00\x01garbage", r"bad.mlir is not a valid StableHLO module: \S+"),
        ("", r"bad.mlir: the module needs a function called main"),
        ("func.func private @a() {\n return\n}", r"function called main"),
        ("func.func @main(%x: tensor<?xf32>) {\n return\n}", r"dynamic shape \(tensor<\?xf32>\)"),
    ],
)
def test_a_broken_stablehlo_file(tmp_path, capfd, content, message):
    file = tmp_path / "bad.mlir"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(sw.ModuleError, match=message):
        stablehlo_program(file)
    assert capfd.readouterr() == ("", "")


def test_a_stablehlo_file_that_is_not_there(tmp_path):
    with pytest.raises(sw.ModuleError, match=r"cannot read .*none.mlir: No such file or directory"):
        stablehlo_program(tmp_path / "none.mlir")


def test_ctrl_c_is_not_lost_in_what_mlir_calls():
    module = _jax.copy_of(jax.jit(lambda x: x + 1).lower(1.0))

    def look(_):
        raise KeyboardInterrupt

    def fail(_):
        raise ValueError("other")

    with pytest.raises(KeyboardInterrupt):
        _jax.walk(module, look)
    with pytest.raises(RuntimeError, match="other"):
        _jax.walk(module, fail)
