"""Processes that compilers run in: they end when they must, and leave nothing behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import shardwright as sw
from shardwright import _children
from shardwright._children import child_environment, child_folder, run_child

# A parent whose child says who it is, has a child of its own, and would go on for a minute.
PARENT = """
import sys
from shardwright._children import child_environment, child_folder, run_child
with child_folder() as folder:
    run_child(sys.executable, [sys.argv[1]], folder=folder, environment=child_environment(), timeout_seconds=60)
"""
CHILD = """
import os, subprocess, sys, time
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open(os.environ["TOLD"] + ".new", "w").write(f"{os.getpid()} {other.pid} {os.getcwd()}")
os.rename(os.environ["TOLD"] + ".new", os.environ["TOLD"])
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def interruptible():
    """Ctrl-C is ignored by what is started in the background of a shell, and by its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def run(tmp_path, code, *arguments, timeout_seconds=60.0, environment=None):
    script = tmp_path / "script.py"
    script.write_text(code)
    with child_folder() as folder:
        ended = run_child(
            sys.executable,
            [str(script), *arguments],
            folder=folder,
            environment=environment or child_environment(),
            timeout_seconds=timeout_seconds,
        )
    assert not folder.exists()
    return ended


def gone(process_id):
    """Within a few seconds the process is no more, or waits to be collected by the system."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False


def test_what_a_process_prints_and_how_it_ends(tmp_path):
    ended = run(tmp_path, "import sys; print(sys.argv[1:]); print('oh', file=sys.stderr); sys.exit(3)", "a", "b")
    assert (ended.code, ended.output, ended.complaints) == (3, "['a', 'b']\n", "oh\n")
    assert run(tmp_path, "import os; os.abort()").code == -signal.SIGABRT


def test_a_full_disk_is_no_answer_of_a_process(tmp_path):
    with pytest.raises(sw.PlanError, match=r"^cannot use the temporary folder .*: No space left on device; set TMPDIR"):
        run(tmp_path, "import os; os.write(os.open('/dev/full', os.O_WRONLY), b'answer')")


def test_a_process_that_takes_too_long_ends_with_its_children(tmp_path, monkeypatch):
    told = tmp_path / "told"
    monkeypatch.setenv("TOLD", str(told))
    assert run(tmp_path, CHILD, timeout_seconds=3).code is None
    first, second, folder = told.read_text().split()
    assert gone(first)
    assert gone(second)
    assert not Path(folder).exists()


@pytest.mark.parametrize("path", ["", "here"])
def test_modules_of_the_user_do_not_stand_in_for_others(tmp_path, monkeypatch, path):
    (tmp_path / "json.py").write_text("raise SystemExit('not mine')")
    (tmp_path / "click.py").write_text("raise SystemExit('not mine')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")  # where the user is, as with python -m and in a shell of Python
    monkeypatch.setenv("PYTHONPATH", str(tmp_path) if path == "here" else path)
    code = "import json, click, shardwright.errors as e; print(json.__file__); print(click.__file__); print(e.__file__)"
    ended = run(tmp_path, code)
    assert ended.code == 0, ended.complaints
    where = [Path(line).parent.parent for line in ended.output.splitlines()]
    assert tmp_path not in where
    assert where[2] == Path(_children.__file__).parent.parent


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_process_ends_when_the_one_that_asked_does(tmp_path, number):
    script, told = tmp_path / "script.py", tmp_path / "told"
    script.write_text(CHILD)
    environment = {**os.environ, "TOLD": str(told), "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(script)], env=environment, stderr=subprocess.PIPE)
    try:
        for _ in range(600):
            if told.exists():
                break
            time.sleep(0.1)
        first, second, folder = told.read_text().split()
        assert Path(folder).parent == tmp_path
        parent.send_signal(number)
        parent.communicate(timeout=60)
    finally:
        parent.kill()
    assert parent.returncode == -number
    assert gone(first)
    assert gone(second)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["script.py", "told"]


def test_a_handler_of_the_users_is_left_alone():
    def own(*_):
        raise AssertionError

    before = signal.signal(signal.SIGTERM, own)
    try:
        with child_folder():
            assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)
    with child_folder():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_folder_that_cannot_be_made_or_is_full_is_one_sentence(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
        with pytest.raises(sw.PlanError, match=r"^cannot make a temporary folder: No such file"), child_folder():
            pass
    with pytest.raises(sw.PlanError, match=r"^cannot use the temporary folder .*: No space left on device"):  # noqa: SIM117
        with child_folder() as folder:
            (folder / "full").symlink_to("/dev/full")
            (folder / "full").write_bytes(b"program")
    assert not folder.exists()
    with pytest.raises(FileNotFoundError), child_folder():  # a file of the user's is not our folder
        (tmp_path / "missing" / "file").read_bytes()
