"""The command line as a process: signals, streams, and an environment that is not kind."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "shardwright"]
SEARCH = ["plan", "mlp", "--mesh", "data=4,model=4", "--device", "tpu-v5e"]
TINY = ["plan", "mlp", "--preset", "tiny", "--mesh", "data=2", "--device", "tpu-v5e", "--simulations", "1"]
MOMENTS = int(os.environ.get("SHARDWRIGHT_MOMENTS", "0"))

# What is imported last before Ctrl-C: this package's own first line, JAX, and the command line itself.
IMPORTED = ["shardwright._start", "numpy", "jax._src.core", "shardwright.cli.main"]


@pytest.fixture(autouse=True)
def interruptible():
    """Ctrl-C is ignored by what is started in the background of a shell, and by its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def temporary(tmp_path):
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


def run(*arguments, redirected="", **variables):
    command = f'{sys.executable} -m shardwright "$@" {redirected}'
    return subprocess.run(
        ["bash", "-c", command, "bash", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **variables},
    )


@pytest.mark.parametrize("module", IMPORTED)
def test_ctrl_c_while_modules_are_imported(module):
    command = [sys.executable, "-X", "importtime", *COMMAND[1:], *SEARCH]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if line.rstrip().endswith(f" {module}"):
                break
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        printed = process.stdout.read()
    assert process.returncode == 130
    said = [line for line in rest.splitlines() if line and not line.startswith("import time:")]
    assert said == ["shardwright: interrupted."]
    assert not printed


@pytest.mark.skipif(not MOMENTS, reason="SHARDWRIGHT_MOMENTS says how many")
def test_ctrl_c_at_many_moments(tmp_path, temporary):
    chance = random.Random(0)
    ends = {}
    environment = {**os.environ, "TMPDIR": str(temporary)}
    for k in range(MOMENTS):
        called = [*TINY, "--verify", "run"] if k % 2 else SEARCH
        command = [sys.executable, "-X", "importtime", *COMMAND[1:], *called]
        with (tmp_path / "output").open("wb") as output, (tmp_path / "errors").open("wb") as errors:
            process = subprocess.Popen(command, stdout=output, stderr=errors, env=environment)
        try:
            while " shardwright._start" not in (tmp_path / "errors").read_text():
                time.sleep(0.01)  # until then the process is Python's, not ours
            moment = chance.uniform(0, 8)
            time.sleep(moment)
            process.send_signal(signal.SIGINT)
            process.wait(300)
        finally:
            process.kill()
        printed, rest = ((tmp_path / name).read_text() for name in ("output", "errors"))
        told = [line for line in rest.splitlines() if line and not line.startswith("import time:")]
        assert "Traceback" not in rest, (moment, rest)
        assert process.returncode in (0, 130), (moment, process.returncode, told)
        if process.returncode == 0:
            assert printed.startswith("train_step on "), moment
        else:
            assert told[-1] == "shardwright: interrupted.", (moment, told)
        assert not list(temporary.iterdir()), moment
        ends[process.returncode] = ends.get(process.returncode, 0) + 1
    print(ends)


def test_sigterm_ends_compilers_and_leaves_no_folder(temporary):
    command = [*COMMAND, *TINY, "--verify", "run"]
    process = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(temporary)}, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(1200):
            if any((folder / "task.json").exists() for folder in temporary.glob("shardwright-*")):
                break
            time.sleep(0.05)
        else:
            raise AssertionError("no process was started")
        process.terminate()
        said = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert process.returncode == 143
    assert "Traceback" not in said
    assert not list(temporary.iterdir())
    assert not [line for line in _commands() if str(temporary) in line]


def _commands() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_text(errors="replace"))
        except OSError:
            continue
    return found


def test_standard_output_that_is_closed_full_or_left():
    closed = run("devices", redirected=">&-")
    assert closed.returncode == 2
    assert closed.stderr == "shardwright: standard output is closed; send it to /dev/null if nobody wants it.\n"
    full = run("devices", redirected="> /dev/full")
    assert (full.returncode, full.stderr) == (2, "shardwright: cannot use standard output: No space left on device.\n")
    left = run("models", "--json", redirected="| true; exit ${PIPESTATUS[0]}")
    assert (left.returncode, left.stderr) in ((141, ""), (0, ""))  # true may be slow to go


def test_standard_error_that_is_closed_or_full():
    for redirected in ("2> /dev/full", "<&- 2>&-"):
        done = run("plan", "nothing", "--mesh", "data=2", redirected=redirected)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


def test_planning_for_a_device_needs_none():
    done = run(*TINY, JAX_PLATFORMS="tpu")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("train_step on 2 × tpu-v5e")


def test_a_platform_that_is_not_there_is_one_sentence():
    done = run("plan", "mlp", "--preset", "tiny", "--mesh", "data=2", JAX_PLATFORMS="nonsense")
    assert done.returncode == 2
    assert done.stderr.startswith("shardwright: JAX cannot run on what JAX_PLATFORMS names (Unable to initialize")
    assert done.stderr.endswith("set JAX_PLATFORMS=cpu, and give device= what to plan for.\n")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_modules_of_the_user_do_not_stand_in_for_others(tmp_path):
    for name in ("json", "gzip", "html", "statistics"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not mine')")
    (tmp_path / "step.py").write_text(
        "import jax, jax.numpy as jnp\n"
        "def make(): return (lambda x: jnp.tanh(x)), (jax.ShapeDtypeStruct((8, 8), 'float32'),)\n"
    )
    script = tmp_path / "bin" / "shardwright"  # as pip writes it: its own folder is on the path, not the user's
    script.parent.mkdir()
    script.write_text("import sys\nfrom shardwright.cli import main\nsys.exit(main())\n")
    arguments = ["plan", "step:make", "--mesh", "data=2", "--device", "tpu-v5e", "--simulations", "1"]
    arguments += ["--verify", "run", "--verify", "cpu", "--report", "plan.html"]
    done = subprocess.run(
        [sys.executable, str(script), *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "wrote plan.html\n"), done.stderr
