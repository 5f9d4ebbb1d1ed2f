"""``plan``, ``compare``, ``verify`` and ``completions`` on the command line: output, files and exit codes."""

import json
import math
import re
import subprocess
import sys

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from jax.sharding import PartitionSpec as P
from rich.text import Text

import shardwright as sw
from shardwright.cli import main, shared_options
from shardwright.cli.output import show
from shardwright.cli.typed_values import mesh_devices, parse_mesh, parse_pins

OWN = """
import jax, jax.numpy as jnp

print("importing")

def step(params, x, y):
    def loss(params):
        return jnp.mean((jax.nn.relu(x @ params["a"]) @ params["b"] - y) ** 2)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))

def make():
    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    params = {"a": array(512, 1024), "b": array(1024, 256)}
    return step, (params, array(4096, 512), array(4096, 256)), {"donate": (0,)}
"""
ONE_AXIS = ("own_step:make", "--mesh", "x=2", "--device", "tpu-v5e")
CALL = ("own_step:make", "--mesh", "data=2,model=2", "--device", "tpu-v5e")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "own_step.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    yield tmp_path
    sys.modules.pop("own_step", None)


def run(*arguments):
    return CliRunner().invoke(main, list(arguments))


def test_plan_prints_and_writes(folder):
    result = run("plan", *CALL, "--save", "plan.json", "--report", "plan.html", "--explain", "x", "--verify", "shardy")
    assert result.exit_code == 0, result.output
    assert "step on 4 × tpu-v5e (data 2 × model 2)\nFits: " in result.stdout
    assert "\nparams.b " in result.stdout
    assert "\nx: f32[4096,512]" in result.stdout
    assert "\nshardy: ok: " in result.stdout
    assert not any(line.endswith(" ") for line in result.stdout.splitlines())
    assert "\x1b" not in result.stdout
    assert result.stderr == "wrote plan.json\nwrote plan.html\n"
    assert (folder / "plan.html").read_text().lstrip().lower().startswith("<!doctype html>")
    verified = run("verify", "plan.json", "own_step:make", "--on", "shardy", "--json")
    assert verified.exit_code == 0
    assert [v["ok"] for v in json.loads(verified.stdout)["verdicts"]] == [True]


def test_plan_as_json_is_one_object_with_what_was_pinned():
    pins = ("--pin", "fsdp:data", "--pin", "model:params.a[1]", "--seconds", "0")
    result = run("plan", *CALL, *pins, "--json", "--verify", "shardy")
    found = json.loads(result.stdout)
    assert result.stderr == "importing\n"
    assert found["fits"] is True
    assert found["names"] == {"data": ["ZeRO-3 / FSDP"], "model": ["Megatron"]}
    assert found["in_specs"]["params.a"] == [None, ["data", "model"]]
    assert found["verdicts"][0]["on"] == "shardy"


def test_specs_are_pinned_and_the_rest_is_searched():
    result = run("plan", *CALL, "--pin", "x=P(None, model)", "--replicate", "params.b", "--json")
    found = json.loads(result.stdout)["in_specs"]
    assert (found["x"], found["params.b"]) == ([None, "model"], [])


def test_python_alone_on_standard_output():
    result = run("plan", *CALL, "--python")
    assert result.exit_code == 0
    compile(result.stdout, "specs.py", "exec")
    assert "jax.jit(" in result.stdout


def test_where_nothing_fits():
    result = run("plan", *ONE_AXIS, "--memory", "10KiB", "--json")
    assert result.exit_code == 3
    assert "\nshardwright: no plan fits: the smallest that was found needs " in result.stderr
    found = json.loads(result.stdout)
    assert found["fits"] is False
    assert found["needed_bytes"] > found["limit_bytes"] == 10 * 1024
    assert found["advice"]


