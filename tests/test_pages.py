"""The command that makes all pages knows each of them, and its commands are ones that there are."""

import shlex
from pathlib import Path

import pytest

from benchmarks.pages import PAGES, REPOSITORY

PAGES_THERE = sorted(file.stem for file in (REPOSITORY / "docs" / "benchmarks").glob("*.md"))


@pytest.mark.parametrize("name", PAGES_THERE)
def test_every_page_has_its_command(name):
    assert name in PAGES


@pytest.mark.parametrize("name", PAGES)
def test_commands_are_files_of_ours_with_the_options_that_they_take(name):
    assert any("{page}" in command for command in PAGES[name])
    for command in PAGES[name]:
        words = shlex.split(command)
        file = Path(words[0]) if words[0] != "-m" else Path(*words[1].split(".")).with_suffix(".py")
        file = REPOSITORY / file
        file = file if file.exists() else file.with_suffix("") / "__main__.py"
        assert file.exists()
        said = file.read_text()
        for option in (word for word in words if word.startswith("--")):
            assert f'"{option}"' in said, f"{file.name} has no {option}"
