"""The parameters of a ``pallas_call`` for a part of its grid, on parts of its arrays.

The grid and the arrays become smaller, blocks stay as they are. An array that the kernel has in memory as a whole, as
it has prefetched scalars, is smaller in there, too; and where the kernel adds up over a grid index that is split, the
last of its steps is another. Like ``_kernel_code.py``, this file reads what JAX does not promise to keep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jax.extend import core

from shardwright._kernel import Kernel
from shardwright._kernel_code import CALLS, open_jaxpr

_Types = Mapping[Any, Any]


def part_params(
    params: Mapping[str, Any],
    kernel: Kernel,
    parts: Mapping[int, int],
    shapes: Sequence[tuple[int, ...]],
    sums: frozenset[int],
) -> dict[str, Any]:
    """The parameters, with grid indices split into ``parts`` and with arrays of these shapes.

    ``shapes`` are of scalars, operands and results; ``sums``: grid indices over which results are added up.
    """
    mapping = params["grid_mapping"]
    grid = tuple(size // parts[k] if k in parts else size for k, size in enumerate(mapping.grid))
    scalars, bounds = len(kernel.scalars), kernel.bounds
    body = open_jaxpr(params["jaxpr"])
    types: dict[Any, Any] = {}
    mappings = []
    for t, v in enumerate(body.invars[: len(shapes) - bounds], bounds):
        mapped = mapping.block_mappings[t - scalars] if t >= scalars else None
        blocks = None if mapped is None else _blocks(mapped, shapes[t])
        if blocks is None and shapes[t] != kernel.shapes[t]:
            types[v] = resized(v.aval, shapes[t])
        elif blocks is not None and mapped is not None and blocks != mapped.block_shape:
            types[v] = resized(v.aval, tuple(size.block_size for size in blocks if hasattr(size, "block_size")))
        if mapped is not None:
            held = {"block_shape": blocks, "transformed_block_aval": types[v]} if v in types else {}
            mappings.append(_mapping(mapped, shapes[t], held, shapes[bounds:scalars], len(grid)))
    own = [k for k in range(len(grid)) if k not in mapping.vmapped_dims]
    last = {own.index(k): (kernel.grid[k] - 1, grid[k] - 1) for k in sums if k in parts}
    made = dict(params)
    if types or last:
        made["jaxpr"] = _closed(params["jaxpr"], _Rewriter(last).jaxpr(body, types, frozenset()))
    avals = list(mapping.index_map_avals)
    for n, shape in enumerate(shapes[bounds:scalars], len(grid)):
        if avals[n].shape != shape:
            avals[n] = resized(avals[n], shape)
    made["grid_mapping"] = replace(mapping, grid=grid, block_mappings=tuple(mappings), index_map_avals=tuple(avals))
    results = shapes[len(shapes) - len(kernel.results) :]
    made["out_avals"] = tuple(
        aval.update(shape=shape, sharding=None) for aval, shape in zip(params["out_avals"], results, strict=True)
    )
    return made


def resized(aval: Any, shape: tuple[int, ...]) -> Any:
    """The type of an array, or of memory for one, with another shape."""
    if hasattr(aval, "inner_aval"):
        return aval.update(inner_aval=aval.inner_aval.update(shape=shape, sharding=None))
    return aval.update(shape=shape, sharding=None)


def _blocks(mapped: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """The block of an array of another shape: along dimensions of which it was all, it is smaller as well."""
    return tuple(
        replace(size, block_size=whole) if getattr(size, "block_size", 1) > whole else size
        for size, whole in zip(mapped.block_shape, shape, strict=True)
    )


def _mapping(
    mapped: Any,
    shape: tuple[int, ...],
    changes: dict[str, Any],
    scalars: Sequence[tuple[int, ...]],
    indices: int,
) -> Any:
    """Of an array of another shape."""
    changes["array_aval"] = mapped.array_aval.update(shape=shape, sharding=None)
    index_map = open_jaxpr(mapped.index_map_jaxpr)
    refs = index_map.invars[indices:]
    types = {v: resized(v.aval, shape) for v, shape in zip(refs, scalars, strict=True) if v.aval.shape != shape}
    if types:
        rewritten = _Rewriter({}).jaxpr(index_map, types, frozenset())
        changes["index_map_jaxpr"] = _closed(mapped.index_map_jaxpr, rewritten)
    return mapped.replace(**changes)


def _closed(before: Any, jaxpr: Any) -> Any:
    """A jaxpr closed over what another is, if that is."""
    return jaxpr if open_jaxpr(before) is before else before.replace(jaxpr=jaxpr)


class _Rewriter:
    """Gives memory other types in a jaxpr and in those inside of it; and grid indices another last number."""

    def __init__(self, last: Mapping[int, tuple[int, int]]) -> None:
        self.last = last

    def jaxpr(self, jaxpr: Any, types: _Types, numbers: frozenset[tuple[Any, int]]) -> Any:
        """``types``: of parameters that change; ``numbers``: parameters that are grid indices."""
        names = {v: core.Var(aval) for v, aval in types.items()}
        axis_of = dict(numbers)
        equations = []
        for equation in jaxpr.eqns:
            name = equation.primitive.name
            if name == "program_id":
                axis_of[equation.outvars[0]] = equation.params["axis"]
            inner = self._inner(equation, names, axis_of)
            if CALLS.get(name, "") in equation.params:
                axis_of |= self._returned(equation, axis_of)
            invars = [names.get(v, v) if not isinstance(v, core.Literal) else v for v in equation.invars]
            if name == "eq":
                invars = self._compared(equation.invars, invars, axis_of)
            equations.append(equation.replace(invars=invars, params={**equation.params, **inner}))
        return jaxpr.replace(
            constvars=[names.get(v, v) for v in jaxpr.constvars],
            invars=[names.get(v, v) for v in jaxpr.invars],
            eqns=equations,
        )

    def _returned(self, equation: Any, axis_of: Mapping[Any, int]) -> dict[Any, int]:
        """The results of a call that are grid indices."""
        jaxpr = open_jaxpr(equation.params[CALLS[equation.primitive.name]])
        inside = {
            mine: axis_of[v]
            for v, mine in zip(equation.invars, jaxpr.invars, strict=True)
            if not isinstance(v, core.Literal) and v in axis_of
        }
        for each in jaxpr.eqns:
            if each.primitive.name == "program_id":
                inside[each.outvars[0]] = each.params["axis"]
            elif CALLS.get(each.primitive.name, "") in each.params:
                inside |= self._returned(each, inside)
        outs = zip(equation.outvars, jaxpr.outvars, strict=True)
        return {out: inside[v] for out, v in outs if not isinstance(v, core.Literal) and v in inside}

    def _compared(self, before: Sequence[Any], invars: list[Any], axis_of: Mapping[Any, int]) -> list[Any]:
        """What is compared, with the last number of a part in place of that of the whole grid."""
        for v, c in ((0, 1), (1, 0)):
            if isinstance(before[v], core.Literal) or not isinstance(before[c], core.Literal):
                continue
            whole, part = self.last.get(axis_of.get(before[v], -1), (None, 0))
            if before[c].val == whole:
                invars[c] = core.Literal(np.dtype(before[c].aval.dtype).type(part), before[c].aval)
        return invars

    def _inner(self, equation: Any, names: Mapping[Any, Any], axis_of: Mapping[Any, int]) -> dict[str, Any]:
        """The jaxprs among an equation's parameters, rewritten."""
        name, params, given = equation.primitive.name, equation.params, equation.invars
        if name == "cond":
            return {"branches": tuple(self._bound(b, given[1:], names, axis_of) for b in params["branches"])}
        if name == "while":
            first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
            goes_on = [*given[:first], *given[second:]]
            return {
                "cond_jaxpr": self._bound(params["cond_jaxpr"], goes_on, names, axis_of, first),
                "body_jaxpr": self._bound(params["body_jaxpr"], given[first:], names, axis_of, second - first),
            }
        if name == "scan":
            consts = params["num_consts"] if "num_consts" in params else len(params["ft_in"].unpack()[0])
            return {"jaxpr": self._bound(params["jaxpr"], given, names, axis_of, consts)}
        if name == "run_scoped":
            return {"jaxpr": self._bound(params["jaxpr"], given, names, axis_of, scoped=True)}
        if CALLS.get(name, "") in params:
            return {CALLS[name]: self._bound(params[CALLS[name]], given, names, axis_of)}
        return {}

    def _bound(
        self,
        inner: Any,
        given: Sequence[Any],
        names: Mapping[Any, Any],
        axis_of: Mapping[Any, int],
        still: int | None = None,
        *,
        scoped: bool = False,
    ) -> Any:
        """A jaxpr that is given variables of the one around it, of which the first ``still`` do not change in it."""
        jaxpr = open_jaxpr(inner)
        variables = jaxpr.constvars if scoped else jaxpr.invars
        pairs = [(v, mine) for v, mine in zip(given, variables, strict=True) if not isinstance(v, core.Literal)]
        types = {mine: names[v].aval for v, mine in pairs if v in names}
        unchanged = {mine for _, mine in zip(given, variables[:still], strict=False)}
        numbers = frozenset((mine, axis_of[v]) for v, mine in pairs if v in axis_of and mine in unchanged)
        return _closed(inner, self.jaxpr(jaxpr, types, numbers))
