"""The README is true: its example runs and prints what it says."""

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_the_example_prints_what_the_readme_shows(capsys):
    text = README.read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (shown,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    exec(compile(code, str(README), "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip() == shown.strip()


def test_every_file_that_it_links_to_is_there():
    for link in re.findall(r"\]\(([^)#]+)\)", README.read_text()):
        assert link.startswith("https://") or (README.parent / link).exists(), link
