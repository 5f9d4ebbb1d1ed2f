"""A plan as an annotated StableHLO module, to give to any compiler that has Shardy."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from shardwright import _jax
from shardwright.apply.annotate import TAG, annotate
from shardwright.apply.export import Sharded, annotated_module
from shardwright.apply.kept_text import keep_text
from shardwright.apply.specs import write_boundary
from shardwright.errors import PlanError
from shardwright.frontend.stablehlo import StableHLO
from shardwright.ir.build import functions_of, read_module

FORMS = ("text", "bytecode", "portable")
_RULE, _OWN_RULE = "sdy.sharding_rule", "shardwright.sharding_rule"


def annotated_stablehlo(sharded: Sharded, donate: Sequence[int], platform: str, form: str | None = None) -> bytes:
    """The module of a function with the plan in it: in a form of ``FORMS``, by default that of the file it is from."""
    if form is not None and form not in FORMS:
        raise PlanError(f"a StableHLO module has no form {form!r}; choose one of {', '.join(FORMS)}.")
    fn = sharded.fn
    if not isinstance(fn, StableHLO):
        with warnings.catch_warnings():  # JAX's, of donated arguments that no result can take over
            warnings.simplefilter("ignore")
            module = annotated_module(sharded, platform, donate_argnums=tuple(donate))[1].module
        _clean(module)
        return _written(module, form or "text", None)
    module = _annotated_file(fn, sharded)
    form = form or fn.form
    if form == "text" and fn.form == "text":
        return keep_text(fn.data.decode(errors="replace"), module).encode()
    return _written(module, form, _jax.artifact_version(fn.data))


def _annotated_file(fn: StableHLO, sharded: Sharded) -> Any:
    """The module as it was read, with the plan in it."""
    module = fn.module()
    _copy(module, _RULE, _OWN_RULE)  # annotating drops rules, as most are Shardy's
    read = read_module(
        module, name=fn.__name__, argument_paths=fn.argument_names, user_rules=sharded.rules, origin=fn.origin
    )
    partitioned = sharded.partition(read)
    write_boundary(module, partitioned)
    annotate(read, partitioned)
    _copy(module, _OWN_RULE, _RULE)
    _clean(module)
    return module


def _clean(module: Any) -> None:
    """Take out what only the annotation needed."""

    def clean(operation: Any) -> Any:
        for name in (TAG, _OWN_RULE):
            if name in operation.attributes:
                del operation.attributes[name]
        return _jax.ir.WalkResult.ADVANCE

    _jax.walk(module.operation, clean)
    merge_copies(module)


def _copy(module: Any, old: str, new: str) -> None:
    """Copy an attribute, wherever it is, to another name."""

    def copy(operation: Any) -> Any:
        if old in operation.attributes:
            operation.attributes[new] = operation.attributes[old]
        return _jax.ir.WalkResult.ADVANCE

    _jax.walk(module.operation, copy)


def _written(module: Any, form: str, version: str | None) -> bytes:
    if form == "text":
        return str(module).encode()
    return _jax.bytecode(module) if form == "bytecode" else _jax.portable(module, version)


_ORIGIN = "sdy.original_func_name"
"""What Shardy writes on a copy: the name of the function that it is one of."""


def merge_copies(module: Any) -> None:
    """Let equal copies of a function in a module operation be one, with the original's name if it is among them."""
    with module.context:
        functions = functions_of(module)
        origins = {name: _text(f, _ORIGIN) if _ORIGIN in f.attributes else name for name, f in functions.items()}
        for function in functions.values():
            if _ORIGIN in function.attributes:
                del function.attributes[_ORIGIN]
        calls = {name: _calls(f) for name, f in functions.items()}
        depths: dict[str, int] = {}
        kept: dict[tuple[str, str], str] = {}
        instead: dict[str, str] = {}
        order = sorted(functions, key=lambda name: (_depth(name, calls, depths), name != origins[name]))
        for name in order:  # callees first, so that equal callers name equal callees
            for call in calls[name]:
                callee = _callee(call)
                call.attributes["callee"] = _jax.ir.FlatSymbolRefAttr.get(instead.get(callee, callee))
            one = kept.setdefault((origins[name], _body(functions[name])), name)
            if one != name:
                instead[name] = one
        for name in instead:
            functions[name].erase()


def _calls(function: Any) -> list[Any]:
    found: list[Any] = []

    def look(operation: Any) -> Any:
        if operation.name == "func.call":
            found.append(operation)
        return _jax.ir.WalkResult.ADVANCE

    _jax.walk(function, look)
    return found


def _depth(name: str, calls: dict[str, list[Any]], known: dict[str, int]) -> int:
    """How many calls deep it goes; StableHLO has no recursion."""
    if name not in known:
        known[name] = 1 + max((_depth(_callee(call), calls, known) for call in calls[name]), default=0)
    return known[name]


def _callee(call: Any) -> str:
    return str(_jax.ir.FlatSymbolRefAttr(call.attributes["callee"]).value)


def _body(function: Any) -> str:
    """The function's text after its name."""
    return str(function).partition("(")[2]


def _text(operation: Any, name: str) -> str:
    return str(_jax.ir.StringAttr(operation.attributes[name]).value)
