"""The house: who may import whom, no cycle, no name twice, and a map that shows every file."""

import ast
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "shardwright"
sys.path.insert(0, str(ROOT / "docs"))

ORDER = (
    ("errors", "_version", "_start", "_amounts", "_collector", "_memo", "_function", "_kernel", "_console"),
    ("_children", "_files", "_kernel_code"),
    ("_kernel_parts", "compiler"),
    ("_jax", "devices", "models", "mcts"),
    ("request",),
    ("ir",),
    ("frontend", "analysis"),
    ("space",),
    ("price",),
    ("search", "apply", "traced", "analyse"),
    ("plan",),
    ("problem", "verify", "_progress"),
    ("choose", "meshes", "infeasible", "advice", "python_source", "difference", "compare", "explain"),
    ("tune",),
    ("partition", "evaluate", "front"),
    ("pareto", "report"),
    ("fit",),
    ("__init__",),
    ("cli",),
    ("__main__",),
)
"""Rooms from left to right; those that stand together do not see each other."""
PLACE = {room: k for k, rooms in enumerate(ORDER) for room in rooms}
TWICE = {"kernels": 3, "names": 2, "search": 2, "sizes": 2, "present": 2}
"""Names that several modules have, each where its package says what of."""


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(SRC.parent).with_suffix("").parts).removesuffix(".__init__")


FILES = {module_of(path): path for path in sorted(SRC.rglob("*.py"))}


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


@cache
def imports(module: str) -> frozenset[str]:
    """The modules of ours that a module imports when it is imported itself: not in functions, not for types alone."""
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(FILES[module].read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            found.update(name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = [f"{node.module}.{name.name}" for name in node.names]
            found.update(each if each in FILES else node.module for each in inner)
        waiting.extend(ast.iter_child_nodes(node))
    return frozenset(found & FILES.keys())


def test_every_room_has_its_place():
    assert {room_of(module) for module in FILES} == set(PLACE)


@pytest.mark.parametrize("module", FILES)
def test_a_module_imports_from_its_left(module):
    room = room_of(module)
    others = {name for name in imports(module) if room_of(name) != room}
    wrong = sorted(name for name in others if PLACE[room_of(name)] >= PLACE[room])
    assert not wrong, f"{module} stands left of {', '.join(wrong)}, or beside"


def test_no_modules_import_each_other_in_a_circle():
    done: set[str] = set()

    def follow(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " imports ".join([*path[path.index(module) :], module])
        if module not in done:
            for name in imports(module):
                if FILES[name].name != "__init__.py":  # a package's own list of names comes after its modules
                    follow(name, (*path, module))
            done.add(module)

    for module in FILES:
        if FILES[module].name != "__init__.py":
            follow(module, ())


def test_a_name_stands_for_one_module():
    """A new name is not one that is there already."""
    names = Counter(path.stem for path in FILES.values() if path.stem != "__init__")
    assert {name: count for name, count in names.items() if count > 1} == TWICE


def test_the_map_shows_every_file():
    from house import page

    assert (ROOT / "docs" / "house.md").read_text() == page(), "python docs/house.py writes it anew"


def test_every_file_says_what_it_is():
    for module, path in FILES.items():
        said = ast.get_docstring(ast.parse(path.read_text())) or ""
        first = said.split("\n\n")[0]
        assert first.endswith((".", "…", ":")), module


def test_nothing_is_written_into_an_object_from_outside():
    for module, path in FILES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr == "__dict__":
                assert isinstance(node.value, ast.Name) and node.value.id == "self", f"{module}:{node.lineno}"
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "object.__setattr__":
                assert ast.unparse(node.args[0]) == "self", f"{module}:{node.lineno}"
