"""The program as text: one op a line, with its rule and the line of code that it comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from shardwright.ir.program import Op, Program

TypeText = Callable[[int], str]
"""How to write the type of a value, given its number."""


def program_text(program: Program, type_text: TypeText | None = None) -> str:
    """Readable text of a whole program; ``type_text`` lets an analysis write its findings into the types."""
    show = type_text or (lambda v: str(program.values[v]))
    lines = [f"program {program.name} ("]
    for argument in program.arguments:
        donated = "  donated" if argument.donated else ""
        lines.append(f"  %{argument.value} = {argument.path} : {show(argument.value)}{donated}")
    lines.append(")")
    lines.extend(_region(program, show, 0, 1))
    returned = ", ".join(f"{path} = %{v}" for path, v in zip(program.results, program.regions[0].results, strict=True))
    lines.append(f"  return {returned}")
    return "\n".join(lines) + "\n"


def _region(program: Program, show: TypeText, number: int, depth: int) -> Iterator[str]:
    region = program.regions[number]
    o = region.start
    while o < region.stop:
        op = program.ops[o]
        yield from _op(program, show, o, op, depth)
        o = max([o + 1, *(program.regions[r].stop for r in op.regions)])


def _op(program: Program, show: TypeText, o: int, op: Op, depth: int) -> Iterator[str]:
    indent = "  " * depth
    left = _ids(op.results) + (" = " if op.results else "")
    types = ", ".join(show(v) for v in op.results)
    target = f" @{op.attributes['target']}" if "target" in op.attributes else ""
    line = f"{indent}{left}{op.kind}{target}({_ids(op.operands)}) : {types}"
    if op.regions:
        line += _loop(program, o)
    elif any(op.rule.tensors):
        line += f"  {{{op.rule}}}"
    yield f"{line}  # {op.source}" if op.source.file else line
    for r in op.regions:
        region = program.regions[r]
        yield f"{indent}{region.role} ({_ids(region.parameters)})"
        yield from _region(program, show, r, depth + 1)
        yield f"{indent}  yield {_ids(region.results)}"


def _loop(program: Program, o: int) -> str:
    for loop in program.loops:
        if loop.op == o:
            return f"  ×{'?' if loop.known == 'unknown' else loop.trips}" + (
                f" ({loop.known})" if loop.known not in ("exact", "unknown") else ""
            )
    return ""


def _ids(values: Sequence[int]) -> str:
    return ", ".join(f"%{v}" for v in values)
