"""Trees of specs as Python to read: literals, with what occurs more than once named and written down once.

Dicts, lists and tuples are literals. Any other node of a pytree (a NamedTuple, a module) cannot be written without its
class, so its specs go by the path that JAX gives each leaf: ``by_path(args[0].opt, opt_specs)``.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
from jax.sharding import PartitionSpec

from shardwright.apply import spec_text

WIDTH = 100
_FEWEST_LEAVES = 3
"""What has fewer is as short as a name for it."""


@dataclass(frozen=True)
class Node:
    """A part of a tree as Python.

    ``kind`` is "leaf", "list", "tuple", "dict" or "path" (another node, by path). ``keys`` are those of a dict, or
    paths, as Python; ``access`` is how to get at the node in the user's own tree; ``name`` what to call it.
    """

    kind: str
    text: str
    keys: tuple[str, ...]
    children: tuple[Node, ...]
    access: str
    name: str

    @cached_property
    def leaves(self) -> int:
        """How many specs there are in it."""
        return sum(child.leaves for child in self.children) if self.children else int(self.kind == "leaf")

    @property
    def depth(self) -> int:
        """How deep in the arguments or the result it lies."""
        return self.access.count("[") + self.access.count(".")

    @cached_property
    def content(self) -> str:
        """What it says, on one line; equal for nodes that can share a definition."""
        inner = [child.content for child in self.children]
        if self.kind == "leaf":
            return self.text
        if self.kind in ("dict", "path"):
            return "{" + ", ".join(f"{k}: {c}" for k, c in zip(self.keys, inner, strict=True)) + "}"
        if self.kind == "list":
            return f"[{', '.join(inner)}]"
        return f"({inner[0]},)" if len(inner) == 1 else f"({', '.join(inner)})"

    def walk(self) -> Iterator[Node]:
        """It and everything in it."""
        yield self
        for child in self.children:
            yield from child.walk()


def node_of(tree: Any, access: str, name: str) -> Node:
    """A tree of specs; ``access`` is an expression for the user's own tree."""
    if tree is None or isinstance(tree, PartitionSpec):
        return Node("leaf", "None" if tree is None else spec_text(tree), (), (), access, name)
    node: Node | None = None
    if type(tree) is dict and all(_is_literal(key) for key in tree):
        children = tuple(node_of(t, f"{access}[{_key(k)}]", _identifier(k) or name) for k, t in tree.items())
        node = Node("dict", "", tuple(map(_key, tree)), children, access, name)
    elif type(tree) in (list, tuple):
        children = tuple(node_of(t, f"{access}[{k}]", name) for k, t in enumerate(tree))
        node = Node(type(tree).__name__, "", (), children, access, name)
    # What holds nothing but nodes that go by path, such as the state of a chain of optimizers, goes by path as a whole.
    if node is not None and not (node.children and all(c.kind == "path" for c in node.children)):
        return node
    found = jax.tree_util.tree_flatten_with_path(tree)[0]
    keys = tuple(_key(jax.tree_util.keystr(path)) for path, _ in found)
    children = tuple(Node("leaf", spec_text(leaf), (), (), "", "") for _, leaf in found)
    return Node("path", "", keys, children, access, name)


class Literals:
    """Trees of specs written as Python, with definitions of what they share."""

    def __init__(self, roots: Sequence[Node], taken: Sequence[str] = ()) -> None:
        shared: list[Node] = []
        contents: set[str] = set()
        for node in _candidates(roots):
            count = sum(_occurrences(body, node.content, contents) for body in (*roots, *shared))
            if node.kind == "path" or count > 1:
                shared.append(node)
                contents.add(node.content)
        # What a definition needs is shorter than the definition.
        self._defined = sorted(shared, key=lambda node: (len(node.content), node.content))
        self._names: dict[str, str] = {}
        used = set(taken)
        for node in self._defined:
            self._names[node.content] = name = _new_name(node, used)
            used.add(name)

    def definitions(self) -> list[str]:
        """Assignments, each after those that it needs."""
        return [
            f"{self._names[n.content]} = {self._body(n, 0, len(self._names[n.content]) + 3)}" for n in self._defined
        ]

    def expression(self, node: Node, indent: int, column: int) -> str:
        """A node as Python that starts at a column of a line which is indented so far."""
        if node.kind == "path":
            return f"by_path({node.access}, {self._names[node.content]})" if node.children else node.access
        return self._names.get(node.content) or self._body(node, indent, column)

    def _body(self, node: Node, indent: int, column: int) -> str:
        if node.kind == "leaf":
            return node.text
        opening, closing = {"list": ("[", "]"), "tuple": ("(", ")")}.get(node.kind, ("{", "}"))
        keys = [f"{key}: " for key in node.keys] or [""] * len(node.children)
        same = len({child.content for child in node.children}) == 1 and node.kind in ("list", "tuple")
        if same and len(node.children) > 1 and not any(n.kind == "path" for n in node.walk()):
            comma = "," * (node.kind == "tuple")
            repeated = f" * {len(node.children)}"
            inner = self.expression(node.children[0], indent, column + 1)
            return f"{opening}{inner}{comma}{closing}{repeated}"
        flat = [key + self.expression(child, 0, 0) for key, child in zip(keys, node.children, strict=True)]
        comma = "," * (node.kind == "tuple" and len(flat) == 1)
        line = f"{opening}{', '.join(flat)}{comma}{closing}"
        if "\n" not in line and column + len(line) <= WIDTH:
            return line
        deeper = " " * (indent + 4)
        lines = [
            f"{deeper}{key}{self.expression(child, indent + 4, indent + 4 + len(key))},"
            for key, child in zip(keys, node.children, strict=True)
        ]
        return "\n".join([opening, *lines, " " * indent + closing])


def _candidates(roots: Sequence[Node]) -> list[Node]:
    """Nodes that might be shared, of equal ones the least deep, the largest first."""
    found: dict[str, Node] = {}
    for node in (node for root in roots for node in root.walk()):
        shareable = node.leaves >= _FEWEST_LEAVES and not any(n.kind == "path" for n in node.walk())
        if node.children and (node.kind == "path" or shareable):
            known = found.setdefault(node.content, node)
            if node.depth < known.depth:
                found[node.content] = node
    return sorted(found.values(), key=lambda node: -len(node.content))


def _occurrences(node: Node, content: str, shared: set[str]) -> int:
    """How often something would be written out, given what is shared already."""
    if node.content == content:
        return 1
    return sum(
        _occurrences(child, content, shared)
        for child in node.children
        if child.content not in shared and len(child.content) >= len(content)
    )


def _new_name(node: Node, used: set[str]) -> str:
    base = f"{_identifier(node.name) or 'some'}_specs"
    names = (base, *(f"{base}_{k}" for k in range(2, len(used) + 3)))
    return next(name for name in names if name not in used)


def _is_literal(key: Any) -> bool:
    return type(key) in (str, int, bool, float) or (type(key) is tuple and all(map(_is_literal, key)))


def _key(key: Any) -> str:
    """A key as Python, with the quotes that formatters prefer."""
    text = repr(key)
    return f'"{text[1:-1]}"' if isinstance(key, str) and text[0] == "'" and '"' not in text else text


def _identifier(key: Any) -> str:
    return key if isinstance(key, str) and key.isidentifier() and not keyword.iskeyword(key) else ""
