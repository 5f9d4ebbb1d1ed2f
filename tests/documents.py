"""Runs the code blocks of Markdown pages and compares what they print with what the pages show.

The ``python`` blocks of a page share one namespace, in order; ``bash`` blocks run line by line in a folder of the
page's own; a ``text`` block shows the output of the code block above it. An HTML comment directly before a block says
more:

- ``<!-- file: train.py -->``: the block is a file in the page's folder, and is not run by itself;
- ``<!-- raises: PinError -->``: the block ends with this exception, and its sentence is the end of the output;
- ``<!-- exit code: 3 -->``: of the last command;
- ``<!-- not run: needs a TPU compiler -->``: and why;
- ``<!-- about -->``, before a ``text`` block: figures may differ by 1%, and seconds that a search took by any amount;
- ``<!-- numbers differ: why -->``: only the words are compared.

Of a command that goes well, what it prints on standard output counts.

A line ``[…]`` in a ``text`` block stands for any lines. ``python tests/documents.py`` writes what is printed now into
the pages that show something else; with ``--all`` also where only numbers do.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if "_build" not in page.parts]

INSTALLS = "installs"
_FENCE = re.compile(r"^(?:<!-- (?P<mark>[^\n]*?) -->\n+)?```(?P<language>\w+)\n(?P<code>.*?)^```$", re.M | re.S)
_NUMBER = re.compile(r"[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?:\s?(?:[µm]?s|[KMGT]i?B|B|[KMGT])\b|%)?")
_ANY = "[…]"


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, text, the comment before it, its line in the page and where the text stands."""

    language: str
    code: str
    mark: str
    line: int
    span: tuple[int, int]

    def marked(self, name: str) -> str | None:
        """What a mark says, "" if it says nothing more, None if it is not there."""
        found, _, more = self.mark.partition(":")
        return more.strip() if found == name else None

    @property
    def commands(self) -> list[str]:
        """Of a shell block those that are run: what installs first is not, what is installed and called is."""
        lines = [c for c in self.code.replace("\\\n", " ").splitlines() if c.strip() and not c.startswith("#")]
        if "pip install" not in self.code:
            return lines
        parts = [part.strip().removeprefix(".venv/bin/") for line in lines for part in line.split("&&")]
        return [part for part in parts if part.startswith("shardwright ")]

    @property
    def not_run(self) -> str | None:
        """Why the block is not run, if it is not."""
        if self.language == "bash" and not self.commands:
            return INSTALLS
        return self.marked("not run")


def blocks_of(page: Path) -> list[Block]:
    """All fenced blocks of a page that have a language."""
    text = page.read_text()
    return [
        Block(m["language"], m["code"], m["mark"] or "", text.count("\n", 0, m.start("code")), m.span("code"))
        for m in _FENCE.finditer(text)
    ]


@dataclass(frozen=True)
class Shown:
    """A ``text`` block and what was printed in its place."""

    block: Block
    printed: str

    @property
    def same(self) -> bool:
        """The page shows what is printed."""
        if self.block.marked("about") is not None:
            return _alike(_tokens(self.block.code), _tokens(self.printed))
        parts = _words if self.block.marked("numbers differ") is not None else _lines
        pattern = "".join("(?:.*\n)*?" if part == _ANY else re.escape(part) + "\n" for part in parts(self.block.code))
        return re.fullmatch(pattern, "".join(f"{part}\n" for part in parts(self.printed))) is not None


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _words(text: str) -> list[str]:
    """Where a line ends may depend on a number."""
    return _NUMBER.sub("#", text).split()


_UNITS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "B": 1.0, "%": 0.01, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12} | {
    f"{unit}iB": 1024.0**power for power, unit in enumerate("KMGT", 1)
}
_CLOCK = re.compile(r"\bin \d[\d.,]* (?:µs|ms|s|min)\b|\b\d[\d,]* (?:states|simulations)\b")
"""How long something took on the machine that ran it, and how far a search came."""
_WITHIN = 0.01


def _tokens(text: str) -> list[str]:
    """Words and figures, each figure with its unit."""
    text = _CLOCK.sub("~", text)
    text = _NUMBER.sub(lambda m: f" {m[0].replace(' ', '')} ", text)
    return text.split()


def _figure(token: str) -> tuple[float, float] | None:
    """The value of a figure, and that of its last digit; None for a word."""
    found = re.fullmatch(r"([+-]?\d[\d,]*)(\.\d+)?(e[+-]?\d{1,2})?(\D*)", token)
    if found is None or (found[4] and found[4] not in _UNITS):
        return None
    unit = _UNITS.get(found[4], 1.0) * 10.0 ** int((found[3] or "e0")[1:])
    digits = len(found[2]) - 1 if found[2] else 0
    return float(found[1].replace(",", "") + (found[2] or "")) * unit, 10.0**-digits * unit


