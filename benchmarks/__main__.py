"""Lists what there is to run here, with one line each.

python -m benchmarks
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

_HERE = Path(__file__).parent


def runnable() -> Iterator[tuple[str, str]]:
    """The command of each benchmark and what it is about, from the first lines of its file."""
    for file in sorted([*_HERE.glob("*.py"), *_HERE.glob("*/__main__.py")]):
        text = file.read_text()
        if file == Path(__file__) or '__name__ == "__main__"' not in text:
            continue
        told = ast.get_docstring(ast.parse(text)) or ""
        commands = [line for line in map(str.strip, told.splitlines()) if line.startswith("python ")]
        if commands:
            end = 3 if commands[0].startswith("python -m") else 2
            yield " ".join(commands[0].split()[:end]), told.splitlines()[0]


if __name__ == "__main__":
    for command, summary in runnable():
        print(f"{command:<42} {summary}")
