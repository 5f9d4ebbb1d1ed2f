"""Keyword and static arguments: a call with both, as a function of arrays by position alone.

``jax.jit`` takes shardings and donation by position, so a plan is made for such a function; what a user is handed takes
arguments as the user's own function does.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax

from shardwright import _jax
from shardwright.errors import PlanError, TraceError, nearest
from shardwright.frontend.in_place import Updating
from shardwright.frontend.leaves import Sealed, opened
from shardwright.frontend.names import function_name, parameter_names

Donate = Sequence[int | str] | int | str
"""Arguments whose buffers may be reused, by position or by name."""
Names = Sequence[str] | str


class Positional:
    """A function of its positional arguments and then its keyword ones, with its static ones inside."""

    __signature__ = inspect.Signature([inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)])

    def __init__(
        self, fn: Callable[..., Any], given: Sequence[str], keywords: Sequence[str], static: Mapping[str, Any]
    ) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.__name__ = function_name(fn)
        self.inside = fn
        self.static = dict(static)
        """Values that are part of the program, by the parameter's name."""
        self.given = tuple(given)
        """Names of the call's positional arguments, static ones among them."""
        self.keywords = tuple(keywords)
        """Names of the arguments that were given by keyword and are not static, in order."""
        self.argument_names = (*(name for name in self.given if name not in static), *self.keywords)

    def __call__(self, *args: Any) -> Any:
        """Call the function as the user called it."""
        left = iter(args)
        positional = [self.static[name] if name in self.static else next(left) for name in self.given]
        static = {name: value for name, value in self.static.items() if name not in self.given}
        return self.inside(*positional, **dict(zip(self.keywords, left, strict=True)), **static)

    def around(self, fn: Callable[..., Any]) -> Positional:
        """Another function, called alike."""
        return Positional(fn, self.given, self.keywords, self.static)

    def as_given(self, position: int) -> int | str:
        """One of the function's own positions as the user has it: a position among all arguments, or a keyword."""
        name = self.argument_names[position]
        return self.given.index(name) if name in self.given else name

    def by_position(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The arguments of another call of the user's function, as this one takes them."""
        values = _by_name(self.inside, args, kwargs, defaults=True)
        for name, value in self.static.items():
            if name in values and values[name] != value:
                raise PlanError(
                    f"{name} is {value!r} in the plan, and the step was called with {values[name]!r}; static arguments "
                    "are part of a plan: make one for each value."
                )
        more = [
            name for name in _by_name(self.inside, args, kwargs) if name not in (*self.argument_names, *self.static)
        ]
        less = [name for name in self.argument_names if name not in values]
        if more or less:
            what = f"without {more[0]}, which the step was given" if more else f"with {less[0]}, which is missing"
            raise PlanError(f"{self.__name__} was planned {what}; call the step with the arguments of the plan.")
        return [values[name] for name in self.argument_names]


class Step:
    """A jitted function of a plan's own arguments, called with arguments as the user's function takes them."""

    def __init__(self, jitted: Any, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, jitted)
        self._jitted = jitted
        self._fn = fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step."""
        own = self._own(args, kwargs)
        result = self._jitted(*own)
        if isinstance(self._fn, Updating):
            result, changes = result
            self._fn.change(own, changes)
        return opened(result)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """As ``lower`` of ``jax.jit``."""
        lowered: jax.stages.Lowered = self._jitted.lower(*self._own(args, kwargs))
        return lowered

    def _own(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        call = positional_call(self._fn)
        if call is not None:
            args = call.by_position(args, kwargs)
        elif kwargs:
            raise PlanError(
                f"{function_name(self._fn)} was planned without {next(iter(kwargs))} as a keyword argument."
            )
        return tuple(self._fn.seal(args)) if isinstance(self._fn, Sealed) else args


def as_step(jitted: Any, fn: Callable[..., Any]) -> Any:
    """A jitted function of a plan's own arguments as the user calls it."""
    return Step(jitted, fn) if isinstance(fn, (Sealed, Positional, Updating)) else jitted


def positional_call(fn: Callable[..., Any]) -> Positional | None:
    """What tells how a function of arrays by position was called by keyword, if it was."""
    while isinstance(fn, (Sealed, Updating)):
        fn = fn.inside
    return fn if isinstance(fn, Positional) else None


def by_position(
    fn: Callable[..., Any],
    args: Sequence[Any],
    donate: Donate = (),
    kwargs: Mapping[str, Any] | None = None,
    static_argnames: Names = (),
) -> tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]:
    """The function and its arguments by position alone, and the positions to donate of these.

    What a ``jax.jit`` that is handed in has as static is so here too.
    """
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise TraceError(f"kwargs must be a dict of keyword arguments, not a {type(kwargs).__name__}.")
    args, kwargs = tuple(args), dict(kwargs or {})
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
    _check_call(fn, args, kwargs)
    _check_static(fn, names)
    given = parameter_names(fn, len(args))
    values = {**dict(zip(given, args, strict=True)), **kwargs}
    static = {name: values[name] for name in dict.fromkeys((*names, *_jax.static_names(fn))) if name in values}
    _check_hashable(fn, static)
    donated = _donated_names(fn, donate, given, values, static)
    if not kwargs and not static:
        return fn, args, tuple(given.index(name) for name in donated)
    call = Positional(fn, given, [name for name in kwargs if name not in static], static)
    own = call.argument_names
    return call, tuple(values[name] for name in own), tuple(own.index(name) for name in donated)


