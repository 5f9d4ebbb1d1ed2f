"""Small programs, and a text of what the analysis found in them that anyone can read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import shardwright as sw
from shardwright.analysis.present import colour_letters


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def found(fn: Callable[..., Any], *args: Any, **options: Any) -> str:
    """The analysis in short.

    One line for each group: its colours, its size, and where among arguments and results they stand. Below it one line
    for each conflict group: how many sets, the op or value where it begins, and its two sides.
    """
    return text_of(sw.analyse(fn, *args, **options))


def text_of(analysis: sw.Analysis) -> str:
    program = analysis.program
    where = [(a.path, a.value) for a in program.arguments]
    where += list(zip(program.results, program.regions[0].results, strict=True))
    lines = []
    for group, description in zip(analysis.groups, analysis.descriptions, strict=True):
        places = [
            f"{path}[{d}]"
            for path, v in where
            for d, c in enumerate(analysis.colours.of_value(v).tolist())
            if c in group.colours
        ]
        letters = " ".join(colour_letters(c) for c in group.colours)
        sizes = "/".join(map(str, description.sizes))
        lines.append(f"{letters} {sizes}: {' '.join(places) or '-'}")
        for conflict in description.conflicts:
            sides = " | ".join(f"{side.role} {side.type}[{side.dimension}]" for side in conflict.sides)
            lines.append(f"  {conflict.sets}x {conflict.kind}: {sides if conflict.consistent else 'fixed'}")
    return "\n".join(lines)