def test_compare():
    found = json.loads(run("compare", *CALL, "--json").stdout)["rows"]
    assert found[0]["ours"] is True
    assert any("megatron:model" in row["name"] for row in found)
    assert "fsdp:data + fsdp:model" in {row["name"] for row in found}
    tight = run("compare", *CALL, "--memory", str(int(1.1 * min(row["peak_bytes"] for row in found))))
    assert tight.exit_code == 0, tight.output
    assert "\nthis plan " in tight.stdout
    assert "\nfsdp:data,model " in tight.stdout
    assert "does not fit" in tight.stdout
    nothing = run("compare", *ONE_AXIS, "--memory", "10KiB", "--json")  # the smallest there is, and larger ones
    assert nothing.exit_code == 3
    assert not any(row["fits"] for row in json.loads(nothing.stdout)["rows"])
    assert "no plan fits" in nothing.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "own_step:make"], "without mesh= the program's own mesh is taken, but it has none"),
        (["plan", "own_step:make", "--mesh", "0"], "a mesh cannot have 0 devices; give a number from 1 to"),
        (
            ["plan", "own_step:make", "--mesh", "data"],
            "--mesh takes axes and their sizes (data=4,model=4), a number of",
        ),
        (["plan", "own_step:make", "--mesh", "tpu:v5e"], "'tpu:v5e' does not say how many devices there are"),
        (["plan", "own_step:make", "--mesh", "cpu"], "'cpu' is no mesh; write its axes"),
        (
            ["plan", "own_step:make", "--mesh", "4", "--verify", "tpu:v5e:4x4"],
            "has 16 devices, but the plan's mesh has 4",
        ),
        (["plan", "own_step:make", "--mesh", "x=2,x=2"], "has the axis 'x' twice"),
        (["plan", "own_step:make", "--mesh", "x=0"], "the mesh axis 'x' needs a whole number of devices, not 0"),
        (["plan", *CALL, "--device", "tpu-v5x"], "there is no device 'tpu-v5x'; did you mean tpu-v5"),
        (["plan", *CALL, "--memory", "much"], "an amount of memory is a positive number of bytes"),
        (
            ["plan", *CALL, "--pin", "fsdq:data"],
            "'fsdq' is neither a tactic nor an axis of the mesh; did you mean fsdp",
        ),
        (["plan", *CALL, "--pin", "x"], "--pin takes a tactic (fsdp:data), a spec (batch.x=P('data')) or"),
        (["plan", *CALL, "--pin", "x=P(1)"], "a spec is written as P('data', None, ('x', 'y')), not 'P(1)'"),
        (["plan", *CALL, "--pin", "z=P(data)"], "no argument matches the pin 'z'"),
        (["plan", *CALL, "--replicate", "z"], "replicate='z' is neither an axis of the mesh nor an argument"),
        (["plan", *CALL, "--verify", "shardi"], "not on 'shardi'; did you mean shardy"),
        (["plan", *CALL, "--verify", "tpu:v5e:4x4"], "tpu:v5e:4x4 has 16 devices, but the plan's mesh has 4"),
        (["plan", *CALL, "--rerank", "tpu:v99:2x2"], "names no TPU to compile for"),
        (["plan", *CALL, "--save", "no/plan.json"], "cannot write no/plan.json: there is no folder no"),
        (
            ["plan", *CALL, "--save", "x", "--report", "./x"],
            "--save and --report would both write to ./x; name two files.",
        ),
        (["plan", *CALL, "--save", "-", "--json"], "what is printed and --save would both write to /dev/stdout"),
        (["fit", *CALL, "--save", "no/plan.json"], "cannot write no/plan.json: there is no folder no"),
        (["plan", *CALL, "--json", "--python"], "exclude each other"),
        (["plan", *CALL, "--seconds", "-1"], "Invalid value for '--seconds'"),
        (["plan", "none.mlir", *CALL[1:]], "cannot read none.mlir: No such file or directory."),
        (["compare", "gptt", *CALL[1:]], "There is no model 'gptt'; did you mean gpt"),
        (["verify", "none.json", "own_step:make", "--on", "run"], "cannot read the plan none.json"),
        (
            ["verify", "own_step.py", "own_step:make", "--on", "run"],
            "own_step.py is not a plan that this shardwright reads: it is not JSON",
        ),
        (["verify", "none.json", "own_step:make"], "Missing option '--on'"),
        (["completions", "powershell"], "Invalid value for"),
        (["plam"], "No such command 'plam'"),
    ],
)
def test_mistakes_end_with_two(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert not result.stdout.replace("importing\n", "")


def test_interrupts_and_files_of_the_system(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    def forbidden(*_):
        raise PermissionError(13, "Permission denied", "/secret")

    monkeypatch.setattr("shardwright.cli.plan_command.searched_plan", interrupted)
    result = run("plan", *CALL)
    assert (result.exit_code, result.stderr) == (130, "shardwright: interrupted.\n")
    monkeypatch.setattr("shardwright.cli.plan_command.searched_plan", forbidden)
    result = run("plan", *CALL)
    assert (result.exit_code, result.stderr) == (2, "shardwright: cannot use /secret: Permission denied.\n")


def test_a_plan_on_standard_output(capfd):
    result = run("plan", *CALL, "--save", "-")
    assert result.exit_code == 0, result.output
    assert json.loads(capfd.readouterr().out)["mesh"] == {"data": 2, "model": 2}
    assert result.stdout in ("", "importing\n")
    assert "wrote /dev/stdout\nstep on 4 × tpu-v5e" in result.stderr


def test_debug_is_understood_at_the_end():
    result = run("plan", "own_step:make", "--mesh", "0", "--debug")
    assert result.exit_code == 1
    assert isinstance(result.exception, sw.MeshError)


def test_meshes():
    assert parse_mesh("data=4, model=2") == {"data": 4, "model": 2}
    assert [parse_mesh(text) for text in ("16", " 16 ", "tpu:v5e:4x4")] == [16, 16, "tpu:v5e:4x4"]
    assert [mesh_devices(text) for text in ("data=4,model=2", "16", "tpu:v5e:2x4x4", "gpu:a100-80:2x8")] == [
        8,
        16,
        32,
        16,
    ]


def test_the_mesh_is_chosen():
    result = run("plan", "own_step:make", "--mesh", "4", "--device", "tpu-v5e", "--pin", "model: params.a[1]")
    assert result.exit_code == 0, result.output
    chosen = re.search(r"^step on 4 × tpu-v5e \((.*)\)$", result.stdout, re.M).group(1)
    table = result.stdout.partition("how well it was searched\n")[2].partition("\n\n")[0].splitlines()
    assert table[0].partition("  ")[0] == chosen
    assert "model" in chosen
    assert table[0].endswith(", and chosen")


def test_the_mesh_of_a_topology_is_chosen():
    result = run("plan", "own_step:make", "--mesh", "tpu:v5e:4x4", "--seconds", "2", "--json")
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    assert math.prod(plan["mesh"].values()) == 16
    assert (plan["device"]["name"], plan["device"]["slice_shape"]) == ("tpu-v5e", [4, 4])
    assert plan["meshes"][0]["mesh"] == plan["mesh"]
    assert {tuple(row["mesh"].values()) for row in plan["meshes"]} >= {(16,), (4, 4)}


@pytest.mark.parametrize(
    ("text", "pin"),
    [
        ("fsdp:data", ["fsdp:data"]),
        ("fsdp:data=batch.x[0]", ["fsdp:data=batch.x[0]"]),
        ("fsdp:data, model", ["fsdp:data, model"]),
        ("expert_parallel+fsdp:data", ["expert_parallel+fsdp:data"]),
        ("data: batch.x[0]", [("data", "batch.x[0]")]),
        ("x=P('data')", [{"x": P("data")}]),
        ("*.w = P(None, ('data', 'model'))", [{"*.w": P(None, ("data", "model"))}]),
        ("x=PartitionSpec(data, [model])", [{"x": P("data", ("model",))}]),
        ("x=P()", [{"x": P()}]),
    ],
)
def test_pins(text, pin):
    assert parse_pins([text], {"data": 4, "model": 2}) == pin
    assert parse_pins([text], 8) == pin


def test_pins_on_a_mesh_whose_axes_are_not_known_yet():
    assert parse_pins(["x:batch.x[0]", "rows: batch.x[1]"], 8) == [("x", "batch.x[0]"), ("rows", "batch.x[1]")]
    with pytest.raises(sw.PinError, match="'fsdq' is neither a tactic nor an axis"):
        parse_pins(["fsdq:data"], 8)


@pytest.mark.parametrize(
    "text",
    ["x=P(open('f', 'w'))", "x=P(*y)", "x=P(a=1)", "x=P('a').__class__", "x=P(", "x=P" + "(" * 5000, "x=Q('a')", "x=3"],
)
def test_pins_are_not_evaluated(text, folder):
    with pytest.raises(sw.PinError):
        parse_pins([text], {"data": 4, "model": 2})
    assert not (folder / "f").exists()


def completed(*arguments):
    *args, incomplete = arguments
    return [item.value for item in ShellComplete(main, {}, "shardwright", "_").get_completions(args, incomplete)]


def test_completions():
    assert completed("") == ["plan", "compare", "fit", "analyse", "verify", "models", "devices", "completions"]
    assert completed("plan", "g") == ["gpt", "gns"]
    assert completed("plan", "gpt", "--device", "tpu-v5") == ["tpu-v5e", "tpu-v5p"]
    assert "gemma-2b" in completed("plan", "gpt", "--preset", "")
    assert "layers=12" in completed("analyse", "gpt", "--set", "l")
    assert completed("plan", "gpt", "--mesh", "a=2,b=2", "--pin", "zero") == ["zero1:a", "zero1:b"]
    assert completed("plan", "gpt", "--mesh", "8", "--pin", "zero1") == ["zero1:x", "zero1:y", "zero1:z"]
    assert completed("verify", "plan.json", "gpt", "--on", "s") == ["shardy"]
    assert "tpu:v5e:" in completed("plan", "gpt", "--verify", "tpu")
    for shell in ("bash", "zsh", "fish"):
        result = run("completions", shell)
        assert result.exit_code == 0
        assert "_SHARDWRIGHT_COMPLETE" in result.stdout


class Terminal:
    """Standard output that says it is a terminal."""

    encoding = "utf-8"

    def __init__(self):
        self.text = ""

    def isatty(self):
        return True

    def write(self, text):
        self.text += text
        return len(text)

    def flush(self):
        pass


@pytest.mark.parametrize(("no_color", "expected"), [("", "\x1b[32mfits\x1b[0m\n"), ("1", "fits\n")])
def test_colours_on_a_terminal_only_and_not_against_the_users_will(monkeypatch, no_color, expected):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    show(Text("fits", style="green"))
    assert terminal.text == expected


def test_help_teaches_by_example():
    for command in ("plan", "compare", "verify", "completions"):
        lines = run(command, "--help").stdout.splitlines()
        assert any(line.startswith(f"  shardwright {command} ") for line in lines)
        assert max(map(len, lines)) <= 80


def test_accelerators_are_left_alone_unless_the_user_says_so(monkeypatch):
    said = []

    class Config:
        jax_platforms = None

        def update(self, name, value):
            said.append((name, value))

    monkeypatch.setattr("shardwright.cli.process.jax.config", Config())
    monkeypatch.setattr(shared_options, "partition", lambda *_, **__: 1 / 0)
    for device in ([], ["--device", "tpu-v5e"]):
        assert isinstance(run("plan", *CALL[:3], *device).exception, ZeroDivisionError)
    assert said == [("jax_platforms", "cpu")]


def test_as_a_process(folder):
    command = [sys.executable, "-m", "shardwright", "plan", *CALL, "--seconds", "0", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0
    assert json.loads(done.stdout)["fits"] is True
    assert done.stderr == "importing\n"
