"""The runs of a case: which tensors are constrained, to what, on which mesh."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from math import prod
from typing import Any
from unittest import mock

import jax

import shardwright as sw
from benchmarks.miscompiled.case import Case
from shardwright.compiler.miscompiled import Forbidden
from shardwright.ir.rules import Rule

Spec = tuple[str | None, ...]
"""The axis of each dimension of one tensor."""
Specs = tuple[Spec | None, ...]
"""Of each tensor; None: nothing is said about it."""

MESHES: Mapping[int, Sequence[tuple[dict[str, int], str]]] = {
    1: (({"a": 2}, "a"), ({"a": 4}, "a"), ({"a": 8}, "a"), ({"a": 2, "b": 2}, "a")),
    2: (({"a": 2, "b": 2}, "ab"), ({"a": 2, "b": 4}, "ba")),
    3: (({"a": 2, "b": 2, "c": 2}, "abc"),),
}
"""The meshes on which one, two and three factors are split, and the axis of each; along any other lie copies."""


@dataclass(frozen=True)
class Run:
    """A case on a mesh, with its operands and its results constrained to shardings."""

    mesh: dict[str, int]
    split: dict[int, str]
    """The axis of each factor that is split."""
    where: str
    operands: Specs
    results: Specs
    even: bool
    on_operands: frozenset[int]
    """The factors that the op is split along, not only its result."""

    @property
    def name(self) -> str:
        """It tells the run from the others of its case."""

        def side(specs: Specs) -> str:
            return ",".join("?" if s is None else "".join(a or "." for a in s) or "scalar" for s in specs)

        mesh = " ".join(f"{axis}{size}" for axis, size in self.mesh.items())
        return f"{side(self.operands)}->{side(self.results)} on {mesh}"

    @property
    def devices(self) -> int:
        """How many take part."""
        return prod(self.mesh.values())


def operation(case: Case, *, allowed: bool = False) -> tuple[Any, Any]:
    """The program of a case, and its op; ``allowed``: with the table's word on what may be split, else without."""
    shapes = [jax.ShapeDtypeStruct(i.shape, i.dtype) for i in case.inputs]
    with nullcontext() if allowed else mock.patch("shardwright.ir.classes.forbid", lambda _: Forbidden()):
        program = sw.analyse(case.fn, *shapes, platform=case.platform).program
    found = [op for op in program.ops if op.kind == case.op]
    if not found or program.unused_arguments:
        raise SystemExit(
            f"{case.name}: {case.op!r} should be one of {sorted({op.kind for op in program.ops})}, "
            f"and nothing unused, as {program.unused_arguments} are"
        )
    return program, found[0]


def runs(case: Case) -> Iterator[Run]:
    """Each factor alone and with each other, on every mesh, constrained on both sides or on one of them."""
    program, op = operation(case)
    rule = op.rule if op.rule.tensors else _tied(program, op)
    operand_of = {_origin(program, v): t for t, v in enumerate(op.operands)}
    result_of = {v: len(op.operands) + t for t, v in enumerate(op.results)}
    tensors = [operand_of.get(argument.value) for argument in program.arguments]
    outs = [result_of.get(_origin(program, v, op.results)) for v in program.regions[0].results]
    shapes = [program.values[v].shape for v in (*op.operands, *op.results)]
    majors = sorted({dims[0] for dims_of in rule.tensors for dims in dims_of if dims and rule.sizes[dims[0]] > 1})
    if case.focus:
        wanted = {f for k, d in case.focus for f in rule.tensors[tensors[k]][d]}
        # What Shardy's rule ties to that dimension may be taken apart by ours: the same dimension of the result.
        wanted |= {f for t in outs if t is not None for f in _same(rule, shapes, t, case.focus)}
    else:
        wanted = set(majors)
    op_splits = _Splits(rule, tuple(shapes), tuple(tensors), tuple(outs))
    seen: set[str] = set()
    for chosen in (c for n in ((1, 2, 3) if case.pairs else (1,)) for c in combinations(majors, n)):
        if not wanted & set(chosen):
            continue
        for mesh, axes in MESHES[len(chosen)]:
            for run in op_splits.of(mesh, dict(zip(chosen, axes, strict=True))):
                if run.name not in seen:
                    seen.add(run.name)
                    yield run


def _origin(program: Any, value: int, stop: tuple[int, ...] = ()) -> int | None:
    """What a value was before steps that change no shape: JAX puts pads by nothing, conversions and checks around ops.

    An argument of the program, or one of the values to stop at.
    """
    if value in stop:
        return value
    made_by = program.values[value].op
    if made_by < 0:
        return None if stop else value
    if program.ops[made_by].regions:
        return None
    shape = program.values[value].shape
    alike = [v for v in program.ops[made_by].operands if program.values[v].shape == shape]
    return next((o for v in alike if (o := _origin(program, v, stop)) is not None), None)


