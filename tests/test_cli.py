"""The command line: what it prints, where, and how it ends."""

import json
import subprocess
import sys

import jax
import pytest
from click.testing import CliRunner

from shardwright.cli import main
from shardwright.models import MODELS


def run(*arguments):
    return CliRunner().invoke(main, list(arguments))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODELS if name != "decode"])
def test_every_model_at_full_size_as_json(name):
    before = len(jax.live_arrays())
    result = run("analyse", name, "--json", "--platform", "tpu")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["program"]["flops"] > 1e12
    assert not found["program"]["opaque"]
    assert all(loop["known"] == "exact" for loop in found["program"]["loops"])
    assert 5 <= len(found["groups"]) <= found["colours"]
    assert len(jax.live_arrays()) == before


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["gemma-2b", "gemma-7b"])
def test_gemma_sized_gpt_as_json(preset):
    found = json.loads(run("analyse", "gpt", "--preset", preset, "--json").stdout)
    names = {group["name"]: group for group in found["groups"]}
    assert names["state.params.embed[0]"]["size"] == 256128
    (conflict, _) = names["batch.tokens[1]"]["conflicts"]
    assert conflict["op"] == "dot_general"
    assert conflict["consistent"]
    assert {side["role"] for side in conflict["sides"]} == {"operand 0", "operand 1"}


def test_json_has_what_the_table_has():
    result = run("analyse", "gpt", "--preset", "tiny", "--set", "layers=3", "--json")
    found = json.loads(result.stdout)
    assert not result.stderr
    assert found["version"] == 1
    batch = next(group for group in found["groups"] if group["name"] == "batch.tokens[0]")
    assert {"size", "sizes", "copies", "tensors", "bytes", "flops", "arguments", "conflicts"} < batch.keys()
    assert "batch.tokens[0]" in batch["arguments"]
    assert {loop["trips"] for loop in found["program"]["loops"]} == {3}


def test_table():
    result = run("analyse", "gpt", "--preset", "tiny")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("train_step: ")
    assert lines[2].split() == ["dimension", "size", "copies", "tensors", "bytes", "FLOPs"]
    assert any(line.startswith("state.params.layers.wq[2] ") for line in lines)
    assert "conflict of" in result.stdout
    assert "dot_general" in result.stdout


def test_table_shows_all_on_request():
    short, long = (run("analyse", "unet", "--preset", "tiny", *more).stdout for more in ([], ["--all"]))
    assert "smaller groups" in short
    assert "smaller groups" not in long
    assert len(long.splitlines()) > len(short.splitlines())


def test_program_with_colours():
    result = run("analyse", "mlp", "--preset", "tiny", "--program")
    assert result.stdout.startswith("program train_step (\n  %0 = state.opt.m.layers.0.b : f32[")
    assert "reduction=" in result.stdout


def test_own_function(tmp_path, monkeypatch):
    (tmp_path / "own_model.py").write_text(
        "import jax, jax.numpy as jnp\n"
        "def make():\n"
        "    x = jax.ShapeDtypeStruct((8, 16), jnp.float32)\n"
        "    return (lambda x: x * 2), (x,), {'donate': (0,)}\n"
        "def bare():\n"
        "    return make()[:2]\n"
        "def wrong():\n"
        "    return 3\n"
        "def option():\n"
        "    return *make()[:2], {'donat': (0,)}\n"
        "def broken():\n"
        "    raise ValueError('no data')\n"
        "number = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    donated = json.loads(run("analyse", "own_model:make", "--json").stdout)["program"]["arguments"][0]["donated"]
    assert donated is True
    assert run("analyse", "own_model:bare").exit_code == 0
    for target, message in {
        "own_model:mak": "has no 'mak'; did you mean make.",
        "own_modle:make": "there is no module 'own_modle'; did you mean own_model.",
        "own_model:wrong": "must return (fn, args)",
        "own_model:option": "returns the option 'donat'; known options: donate, kwargs, static_argnames.",
        "own_model:broken": "failed with ValueError: no data",
        "own_model:number": "is not a function but a int.",
        "own_model:": "should be package.module:function.",
        "own_model": "is a module; name the function in it",
    }.items():
        result = run("analyse", target)
        assert result.exit_code == 2
        assert not result.stdout
        assert message in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_stablehlo_file(tmp_path):
    file = tmp_path / "model.mlir"
    file.write_text(jax.jit(lambda x: x * 2).lower(jax.ShapeDtypeStruct((8, 16), "float32")).as_text())
    result = run("analyse", str(file))
    assert result.exit_code == 0
    assert result.stdout.startswith("model: ")
    assert "sizes (layers) can be set for built-in models only" in run("analyse", str(file), "--set", "layers=2").stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gptt"], "There is no model 'gptt'; did you mean gpt"),
        (["gpt", "--set", "layerz=3"], "Model gpt has no size 'layerz'; did you mean layers"),
        (["gpt", "--set", "layers"], "--set takes NAME=VALUE, not 'layers'."),
        (["gpt", "--preset", "teeny"], "has no preset 'teeny'; did you mean tiny"),
        (["gpt", "--preset", "tiny", "--trip-count", "a.py:3=2"], "no loop of unknown length is at 'a.py:3'"),
        (["gpt", "--platform", "abacus"], "Invalid value for '--platform'"),
        (["gpt", "--json", "--program"], "exclude each other"),
        (["none.mlir"], "cannot read none.mlir: No such file or directory."),
    ],
)
def test_mistakes_end_with_two_and_one_sentence(arguments, message):
    result = run("analyse", *arguments)
    assert result.exit_code == 2
    assert not result.stdout
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_debug_shows_the_traceback():
    result = run("--debug", "analyse", "gptt")
    assert result.exit_code == 1
    assert "no model 'gptt'" in str(result.exception)


def test_models():
    result = run("models")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in MODELS)
    assert "gemma-2b" in result.stdout
    assert json.loads(run("models", "--json").stdout)["gpt"]["presets"]["gemma-7b"]["layers"] == 28


def test_help_teaches_by_example():
    assert "shardwright analyse gpt" in run("--help").stdout
    assert "shardwright analyse gpt --preset gemma-2b" in run("analyse", "--help").stdout


def test_as_a_process():
    command = [sys.executable, "-m", "shardwright", "analyse", "mlp", "--preset", "tiny", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["program"]["name"] == "train_step"
    assert not done.stderr
