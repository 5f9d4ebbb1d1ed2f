"""StableHLO in and out: a module of any framework is planned, and comes out with the plan in it and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner
from jax import export, lax

import shardwright as sw
from programs import f32
from raw_xla import run_sharded
from shardwright import _jax
from shardwright.cli import main
from shardwright.models import build
from shardwright.verify.agreement import compare
from shardwright.verify.shardy import EXPLICIT, shardy_collectives

MESH = {"data": 4, "model": 2}
DATA = Path(__file__).parent / "data"
TACTICS = ["fsdp:data", "megatron:model"]


def train_step(params, batch):
    @jax.jit
    def layer(h, w):
        return jax.nn.relu(h @ w)

    def loss(params):
        h = layer(layer(batch["x"], params["w"][0]), params["w"][1])
        return jnp.mean((h - batch["y"]) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def loop(ws, x):
    return lax.scan(lambda h, w: (jnp.tanh(h @ w), h.sum()), x, ws)


TRAIN = (train_step, ({"w": [f32(32, 64), f32(64, 32)]}, {"x": f32(16, 32), "y": f32(16, 32)}), (0,))
LOOP = (loop, (f32(3, 32, 32), f32(16, 32)), ())
FORMS = ("text", "locations", "generic", "bytecode", "portable")


def gpt():
    fn, args, options = build("gpt", preset="tiny")
    return fn, args, options["donate"]


def written(form, fn, args, donate):
    """A function's module as frameworks write it."""
    jitted = jax.jit(fn, donate_argnums=donate)
    if form == "portable":
        return export.export(jitted)(*args).mlir_module_serialized
    lowered = jitted.lower(*args)
    if form == "bytecode":
        return _jax.bytecode(_jax.copy_of(lowered))
    if form == "generic":
        return _jax.copy_of(lowered).get_asm(print_generic_op_form=True).encode()
    return lowered.as_text(debug_info=form == "locations").encode()


def planned(file, decisions, **options):
    module = sw.read_stablehlo(file)
    return sw.evaluate(
        module, *module.args, donate=module.donate, mesh=MESH, device="tpu-v5e", decisions=decisions, **options
    )


def annotated(plan, folder):
    plan.to_stablehlo(folder / "annotated.mlir")
    return (folder / "annotated.mlir").read_bytes()


def constraints(folder):
    """How many the same plan puts into JAX's own module of the function."""
    fn, args, donate = TRAIN
    own = sw.evaluate(fn, *args, donate=donate, mesh=MESH, device="tpu-v5e", decisions=TACTICS)
    return str(_jax.parse_module(annotated(own, folder))).count("sdy.sharding_constraint")


def inputs_for(plan):
    random = np.random.default_rng(0)
    return [
        np.asarray(
            random.normal(size=a.shape) * 0.3 if a.dtype.kind == "f" else random.integers(0, 8, a.shape), a.dtype
        )
        for a in jax.tree.leaves(plan.args)
    ]


