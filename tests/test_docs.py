"""README and docs are true: what they show runs, what they quote is there, and the site builds."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import shardwright as sw
from documents import INSTALLS, PAGES, ROOT, Block, Shown, blocks_of, run_page
from shardwright import errors
from shardwright.cli import main
from shardwright.space import TACTICS

DOCS, SOURCE = ROOT / "docs", ROOT / "src" / "shardwright"
NOT_RUN = Counter({INSTALLS: 2, "needs the TPU compiler": 5})
"""Why blocks are not run, and how many at most."""
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_PLACEHOLDER = "…"


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def code_blocks(page: Path) -> list[Block]:
    return [block for block in blocks_of(page) if block.language in ("python", "bash")]


@pytest.mark.parametrize("page", [page for page in PAGES if code_blocks(page)], ids=page_name)
def test_code_blocks_run_and_print_what_the_page_shows(page, tmp_path):
    for shown in run_page(page, tmp_path.resolve()):
        assert shown.same, (
            f"{page.name}, line {shown.block.line}: run python tests/documents.py {page_name(page)}\n" + (shown.printed)
        )


def test_few_blocks_are_not_run():
    reasons = Counter(block.not_run for page in PAGES for block in code_blocks(page) if block.not_run is not None)
    assert reasons <= NOT_RUN


def test_every_block_has_a_language_that_is_known():
    for page in PAGES:
        fences = re.findall(r"^```(.*)$", page.read_text(), re.MULTILINE)
        assert set(fences) <= {"", "python", "bash", "text"}, page
        assert fences[::2].count("") == 0, page


def test_what_is_compared():
    def shown(page: str, printed: str, mark: str = "") -> bool:
        return Shown(Block("text", page, mark, 1, (0, 0)), printed).same

    assert shown("a  1\nb\n", "a  1 \nb\n\n")
    assert not shown("a  1\n", "a  2\n")
    assert shown("step 1.5 ms,  3,000 ops\n", "step 17 µs, 12 ops\n", "numbers differ")
    assert not shown("step 1.5 ms\n", "steps 1.5 ms\n", "numbers differ")
    assert shown("step 352 ms,  3,000 ops; found in 2 s\n", "step 350 ms, 2,990 ops;\nfound in 31 s\n", "about")
    assert not shown("step 352 ms\n", "step 361 ms\n", "about")
    assert not shown("step 352 ms\n", "step 352 µs\n", "about")
    assert not shown("a step of 352 ms\n", "step 352 ms\n", "about")
    assert shown("[…]\ntakes 2.1 GiB\n[…]\n", "it\ntakes 2.11 GiB\nor so\n", "about")
    assert not shown("[…]\ntakes 2.1 GiB\n[…]\n", "it\ntakes 2.5 GiB\nor so\n", "about")
    assert shown("a\n[…]\nd\n", "a\nb\nc\nd\n")
    assert not shown("a\n[…]\nd\n", "a\nb\nc\n")


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=page_name)
def test_links_resolve(page):
    for link in _LINK.findall(page.read_text()):
        if not link.startswith("https://"):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_picture_is_used():
    used = {link for page in PAGES for link in _LINK.findall(page.read_text())}
    assert {f"pictures/{file.name}" for file in (DOCS / "pictures").iterdir()} <= used


def templates() -> Iterator[tuple[str, str]]:
    """The messages of our exceptions in the code, with … for what is filled in."""
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and hasattr(errors, node.func.id):
                message = template(node.args[0]) if node.args else ""
                if re.search(r"\w{2}", message):
                    yield node.func.id, message


def template(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return re.sub(f"{_PLACEHOLDER}+", _PLACEHOLDER, "".join(map(template, node.values)))
    return _PLACEHOLDER


def test_every_message_has_its_cause_and_cure():
    in_code = {(name, message) for name, message in templates() if name not in ("nearest", "InfeasibleError")}
    page, section, told = DOCS / "errors.md", "", set()
    for line in page.read_text().splitlines():
        section = line.removeprefix("## ") if line.startswith("## ") else section
        if line.startswith("| `") and hasattr(errors, section):
            told.add((section, line.split("`")[1]))
    assert told == in_code
    assert all(f"## {name}\n" in page.read_text() for name in sw.__all__ if name.endswith("Error") and name[:2] != "Sh")


def test_every_name_command_and_tactic_is_documented():
    api, commands, tactics = ((DOCS / f"{name}.md").read_text() for name in ("api", "command_line", "pins_and_tactics"))
    assert [name for name in sw.__all__ if not name.endswith("Error") and f"`sw.{name}" not in api] == ["__version__"]
    assert [name for name in main.commands if f"## {name}\n" not in commands] == []
    assert [name for name in TACTICS if f"| `{name}` |" not in tactics] == []


def test_figures_are_quoted_from_benchmarks():
    _, _, section = (DOCS / "verifying.md").read_text().partition("## How close is the estimate?\n")
    measured = "".join(file.read_text() for file in (DOCS / "benchmarks").glob("*.md"))
    quoted = re.findall(r"\d+\.\d+%?|\d+ of \d+", section)
    assert len(quoted) > 5
    assert [figure for figure in quoted if figure not in measured] == []


@pytest.mark.skipif(importlib.util.find_spec("sphinx") is None, reason="needs the docs extra")
def test_the_site_builds_without_warnings(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-d", str(tmp_path / "trees")]
    done = subprocess.run([*command, str(DOCS), str(tmp_path / "html")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "html" / "api.html").read_text()
    assert all(f"shardwright.{name}" in page for name in ("partition", "Plan.jit", "InfeasibleError"))
    assert "Shardwright, in place of jax.jit(train_step)" in (tmp_path / "html" / "libraries.html").read_text()
