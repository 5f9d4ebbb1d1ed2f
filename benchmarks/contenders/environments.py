"""Virtual environments of the benchmark's own, each with the versions of JAX and libtpu that a contender needs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import shardwright
from shardwright.errors import CompilerMissingError

LIBTPU = "libtpu==0.0.40"
"""The last one with XLA's auto-sharding; it compiles the programs of every contender."""
_BUILD = """
from jax.experimental import topologies
devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices
print(devices[0].client.platform_version.splitlines()[-1])
"""
_LIST = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"


@dataclass(frozen=True)
class Environment:
    """Packages, by name and version as the package index has them."""

    name: str
    packages: tuple[str, ...]

    @property
    def versions(self) -> dict[str, str]:
        """The versions that are asked for by number."""
        return dict(package.split("==") for package in self.packages if "==" in package)


JUDGE = Environment("judge", ("jax==0.10.2", LIBTPU, "click", "flatbuffers", "jinja2", "plotly", "rich", "scipy"))
AUTO = Environment("auto", ("jax==0.10.0", LIBTPU))


def default_folder() -> Path:
    """Where environments are kept between runs."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "shardwright" / "bench"


def prepare(environment: Environment, folder: Path) -> Path:
    """The environment's Python interpreter; it is made where it is not there, or not what it should be."""
    home = folder / environment.name
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not _complete(environment, python):
        shutil.rmtree(home, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        _run([sys.executable, "-P", "-m", "venv", str(home)], environment)
        _run([str(python), "-P", "-m", "pip", "install", "--quiet", *environment.packages], environment)
    link_packages(home / "source")
    return python


def child_variables(environment_home: Path) -> dict[str, str]:
    """The variables of a process in an environment: it finds our two packages, and of all others only its own."""
    # Importing JAX sets some of these, the path of this process's own libtpu among them.
    others = ("PYTHON", "TPU_", "LIBTPU_", "JAX_", "XLA_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    # Several packages may stand in one folder with ours, JAX among them; the links have ours alone beside them.
    return {**kept, "PYTHONPATH": str(environment_home / "source"), "JAX_PLATFORMS": "cpu", "PYTHONNOUSERSITE": "1"}


def compiler_build(python: Path, variables: dict[str, str], question: str = _BUILD) -> str:
    """What the TPU compiler that an environment's processes load says of itself."""
    asked = subprocess.run(
        [str(python), "-P", "-c", question], env=variables, capture_output=True, text=True, check=False
    )
    if asked.returncode != 0:
        said = (asked.stderr.strip() or "no reason given").splitlines()[-1][:300]
        raise CompilerMissingError(f"the TPU compiler of the benchmark's environment {python} does not start: {said}")
    return asked.stdout.strip().splitlines()[-1]


def _complete(environment: Environment, python: Path) -> bool:
    if not python.exists():
        return False
    names = [package.partition("==")[0] for package in environment.packages]
    asked = subprocess.run([str(python), "-P", "-c", _LIST, *names], capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        return False
    found = json.loads(asked.stdout)
    return all(found.get(name) == version for name, version in environment.versions.items())


def _run(command: list[str], environment: Environment) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()[-1][:300]
        packages = " ".join(environment.packages)
        raise CompilerMissingError(
            f"the benchmark's environment {environment.name!r} ({packages}) could not be made: {said}"
        )


def link_packages(folder: Path) -> None:
    """Shardwright and its benchmarks in a folder where nothing else is found."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in (Path(shardwright.__file__).parent, Path(__file__).parents[1]):
        link = folder / package.name
        if not (link.is_symlink() and link.resolve() == package.resolve()):
            link.unlink(missing_ok=True)
            link.symlink_to(package, target_is_directory=True)
