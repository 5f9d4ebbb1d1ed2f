"""What users type, as what the library takes. Nothing is ever evaluated."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jax.sharding import PartitionSpec

from shardwright.errors import MeshError, PinError, TargetError, nearest
from shardwright.request.mesh import AXES, find_machine
from shardwright.request.targets import is_target
from shardwright.space import TACTICS

_SPECS = ("P", "PartitionSpec")
_DIGITS = 100
"""Of a number that anybody can mean; Python refuses to read those of thousands."""


def parse_mesh(text: str) -> dict[str, int] | int | str:
    """``data=4,model=2`` as a dict, ``16`` as a number of devices, where they are (``tpu:v5e:4x4``) as it is."""
    text = text.strip()
    if text.isdecimal() and len(text) < _DIGITS:
        return int(text)
    if is_target(text):
        return text
    mesh: dict[str, int] = {}
    for part in text.split(","):
        name, equals, size = (piece.strip() for piece in part.partition("="))
        if not equals or not name or not size.isdecimal() or len(size) >= _DIGITS:
            raise MeshError(
                f"--mesh takes axes and their sizes (data=4,model=4), a number of devices (16), or where they are "
                f"(tpu:v5e:4x4), not {text[:100]!r}."
            )
        if name in mesh:
            raise MeshError(f"--mesh {text!r} has the axis {name!r} twice.")
        mesh[name] = int(size)
    return mesh


def mesh_devices(text: str | None) -> int | None:
    """How many devices a mesh has; None where none was given."""
    if text is None:
        return None
    mesh = parse_mesh(text)
    if isinstance(mesh, dict):
        return math.prod(mesh.values())
    return find_machine(mesh, None if isinstance(mesh, str) else "cpu").shapes[0].devices


def parse_pins(texts: Iterable[str], mesh: dict[str, int] | int | str | None) -> list[Any]:
    """``fsdp:data``, ``batch.x=P('data', None)``, ``data:batch.x[0]`` as tactics, specs by path and decisions.

    Several tactics and axes may be given at once, as ``compare`` prints them: ``expert_parallel+fsdp:data,model``.
    """
    if isinstance(mesh, dict):
        return [_pin(text.strip(), list(mesh), named=True) for text in texts]
    return [_pin(text.strip(), AXES, named=False) for text in texts]


def _pin(text: str, axes: Sequence[str], *, named: bool) -> Any:
    """A pin; where the user has not ``named`` the axes of the mesh, a decision may name another."""
    first, colon, rest = (piece.strip() for piece in text.partition(":"))
    tactics = [name.strip() for name in first.split("+")]
    if colon and all(name in TACTICS for name in tactics):
        return f"{first}:{rest}"
    if colon and (first in axes or (not named and first.isidentifier() and rest.endswith("]"))):
        return (first, rest)
    path, equals, spec = (piece.strip() for piece in text.partition("="))
    if equals and path and spec.startswith(tuple(f"{name}(" for name in _SPECS)):
        return {path: parse_spec(spec, text)}
    if colon and "=" not in first:
        raise PinError(
            f"--pin {text!r}: {first!r} is neither a tactic nor an axis of the mesh{nearest(first, [*TACTICS, *axes])}."
        )
    raise PinError(
        f"--pin takes a tactic (fsdp:data), a spec (batch.x=P('data')) or a decision (data:batch.x[0]), not {text!r}."
    )


def parse_spec(text: str, where: str) -> PartitionSpec:
    """``P('data', None, ('model', 'x'))``; names of axes may stand without quotes, which shells would take away."""
    wrong = PinError(f"--pin {where!r}: a spec is written as P('data', None, ('x', 'y')), not {text!r}.")
    try:
        call = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise wrong from None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id not in _SPECS:
        raise wrong
    if call.keywords:
        raise wrong
    return PartitionSpec(*(_entry(node, wrong) for node in call.args))


def _entry(node: ast.expr, wrong: PinError) -> str | tuple[str, ...] | None:
    if isinstance(node, ast.Constant) and node.value is None:
        return None
    if isinstance(node, (ast.Tuple, ast.List)):
        return tuple(_axis(entry, wrong) for entry in node.elts)
    return _axis(node, wrong)


def _axis(node: ast.expr, wrong: PinError) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Name):
        return node.id
    raise wrong


def parse_pairs(texts: Iterable[str], option: str, convert: Callable[[str], Any]) -> dict[str, Any]:
    """``NAME=VALUE`` of an option that may be given several times."""
    out = {}
    for text in texts:
        name, equals, value = (piece.strip() for piece in text.partition("="))
        if not equals or not name:
            raise TargetError(f"{option} takes NAME=VALUE, not {text!r}.")
        out[name] = convert(value)
    return out


def parse_literal(text: str) -> Any:
    """``24`` → 24, ``true`` → True, ``bfloat16`` → "bfloat16"."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text
