"""Plan files: data from strangers, checked field by field; and what a plan says of another program."""

import dataclasses
import json
import os
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner

import shardwright as sw
from damaged import damaged_bytes, damaged_json
from shardwright.cli import main
from shardwright.devices import PRESETS
from shardwright.plan import schema
from shardwright.plan.file import as_written, read

DAMAGED = int(os.environ.get("SHARDWRIGHT_DAMAGED", "120"))
ON_THE_COMMAND_LINE = int(os.environ.get("SHARDWRIGHT_DAMAGED_COMMANDS", "24"))
DEVICE = sw.Device(
    "own",
    "tpu",
    {"bf16": 1e14, "f32": np.float32(5e13)},
    memory_bytes=2**34,
    memory_bytes_per_second=1e12,
    links=(sw.Link("ici", 9e10, 1e-6, devices=256, torus_dimensions=2, ring_from=16), sw.Link("dcn", 6e9, 1e-5)),
    matrix_unit=128,
    tile=(8, 128),
    slice_shape=(2, 2),
)


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def step(w, x):
    return jnp.tanh(x @ w["a"]) @ w["b"]


ARGS = ({"a": f32(64, 128), "b": f32(128, 32)}, f32(256, 64))
DECISIONS = [
    sw.Decision("data", "x[0]", unless="w.b[1]"),
    sw.Whole("model", "w.b"),
    sw.Decision("model", "w.a[1]"),
]


def make():
    return step, ARGS, {"donate": (0,)}


@pytest.fixture(scope="module")
def plan():
    mesh = {"data": 2, "model": 2}
    return sw.evaluate(step, *ARGS, mesh=mesh, device=DEVICE, memory="12GiB", decisions=DECISIONS, donate=(0,))


@pytest.fixture
def saved(plan, tmp_path):
    file = tmp_path / "plan.json"
    plan.save(file)
    return file


def older(content):
    """The file as version 2 had it."""
    return {key: value for key, value in content.items() if key != "program"} | {"shardwright_plan": 2}


def test_a_plan_comes_back_whole(plan, saved):
    again = sw.load(saved, step, *ARGS)
    names = ("mesh", "device", "memory_bytes", "decisions", "donate", "in_specs", "out_specs")
    assert [getattr(again, name) for name in names] == [getattr(plan, name) for name in names]
    assert again.estimate_cost == plan.estimate_cost
    content = json.loads(saved.read_text())
    saved.write_text(json.dumps(older(content)))
    assert sw.load(saved, step, *ARGS).decisions == plan.decisions
    saved.write_bytes(b"\xef\xbb\xbf" + json.dumps(content).encode())  # as editors on Windows write it
    assert sw.load(saved, step, *ARGS).decisions == plan.decisions


