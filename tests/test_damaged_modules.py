"""StableHLO from strangers: whatever is in a file, it is a program or one sentence."""

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

import shardwright as sw
from damaged_modules import damaged, forms, hurtful, nested_regions
from shardwright.cli import main
from shardwright.frontend import parse, stablehlo_program

COUNT = int(os.environ.get("SHARDWRIGHT_DAMAGED", "6"))
FIRST = int(os.environ.get("SHARDWRIGHT_FIRST", "0"))


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where temporary folders are made."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def test_damaged_files_are_one_sentence(tmp_path, temporary, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "module.mlir"
    refused = 0
    for name, data in damaged(COUNT, FIRST):
        file.write_bytes(data)
        result = CliRunner().invoke(main, ["analyse", "module.mlir"])
        if result.exit_code == 0:  # the damage did no harm, as in the name of a place
            assert result.stdout.startswith("module: "), name
        else:
            refused += 1
            assert result.exit_code == 2, (name, result.exception)
            assert not result.stdout, name
            assert len(result.stderr.splitlines()) == 1, (name, result.stderr)
            assert result.stderr.startswith("shardwright: module.mlir"), name
        assert not list(temporary.iterdir()), name
        assert sorted(path.name for path in tmp_path.iterdir()) == ["module.mlir", "temporary"], name
    assert refused > COUNT / 2
    print(f"{COUNT} damaged files, {refused} refused")


@pytest.mark.parametrize("name", hurtful())
def test_modules_made_to_hurt_are_one_sentence(name, tmp_path, temporary):
    data, told = hurtful()[name]
    file = tmp_path / "module.mlir"
    file.write_bytes(data)
    with pytest.raises(sw.ModuleError) as caught:
        stablehlo_program(file)
    assert str(caught.value).startswith(str(file))
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(temporary.iterdir())


def test_regions_that_are_not_too_deep_are_read(tmp_path):
    file = tmp_path / "module.mlir"
    file.write_bytes(nested_regions(100))
    assert len(stablehlo_program(file).regions) == 1 + 2 * 100


def test_a_module_is_tried_once_for_all_its_uses(tmp_path, monkeypatch):
    tried = []
    monkeypatch.setattr(parse, "run_child", lambda *args, **given: tried.append(args) or run(*args, **given))
    run = sys.modules["shardwright._children"].run_child
    parse._refused.cache_clear()
    file = tmp_path / "module.mlir"
    file.write_bytes(forms("mlp")["portable"])
    module = sw.read_stablehlo(file)
    module.module()
    stablehlo_program(file)
    assert len(tried) == 1


def test_a_parser_that_does_not_end_or_gives_up_is_one_sentence(tmp_path, monkeypatch):
    file = tmp_path / "module.mlir"
    file.write_text("module {}")
    for ended, told in {
        parse.Ended(None, "", ""): "the parser of MLIR did not end within 600 seconds.",
        parse.Ended(1, "", "LLVM ERROR: out of memory\n"): "gave up (LLVM ERROR: out of memory);",
        parse.Ended(-6, "so far", ""): "crashed (SIGABRT);",
    }.items():
        parse._refused.cache_clear()
        monkeypatch.setattr(parse, "run_child", lambda *_, ended=ended, **__: ended)
        with pytest.raises(sw.ModuleError) as caught:
            stablehlo_program(file)
        assert told in str(caught.value)
    parse._refused.cache_clear()


def test_the_script_that_tries_does_not_import_this_package():
    code = "import sys, runpy; runpy.run_path(sys.argv[1]); print('jax' in sys.modules, 'shardwright' in sys.modules)"
    script = os.path.join(os.path.dirname(parse.__file__), "parse_child.py")
    done = subprocess.run([sys.executable, "-c", code, script], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
