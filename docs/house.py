"""Writes docs/house.md: the rooms of the house in order, and every file by its own first sentence."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "shardwright"
ROOMS = (
    ("Ways to a plan", ("",)),
    ("What a user gives", ("request", "devices")),
    ("The program", ("frontend", "ir", "analysis")),
    ("What can be decided", ("space",)),
    ("What it costs", ("price", "compiler")),
    ("The search", ("search", "mcts")),
    ("The plan", ("plan", "apply")),
    ("Checks", ("verify",)),
    ("Tuning", ("tune",)),
    ("Clients", ("explain", "python_source", "advice", "fit", "report", "cli")),
    ("Programs to work on", ("models",)),
)
HEAD = """# The house, file by file

`python docs/house.py` writes this page from the first sentence of every file. Data flows one way:

    request → program (frontend, ir, analysis) → space → price → search → plan (apply) → verify
                                                  ↑ compiler: what XLA does; devices: figures of a device

A module imports from its left and never from its right, which `tests/test_house.py` holds. The clients stand outside:
nothing of the above knows them. [A walk](walk.md) takes one plan through all of it.
"""


def first_sentence(path: Path) -> str:
    """What a file says that it is."""
    said = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(said.split("\n\n")[0].split())


def page() -> str:
    """The page as it should be."""
    known = [name for _, rooms in ROOMS for name in rooms]
    assert sorted(known) == sorted({*(p.parent.name for p in SRC.glob("*/__init__.py")), ""}), "a room has no place"
    parts = [HEAD]
    for title, rooms in ROOMS:
        parts.append(f"## {title}\n")
        for room in rooms:
            folder = SRC / room if room else SRC
            if room:
                parts.append(f"**`{room}/`**: {first_sentence(folder / '__init__.py')}\n")
            files = [path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]
            parts.append("\n".join(f"- `{path.name}`: {first_sentence(path)}" for path in files) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    (ROOT / "docs" / "house.md").write_text(page())