def test_every_field_of_a_device_is_known():
    device = json.loads(json.dumps(as_written(DEVICE), default=float))
    costs = (schema.KERNEL_COSTS, device["kernel_costs"])
    for fields, given in ((schema.DEVICE, device), (schema.LINK, device["links"][0]), costs):
        fields(given, "")
        for name in given:
            without = {key: value for key, value in given.items() if key != name}
            if name in (*schema.LATER, *schema.LATER_COSTS):
                fields(without, "")
                continue
            with pytest.raises(schema.DamagedError, match=f"^{name} is missing$"):
                fields(without, "")
        with pytest.raises(schema.DamagedError, match="has 'more', which is not known"):
            fields({**given, "more": 1}, "")


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_within_the_limits(name):
    written = dataclasses.asdict(PRESETS[name])
    lists = {key: list(value) for key, value in written.items() if isinstance(value, tuple)}
    schema.DEVICE({**written, **lists}, "")


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("memory_bytes",), -1, "memory_bytes is -1, not a whole number from 1 to"),
        (("memory_bytes",), True, "memory_bytes is True, not a whole number"),
        (("mesh", "data"), 10**18, "mesh.data is 1000000000000000000, not a whole number from 1 to 1,048,576"),
        (("mesh", "data"), 2.0, "mesh.data is 2.0, not a whole number"),
        (("mesh", "data"), 2**20, "in mesh, a mesh has at most 16 axes and 1,048,576 devices; this one has more"),
        (("mesh",), {f"a{k}": 1 for k in range(17)}, "not an object of at most 16 entries"),
        (("mesh",), {}, "in mesh, a mesh is a dict such as"),
        (("mesh", "no name"), 2, "in mesh, the mesh axis 'no name' needs a name such as 'data'"),
        (("decisions", 1, "axis"), "z", "decisions[1].axis is 'z', not an axis of the mesh (data, model)"),
        (("decisions", 0, "sides"), [0, 2], "decisions[0].sides[1] is 2, not a whole number from 0 to 1"),
        (("decisions", 0, "dimension"), "x\n", "decisions[0].dimension is 'x\\n', not a text of 1 to 500 characters"),
        (("decisions", 0, "unles"), "x", "decisions[0] has 'unles', which is not known; did you mean unless"),
        (("device",), "tpu-v5x", "there is no device 'tpu-v5x'; did you mean tpu-v5"),
        (("device", "tile"), [8], "device.tile is [8], not a list of 2 to 2 items"),
        (("device", "platform"), "abacus", "has the unknown platform 'abacus'"),
        (
            ("device", "links", 0, "bytes_per_second"),
            1e-300,
            "device.links[0].bytes_per_second is 1e-300, not a number",
        ),
        (
            ("device", "flops_per_second", "f32"),
            "fast",
            "device.flops_per_second.f32 is 'fast', not a number from 1 to",
        ),
        (("donate", 0), -1, "donate[0] is -1, not a whole number from 0 to 9,999"),
        (("program", "arguments", "x"), 3, "program.arguments.x is 3, not a text"),
        (("program",), None, "program is None, not an object"),
        (("shardwright_plan",), 99, "its version is 99, and those that are read are 2 and 3"),
        (("shardwright_plan",), "3", "its version is '3'"),
    ],
)
def test_the_field_is_named(saved, place, value, message):
    content = json.loads(saved.read_text())
    container = content
    for key in place[:-1]:
        container = container[key]
    container[place[-1]] = value
    saved.write_text(json.dumps(content))
    with pytest.raises(sw.PlanError) as error:
        read(saved)
    assert message in str(error.value)
    assert str(error.value).startswith(f"{saved} is ")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it is not JSON (Expecting value: line 1 column 1 (char 0))"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b'{"shardwright_plan": 3, "mesh": NaN}', "NaN is no number of JSON"),
        (b'{"shardwright_plan": 3, "mesh": 1e999}', "the number 1e999 is too large"),
        (b'{"shardwright_plan": 3, "mesh": ' + b"9" * 5000 + b"}", "has 5,000 digits"),
        (b'{"shardwright_plan": 3, "shardwright_plan": 2}', "'shardwright_plan' stands twice in one object"),
        ('{"shardwright_plan": 3}'.encode("utf-16"), "it is not text in UTF-8"),
        (bytes(range(256)), "it is not text in UTF-8"),
        (b" " * (2**24 + 1), "it has more than 16 MiB"),
        (b"[3]", "it has no shardwright_plan"),
    ],
)
def test_what_is_no_plan(tmp_path, data, message):
    file = tmp_path / "plan.json"
    file.write_bytes(data)
    with pytest.raises(sw.PlanError) as error:
        read(file)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_what_cannot_be_read_again_is_not_written(tmp_path):
    device = dataclasses.replace(DEVICE, clock_hertz=1e-16)
    plan = sw.evaluate(step, *ARGS, mesh={"data": 4}, device=device)
    with pytest.raises(
        sw.PlanError, match=r"cannot be saved.*clock_hertz is 1e-16, not a number from 1 to 1e\+24, or 0"
    ):
        plan.save(tmp_path / "plan.json")
    assert list(tmp_path.iterdir()) == []


def test_meshes_beyond_reason():
    with pytest.raises(sw.MeshError, match="a mesh has at most 16 axes and 1,048,576 devices"):
        sw.evaluate(step, *ARGS, mesh={"data": 10**18}, device="tpu-v5e")


