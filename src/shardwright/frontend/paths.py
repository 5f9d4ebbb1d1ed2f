"""What a person calls each leaf of the arguments and of the result: ``state.params.layers.0.w1``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax


def parameter_names(fn: Callable[..., Any], count: int) -> list[str]:
    """Names of the first ``count`` positional parameters; ``arg2`` where there is none to be had."""
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
    """One path for every leaf of ``trees``, each tree below its prefix."""
    return [
        join(prefix, path)
        for prefix, tree in zip(prefixes, trees, strict=True)
        for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]
    ]


def join(prefix: str, path: Sequence[Any]) -> str:
    """A prefix and a key path, joined by dots."""
    rest = jax.tree_util.keystr(tuple(path), simple=True, separator=".")
    return ".".join(part for part in (prefix, rest) if part)
