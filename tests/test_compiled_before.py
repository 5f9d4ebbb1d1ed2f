"""What compilers said before is not asked again, and never believed where it is damaged."""

import json

import jax
import jax.numpy as jnp
import pytest

import shardwright as sw
from shardwright.verify import compile as compiling
from shardwright.verify.compiled_before import answer_folder


def step(w, x):
    return jnp.tanh(x @ w)


def planned(rows=16):
    shapes = jax.ShapeDtypeStruct((8, 8), jnp.float32), jax.ShapeDtypeStruct((rows, 8), jnp.float32)
    return sw.evaluate(step, *shapes, mesh={"data": 2}, device="tpu-v5e", decisions=[("data", "x[0]")])


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """How often a compiler was really run, with a folder for what it says."""
    monkeypatch.setenv("SHARDWRIGHT_COMPILED", str(tmp_path / "kept"))
    runs, run = [], compiling.run_child
    monkeypatch.setattr(compiling, "run_child", lambda *args, **more: runs.append(1) or run(*args, **more))
    return runs


def test_the_same_is_compiled_once(asked):
    first, second = planned().verify("cpu"), planned().verify("cpu")
    assert asked == [1]
    assert first.peak_bytes == second.peak_bytes and first.counts == second.counts
    planned(rows=32).verify("cpu")
    assert asked == [1, 1]


def test_a_damaged_answer_is_none(asked, tmp_path):
    planned().verify("cpu")
    (answer,) = (tmp_path / "kept").iterdir()
    (answer / "result.json").write_text("{")
    assert planned().verify("cpu")
    assert asked == [1, 1]
    assert json.loads((answer / "result.json").read_text())["devices"] == 2


def test_the_oldest_go_first(asked, tmp_path, monkeypatch):
    monkeypatch.setenv("SHARDWRIGHT_COMPILED_BYTES", "1")
    planned().verify("cpu")
    planned(rows=32).verify("cpu")
    assert len(list((tmp_path / "kept").iterdir())) == 1
    planned().verify("cpu")
    assert asked == [1, 1, 1]


def test_options_and_the_mesh_are_part_of_the_question(asked):
    planned().verify("cpu")
    planned().verify("cpu", compiler_options={"xla_cpu_enable_fast_math": "true"})
    assert asked == [1, 1]


def test_where_no_folder_is_named_nothing_is_kept(monkeypatch):
    monkeypatch.delenv("SHARDWRIGHT_COMPILED", raising=False)
    exported, _ = planned().export("cpu")
    assert answer_folder(exported, {}) is None
