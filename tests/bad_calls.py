"""Calls of the command line with a mistake in them, or in what they lead to, and the exit code of each."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

MISTAKE, DOES_NOT_FIT = 2, 3

# Modules, in the folder that calls are made in.
MODULES = {
    "exits": "import sys; sys.exit(0)",
    "exits_one": "raise SystemExit('good bye')",
    "raises": "raise ValueError('first line\\nsecond line')",
    "asserts": "assert False",
    "cancelled": "import asyncio; raise asyncio.CancelledError",
    "syntax": "def f(:",
    "null": "x = '\\0'\\\n\0",
    "latin": "x = '\xe9'",
    "needs": "import a_package_that_is_not_there",
    "circular": "from circular import nothing",
    "deep": "def f(): return f()\nf()",
    "unmatched": "import json; json.loads('{')",
    "made": """
        import os, sys
        import jax, jax.numpy as jnp
        def array(*shape): return jax.ShapeDtypeStruct(shape, jnp.float32)
        number = 7
        def exits(): sys.exit(3)
        def exits_none(): sys.exit()
        def recursive(): return recursive()
        def raises(): raise KeyError
        def none(): return None
        def text(): return "fn"
        def one(): return (lambda x: x,)
        def four(): return (lambda x: x, (), {}, 4)
        def no_function(): return 3, (array(4),)
        def args_no_tuple(): return (lambda x: x), array(4)
        def options_no_dict(): return (lambda x: x), (array(4),), [1]
        def unknown_option(): return (lambda x: x), (array(4),), {"donat": 0}
        def bad_donation(): return (lambda x: x + 1), (array(4),), {"donate": 5}
        def needs_argument(x): return (lambda x: x), (x,)
        def wrong_arguments(): return (lambda x, y: x), (array(4),)
        def text_argument(): return (lambda x: x), ("a",)
        def mismatch(): return (lambda x, y: x @ y), (array(4, 5), array(6, 7))
        def exits_traced():
            def fn(x): sys.exit(1)
            return fn, (array(4),)
        def deep_traced():
            def fn(x): return fn(x)
            return fn, (array(4),)
        def branches(): return (lambda x: x if x > 0 else -x), (array(),)
        def overflow(): return (lambda x: x @ x), (array(2**40, 2**40),)
        def beyond(): return (lambda x: x + 1), (array(2**70),)
        def negative(): return (lambda x: x + 1), (array(-4),)
        def fine(): return (lambda x, y: jnp.tanh(x @ y)), (array(64, 64), array(64, 64))
        def gone():
            os.rmdir(os.getcwd())
            raise OSError("gone")
    """,
}


def write_modules(folder: Path) -> None:
    """Write the modules, and a few files that are no programs."""
    for name, code in MODULES.items():
        (folder / f"{name}.py").write_bytes(textwrap.dedent(code).encode("latin-1"))
    (folder / "empty.mlir").write_bytes(b"")
    (folder / "text.mlir").write_text("hello\n")
    (folder / "folder.mlir").mkdir()
    (folder / "binary.mlir").write_bytes(bytes(range(256)))
    (folder / "magic.mlir").write_bytes(b"ML\xefR")
    (folder / "plan.json").write_text("{}")


FINE = ("made:fine", "--mesh", "data=2", "--device", "tpu-v5e", "--simulations", "1")


def _plan(*more: str, target: str = "mlp", mesh: str = "data=2", tiny: bool = True) -> tuple[str, ...]:
    preset = ("--preset", "tiny") if tiny else ()
    return ("plan", target, *preset, "--mesh", mesh, "--device", "tpu-v5e", "--simulations", "1", *more)


def calls() -> list[tuple[Sequence[str], int]]:
    """All of them; the first are cheap, the last take a search."""
    unusable = ["exits", "exits_one", "raises", "asserts", "cancelled", "syntax", "null", "latin", "needs", "circular"]
    unusable += ["deep", "unmatched", "nowhere", "made.deeper", "9", "a b", "..made", "\u2603", "x" * 5000, "\udcff"]
    targets = [f"{name}:f" for name in unusable]
    targets += [f"made:{name}" for name in dir_of(MODULES["made"])]
    targets += ["made:", ":made", ":", "made", "mlpp", "", " ", "-", "made:a.b", "made:fine:fine", "made:\u2603"]
    targets += [
        "empty.mlir",
        "text.mlir",
        "folder.mlir",
        "binary.mlir",
        "magic.mlir",
        "missing.mlir",
        "/dev/null/x.mlir",
    ]
    targets += ["a\0b.mlir", "./made.py", "x" * 300 + ".mlir", "\udcff.mlir"]
    meshes = ["", "data", "data=", "data=0", "data=-1", "data=1.5", "=4", "data=4,data=2", "data=4,,model=2", "0"]
    meshes += [
        "9" * 18,
        "9" * 400,
        "data=" + "9" * 18,
        "data=" + "9" * 5000,
        "tpu:v5e:0x0",
        "tpu:v9:2x2",
        "tpu",
        "gpu:",
    ]
    meshes += ["tpu", "gpu:", "data=\u0664\u2460", "\u2603=2", "a b=2", "data=2;model=2", "data:4", "\udcff=2"]
    options = {
        "--device": ["tpu", "", "tpu-v5", "\u2603"],
        "--memory": ["0", "-1", "12XB", "nan", "inf", "1e400GiB", ""],
        "--pin": ["", "fsdp", "fsdp:", "fsdp:model", "nothing:data", "x=P(", "x=P('data')", "batch.inputs=P('model')"],
        "--replicate": ["nothing"],
        "--seconds": ["-1", "x", "nan"],
        "--simulations": ["-1", "1.5", "9" * 30 + "x"],
        "--seed": ["x", "1.5"],
        "--set": [
            "layers",
            "layers=",
            "layers=x",
            "layers=-1",
            "layers=0",
            "layerz=1",
            "=1",
            "width=1e99",
            "width=" + "9" * 30,
        ],
        "--trip-count": ["3", "x=", "a.py:1=-3"],
        "--rule": ["x", "=", "kernel=a b -> a"],
        "--preset": ["tinyy", ""],
        "--platform": ["vax"],
        "--rerank": ["tpu", "tpu:v5e:4x4", "run", ""],
        "--verify": ["tpu", "tpu:v5e:4x4", "gpu:a100-80:3x", "shard", ""],
        "--save": ["/nonexistent/plan.json", "folder.mlir", ""],
        "--report": ["/nonexistent/plan.html", "/proc/plan.html"],
        "--output": ["/nonexistent/x.mlir", "/dev/full"],
        "--pareto": ["front.png"],
        "--explain": ["nothing", ""],
    }
    given: list[tuple[Sequence[str], int]] = [
        (("nothing",), 2),
        (("--nothing",), 2),
        (("plan",), 2),
        (("plan", "--mesh", "data=2"), 2),
        (("plan", "mlp"), 2),
        (("plan", "mlp", "gpt", "--mesh", "data=2"), 2),
        (("plan", "mlp", "--mesh"), 2),
        (("plan", "mlp", "--meshes", "data=2"), 2),
        (("analyse",), 2),
        (("analyse", "mlp", "--json", "--program"), 2),
        (("verify", "plan.json"), 2),
        (("verify", "plan.json", "mlp"), 2),
        (("verify", "plan.json", "mlp", "--on", "run"), 2),
        (("verify", "missing.json", "mlp", "--on", "run"), 2),
        (("verify", "folder.mlir", "mlp", "--on", "run"), 2),
        (("verify", "plan.json", "mlp", "--on", "nothing"), 2),
        (("completions",), 2),
        (("completions", "cmd"), 2),
        (("devices", "tpu"), 2),
        (("models", "--jsn"), 2),
        (("fit", "mlp", "--preset", "tiny", "--mesh", "data=2", "--rerank", "cpu"), 2),
        (("fit", "mlp", "--preset", "tiny", "--mesh", "data=2", "--most-devices", "-1"), 2),
        (_plan("--json", "--python"), 2),
        (_plan("--pareto", "--python"), 2),
        (_plan("--save", "a.json", "--report", "./a.json"), 2),
    ]
    given += [(("analyse", target), 2) for target in targets]
    given += [(_plan(mesh=mesh), 2) for mesh in meshes]
    given += [(_plan(option, value), 2) for option, values in options.items() for value in values]
    given += [
        (("plan", *FINE, "--memory", "1"), 3),
        (("plan", *FINE, "--memory", "1", "--json"), 3),
        (("fit", *FINE, "--memory", "1", "--most-devices", "4"), 3),
        (("compare", *FINE, "--memory", "1"), 3),
    ]
    return given


def dir_of(code: str) -> list[str]:
    """The functions of a module that a target may name, but for those that are fine."""
    names = [line.split("(")[0].split()[1] for line in code.splitlines() if line.startswith("        def ")]
    return ["number", "Fine", *(name for name in names if name not in ("array", "fine", "gone"))]
