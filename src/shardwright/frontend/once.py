"""Loops that run once, opened as the compiler opens them (``compiler/simplifying.py`` has the evidence).

XLA puts the body of such a loop where the loop stood, and computes once what is then there twice. So a
``jax.checkpoint`` inside, which in a longer loop recomputes the forward pass, and gathers its weights again, is void.
Here the same is done to the module before it is read, so that what is planned, priced and annotated is what will run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright import _jax
from shardwright.compiler.simplifying import MERGED, OPENED_LOOPS
from shardwright.ir.build import TERMINATORS, ReadModule, functions_of, main_of
from shardwright.ir.sources import parse_location


def open_loops(read: ReadModule) -> bool:
    """Open the loops of a module (in place) that run once; tells whether there were any."""
    program = read.program
    found = [loop.op for loop in program.loops if loop.known == "exact" and loop.trips == OPENED_LOOPS.effect]
    if not found:
        return False
    with read.module.context:
        for o in reversed(found):  # those inside others first
            operation = read.operations[o]
            _put(operation.regions[1].blocks[0], operation, operation.operands, None)
            operation.erase()
        _inline_calls(read.module)
        for function in functions_of(read.module).values():
            _merge(function.regions[0].blocks[0])
        read.module.operation.verify()
    return True


def _put(block: Any, place: Any, operands: Any, called_at: Any | None) -> None:
    """Move what is in a block before an operation whose results it computes from its operands."""
    for parameter, operand in zip(list(block.arguments), list(operands), strict=True):
        parameter.replace_all_uses_with(operand)
    *inside, terminator = [view.operation for view in block.operations]
    for operation in inside:
        operation.move_before(place)
        if called_at is not None:
            operation.location = _seen_from(operation.location, called_at)
    for result, value in zip(list(place.results), list(terminator.operands), strict=True):
        result.replace_all_uses_with(value)


def _seen_from(location: Any, called_at: Any) -> Any:
    """Where an operation of a function comes from, once it stands where the function was called."""
    own, caller = parse_location(str(location)), parse_location(str(called_at))
    nested = caller.scope and not own.scope.startswith("jit(")
    scope = "/".join(s for s in (caller.scope, own.scope) if s) if nested else own.scope
    return _jax.ir.Location.name(scope, location if own.file else called_at)


def _inline_calls(module: Any) -> None:
    """Put every function, each of which is called once by now, where it is called."""
    functions = functions_of(module)

    def visit(block: Any) -> None:
        for view in list(block.operations):
            operation = view.operation
            if operation.name == "func.call":
                callee = functions[_jax.ir.FlatSymbolRefAttr(operation.attributes["callee"]).value]
                body = callee.regions[0].blocks[0]
                visit(body)
                _put(body, operation, operation.operands, operation.location)
                operation.erase()
                callee.erase()
            else:
                for region in operation.regions:
                    for inner in region.blocks:
                        visit(inner)

    visit(main_of(module).regions[0].blocks[0])


def _merge(block: Any) -> None:
    """Compute once what a block, or a block within it, computes twice."""
    known: dict[Any, Any] = {}
    for view in list(block.operations):
        operation = view.operation
        same = _same_value(operation)
        if same is not None:
            operation.results[0].replace_all_uses_with(same)
            operation.erase()
            continue
        key = _key(operation)
        first = known.setdefault(key, operation) if key is not None else operation
        if first is not operation:
            for mine, earlier in zip(list(operation.results), list(first.results), strict=True):
                mine.replace_all_uses_with(earlier)
            operation.erase()
        elif key is None:
            for region in operation.regions:
                for inner in region.blocks:
                    _merge(inner)
    for view in reversed(list(block.operations)):
        operation = view.operation
        used = any(next(iter(result.uses), None) is not None for result in operation.results)
        if not used and _key(operation) is not None and operation.name not in TERMINATORS:
            operation.erase()


def _same_value(operation: Any) -> Any | None:
    """What an operation is equal to without computing: a stack of one layer is that layer."""
    name, operands = operation.name, operation.operands
    if name == "stablehlo.dynamic_slice" and operands[0].type == operation.results[0].type:
        return operands[0]
    if name == "stablehlo.dynamic_update_slice" and operands[1].type == operation.results[0].type:
        return operands[1]
    if name != "stablehlo.reshape":
        return None
    maker = operands[0].owner
    if isinstance(maker, _jax.ir.Block) or maker.name not in ("stablehlo.broadcast_in_dim", "stablehlo.reshape"):
        return None
    value = maker.operands[0]
    if value.type != operation.results[0].type:
        return None
    if maker.name == "stablehlo.broadcast_in_dim":
        placed = list(_jax.ir.DenseI64ArrayAttr(maker.attributes["broadcast_dimensions"]))
        if placed != sorted(placed):
            return None
    return value


def _key(operation: Any, inside: Mapping[Any, int] | None = None) -> Any | None:
    """What two operations have in common that compute the same; None where they cannot be known to.

    ``inside`` numbers the values of a body that the operation is in.
    """
    name = operation.name
    if MERGED.effect.never(name) or (len(operation.regions) and name not in MERGED.effect.with_bodies):
        return None
    operands = tuple((inside or {}).get(value, value) for value in operation.operands)
    try:
        attributes = tuple((each, operation.attributes[each]) for each in operation.attributes)
    except TypeError:  # constants of complex numbers, which MLIR's bindings cannot read
        return None
    types = tuple(result.type for result in operation.results)
    bodies = tuple(_body(block) for region in operation.regions for block in region.blocks)
    return None if None in bodies else (name, operands, attributes, types, bodies)


def _body(block: Any) -> Any | None:
    """The same for all that a body, such as that of a sum, is made of."""
    numbers: dict[Any, int] = {value: k for k, value in enumerate(block.arguments)}
    found = []
    for view in block.operations:
        operation = view.operation
        found.append(_key(operation, numbers))
        numbers.update((value, len(numbers) + k) for k, value in enumerate(operation.results))
    return None if None in found else tuple(found)
