"""What a person calls each leaf of the arguments and of the result: ``state.params.layers.0.w1``."""

from __future__ import annotations

import functools
import inspect
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax

from shardwright import _jax


def function_name(fn: Callable[..., Any]) -> str:
    """What a person calls a function: its name, that of what it is a partial of, or that of its class."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "__name__", type(fn).__name__))


def parameter_names(fn: Callable[..., Any], count: int) -> list[str]:
    """Names of the first ``count`` positional parameters; ``arg2`` where there is none to be had."""
    own: tuple[str, ...] | None = getattr(fn, "argument_names", None)
    if own is not None and len(own) == count:  # a module's, which are no identifiers
        return list(own)
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names: list[str] = []
    for p in parameters:
        if p.kind is inspect.Parameter.VAR_POSITIONAL:
            names.extend(f"{p.name}.{i}" for i in range(count - len(names)))
        elif p.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
            names.append(p.name)
    names.extend(f"arg{i}" for i in range(len(names), count))
    return names[:count]


def leaf_paths(prefixes: Sequence[str], trees: Sequence[Any]) -> list[str]:
    """One path for every leaf of ``trees``, each tree below its prefix, and no two the same."""
    keys = [
        (prefix, path)
        for prefix, tree in zip(prefixes, trees, strict=True)
        for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]
    ]
    paths = [join(prefix, path) for prefix, path in keys]
    often = {path for path, count in Counter(paths).items() if count > 1}
    return [  # {"a.b": x} and {"a": {"b": x}} differ in how JAX writes them
        prefix + jax.tree_util.keystr(path) if name in often else name
        for name, (prefix, path) in zip(paths, keys, strict=True)
    ]


def join(prefix: str, path: Sequence[Any]) -> str:
    """A prefix and a key path, joined by dots."""
    rest = jax.tree_util.keystr(tuple(path), simple=True, separator=".")
    return ".".join(part for part in (prefix, rest) if part)


_KEYS = re.compile(r"""\['([^']*)'\]|\["([^"]*)"\]|\[(?:<flat index )?(\d+)>?\]|\.([A-Za-z_]\w*)""")
_PLACE = re.compile(r'loc\("-":(\d+):(\d+)\)')
"""Where the parser found it, in what it was given."""
_VALUE = re.compile(rb"%([A-Za-z_][\w$.-]*)")
ALIAS = "tf.aliasing_output"
"""On an argument: the number of the result that takes its place, and its buffer."""
_PATH = re.compile(rf"([A-Za-z_]\w*)((?:{_KEYS.pattern})*)")


def argument_names(main: Any, data: bytes = b"") -> list[str]:
    """The names of a main function's arguments, from where in a text (``data``) they are told, or from their locations.

    There JAX writes ``params['w']``. Without either they are ``arg0``, ``arg1`` and so on.
    """
    lines = data.split(b"\n") if data[:4] != _jax.BYTECODE else []
    names = []
    for i, argument in enumerate(main.regions[0].blocks[0].arguments):
        text = str(argument.location)
        place = _PLACE.fullmatch(text)
        line = lines[int(place[1]) - 1] if place and int(place[1]) <= len(lines) else b""
        written = _VALUE.match(line, int(place[2]) - 1) if place else None
        if written:
            names.append(written[1].decode())
        else:
            plain = text.startswith('loc("') and text.endswith('")')
            names.append(dotted(text[5:-2]) if plain else f"arg{i}")
    return names if len(set(names)) == len(names) else [f"arg{i}" for i in range(len(names))]


def result_names(main: Any, arguments: Sequence[str], count: int) -> list[str]:
    """What results are called: one in an argument's place after it, others by ``jax.result_info``, else by number."""
    numbered = [f"result.{i}" for i in range(count)]
    names = list(numbered)
    for i, attributes in enumerate(attributes_of(main, "res_attrs")):
        if "jax.result_info" in attributes:
            names[i] = dotted(_jax.ir.StringAttr(attributes["jax.result_info"]).value) or names[i]
    for name, attributes in zip(arguments, attributes_of(main, "arg_attrs"), strict=False):
        if ALIAS in attributes:
            names[_jax.ir.IntegerAttr(attributes[ALIAS]).value] = f"result.{name}"
    return names if len(set(names)) == count else numbered


def attributes_of(main: Any, each: str) -> list[Any]:
    """The attributes of each argument (``arg_attrs``) or result (``res_attrs``); none where there are none at all."""
    return list(main.attributes[each]) if each in main.attributes else []


def dotted(text: str) -> str:
    """``params['w'][0].x`` as ``params.w.0.x``; what is no such path as it is."""
    whole = _PATH.fullmatch(text)
    if whole is None:
        return text
    return ".".join([whole.group(1), *("".join(filter(None, keys)) for keys in _KEYS.findall(whole.group(2)))])
