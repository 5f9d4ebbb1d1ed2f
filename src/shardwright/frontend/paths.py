"""What a person calls each leaf of the arguments and of the result: ``state.params.layers.0.w1``."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax


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