def kinds(module):
    """The collectives of a module after Shardy's own passes."""
    _jax.run_passes(module, f"sdy-propagation-pipeline,{EXPLICIT}")
    return sorted(re.findall(r"sdy\.(all_gather|all_reduce|all_to_all|reduce_scatter|collective_permute)", str(module)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One module in every form."""
    where = tmp_path_factory.mktemp("modules")
    for form in FORMS:
        (where / f"{form}.mlir").write_bytes(written(form, *TRAIN))
    return where


def test_a_module_is_a_function_with_its_own_names(folder):
    module = sw.read_stablehlo(folder / "locations.mlir")
    assert module.argument_names == ("params.w.0", "params.w.1", "batch.x", "batch.y")
    assert module.result_names == ("result.0", "result.params.w.0", "result.params.w.1")
    assert module.donate == (0, 1)
    assert [a.shape for a in module.args] == [(32, 64), (64, 32), (16, 32), (16, 32)]
    assert module.__name__ == "locations"
    assert repr(module) == (
        f"StableHLO({str(module.file)!r}: params.w.0, params.w.1, batch.x, batch.y -> "
        "result.0, result.params.w.0, result.params.w.1)"
    )
    inputs = [np.full(a.shape, 0.01, a.dtype) for a in module.args]
    value, params = jax.jit(train_step)({"w": inputs[:2]}, {"x": inputs[2], "y": inputs[3]})
    for mine, theirs in zip(jax.jit(module)(*inputs), [value, *params["w"]], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_shapes_are_fixed(folder):
    module = sw.read_stablehlo(folder / "locations.mlir")
    with pytest.raises(sw.ModuleError, match="takes 4 arguments, not 1"):
        module(np.zeros(3))
    with pytest.raises(
        sw.TraceError, match=r"batch.x has the shape \(16, 32\) in .*mlir, which is fixed, not \(8, 32\)"
    ):
        sw.analyse(module, *module.args[:2], f32(8, 32), module.args[3])


def test_without_names_they_are_numbers(folder):
    module = sw.read_stablehlo(folder / "text.mlir")
    assert module.argument_names == ("arg0", "arg1", "arg2", "arg3")
    assert module.result_names == ("result.0", "result.arg0", "result.arg1")
    assert (module.form, sw.read_stablehlo(folder / "bytecode.mlir").form) == ("text", "bytecode")


@pytest.mark.parametrize("form", FORMS)
def test_the_plan_is_that_of_the_function(folder, form):
    plan = planned(folder / f"{form}.mlir", TACTICS)
    fn, args, donate = TRAIN
    own = sw.evaluate(fn, *args, donate=donate, mesh=MESH, device="tpu-v5e", decisions=TACTICS)
    assert list(plan.in_specs) == jax.tree.leaves(own.in_specs)
    assert list(plan.out_specs) == jax.tree.leaves(own.out_specs)
    assert plan.estimate.peak_bytes == own.estimate.peak_bytes
    assert plan.estimate.step_seconds == pytest.approx(own.estimate.step_seconds)


@pytest.mark.parametrize("form", FORMS)
def test_it_comes_out_as_it_came_in_and_shardy_takes_it(folder, form, tmp_path):
    plan = planned(folder / f"{form}.mlir", TACTICS)
    data = annotated(plan, tmp_path)
    before = (folder / f"{form}.mlir").read_bytes()
    assert data[:4] == before[:4]
    assert _jax.artifact_version(data) == _jax.artifact_version(before)
    module = _jax.parse_module(data)
    text = str(module)
    assert 'sdy.mesh @mesh = <["data"=4, "model"=2]>' in text
    assert "mhlo.num_partitions = 8" in text
    assert '{sdy.sharding = #sdy.sharding<@mesh, [{"data", "model"}, {}]>, tf.aliasing_output = 2 : i32}' in text
    assert text.count("sdy.sharding_constraint") == constraints(tmp_path) > 0
    assert "sharding_rule" not in text
    assert "shardwright" not in text
    assert "original_func_name" not in text
    assert kinds(module) == sorted(c.kind.replace("-", "_") for c in shardy_collectives(plan))


@pytest.mark.parametrize(
    ("form", "program"),
    [("text", TRAIN), ("locations", TRAIN), ("generic", TRAIN), ("text", gpt())],
    ids=["text", "locations", "generic", "gpt"],
)
def test_nothing_else_changes(form, program, tmp_path):
    before = written(form, *program).decode()
    (tmp_path / "model.mlir").write_text(before)
    after = annotated(planned(tmp_path / "model.mlir", TACTICS), tmp_path).decode()
    assert after != before
    assert undone(before, after) == before


def undone(before, after):
    """An annotated text with every annotation taken out again."""
    head = r'  (?:func\.func \w+ @|"func\.func".* sym_name = ")(\w+)'
    own = set(re.findall(f"^{head}", before, re.M))
    out, made, copy = [], {}, False
    for line in after.split("\n"):
        function = re.match(head, line)
        copy = function.group(1) not in own if function else copy
        constraint = re.match(r'\s*(%sharded_\d+) = "?sdy.sharding_constraint"?\(? ?(%[\w#]+)', line)
        if constraint and not copy:
            made[constraint.group(1)] = made.get(constraint.group(2), constraint.group(2))
        elif not copy and not re.match(r'  "?sdy\.mesh', line):
            out.append(line)
        copy = copy and not line.startswith("  }")
    text = re.sub(r"%sharded_\d+", lambda m: made[m.group()], "\n".join(out))
    text = re.sub(r"@(\w+)_\d+\b", lambda m: m.group() if m.group()[1:] in own else f"@{m.group(1)}", text)
    text = re.sub(r"(, )?sdy\.sharding = #sdy\.sharding<@mesh, \[.*?\]>(, (?=tf))?", "", text)
    text = text if before.startswith('"') else text.replace(" {}", "")
    return text.replace("num_partitions = 8", "num_partitions = 1")


def test_a_text_written_by_hand_stays_as_it_is(tmp_path):
    file = tmp_path / "hand.mlir"
    file.write_text(HAND)
    plan = planned(file, [("data", "x[0]"), ("data", "first[1]")])
    assert annotated(plan, tmp_path).decode() == HAND_ANNOTATED


HAND = """\
// Two products and a note, "%0".
func.func @predict(%x: tensor<8x8xf32>, %first: tensor<8x16xf32>,  %second: tensor<16x8xf32>) -> tensor<8x8xf32> {
    %dot = stablehlo.dot %x, %first : (tensor<8x8xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>

    // The nonlinearity.
    %h = stablehlo.tanh   %dot : tensor<8x16xf32>  // of %dot
    %out = stablehlo.dot %h, %second : (tensor<8x16xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
    return %out : tensor<8x8xf32>
}
"""
HAND_ANNOTATED = """\
// Two products and a note, "%0".
sdy.mesh @mesh = <["data"=4, "model"=2]>
func.func @predict(%x: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %first: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"data"}]>}, %second: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) {
    %sharded_0 = sdy.sharding_constraint %first <@mesh, [{}, {}]> : tensor<8x16xf32>
    %dot = stablehlo.dot %x, %sharded_0 : (tensor<8x8xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>

    // The nonlinearity.
    %h = stablehlo.tanh   %dot : tensor<8x16xf32>  // of %dot
    %sharded_1 = sdy.sharding_constraint %second <@mesh, [{}, {}]> : tensor<16x8xf32>
    %out = stablehlo.dot %h, %sharded_1 : (tensor<8x16xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
    return %out : tensor<8x8xf32>
}
"""  # noqa: E501 (one line of MLIR)


def test_other_formatting_is_printed_by_mlir(tmp_path):
    file = tmp_path / "wrapped.mlir"
    file.write_text(HAND.replace(" : (tensor", "\n : (tensor"))
    text = annotated(planned(file, [("data", "x[0]")]), tmp_path).decode()
    assert text.startswith("module {\n  sdy.mesh @mesh")
    assert "%0 = stablehlo.dot %arg0, %arg1" in text


def check_run(file, decisions, folder):
    """The annotated module, given to XLA by itself, computes what the plain one does."""
    plan = planned(file, decisions)
    inputs = inputs_for(plan)
    plain = jax.jit(plan.fn).lower(*inputs).compile({"xla_backend_optimization_level": 0})(*inputs)
    found = compare(list(map(np.asarray, plain)), run_sharded(annotated(plan, folder), plan, inputs))
    assert found["ok"], found


def test_it_runs_by_xla_alone_as_it_did_before(folder, tmp_path):
    check_run(folder / "text.mlir", TACTICS, tmp_path)
    (tmp_path / "loop.mlir").write_bytes(written("locations", *LOOP))
    check_run(tmp_path / "loop.mlir", [("data", "x[0]"), ("model", "ws[2]")], tmp_path)


@pytest.mark.slow
def test_a_transformer_runs_by_xla_alone_as_it_did_before(tmp_path):
    (tmp_path / "gpt.mlir").write_bytes(written("portable", *gpt()))
    check_run(tmp_path / "gpt.mlir", TACTICS, tmp_path)


def test_a_pytorch_training_step_gives_the_numbers_of_pytorch(tmp_path):
    with jax.enable_x64(True):
        plan = planned(DATA / "pytorch_block.mlir", TACTICS)
        stored = np.load(DATA / "pytorch_block.npz")
        names = [name.removeprefix("params.") for name in plan.fn.argument_names]
        inputs = [stored[name if name in stored else f"before.{name}"] for name in names]
        loss, *after = run_sharded(annotated(plan, tmp_path), plan, inputs)
    assert plan.in_specs[names.index("mlp.1.weight")] != plan.in_specs[names.index("tokens")]
    np.testing.assert_allclose(loss, stored["loss"], rtol=1e-5)
    for name, found in zip(names, after, strict=False):
        np.testing.assert_allclose(found, stored[f"after.{name}"], rtol=1e-4, atol=1e-6, err_msg=name)


def test_64_bits_are_asked_for():
    with pytest.raises(sw.ModuleError, match=r'tokens is a tensor<8x8xi64> .*update\("jax_enable_x64", True\)'):
        sw.read_stablehlo(DATA / "pytorch_block.mlir")


def test_everything_else_of_a_plan_works(folder):
    plan = planned(folder / "locations.mlir", ["data_parallel:data", "megatron:model"])
    assert plan.verify("run")
    assert plan.verify("shardy")
    assert "params.w.0" in str(plan.explain("params.w.0"))
    assert "params.w.1" in str(plan)
    step, inputs = plan.jit(), inputs_for(plan)
    plain = [np.asarray(leaf) for leaf in plan.fn(*inputs)]
    assert compare(plain, [np.asarray(leaf) for leaf in step(*inputs)])["ok"]


def test_a_jax_function_is_written_too(tmp_path):
    fn, args, donate = TRAIN
    plan = sw.evaluate(fn, *args, donate=donate, mesh=MESH, device="tpu-v5e", decisions=TACTICS)
    plan.to_stablehlo(tmp_path / "step.mlir")
    text = (tmp_path / "step.mlir").read_text()
    assert 'sdy.mesh @mesh = <["data"=4, "model"=2]>' in text
    assert text.count("tf.aliasing_output") == 2
    assert "sdy.sharding_constraint" in text
    assert "shardwright" not in text
    plan.to_stablehlo(tmp_path / "step.mlirbc", form="portable")
    data = (tmp_path / "step.mlirbc").read_bytes()
    assert _jax.artifact_version(data)
    assert kinds(_jax.parse_module(data)) == kinds(_jax.parse_module(text.encode()))
    with pytest.raises(sw.PlanError, match="no form 'json'; choose one of text, bytecode, portable"):
        plan.to_stablehlo(tmp_path / "step.json", form="json")
    assert not (tmp_path / "step.json").exists()


def test_a_buffer_is_not_shared_by_what_is_split_differently(tmp_path):
    file = tmp_path / "turn.mlir"
    file.write_text("""func.func @main(%a: tensor<8x8xf32> {tf.aliasing_output = 0 : i32}) -> tensor<8x8xf32> {
  %0 = stablehlo.transpose %a, dims = [1, 0] : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
""")
    data = annotated(plan := planned(file, [("data", "a[0]")]), tmp_path)
    assert plan.donate == (0,)
    assert b"tf.aliasing_output" not in data
    assert b"{jax.buffer_donor = true, sdy.sharding" in data
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    np.testing.assert_array_equal(run_sharded(data, plan, [x])[0], x.T)


def test_rules_of_the_module_stay_and_names_are_not_taken_twice(tmp_path):
    file = tmp_path / "call.mlir"
    rule = "sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i, j]) {i=16, j=8}, custom>"
    file.write_text(f"""module {{
  func.func private @mesh(%a: tensor<16x8xf32>) -> tensor<16x8xf32> {{
    %sharded_0 = stablehlo.custom_call @kernel(%a) {{{rule}}} : (tensor<16x8xf32>) -> tensor<16x8xf32>
    return %sharded_0 : tensor<16x8xf32>
  }}
  func.func public @main(%x: tensor<16x8xf32>) -> tensor<16x8xf32> {{
    %y = call @mesh(%x) : (tensor<16x8xf32>) -> tensor<16x8xf32>
    return %y : tensor<16x8xf32>
  }}
}}
""")
    text = annotated(planned(file, [("data", "x[0]")]), tmp_path).decode()
    assert text.count(rule) == 1
    assert "sdy.mesh @mesh_0 = " in text
    assert "func.func private @mesh(%a: tensor<16x8xf32>) -> tensor<16x8xf32> {" in text
    assert text.count('<@mesh_0, [{"data"}, {}]>') == 2


BEFORE_THAT = "give the module from before that, and pin what is decided."


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "garbage {",
            "bad.mlir is not a valid StableHLO module: line 1: custom op 'garbage' is unknown "
            "(tried 'builtin.garbage' as well)",
        ),
        ("module {}", "bad.mlir: the module needs a function called main, or exactly one public function."),
        (
            "func.func @a() { return }\nfunc.func @b() { return }",
            "bad.mlir: the module needs a function called main, or exactly one public function.",
        ),
        ("func.func private @main()", "bad.mlir: the function 'main' has no body."),
        (
            "func.func @main(%a: tensor<?xf32>) { return }",
            "bad.mlir: the module has a tensor of dynamic shape (tensor<?xf32>); give every size a number.",
        ),
        (
            "func.func @main(%a: !stablehlo.token) { return }",
            "bad.mlir: a is a !stablehlo.token, which is no array; take it out of the module.",
        ),
        (
            "func.func @main(%a: tensor<2xi7>) { return }",
            "bad.mlir: a is a tensor<2xi7>, whose type JAX does not have.",
        ),
        (
            'sdy.mesh @m = <["x"=2]>\nfunc.func @main(%a: tensor<2xf32> '
            '{sdy.sharding = #sdy.sharding<@m, [{"x"}]>}) { return }',
            f"bad.mlir: it is sharded already (sdy.sharding); {BEFORE_THAT}",
        ),
        (
            'func.func @main(%a: tensor<2xf32> {mhlo.sharding = "{replicated}"}) { return }',
            f"bad.mlir: it is sharded already (mhlo.sharding); {BEFORE_THAT}",
        ),
    ],
)
def test_what_cannot_be_planned(tmp_path, content, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("bad.mlir").write_text(content)
    for command in ("plan", "compare"):
        result = run(command, "bad.mlir", "--mesh", "data=2", "--device", "tpu-v5e")
        assert (result.exit_code, result.stderr) == (2, f"shardwright: {message}\n")


def run(*words):
    return CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)


def test_the_command_line(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call = [folder / "locations.mlir", "--mesh", "data=4,model=2", "--device", "tpu-v5e", "--seconds", "0"]
    pins = ["--pin", TACTICS[0], "--pin", TACTICS[1]]
    result = run("plan", *call, *pins, "--output", "out.mlir", "--save", "plan.json", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["mesh"] == MESH
    assert result.stderr == "wrote plan.json\nwrote out.mlir\n"
    plan = planned(folder / "locations.mlir", TACTICS)
    assert Path("out.mlir").read_bytes() == annotated(plan, tmp_path)
    result = run("verify", "plan.json", folder / "locations.mlir", "--on", "shardy")
    assert (result.exit_code, result.stdout[:8]) == (0 if plan.verify("shardy") else 3, "shardy: ")
    assert run("plan", "out.mlir", *call[1:]).stderr.startswith("shardwright: out.mlir: it is sharded already")


def test_64_bits_are_kept_for_a_command_alone():
    block = DATA / "pytorch_block.mlir"
    result = run(
        "plan", block, "--mesh", "data=4", "--device", "tpu-v5e", "--seconds", "0", "--pin", "data_parallel:data"
    )
    assert result.exit_code == 0
    assert "i64[8,8]" in result.stdout
    assert re.search(r"pytorch_block\.mlir(, backward)?$", result.stdout, re.M)  # a file that tells no lines
    assert jnp.zeros(1, int).dtype == jnp.int32


def test_an_output_that_cannot_be_written(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call = ["plan", folder / "text.mlir", "--mesh", "data=4", "--device", "tpu-v5e", "--seconds", "0", "--output"]
    result = run(*call, "none/out.mlir")
    assert (result.exit_code, result.stderr) == (
        2,
        "shardwright: cannot write none/out.mlir: there is no folder none.\n",
    )
    result = run(*call, ".")
    assert result.stderr == "shardwright: cannot write .: it is a folder; name a file in it.\n"
    result = run(*call, folder / "text.mlir")
    assert result.stderr.endswith("text.mlir, which TARGET is read from; name another file.\n")
    assert list(tmp_path.iterdir()) == []