def _donated_names(
    fn: Callable[..., Any], donate: Donate, given: Sequence[str], values: Collection[str], static: Collection[str]
) -> list[str]:
    """Names of the arguments to donate, which are given by position or by name."""
    out = []
    for each in (donate,) if isinstance(donate, (int, str)) else donate:
        if isinstance(each, str):
            if each not in values:
                raise TraceError(
                    f"donate names {each!r}, which is no argument of this call of {function_name(fn)}"
                    f"{nearest(each, list(values))}."
                )
            name = each
        elif not 0 <= each < len(given):
            raise TraceError(
                f"donate names argument {each}, but there are {len(given)} arguments (0 to {len(given) - 1})."
            )
        else:
            name = given[each]
        if name in static:
            raise TraceError(f"donate names {name}, which is static and has no buffer.")
        out.append(name)
    return out


def _check_hashable(fn: Callable[..., Any], static: Mapping[str, Any]) -> None:
    for name, value in static.items():
        try:
            hash(value)
        except TypeError:
            raise TraceError(
                f"the static argument {name} of {function_name(fn)} is a {type(value).__name__}, which cannot be "
                "hashed; as with jax.jit, static arguments must be hashable."
            ) from None


def _by_name(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], defaults: bool = False
) -> dict[str, Any]:
    """A call's arguments by the names that plans have for them."""
    try:
        signature = inspect.signature(fn)
        bound = signature.bind(*args, **kwargs)
    except ValueError:  # no signature
        return {**dict(zip(parameter_names(fn, len(args)), args, strict=True)), **kwargs}
    if defaults:
        bound.apply_defaults()
    out: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            out.update({f"{name}.{k}": each for k, each in enumerate(value)})
        elif kind is inspect.Parameter.VAR_KEYWORD:
            out.update(value)
        else:
            out[name] = value
    return out


def _check_call(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # a builtin: JAX will say
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        by_name = f" and by keyword {', '.join(kwargs)}" if kwargs else ""
        raise TraceError(
            f"{function_name(fn)}{signature} cannot be called with {len(args)} positional arguments{by_name}: {error}."
        ) from None


def _check_static(fn: Callable[..., Any], names: Sequence[str]) -> None:
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return
    for name in names:
        if name not in parameters:
            raise TraceError(
                f"static_argnames names {name!r}, which is no parameter of {function_name(fn)}"
                f"{nearest(name, list(parameters))}."
            )
