"""A plan as an annotated StableHLO module, to give to any compiler that has Shardy."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from shardwright import _jax
from shardwright.apply.annotate import TAG, annotate
from shardwright.apply.boundary import write_boundary
from shardwright.apply.copies import merge_copies
from shardwright.apply.export import Sharded, annotated_module
from shardwright.apply.kept_text import keep_text
from shardwright.errors import PlanError
from shardwright.frontend.stablehlo import StableHLO
from shardwright.ir.build import read_module

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
