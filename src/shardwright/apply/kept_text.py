"""An annotated module as text in which all that was not annotated is as it was, to the letter.

MLIR numbers values when it prints, so one op more changes nearly every line. Here the module is printed as it was and
as it is annotated. Without the constraints the lines of both correspond one to one, and so do those of the file; hence
the file's own lines are kept, with their names, spaces and comments. Operands that now come from a constraint are
replaced, and the constraints stand between, under names of their own.

What comes out is parsed and compared with the annotated module. Where it is another, or the file's lines are not those
of MLIR's printer, the annotated module is printed as MLIR does it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from shardwright import _jax

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|//.*|(%[\w$.-]+(?:#\d+)?)')
"""A string, a comment, or the name of a value, which is the group."""
_CONSTRAINT = re.compile(r'\s*%[\w$.-]+ = "?sdy\.sharding_constraint\b')
_MESH = re.compile(r'\s*"?sdy\.mesh\b')
_MODULE = re.compile(r'(?:module\b|"builtin\.module")')
_FUNCTION = re.compile(r'  (?:func\.func [^@]*@([\w$.-]+|"[^"]*")|"func\.func".*\bsym_name = "([^"]*)")')
_FUNCTION_END = "  }"


class _DifferentError(Exception):
    """Lines do not correspond."""


def keep_text(text: str, annotated: Any) -> str:
    """The text of a module, with what an annotated copy of it (a module operation) has more."""
    before = _jax.parse_module(text.encode())
    locations = re.search(r"\bloc\(", text) is not None
    for generic in (False, True):
        options = {"enable_debug_info": locations, "print_generic_op_form": generic}
        new = annotated.get_asm(**options)
        try:
            merged = _merged(text, before.get_asm(**options), new)
            if _jax.parse_module(merged.encode()).get_asm(**options) == new:
                return merged
        except (_DifferentError, ValueError):
            continue
    printed: str = annotated.get_asm(enable_debug_info=locations)
    return printed


def _merged(text: str, old: str, new: str) -> str:
    """The file's text with the annotations of the new print, which the old one does not have."""
    own = text.split("\n")
    said = [k for k, line in enumerate(own) if _says_something(line)]
    before, after = _lines(old), _lines(new)
    if said and not any(_MODULE.match(own[k].lstrip()) for k in said):  # a file may leave it out
        before, after = _inside(before), _inside(after)
    if len(said) != len(before):
        raise _DifferentError
    names = _Names(_fresh(text))
    out: list[str] = []
    next_line = written = 0
    for was, now in _aligned(before, after):
        at = said[min(next_line, len(said) - 1)]
        indent = re.match(r"\s*", own[at]).group()  # type: ignore[union-attr]  # it always matches
        if was is None and out:
            out.append(names.inserted(now, indent))
            continue
        out += own[written:at]  # blank lines and comments; those at the beginning stay there
        written = at
        if was is None:
            out.append(names.inserted(now, indent))
        else:
            out.append(names.kept(own[at], was, now, indent))
            next_line, written = next_line + 1, at + 1
    return "\n".join(out + own[written:])


def _aligned(before: list[str], after: list[str]) -> Iterator[tuple[str | None, str]]:
    """Each line of the new print with the one it was, None if it was not there."""
    functions = {_function(line) for line in before}
    was = iter(before)
    added = False
    for now in after:
        name = _function(now)
        if name is not None:
            added = name not in functions
        if added or _CONSTRAINT.match(now) or _MESH.match(now):
            yield None, now
        else:
            line = next(was, None)
            if line is None:
                raise _DifferentError
            yield line, now
        added = added and not now.startswith(_FUNCTION_END)
    if next(was, None) is not None:
        raise _DifferentError


@dataclass
class _Names:
    """What values of the new print are called in the file, as far as it was read: in one function at a time."""

    fresh: str
    theirs: dict[str, str] = field(default_factory=dict)
    constraints: dict[str, str] = field(default_factory=dict)
    """Names of constraints in the new print, and here."""
    count: int = 0
    _verbatim: bool = False

    def inserted(self, now: str, indent: str) -> str:
        """A line that the file does not have: a constraint, the mesh, or one of another copy of a function."""
        if _function(now) is not None:
            self._verbatim = True
        if self._verbatim or not _CONSTRAINT.match(now):
            self._verbatim = self._verbatim and not now.startswith(_FUNCTION_END)
            return now if self._verbatim or now.startswith(_FUNCTION_END) else indent + now.lstrip()
        result, operand = _names(now)[:2]
        read = self._of(operand)
        self.constraints[result] = f"{self.fresh}_{self.count}"
        self.count += 1
        return indent + _renamed(now.lstrip(), [self.constraints[result], read])

    def kept(self, line: str, was: str, now: str, indent: str) -> str:
        """A line of the file, with operands exchanged where they now come from a constraint."""
        if _function(now) is not None:
            self.theirs.clear()
            self.constraints.clear()
        own, printed = _names(line), _names(now)
        if not len(own) == len(printed) == len(_names(was)):
            raise _DifferentError
        defined = len(_names(now.split(" = ", 1)[0])) if now.lstrip().startswith("%") else 0
        for name in printed[:defined]:  # bodies beside each other use the same numbers
            self.constraints.pop(name, None)
        wanted = [self.constraints.get(name, mine) for name, mine in zip(printed, own, strict=True)]
        for name, mine in zip(printed, own, strict=True):
            self.theirs[name.partition("#")[0]] = mine.partition("#")[0]
        if _TOKEN.sub(_blank, was) == _TOKEN.sub(_blank, now):
            return _renamed(line, wanted)
        return indent + _renamed(now.lstrip(), wanted)

    def _of(self, name: str) -> str:
        if name in self.constraints:
            return self.constraints[name]
        base, mark, number = name.partition("#")
        if base not in self.theirs:
            raise _DifferentError
        return self.theirs[base] + mark + number


def _says_something(line: str) -> bool:
    return not re.fullmatch(r"\s*(//.*)?", line)


def _lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if _says_something(line)]


def _inside(lines: list[str]) -> list[str]:
    """Without the lines that begin and end the module."""
    begin = next(k for k, line in enumerate(lines) if _MODULE.match(line))
    end = max(k for k, line in enumerate(lines) if line.startswith("}"))
    return lines[:begin] + lines[begin + 1 : end] + lines[end + 1 :]


def _function(line: str) -> str | None:
    """The name of the function that begins at a line of a print."""
    found = _FUNCTION.match(line)
    return (found.group(1) or found.group(2)) if found else None


def _names(line: str) -> list[str]:
    return [name for name in _TOKEN.findall(line) if name]


def _renamed(line: str, names: list[str]) -> str:
    left = iter(names)
    return _TOKEN.sub(lambda m: next(left) if m.group(1) else m.group(), line)


def _blank(match: re.Match[str]) -> str:
    return "%" if match.group(1) else match.group()


def _fresh(text: str) -> str:
    """What the names of constraints begin with: nothing in the file does."""
    name = "%sharded"
    while name in text:
        name += "_"
    return name