def _alike(shown: list[str], printed: list[str]) -> bool:
    """Whether a page says what is printed: the same words, and figures within 1%, or one step of their last digit."""

    def same(a: str, b: str) -> bool:
        x, y = _figure(a), _figure(b)
        if x is None or y is None:
            return a == b
        return abs(x[0] - y[0]) <= max(_WITHIN * abs(y[0]), 1.001 * max(x[1], y[1]))

    reached = {0}
    for word in shown:
        if word == _ANY:
            reached = set(range(min(reached, default=len(printed) + 1), len(printed) + 1))
        else:
            reached = {n + 1 for n in reached if n < len(printed) and same(word, printed[n])}
    return len(printed) in reached


def run_page(page: Path, folder: Path) -> list[Shown]:
    """Run a page's blocks in a folder; what it shows, beside what was printed."""
    shown: list[Shown] = []
    names: dict[str, object] = {"__name__": "__main__"}
    printed: str | None = None
    written = 0
    with _inside(folder):
        for block in blocks_of(page):
            if block.language == "text":
                if printed is not None:
                    shown.append(Shown(block, printed))
            elif block.not_run is not None:
                printed = None
            elif (name := block.marked("file")) is not None:
                Path(name).write_text(block.code)
            elif block.language == "python":
                printed = _python(page, block, names, written)
                written += block.code.count("\n") + 1
            elif block.language == "bash":
                printed = _shell(page, block)
    return shown


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Work in a folder whose modules can be imported, and are forgotten afterwards."""
    before, known = os.getcwd(), set(sys.modules)
    path = list(sys.path)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:] = path
        for name in set(sys.modules) - known:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).parent == folder:
                del sys.modules[name]


def _python(page: Path, block: Block, names: dict[str, object], before: int) -> str:
    """Run a block as the next lines of a file example.py, which is what source lines then say."""
    out = io.StringIO()
    wanted = block.marked("raises")
    with contextlib.redirect_stdout(out):
        try:
            exec(compile("\n" * before + block.code, "example.py", "exec"), names)
        except Exception as error:
            if wanted != type(error).__name__:
                raise RuntimeError(f"{page.name}, line {block.line}: {type(error).__name__}: {error}") from error
            return f"{out.getvalue()}{type(error).__name__}: {error}\n"
    if wanted is not None:
        raise AssertionError(f"{page.name}, line {block.line}: {wanted} is not raised")
    return out.getvalue()


def _shell(page: Path, block: Block) -> str:
    wanted = [0] * (len(block.commands) - 1) + [int(block.marked("exit code") or 0)]
    out = ""
    for command, code in zip(block.commands, wanted, strict=True):
        got, printed = _command(command)
        if got != code:
            raise AssertionError(f"{page.name}, line {block.line}: {command!r} ended with {got}:\n{printed}")
        out += printed
    return out


def _command(command: str) -> tuple[int, str]:
    """Our own commands run in this process, which has loaded JAX already; others as in the project's folder."""
    program, *words = shlex.split(command)
    if program != "shardwright":
        paths = {"PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "-c", command],
            env={**os.environ, **paths},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return done.returncode, done.stdout + done.stderr
    from click.testing import CliRunner

    from shardwright.cli import main

    result = CliRunner().invoke(main, words, prog_name="shardwright")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output if result.exit_code else result.stdout


def refresh(page: Path, everything: bool) -> int:
    """Put what is printed into a page; how many blocks changed. What has ``[…]`` in it is left to a person."""
    with tempfile.TemporaryDirectory() as folder:
        shown = run_page(page, Path(folder).resolve())
    text, changed = page.read_text(), 0
    for s in reversed(shown):
        if s.same and not (everything and _ANY not in s.block.code):
            continue
        if _ANY in s.block.code:
            print(f"{page.name}, line {s.block.line}: shows something else than\n{s.printed}")
            continue
        start, end = s.block.span
        text = text[:start] + "".join(f"{line}\n" for line in _lines(s.printed)) + text[end:]
        changed += 1
    page.write_text(text)
    return changed


if __name__ == "__main__":
    import conftest  # noqa: F401 (sets up the devices)

    chosen = [Path(name).resolve() for name in sys.argv[1:] if name != "--all"]
    for found in chosen or PAGES:
        print(f"{found.name}: {refresh(found, '--all' in sys.argv)} written")
