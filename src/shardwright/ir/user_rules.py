"""Rules that a user gives for custom calls, in the einsum-like syntax of JAX's ``custom_partitioning``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from shardwright.errors import RuleError, nearest
from shardwright.ir.program import Program
from shardwright.ir.rules import Dims, Rule

Shapes = Sequence[tuple[int, ...]]
Tensor = list[list[str]]
"""The dimensions of one tensor, each a list of factor names."""


def check_targets(program: Program, rules: Mapping[str, str] | None) -> None:
    """Every rule must be of a custom call that the program has, by its target or by the name of its kernel."""
    calls = [op.attributes for op in program.ops if op.kind == "custom_call"]
    targets = sorted({names[key] for names in calls for key in ("target", "kernel") if key in names})
    for target in rules or {}:
        if target not in targets:
            have = f"it has {', '.join(targets)}" if targets else "it has none at all"
            raise RuleError(
                f"there is a sharding rule for {target!r}, but the program has no custom call of that name; "
                f"{have}{nearest(target, targets)}."
            )


def parse_rule(text: str, operands: Shapes, results: Shapes) -> Rule:
    """Read ``"b t d, d f -> b t f"``.

    Dimensions are separated by spaces, tensors by commas, several factors of one dimension stand in parentheses, major
    first. A factor that no result has is a reduction.
    """
    sides = text.split("->")
    if len(sides) != 2:
        raise RuleError(f"the sharding rule {text!r} needs exactly one '->' between operands and results.")
    left, right = ([_dimensions(tensor, text) for tensor in side.split(",")] for side in sides)
    _check_ranks(text, "operand", left, operands)
    _check_ranks(text, "result", right, results)
    tensors, shapes = [*left, *right], [*operands, *results]
    sizes = _factor_sizes(text, tensors, shapes)
    number = {name: k for k, name in enumerate(sizes)}
    dims: list[Dims] = [tuple(tuple(number[n] for n in dimension) for dimension in tensor) for tensor in tensors]
    in_results = {factor for tensor in dims[len(operands) :] for d in tensor for factor in d}
    return Rule(
        tuple(sizes.values()),
        tuple(dims[: len(operands)]),
        tuple(dims[len(operands) :]),
        reduction=frozenset(number.values()) - in_results,
    )


def _dimensions(tensor: str, text: str) -> Tensor:
    out: Tensor = []
    inside = False
    for token in tensor.replace("(", " ( ").replace(")", " ) ").split():
        if token == "(" and not inside:
            inside = True
            out.append([])
        elif token == ")" and inside:
            inside = False
        elif not token.isidentifier():
            raise RuleError(f"the sharding rule {text!r} has {token!r} where a factor's name was expected.")
        elif inside:
            out[-1].append(token)
        else:
            out.append([token])
    if inside:
        raise RuleError(f"the sharding rule {text!r} has an open parenthesis.")
    return out


def _check_ranks(text: str, what: str, tensors: list[Tensor], shapes: Shapes) -> None:
    if len(tensors) != len(shapes):
        raise RuleError(f"the sharding rule {text!r} has {len(tensors)} {what}s where the call has {len(shapes)}.")
    for tensor, shape in zip(tensors, shapes, strict=True):
        if len(tensor) != len(shape):
            raise RuleError(
                f"the sharding rule {text!r} gives {len(tensor)} dimensions to a tensor of shape {list(shape)}."
            )


def _factor_sizes(text: str, tensors: list[Tensor], shapes: Shapes) -> dict[str, int]:
    """The size of every factor, in order of appearance: from where it stands alone, else what its fellows leave."""
    pairs = [pair for t, s in zip(tensors, shapes, strict=True) for pair in zip(t, s, strict=True)]
    sizes = {name: 0 for dimension, _ in pairs for name in dimension}
    for dimension, size in pairs:
        if len(dimension) == 1:
            sizes[dimension[0]] = size
    for dimension, size in pairs:
        unknown = [name for name in dimension if not sizes[name]]
        known = math.prod(sizes[name] for name in dimension if sizes[name])
        if len(unknown) == 1 and size % known == 0:
            sizes[unknown[0]] = size // known
        elif unknown:
            raise RuleError(f"the sharding rule {text!r} leaves the sizes of {' and '.join(unknown)} open.")
        elif known != size:
            raise RuleError(
                f"in the sharding rule {text!r} the factors {' '.join(dimension)} do not make a dimension of {size}."
            )
    return sizes
