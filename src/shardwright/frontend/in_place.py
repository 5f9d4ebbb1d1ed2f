"""Changes that a function makes to its arguments in place, as Flax's modules allow, and does not return.

JAX traces a function on copies of its arguments, so such changes are lost, and a plan would leave out all that leads to
them: of a training step that updates a module in place, nothing but the loss. So they are planned as further results,
and the step that is handed out makes them to the arguments that it is called with, as the function does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from shardwright.frontend.names import function_name, join


class Updating:
    """A function that returns what it changes in place besides its result, so that it is part of the program."""

    def __init__(self, fn: Callable[..., Any], changes: Mapping[str, Sequence[Any]]) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.__name__ = function_name(fn)
        self.argument_names = getattr(fn, "argument_names", None)
        self.inside = fn
        self.changes = dict(changes)
        """Key paths of the leaves, from the tuple of the arguments, by what a person calls them."""

    def __call__(self, *args: Any) -> tuple[Any, list[Any]]:
        """The result, and the leaves that were changed."""
        result = self.inside(*args)
        leaves = dict(jax.tree_util.tree_flatten_with_path(args)[0])
        return result, [leaves[tuple(path)] for path in self.changes.values()]

    def change(self, args: Sequence[Any], leaves: Sequence[Any]) -> None:
        """Change arguments in place as the function does."""
        for path, leaf in zip(self.changes.values(), leaves, strict=True):
            place: Any = args
            for key in path[:-1]:
                place = getattr(place, key.name) if isinstance(key, jax.tree_util.GetAttrKey) else place[_index(key)]
            if hasattr(place, "set_raw_value"):  # a variable of Flax, which deprecates setting its value by name
                place.set_raw_value(leaf)
            else:
                setattr(place, path[-1].name, leaf)


def lost_changes(fn: Callable[..., Any], names: Sequence[str], shapes: tuple[Any, ...]) -> dict[str, tuple[Any, ...]]:
    """Leaves that ``fn`` changes in place and does not return: their key paths by name. ``fn`` is traced again."""
    changes: dict[str, tuple[Any, ...]] = {}

    def changed(*args: Any) -> list[Any]:
        found = _changed(fn, args)[1]
        changes.clear()
        changes.update({join(names[path[0].idx], path[1:]): path for path, _ in found})
        return [leaf for _, leaf in found]

    jaxpr = jax.make_jaxpr(changed)(*shapes).jaxpr
    # A nested jit, such as Flax's, hands out all that it was given, changed or not.
    kept = [_origin(jaxpr, leaf) is None for leaf in jaxpr.outvars]
    return {name: path for (name, path), keep in zip(changes.items(), kept, strict=True) if keep}


def watched(fn: Callable[..., Any], seen: list[Any]) -> Callable[..., Any]:
    """The function, which puts into ``seen`` what may have been changed in place when it is called."""

    @functools.wraps(fn, updated=())
    def call(*args: Any) -> Any:
        result, seen[:] = _changed(fn, args)
        return result

    call.__name__ = call.__qualname__ = function_name(fn)
    return call


def _changed(fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, list[tuple[Any, Any]]]:
    """The result, and the leaves of attributes that are others than before and not returned.

    Dicts and lists do not count: to fill in a batch's entry is an idiom, and nobody expects to see it outside.
    """
    before = dict(jax.tree_util.tree_flatten_with_path(args)[0])
    result = fn(*args)
    returned = {id(leaf) for leaf in jax.tree.leaves(result)}
    return result, [
        (path, leaf)
        for path, leaf in jax.tree_util.tree_flatten_with_path(args)[0]
        if isinstance(path[-1], jax.tree_util.GetAttrKey)
        and leaf is not before.get(path, leaf)
        and id(leaf) not in returned
    ]


def _origin(jaxpr: Any, var: Any) -> int | None:
    """The input that a variable is, perhaps handed through a nested ``jit``; None if it was computed."""
    for k, given in enumerate(jaxpr.invars):
        if given is var:
            return k
    for equation in jaxpr.eqns:
        for k, out in enumerate(equation.outvars):
            if out is var and equation.primitive.name in ("jit", "pjit"):
                inner = equation.params["jaxpr"].jaxpr
                origin = _origin(inner, inner.outvars[k])
                return None if origin is None else _origin(jaxpr, equation.invars[origin])
    return None


def _index(key: Any) -> Any:
    return key.idx if isinstance(key, jax.tree_util.SequenceKey) else key.key
