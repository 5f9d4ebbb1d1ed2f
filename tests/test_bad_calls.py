"""Bad calls of the command line: one sentence, the documented exit code, nothing on standard output or left behind."""

import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from bad_calls import DOES_NOT_FIT, calls, write_modules
from shardwright.cli import main

ALL = os.environ.get("SHARDWRIGHT_CALLS", "")
EVERY = 1 if ALL else 3  # by default a third of the calls


@pytest.fixture
def folder(tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    work = tmp_path / "work"
    for path in (temporary, work):
        path.mkdir()
    write_modules(work)
    monkeypatch.chdir(work)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield work
    for name in ("made", *(path.stem for path in work.glob("*.py"))):
        sys.modules.pop(name, None)


@pytest.mark.filterwarnings("ignore")  # of modules that are wrong on purpose
def test_bad_calls_are_one_sentence(folder: Path):
    before = sorted(os.listdir(folder))
    wrong = []
    chosen = calls()[::EVERY]
    for arguments, code in chosen:
        result = CliRunner().invoke(main, list(arguments))
        told = result.stderr.splitlines()
        if (
            result.exit_code != code
            or len(told) != 1
            or not told[0].startswith("shardwright: ")
            or (result.stdout and code != DOES_NOT_FIT)
            or sorted(os.listdir(folder)) != before
            or os.listdir(folder.parent / "temporary")
        ):
            wrong.append((arguments, result.exit_code, result.stderr, result.exception))
    print(f"{len(chosen)} bad calls, {len(wrong)} wrong")
    assert not wrong


def test_there_are_enough_bad_calls():
    assert len({tuple(arguments) for arguments, _ in calls()}) >= 180


def test_results_are_alone_on_standard_output(folder: Path):
    (folder / "loud.py").write_text(
        "import os\nprint('imported')\nos.write(1, b'past Python')\n"
        "from made import fine as made_fine\ndef fine():\n    print('called')\n    return made_fine()\n"
    )
    result = CliRunner().invoke(main, ["analyse", "loud:fine", "--json"])
    assert result.exit_code == 0, result.stderr
    assert set(json.loads(result.stdout)) >= {"groups"}
    assert "imported" in result.stderr
    assert "called" in result.stderr


def test_a_users_module_does_not_stand_in_for_another_after_it_was_imported(folder: Path):
    (folder / "rarely_imported.py").write_text("")
    assert CliRunner().invoke(main, ["analyse", "made:fine"]).exit_code == 0
    assert sys.path[-1] == str(folder)
    assert sys.path[0] != str(folder)


def test_a_working_directory_that_is_gone_is_one_sentence(folder: Path, monkeypatch):
    gone = folder / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    result = CliRunner().invoke(main, ["analyse", "made:fine"])
    monkeypatch.chdir(folder)
    assert (result.exit_code, result.stderr) == (
        2,
        "shardwright: the working directory cannot be used: No such file or directory.\n",
    )
