"""How often a loop of XLA's final program runs.

Some compilers write it down. The TPU compiler does not: the bound is a constant in the loop's condition, the start an
operand of the loop, and the step in its body, where the compiler may have unrolled the loop (a collective matmul over
16 devices counts to 8 in steps of 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shardwright.verify.hlo import Computation, HloModule, Instruction

_SAME_VALUE = {"copy", "bitcast", "convert", "reshape", "copy-start", "copy-done", "optimization-barrier"}
_MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE"}
_DEEPEST = 64


class _Linear(NamedTuple):
    """A scalar: an element of the loop's tuple plus a constant, or a constant alone."""

    carried: int | None
    offset: int


class _Place(NamedTuple):
    """An instruction's value, or one element of it, in a computation whose parameters stand for values elsewhere."""

    computation: Computation
    name: str
    arguments: Sequence[_Place] = ()


def trip_count(module: HloModule, computation: Computation, loop: Instruction) -> int | None:
    """How often a ``while`` in ``computation`` runs, or None where its text does not tell."""
    if loop.known_trip_count is not None:
        return loop.known_trip_count
    condition = module.computations.get(loop.called.get("condition", ("",))[0])
    body = module.computations.get(loop.called.get("body", ("",))[0])
    compared = _comparison(module, condition) if condition else None
    if body is None or body.root is None or compared is None:
        return None
    direction, *sides = compared

    def start(k: int) -> int | None:
        found = _element(module, _Place(computation, loop.operands[0]), k)
        return found.offset if found and found.carried is None else None

    def step(k: int) -> int | None:
        assert body is not None and body.root is not None
        found = _element(module, _Place(body, body.root.name), k)
        return found.offset if found and found.carried == k else None

    moving: list[_Linear | None] = []
    fixed: list[int | None] = []
    for side in sides:
        changes = side is not None and side.carried is not None and step(side.carried) != 0
        moving.append(side if changes else None)
        known = start(side.carried) if side and side.carried is not None and not changes else 0
        fixed.append(side.offset + known if side and not changes and known is not None else None)
    if moving[0] is None:
        moving, fixed, direction = moving[::-1], fixed[::-1], _MIRRORED.get(direction, direction)
    counter, bound = moving[0], fixed[1]
    if counter is None or counter.carried is None or bound is None:
        return None
    first = (start(counter.carried) or 0) + counter.offset
    return _trips(direction, first, bound, step(counter.carried) or 1)


def _trips(direction: str, first: int, bound: int, step: int) -> int | None:
    """Iterations of a counter from ``first`` by ``step`` while it compares so with ``bound``."""
    if direction in ("LE", "GE"):
        bound += 1 if direction == "LE" else -1
    if direction in ("GT", "GE") or (direction == "NE" and step < 0):
        first, bound, step = -first, -bound, -step
    if direction == "EQ" or step <= 0:
        return None
    return max(0, -(-(bound - first) // step))


def _comparison(module: HloModule, condition: Computation) -> tuple[str, _Linear | None, _Linear | None] | None:
    """Direction and both sides of the comparison that a condition returns, inside a fusion or not."""
    if condition.root is None:
        return None
    place = _Place(condition, condition.root.name)
    for _ in range(_DEEPEST):
        instruction = place.computation.instructions.get(place.name)
        if instruction is None:
            return None
        if instruction.opcode == "compare":
            sides = [_value(module, place._replace(name=name)) for name in instruction.operands]
            return (instruction.attribute("direction"), sides[0], sides[1]) if len(sides) == 2 else None
        inside = _entered(module, place, instruction)
        if inside is None and instruction.opcode not in _SAME_VALUE:
            return None
        place = inside or place._replace(name=instruction.operands[0])
    return None


def _entered(module: HloModule, place: _Place, instruction: Instruction) -> _Place | None:
    """The root of the computation that a fusion or call stands for."""
    if instruction.opcode not in ("fusion", "call"):
        return None
    names = instruction.called.get("calls") or instruction.called.get("to_apply") or ("",)
    inside = module.computations.get(names[0])
    if inside is None or inside.root is None:
        return None
    arguments = [place._replace(name=name) for name in instruction.operands]
    return _Place(inside, inside.root.name, arguments)


def _value(module: HloModule, place: _Place, depth: int = 0) -> _Linear | None:
    """A scalar as an element of the loop's tuple plus a constant."""
    instruction = place.computation.instructions.get(place.name)
    if instruction is None or depth > _DEEPEST:
        return None
    if instruction.opcode == "constant":
        text = instruction.inside.strip()
        return _Linear(None, int(text)) if text.lstrip("-").isdigit() else None
    if instruction.opcode == "parameter":
        position = int(instruction.inside)
        return _value(module, place.arguments[position], depth + 1) if position < len(place.arguments) else None
    if instruction.opcode == "get-tuple-element":
        whole = place._replace(name=instruction.operands[0])
        return _element(module, whole, int(instruction.attribute("index")), depth + 1)
    if instruction.opcode in ("add", "subtract"):
        a, b = (_value(module, place._replace(name=name), depth + 1) for name in instruction.operands)
        return _sum(a, b, 1 if instruction.opcode == "add" else -1)
    if instruction.opcode in _SAME_VALUE:
        return _value(module, place._replace(name=instruction.operands[0]), depth + 1)
    inside = _entered(module, place, instruction)
    return _value(module, inside, depth + 1) if inside else None


def _element(module: HloModule, place: _Place, index: int, depth: int = 0) -> _Linear | None:
    """One element of a tuple; an element of a loop's own parameter stands for itself."""
    instruction = place.computation.instructions.get(place.name)
    if instruction is None or depth > _DEEPEST:
        return None
    if instruction.opcode == "tuple":
        return _value(module, place._replace(name=instruction.operands[index]), depth + 1)
    if instruction.opcode == "parameter":
        position = int(instruction.inside)
        if position < len(place.arguments):
            return _element(module, place.arguments[position], index, depth + 1)
        return _Linear(index, 0)
    if instruction.opcode in _SAME_VALUE:
        return _element(module, place._replace(name=instruction.operands[0]), index, depth + 1)
    inside = _entered(module, place, instruction)
    return _element(module, inside, index, depth + 1) if inside else None


def _sum(a: _Linear | None, b: _Linear | None, sign: int) -> _Linear | None:
    if a is None or b is None or (a.carried is not None and b.carried is not None):
        return None
    if sign < 0 and b.carried is not None:
        return None
    return _Linear(a.carried if a.carried is not None else b.carried, a.offset + sign * b.offset)
