"""What users import: quick to load, spelt both ways, and every public name with a docstring of whole sentences."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

import shardwright as sw
from documents import ROOT
from shardwright.cli import main

CLIENTS = ("advice", "cli", "explain", "python_source", "report")
_LOADED = "import sys, shardwright; print(' '.join(sys.modules))"


def test_importing_loads_no_client_and_none_of_their_libraries():
    loaded = subprocess.run([sys.executable, "-c", _LOADED], capture_output=True, text=True, check=True).stdout.split()
    unwanted = {"click", "jinja2", "matplotlib", "plotly", *(f"shardwright.{name}" for name in CLIENTS)}
    assert unwanted.isdisjoint(loaded)


def test_both_spellings():
    assert sw.analyze is sw.analyse
    runs = [CliRunner().invoke(main, [name, "mlp", "--preset", "tiny"]) for name in ("analyse", "analyze")]
    assert runs[0].exit_code == 0 and runs[0].stdout == runs[1].stdout


def test_the_citation_is_of_this_version():
    assert f"\nversion: {sw.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert sw.__version__ in (ROOT / "CHANGELOG.md").read_text()


def test_the_readme_is_short_and_shows_a_report():
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) < 900
    assert 0 < text.find("docs/pictures/report.png") < text.find("## ")


def public() -> Iterator[tuple[str, str | None]]:
    """The docstring of every public name, and of the methods and properties of public classes that are ours."""
    for name in sw.__all__:
        found = getattr(sw, name)
        if name == "__version__":
            continue
        yield name, inspect.getdoc(found)
        if inspect.isclass(found):
            for attribute, member in vars(found).items():
                function = getattr(member, "fget", None) or getattr(member, "func", None) or member
                if not attribute.startswith("_") and (inspect.isfunction(function) or isinstance(member, classmethod)):
                    yield f"{name}.{attribute}", inspect.getdoc(member)


@pytest.mark.parametrize(("name", "told"), [pytest.param(*each, id=each[0]) for each in public()])
def test_docstrings_are_whole_sentences(name, told):
    assert told, f"{name} has no docstring"
    first = told.split("\n\n")[0].replace("\n", " ")
    assert re.match(r"[A-Z`\"]", first), f"{name}: begins without a capital letter: {first}"
    assert first.endswith((".", ":", "…")), f"{name}: ends without a full stop: {first}"
    sentence = re.split(r"(?<=[.:;])\s", first)[0]
    assert len(sentence.split()) >= 3, f"{name}: is no sentence: {first}"
