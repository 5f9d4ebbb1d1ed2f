"""Every example runs, says what it planned, and ends as the plain program does (it asserts that itself)."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))
SLOW = ("haiku_transformer",)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in NAMES])
def test_it_runs(name):
    # Compilers' optimizations take longer than the few steps that they would speed up.
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    environment.pop("JAX_NUM_CPU_DEVICES", None)  # the examples choose that
    command = [sys.executable, "-W", "always", str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"^\w+ on 8 × tpu-v5e \(data 4 × model 2\)\nFits: ", done.stdout, re.MULTILINE)
    assert re.search(r"^(loss|mean square) \d|^tokens of the first request: \d", done.stdout, re.MULTILINE)
    # Warnings of other packages are theirs.
    assert not re.search(r"/(shardwright|examples)/\S+\.py:\d+: \w*Warning", done.stderr), done.stderr[-3000:]


def test_the_readme_has_a_row_for_every_example():
    rows = re.findall(r"^\| \[(\w+)\.py\]\((\w+)\.py\)", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == [(name, name) for name in NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_it_is_short_and_marks_what_shardwright_needs(name):
    lines = (EXAMPLES / f"{name}.py").read_text().splitlines()
    assert len(lines) <= 95
    assert sum(line.strip().startswith("# Shardwright") for line in lines) == 1
