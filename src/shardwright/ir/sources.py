"""From MLIR locations to the line of the user's code that a person would point at."""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Sequence
from functools import cache
from typing import Any

from shardwright import _jax
from shardwright.ir.program import Source

_FRAME = re.compile(r'"((?:[^"\\]|\\.)*)"\("((?:[^"\\]|\\.)*)":(\d+):\d+(?: to [\d:]*)?\)')
_BARE_FILE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):\d+')
_SCOPE = re.compile(r'^loc\("((?:[^"\\]|\\.)*)"(?!:\d)')


_PARSED_FROM_MEMORY = "-"
"""What MLIR calls the file of a module that it parsed; the caller knows better."""


class Sources:
    """Reads locations, each distinct one once.

    Of the frames in a location, innermost first, it takes the first that lies outside installed packages; failing
    that the first outside JAX and the standard library; failing that the caller's (JAX drops its own frames, so the
    inside of ``jax.numpy`` functions often has none). Frames outside the user's function (``boundary`` files, our own
    tracing code, and all that called it) do not count.
    """

    def __init__(self, boundary: Sequence[str] = ()) -> None:
        self._boundary = frozenset(boundary)
        self._read: dict[tuple[Any, int], Source] = {}
        self._interned: dict[Source, Source] = {}

    def of(self, location: Any, caller: Source) -> Source:
        """The source of an op at ``location``, inlined where ``caller`` says."""
        key = (location.attr, id(caller))
        source = self._read.get(key)
        if source is None:
            source = _inside(parse_location(str(location), self._boundary), caller)
            source = self._interned.setdefault(source, source)
            self._read[key] = source
        return source


def _inside(source: Source, caller: Source) -> Source:
    """A source as seen from where it is called: the caller's line if it has none, the caller's scope before its own."""
    at = source if source.file else caller
    if at.file == _PARSED_FROM_MEMORY:
        at = Source(caller.file, at.line)
    nested = caller.scope and not source.scope.startswith("jit(")
    scope = "/".join(s for s in (caller.scope, source.scope) if s) if nested else source.scope
    return Source(at.file, at.line, at.function, scope, at.callers)


def parse_location(text: str, boundary: frozenset[str] = frozenset()) -> Source:
    """A ``Source`` from a printed location such as ``loc("jit(f)/dot"(callsite("f"("a.py":3:0) at …)))``."""
    scope_match = _SCOPE.match(text)
    scope = scope_match.group(1).rstrip(":") if scope_match else ""
    frames: list[tuple[str, int, str]] = []
    kinds: list[str] = []
    for match in _FRAME.finditer(text):
        function, file, line = match.group(1), match.group(2), int(match.group(3))
        if file in boundary:
            break
        kind = _kind_of_file(file)
        if kind != "skip":
            frames.append((file, line, function.rsplit(".", 1)[-1]))
            kinds.append(kind)
    if frames:
        first = kinds.index("user") if "user" in kinds else 0
        return Source(*frames[first], scope, tuple(frames[first + 1 :]))
    if scope_match is None:
        bare = _BARE_FILE.search(text)
        if bare:
            return Source(bare.group(1), int(bare.group(2)), "", "")
    return Source(scope=scope)


@cache
def _kind_of_file(file: str) -> str:
    """Whose file it is: "user", "package" (installed), or "skip" (JAX, the standard library, made-up names)."""
    if file.startswith(("<", *_jax.installed_package_folders())):
        return "skip"
    paths = sysconfig.get_paths()
    if file.startswith((paths["purelib"] + os.sep, paths["platlib"] + os.sep)):
        return "package"
    if file.startswith(paths["stdlib"] + os.sep):
        return "skip"
    return "user"
