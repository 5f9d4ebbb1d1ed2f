"""Functions of which a module has several copies, one for each call, become one again where the copies are the same.

To constrain each call by itself, every call is given a callee of its own first. Where nothing was said inside, or the
same in all of them, one serves all as before: partitioners make the copies anew.
"""

from __future__ import annotations

from typing import Any

from shardwright import _jax
from shardwright.ir.build import functions_of

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
