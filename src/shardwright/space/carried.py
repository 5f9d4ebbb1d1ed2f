"""Which results an argument becomes: the state that a program carries from step to step."""

from __future__ import annotations

from collections import defaultdict

from shardwright.ir.program import Program


def carried_results(program: Program) -> dict[int, list[int]]:
    """For the value of each argument the results that have its type and the end of its path.

    ``state.params.w`` becomes ``result.params.w``, or ``result.0.params.w`` where the function returns a tuple.
    """
    results: dict[tuple[str, tuple[int, ...], str], list[int]] = defaultdict(list)
    for path, v in zip(program.results, program.regions[0].results, strict=True):
        value = program.values[v]
        for tail in {path.split(".", 1)[-1], path.split(".", 2)[-1]}:
            results[tail, value.shape, value.dtype].append(v)
    out = {}
    for argument in program.arguments:
        value = program.values[argument.value]
        found = results.get((argument.path.split(".", 1)[-1], value.shape, value.dtype))
        if found:
            out[argument.value] = found
    return out
