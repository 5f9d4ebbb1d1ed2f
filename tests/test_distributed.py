"""A plan in two processes of four CPU devices each computes what one process of eight does."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = str(Path(__file__).parent / "distributed_child.py")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(port: int, process: int, count: int) -> subprocess.Popen:
    command = [sys.executable, CHILD, str(port), str(process), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result(child: subprocess.Popen) -> dict:
    out, err = child.communicate(timeout=300)
    assert child.returncode == 0, err[-2000:]
    return json.loads(out.splitlines()[-1])


@pytest.mark.slow
def test_two_processes_take_the_same_steps_as_one():
    port = free_port()
    children = [start(port, process, 2) for process in range(2)]
    try:
        first, second = map(result, children)
    finally:
        for child in children:
            child.kill()
    alone = result(start(port, 0, 1))
    assert (first["processes"], first["devices"]) == (2, 8)
    assert (alone["processes"], alone["devices"]) == (1, 8)
    assert first["losses"] == second["losses"]
    assert first["losses"] == pytest.approx(alone["losses"], rel=1e-5)
    assert len(set(alone["losses"])) == 3