def damaged_plans(plan_file, count):
    """Damaged files of every kind; the sample is spread over what was there."""
    content = json.loads(plan_file.read_text())
    data = plan_file.read_bytes()
    yield from damaged_json(content, count // 2, seed=1)
    yield from damaged_json(older(content), count // 8, seed=2)
    yield from damaged_json(older(content) | {"device": "tpu-v5e"}, count // 8, seed=3)
    rest = count - count // 2 - 2 * (count // 8)
    yield from damaged_bytes(data, rest, seed=4)


def is_one_sentence(text):
    return "\n" not in text and text.endswith(".") and len(text) < 1000 and text.isprintable()


def test_damaged_files_end_with_one_sentence(saved, tmp_path):
    file = tmp_path / "damaged.json"
    counts = {"refused": 0, "another program": 0, "still a plan": 0}
    for what, data in damaged_plans(saved, DAMAGED):
        file.write_bytes(data)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                plan = sw.load(file, step, *ARGS)
            except sw.ShardwrightError as error:
                assert is_one_sentence(str(error)) and "damaged.json" in str(error), (what, str(error))
                counts["refused"] += 1
            except BaseException as error:
                raise AssertionError(f"{what}: {type(error).__name__}: {str(error)[:300]}") from error
            else:
                assert np.isfinite(plan.estimate.step_seconds), what
                assert str(plan).startswith("step on "), what
                assert [w.category for w in told] in ([], [sw.PlanWarning]), what
                assert all(is_one_sentence(str(w.message)) for w in told), what
                counts["another program" if told else "still a plan"] += 1
        assert file.read_bytes() == data
    print(counts)
    assert counts["refused"] > DAMAGED // 2
    assert counts["still a plan"] > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged.json", "plan.json"]


def test_damaged_files_on_the_command_line(saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, os.path.dirname(__file__)])
    counts = {}
    files = list(damaged_plans(saved, DAMAGED))
    for what, data in files[:: max(1, len(files) // ON_THE_COMMAND_LINE)]:
        (tmp_path / "damaged.json").write_bytes(data)
        result = CliRunner().invoke(main, ["verify", "damaged.json", f"{__name__}:make", "--on", "shardy"])
        assert result.exit_code in (0, 2, 3), (what, result.output, result.exception)
        if result.exit_code == 2:
            assert result.stdout == ""
            assert result.stderr.startswith("shardwright: ") and is_one_sentence(result.stderr.removesuffix("\n")), what
        counts[result.exit_code] = counts.get(result.exit_code, 0) + 1
    print(counts)
    assert counts[2] > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged.json", "plan.json"]


def other_op(w, x):
    return jnp.sin(x @ w["a"]) @ w["b"]


def other_order(w, x):
    return jnp.tanh((x @ w["a"]) @ w["b"])


def one_more(w, x):
    return step(w, x) @ w["b"].T


def another_result(w, x):
    return step(w, x).sum()


@pytest.mark.parametrize(
    ("fn", "args", "told"),
    [
        (step, (ARGS[0], f32(128, 64)), "x is f32[128,64] in place of f32[256,64]; it returns"),
        (step, (ARGS[0], jax.ShapeDtypeStruct((256, 64), jnp.bfloat16)), "x is bf16[256,64] in place of f32[256,64]"),
        (other_op, ARGS, "it has 0 tanh in place of 1 and 1 sine in place of 0."),
        (other_order, ARGS, "as many operations of each kind, but in another order or of other values."),
        (one_more, ARGS, "it returns 0 f32[256,32] in place of 1 and 1 f32[256,128] in place of 0."),
        (another_result, ARGS, "it returns 0 f32[256,32] in place of 1 and 1 f32[] in place of 0."),
        (lambda w, x, y: step(w, x) + y, (*ARGS, f32(32)), "the argument y is new."),
        (lambda w, x: x @ w["a"] @ jnp.ones((128, 32)) + w["b"][0], ARGS, "in place of"),
    ],
)
def test_another_program_is_told(saved, fn, args, told):
    with pytest.warns(sw.PlanWarning) as found:
        plan = sw.load(saved, fn, *args)
    (message,) = (str(each.message) for each in found)
    name = getattr(fn, "__name__", "")
    assert message.startswith(
        f"the plan {saved}, made for step, still applies to {name} and was priced anew, but was not"
    )
    assert told in message
    assert is_one_sentence(message)
    assert found[0].filename == __file__  # the caller's line
    assert plan.in_specs[1] == jax.P("data")


def test_another_platform_is_no_other_program(saved):
    assert sw.load(saved, step, *ARGS, platform="cpu").in_specs[1] == jax.P("data")
    with pytest.warns(sw.PlanWarning, match="it has 3 dot_general in place of 2"):
        sw.load(saved, lambda w, x: step(w, x) + (x @ w["a"])[:, :32], *ARGS, platform="cpu")


def test_another_version_of_jax_is_no_other_program(saved):
    content = json.loads(saved.read_text())
    content["program"] |= {"made_with": "shardwright 0.0.1, jax 0.9.0, for tpu", "digest": "0" * 16}
    content["program"]["ops"]["optimization_barrier"] = 7
    saved.write_text(json.dumps(content))
    sw.load(saved, step, *ARGS)


def test_a_program_that_it_does_not_fit(saved):
    with pytest.raises(sw.PlanError) as error:
        sw.load(saved, lambda a, b: a @ b, f32(8, 8), f32(8, 8))
    assert str(error.value) == (
        f"the plan {saved}, made for step, does not fit <lambda> (the arguments w.a, w.b and 1 more are gone or "
        "unused; the arguments a and b are new; it returns 0 f32[256,32] in place of 1 and 1 f32[8,8] in place of 0): "
        "there is no dimension 'x[0]'; did you mean b[0] or a[0] or b[1]."
    )
    content = json.loads(saved.read_text())
    saved.write_text(json.dumps(content | {"donate": [2]}))
    with pytest.raises(sw.PlanError, match=r"plan.json donates argument 2, but step is given 2\.$"):
        sw.load(saved, step, *ARGS)


def test_the_command_line_tells_as_well(saved, monkeypatch):
    monkeypatch.chdir(saved.parent)
    monkeypatch.setattr(sys, "path", [*sys.path, os.path.dirname(__file__)])
    monkeypatch.setattr(sys.modules[__name__], "make", lambda: (other_op, ARGS))
    result = CliRunner().invoke(main, ["verify", "plan.json", f"{__name__}:make", "--on", "shardy", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["plan"] == "plan.json"
    assert result.stderr.startswith(
        "shardwright: the plan plan.json, made for step, still applies to other_op and was "
    )
