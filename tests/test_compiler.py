"""The table of what XLA does: every record is whole, its test and its code exist, and the page is made from it."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from functools import cache
from pathlib import Path

import pytest

from shardwright.compiler import GROUPS, TABLE, Behaviour, of
from shardwright.compiler.behaviours import EVERYWHERE
from shardwright.compiler.fusing import OPERANDS_INSIDE
from shardwright.compiler.moving import ROUNDED
from shardwright.devices import PRESETS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "shardwright"
_VERSION = re.compile(r"jaxlib|libtpu|\bjax\b|margins\.json")


@cache
def _tests_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("record", TABLE, ids=lambda record: record.name)
def test_a_record_is_held_by_tests_that_exist_and_asked_for_where_it_says(record):
    assert record.what and record.evidence and record.platforms <= EVERYWHERE
    for test in record.tests:
        file, _, name = test.partition("::")
        assert name.startswith("test_") and name in _tests_of(file), test
    for where in record.where:
        parts = where.split(".")
        modules = [n for n in range(1, len(parts)) if (SOURCE / "/".join(parts[:n])).with_suffix(".py").exists()]
        found = importlib.import_module(f"shardwright.{'.'.join(parts[: modules[0]])}")
        *outer, last = parts[modules[0] :]
        for part in outer:
            found = getattr(found, part)
        assert hasattr(found, last) or last in getattr(found, "__annotations__", {}), where
    assert record.tests and record.where


def test_every_record_says_with_which_version_it_was_seen():
    assert [record.name for record in TABLE if not _VERSION.search(record.evidence)] == []


def test_names_are_unique_and_groups_are_all():
    assert len({record.name for record in TABLE}) == len(TABLE) == sum(map(len, GROUPS.values()))


def test_where_a_record_applies():
    record = Behaviour(
        name="n",
        what="w",
        evidence="e",
        tests=(),
        where=(),
        effect=1,
        otherwise=0,
        platforms=frozenset({"tpu"}),
        generations=frozenset({"v5e"}),
    )
    assert record.applies("tpu", "v5e")
    assert not record.applies("tpu", "v5p") and not record.applies("tpu") and not record.applies("cuda", "v5e")
    assert not record.applies(None)


def test_a_compiler_is_one_object_for_all_that_do_the_same():
    assert PRESETS["tpu-v6e"].compiler is PRESETS["tpu-v5p"].compiler is of("tpu", "v5p")
    assert PRESETS["tpu-v4"].compiler is PRESETS["tpu-7x"].compiler is of("tpu", "v5p") is not of("tpu", "v5e")
    assert PRESETS["tpu-v3"].compiler is of("tpu") is not of("tpu", "v5p")
    assert PRESETS["h100"].compiler is of("cuda") is of("gpu")
    assert of("tpu")[OPERANDS_INSIDE] and not of("gpu")[OPERANDS_INSIDE]
    assert (of("tpu")[ROUNDED], of("cpu")[ROUNDED], of(None)[ROUNDED]) == (16, 0, 0)


def test_nobody_else_asks_for_a_platform():
    names = {"tpu", "gpu", "cuda", "rocm", "cpu"}
    asking = []
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).parts[0] in ("compiler", "devices"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                parts = [part for side in sides for part in (side.elts if isinstance(side, ast.Tuple) else [side])]
                if any(isinstance(part, ast.Constant) and part.value in names for part in parts):
                    asking.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert asking == []


def test_the_page_is_up_to_date():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        page = importlib.import_module("compiler_page")
    finally:
        sys.path.pop(0)
    assert (ROOT / "docs" / "compiler.md").read_text() == page.text(), "run python docs/compiler_page.py"