def _tied(program: Any, op: Any) -> Rule:
    """Of a loop, a barrier or a branch, whose results are as its operands are, one by one, or come from inside it."""
    operands = [program.values[v].shape for v in op.operands]
    results = [program.values[v].shape for v in op.results]
    sizes: list[int] = []
    dims: list[Any] = []
    for shape in results:
        dims.append(tuple((len(sizes) + d,) for d in range(len(shape))))
        sizes.extend(shape)
    if operands == results:
        return Rule(tuple(sizes), tuple(dims), tuple(dims))
    none = tuple(((),) * len(shape) for shape in operands)
    return Rule(tuple(sizes), none, tuple(dims))


def _same(rule: Any, shapes: Any, t: int, focus: Any) -> set[int]:
    return {f for _, d in focus if d < len(shapes[t]) for f in rule.tensors[t][d]}


@dataclass(frozen=True)
class _Splits:
    """The ways to constrain an op; ``tensors`` and ``outs``: which of its rule's tensors inputs and outputs are."""

    rule: Rule
    shapes: tuple[tuple[int, ...], ...]
    tensors: tuple[int | None, ...]
    outs: tuple[int | None, ...]

    def of(self, mesh: dict[str, int], split: dict[int, str]) -> Iterator[Run]:
        """Both sides, one of them, or parts of them, split by these factors."""
        ins, results = self.specs(self.tensors, split), self.specs(self.outs, split)
        nothing, silent = (None,) * len(ins), (None,) * len(results)
        split_in, split_out = any(map(_is_split, ins)), any(map(_is_split, results))
        blocked = bool(self.rule.whole & set(split))
        run = partial(self._run, mesh, split)
        if not blocked:
            if split_in and split_out:
                yield run("both", ins, results)
                if mesh == {"a": 4}:
                    yield run("operands, result whole", ins, self.specs(self.outs, {}))
            if split_in and not (split_out and len(mesh) > 1):
                yield run("operands", ins, silent)
        if split_out:
            yield run("result", nothing, results)
        if mesh == {"a": 4}:
            several = [k for k, s in enumerate(ins) if _is_split(s)]
            for k in several if not blocked and len(several) > 1 else ():
                alone = tuple(
                    s if j == k else w for j, (s, w) in enumerate(zip(ins, self.specs(self.tensors, {}), strict=True))
                )
                yield run("one operand", alone, results)
        if mesh == {"a": 2, "b": 2} and len(split) == 2:
            yield from self._one_more(mesh, split)
        if mesh in ({"a": 2}, {"a": 4}) and set(split) <= self.rule.reduction:
            yield from self._scattered(mesh, split)

    def _one_more(self, mesh: dict[str, int], split: dict[int, str]) -> Iterator[Run]:
        """The result cut along a further factor, which the op itself is not split along."""
        for factor, axis in split.items():
            operands = self.specs(self.tensors, {factor: axis})
            cut = _is_split(self.specs(self.outs, {f: a for f, a in split.items() if f != factor})[0])
            if cut and factor not in self.rule.whole and any(map(_is_split, operands)):
                yield self._run(mesh, split, "result cut further", operands, self.specs(self.outs, split), {factor})

    def _scattered(self, mesh: dict[str, int], split: dict[int, str]) -> Iterator[Run]:
        """Sums over what is split, each device left with a part of them."""
        operands = self.specs(self.tensors, split)
        for factor in sorted({dim[0] for t in self.outs if t is not None for dim in self.rule.tensors[t] if dim}):
            scattered = self.specs(self.outs, {factor: "a"})
            if self.rule.sizes[factor] > 1 and any(map(_is_split, scattered)):
                both = split | {factor: "a"}
                yield self._run(mesh, both, "sums scattered", operands, scattered, set(split))

    def specs(self, tensors: Sequence[int | None], split: Mapping[int, str]) -> Specs:
        """The shardings of tensors when these factors are split; a factor that a tensor has twice is split once."""
        found: list[Spec | None] = []
        for t in tensors:
            if t is None:
                found.append(None)
                continue
            axes = [split.get(dim[0]) if dim else None for dim in self.rule.tensors[t]]
            found.append(tuple(a if a not in axes[:d] else None for d, a in enumerate(axes)))
        return tuple(found)

    def _run(
        self,
        mesh: dict[str, int],
        split: dict[int, str],
        where: str,
        operands: Specs,
        results: Specs,
        on_operands: Iterable[int] | None = None,
    ) -> Run:
        said = zip((*self.tensors, *self.outs), (*operands, *results), strict=True)
        even = all(
            self.shapes[t][d] % mesh[a] == 0
            for t, spec in said
            if t is not None and spec is not None
            for d, a in enumerate(spec)
            if a is not None
        )
        own = split if where != "result" else ()
        return Run(mesh, split, where, operands, results, even, frozenset(own if on_operands is None else on_operands))


def _is_split(spec: Spec | None) -> bool:
    return spec is not None and any(a is not None for a in spec)
