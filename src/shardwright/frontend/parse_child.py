"""The process that parses a StableHLO module first: damaged bytecode, deep nesting and calls in circles end parsers.

A script by itself, for it is not worth a process to import JAX and this package: ``parse_child.py FOLDER`` reads
``module`` there and prints what it found as one line of JSON. What it uses of ``jaxlib.mlir`` is what JAX makes its own
contexts of (``_jax.py``).
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

from jaxlib.mlir import ir, passmanager
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo

MOST_NESTED = 200
"""Regions and calls inside of each other. A program of JAX has a few dozen; Python walks no more than a thousand."""
MOST_OPS = 20_000_000
"""With every call's callee written out in its place."""
_STACK_BYTES = 2 * 2**20  # a quarter of what a thread has, so that what passes here passes there


def parsed(data: bytes) -> Any:
    """The module operation."""
    context: Any = ir.Context()
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    sdy.register_dialect(context)
    mhlo.register_mhlo_dialect(context)
    chlo.register_dialect(context)
    stablehlo.register_dialect(context)
    with context:
        if data[:4] == b"ML\xefR":
            try:
                return stablehlo.deserialize_portable_artifact(context, data).operation
            except Exception:
                pass
        return ir.Module.parse(data).operation


def complaint(module: Any) -> str:
    """What keeps a module from being walked: calls in circles, depth, or size with all calls written out."""
    functions = {
        ir.StringAttr(op.operation.attributes["sym_name"]).value: measured(op.operation)
        for op in module.regions[0].blocks[0].operations
        if op.operation.name == "func.func"
    }
    sizes: dict[str, tuple[int, int]] = {}  # of a function, its callees in it: levels, ops
    waiting: list[tuple[str, bool]] = [(name, False) for name in functions]
    path: dict[str, None] = {}
    while waiting:
        name, leaving = waiting.pop()
        levels, ops, calls = functions[name]
        if leaving:
            del path[name]
            for callee, level in calls:
                levels, ops = max(levels, level + 1 + sizes[callee][0]), ops + sizes[callee][1]
            sizes[name] = levels, ops
            if levels > MOST_NESTED:
                return f"regions and calls are nested {levels} deep, where {MOST_NESTED} are allowed."
            if ops > MOST_OPS:
                return f"it has {ops:,} ops where calls are written out, and {MOST_OPS:,} are allowed."
        elif name not in sizes:
            path[name] = None
            waiting.append((name, True))
            for callee, _ in calls:
                if callee in path:
                    circle = [*list(path)[list(path).index(callee) :], callee]
                    return f"the function {callee!r} calls itself ({' → '.join(circle[:5])})."
                if callee not in functions:
                    return f"the function {name!r} calls {callee!r}, which is not there."
                waiting.append((callee, False))
    return ""


def measured(function: Any) -> tuple[int, int, list[tuple[str, int]]]:
    """Levels of regions in a function, its ops, and its calls with their levels."""
    deepest, ops, calls = 0, 0, []
    waiting = [(function, 0)]
    while waiting:
        operation, level = waiting.pop()
        deepest, ops = max(deepest, level), ops + 1
        if operation.name == "func.call":
            calls.append((ir.FlatSymbolRefAttr(operation.attributes["callee"]).value, level))
        for region in operation.regions:
            for block in region.blocks:
                waiting += [(inner.operation, level + 1) for inner in block.operations]
    return deepest, ops, calls


def main(folder: str) -> None:
    """Parse, look, and do what will be done with the module that can end a process as well."""
    try:
        module = parsed(Path(folder, "module").read_bytes())
    except Exception:  # the process that asked will hear the same, and say it
        print(json.dumps({"complaint": ""}))
        return
    found = complaint(module)
    if not found:
        with module.context:
            copy = module.clone()
            rules = "builtin.module(sdy-flatten-call-graph,func.func(sdy-populate-op-sharding-rules))"
            try:
                passmanager.PassManager.parse(rules).run(copy)
                stablehlo.serialize_portable_artifact(
                    module, stablehlo.get_current_version(), allow_other_dialects=True
                )
            except Exception:
                pass
    print(json.dumps({"complaint": found}))


if __name__ == "__main__":
    threading.stack_size(_STACK_BYTES)
    thread = threading.Thread(target=main, args=[sys.argv[1]])
    thread.start()
    thread.join()
