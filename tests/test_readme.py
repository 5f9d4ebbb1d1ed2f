"""The README is true: its example runs and prints what it says."""

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_the_examples_run_and_the_first_prints_what_the_readme_shows(capsys, tmp_path, monkeypatch):
    text = README.read_text()
    first, *others = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (shown,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    names = {"__name__": "__main__"}
    exec(compile(first, str(README), "exec"), names)
    assert capsys.readouterr().out.strip() == shown.strip()
    monkeypatch.chdir(tmp_path)
    for code in others:
        exec(compile(code, str(README), "exec"), names)
    assert "shardy: ok" in capsys.readouterr().out
    assert (tmp_path / "plan.json").exists()


def test_every_file_that_it_links_to_is_there():
    for link in re.findall(r"\]\(([^)#]+)\)", README.read_text()):
        assert link.startswith("https://") or (README.parent / link).exists(), link
