"""Random small Pallas kernels, as data that JAX and NumPy both run.

Case number k is the same kernel everywhere. NumPy runs one as Pallas' interpreter does: step by step in order, with
memory that holds not-a-number until it is written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import count, product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from grammar.kernel_stores import MASKS, PLAIN_MODES, TOGETHER_MODES, Here, Mask, Store

_MOST_STEPS = 64


@dataclass(frozen=True)
class Place:
    """The number of a block along a dimension: a grid index ``k``, and what is made of it."""

    kind: str
    k: int = 0
    j: int = 0
    n: int = 1
    scalars: int = 0

    def of(self, index: Any, scalars: Any, lib: Any = np) -> Any:
        """Its value in a step of the grid."""
        i, j, n = index[self.k], index[self.j], self.n
        match self.kind:
            case "index":
                return i
            case "zero":
                return 0
            case "divided":
                return i // n
            case "quotient":
                return lax.div(i, jnp.int32(n)) if lib is jnp else i // n
            case "rest":
                return i % n
            case "joint":
                return i * n + j
            case "scaled":
                return i * n
            case "offset":
                return i + n
            case "reversed":
                return n - 1 - i
            case "chosen":
                return lib.where(i < j, i, 0)
            case "looked up":
                return scalars[self.scalars][i]
            case "looked up jointly":
                return scalars[self.scalars][i * n + j]
        raise AssertionError(self.kind)

    def __str__(self) -> str:
        made = {"index": "", "zero": "0", "joint": f"*{self.n}+{self.j}"}.get(self.kind, f" {self.kind} {self.n}")
        return f"{self.k}{made}"


@dataclass
class Array:
    """An operand or result: its blocks, and where they are; ``held``: every step has all of it."""

    places: list[Place]
    sizes: list[int]
    squeezed: list[bool]
    shape: tuple[int, ...] = ()
    held: bool = False

    def spec(self) -> Any:
        if self.held:
            return pl.BlockSpec(self.shape, lambda *_: (0,) * len(self.shape))

        def index_map(*given: Any) -> tuple[Any, ...]:
            index, scalars = given[: self.rank], given[self.rank :]
            return tuple(place.of(index, scalars, jnp) for place in self.places)

        return pl.BlockSpec([None if s else b for b, s in zip(self.sizes, self.squeezed, strict=True)], index_map)

    rank: int = 0

    @property
    def block(self) -> tuple[int, ...]:
        if self.held:
            return self.shape
        return tuple(b for b, s in zip(self.sizes, self.squeezed, strict=True) if not s)

    def starts(self, index: Any, scalars: Any) -> list[int]:
        return [int(p.of(index, scalars)) * b for p, b in zip(self.places, self.sizes, strict=True)]

    def view(self, array: Any, index: Any, scalars: Any) -> Any:
        if self.held:
            return array
        found = []
        for start, b, squeezed, size in zip(
            self.starts(index, scalars), self.sizes, self.squeezed, array.shape, strict=True
        ):
            if not 0 <= start <= size - b:
                raise IndexError(start)
            found.append(start if squeezed else slice(start, start + b))
        return array[(*found, ...)]


@dataclass
class Case:
    """A kernel. ``terms`` are what a step adds up, ``stores`` what becomes of it in each result."""

    number: int
    grid: tuple[int, ...]
    scalars: list[Any] = field(default_factory=list)
    operands: list[Array] = field(default_factory=list)
    results: list[Array] = field(default_factory=list)
    terms: list[tuple[Any, ...]] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    semantics: tuple[str, ...] | None = None
    aliases: dict[int, int] = field(default_factory=dict)
    read: tuple[int, ...] = ()
    batch: int = 0
    batched: tuple[bool, ...] = ()

    def __str__(self) -> str:
        def shown(array: Array) -> str:
            return "whole" if array.held else ",".join(map(str, array.places))

        parts = [f"grid {self.grid}", *(shown(a) for a in self.operands), "->", *(shown(a) for a in self.results)]
        more = [f"{t[0]}({t[1]})" for t in self.terms if t[0] != "block"]
        more += map(str, self.stores)
        return " ".join([*parts, *more, "vmap" * bool(self.batch), "alias" * bool(self.aliases)]).strip()

    @property
    def alone(self) -> Case:
        """Without ``vmap``."""
        return replace(self, batch=0, batched=())

    def arrays(self, draw: int = 0) -> dict[str, Any]:
        """Arguments, scalars first."""
        random = np.random.default_rng((self.number, draw))
        found: dict[str, Any] = {f"s{n}": values for n, values in enumerate(self.scalars)}
        for n, array in enumerate(self.operands):
            shape = (self.batch, *array.shape) if self.batch and self.batched[n] else array.shape
            values = random.normal(size=shape).astype(np.float32)
            # What is rounded stays above zero, so that parts of a sum are no larger than all of it.
            found[f"x{n}"] = np.abs(values) if any(store.rounds for store in self.stores) else values
        return found

    def run(self, arrays: dict[str, Any], interpret: bool = False) -> Any:
        """The kernel by JAX."""
        given = list(arrays.values())
        tables = len(self.scalars)
        scratch = [pltpu.VMEM(result.block, jnp.float32) for result in self._with_scratch()]
        spec = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=tables,
            grid=self.grid,
            in_specs=[array.spec() for array in self.operands],
            out_specs=[array.spec() for array in self.results],
            scratch_shapes=scratch,
        )
        call = pl.pallas_call(
            self._body,
            grid_spec=spec,
            out_shape=[
                jax.ShapeDtypeStruct(array.shape, jnp.bfloat16 if store.rounds else jnp.float32)
                for array, store in zip(self.results, self.stores, strict=True)
            ],
            compiler_params=pltpu.CompilerParams(dimension_semantics=self.semantics) if self.semantics else None,
            input_output_aliases={tables + operand: result for operand, result in self.aliases.items()},
            cost_estimate=pl.CostEstimate(flops=10**15, transcendentals=0, bytes_accessed=10**9),
            interpret=interpret,
        )
        if self.batch:
            axes = [None] * tables + [0 if batched else None for batched in self.batched]
            call = jax.vmap(call, in_axes=axes)
        results = call(*given)
        return tuple(results[r] for r in self.read)

    def _with_scratch(self) -> list[Array]:
        return [result for result, store in zip(self.results, self.stores, strict=True) if store.in_scratch]

    def _body(self, *refs: Any) -> None:
        self.step(refs, Here(pl.program_id, pl.num_programs, jnp))

    def step(self, refs: Any, here: Here) -> None:
        """What a step does; ``refs`` are of scalars, operands, results and scratch memory."""
        a, b = len(self.scalars), len(self.scalars) + len(self.operands)
        scalars, blocks, outs = refs[:a], refs[a:b], refs[b : b + len(self.results)]
        scratch = list(refs[b + len(self.results) :])
        value = 0.0
        for kind, *given in self.terms:
            value = value + self._term(kind, given, blocks, scalars, here)
        for out, result, store in zip(outs, self.results, self.stores, strict=True):
            memory = scratch.pop(0) if store.in_scratch else None
            store.run(out, value * here.pattern(result.block), memory, here, blocks, scalars)

    def _term(self, kind: str, given: Any, blocks: Any, scalars: Any, here: Here) -> Any:
        number, lib = here.number, here.lib
        match kind:
            case "block":
                return (given[0] + 1) * lib.sum(blocks[given[0]][...])
            case "number":
                return 0.3 * number(given[0])
            case "remainder":
                return 0.3 * (number(given[0]) % given[1])
            case "scalar":
                return 0.1 * scalars[given[1]][number(given[0])]
            case "row":
                return 0.7 * lib.sum(blocks[given[1]][number(given[0])])
            case "every other":
                return lib.where(number(given[0]) % given[1] == 0, 1.5, 2.5)
        raise AssertionError(kind)

    def simulated(self, grid: tuple[int, ...], arrays: list[Any], shapes: Any, counts: tuple[int, ...]) -> list[Any]:
        """The results by NumPy, on a grid and arrays that may be parts; ``counts`` are what the kernel is told."""
        a = len(self.scalars)
        outs = [np.full(shape, np.nan) for shape in shapes]
        for operand, result in self.aliases.items():
            outs[result] = arrays[a + operand].astype(np.float64)
        scratch = [np.full(result.block, np.nan) for result in self._with_scratch()]
        scalars = arrays[:a]
        for index in product(*map(range, grid)):
            blocks = [s.view(x, index, scalars) for s, x in zip(self.operands, arrays[a:], strict=True)]
            views = [s.view(x, index, scalars) for s, x in zip(self.results, outs, strict=True)]
            self.step([*scalars, *blocks, *views, *scratch], Here(index.__getitem__, counts.__getitem__, np))
        return outs


def draw_case(number: int) -> Case:
    """A random kernel, each of whose results has a number somewhere."""
    for attempt in count():
        case = _Sketch(number, attempt).case()
        arrays = list(case.alone.arrays().values())
        results = case.simulated(case.grid, arrays, [r.shape for r in case.results], case.grid)
        if all(np.isfinite(result).any() for result in results):
            return case
    raise AssertionError


class _Sketch:
    def __init__(self, number: int, attempt: int) -> None:
        self.number = number
        self.random = np.random.default_rng((19, number, attempt))
        self.scalars: list[Any] = []
        self.grid = self._grid()

    def chance(self, of: float) -> bool:
        return bool(self.random.random() < of)

    def pick(self, choices: Any) -> Any:
        return choices[int(self.random.integers(len(choices)))]

    def _grid(self) -> tuple[int, ...]:
        rank = self.pick((1, 2, 2, 3, 3, 4))
        while True:
            grid = tuple(int(self.pick((2, 2, 3, 4, 4, 6, 8))) for _ in range(rank))
            if math.prod(grid) <= _MOST_STEPS:
                return grid

    def case(self) -> Case:
        case = Case(self.number, self.grid)
        case.results = [self._result() for _ in range(self.pick((1, 1, 1, 2)))]
        case.operands = [self._operand() for _ in range(self.pick((1, 2, 2, 3)))]
        case.terms = [("block", n) for n in range(len(case.operands))]
        self._asking(case)
        case.stores = [self._store(self._apart_from(result), case) for result in case.results]
        case.scalars = self.scalars
        if self.chance(0.15):
            self._alias(case)
        case.read = (0,) if len(case.results) > 1 and self.chance(0.3) else tuple(range(len(case.results)))
        self._declare(case)
        if self.chance(0.2) and math.prod(self.grid) <= _MOST_STEPS // 2:
            case.batch = self.pick((2, 3, 4))
            case.batched = tuple(n == 0 or self.chance(0.6) for n in range(len(case.operands)))
            if case.aliases:
                case.batched = (True,) * len(case.operands)
        return case

    def _place(self, k: int, kinds: Any) -> Place:
        size, kind = self.grid[k], self.pick(kinds)
        j = self.pick([j for j in range(len(self.grid)) if j != k] or [k])
        match kind:
            case "divided" | "quotient" | "rest":
                return Place(kind, k, n=self.pick([n for n in range(2, size + 1) if size % n == 0 or self.chance(0.2)]))
            case "joint" if j != k:
                return Place(kind, k, j, self.grid[j])
            case "scaled" | "offset":
                return Place(kind, k, n=self.pick((1, 2)) if kind == "offset" else 2)
            case "reversed":
                return Place(kind, k, n=size)
            case "chosen" if j != k:
                return Place(kind, k, j)
            case "looked up":
                return Place(kind, k, scalars=self._table(size))
            case "looked up jointly" if j != k:
                return Place(kind, k, j, self.grid[j], self._table(size * self.grid[j]))
        return Place("index", k)

    def _table(self, size: int) -> int:
        same = [n for n, values in enumerate(self.scalars) if len(values) == size]
        if same and self.chance(0.5):
            return int(self.pick(same))
        values = self.random.integers(0, 4, size).astype(np.int32)
        values[int(self.random.integers(size))] = 3
        self.scalars.append(values)
        return len(self.scalars) - 1

    def _array(self, places: list[Place]) -> Array:
        sizes = [int(self.pick((1, 1, 2, 3))) for _ in places]
        squeezed = [b == 1 and d > 0 and self.chance(0.4) for d, b in enumerate(sizes)]
        most = [
            max(int(p.of(index, self.scalars)) for index in product(*map(range, self.grid)))
            + (p.n if p.kind == "scaled" else 1)
            for p in places
        ]
        more = [int(self.chance(0.05)) for _ in places]
        shape = tuple((n + m) * b for n, m, b in zip(most, more, sizes, strict=True))
        return Array(places, sizes, squeezed, shape, rank=len(self.grid))

    def _result(self) -> Array:
        kept = [int(k) for k in self.random.permutation(len(self.grid)) if self.chance(0.75)]
        if self.chance(0.3):  # as what is added up over the last
            kept = [k for k in kept if k < len(self.grid) - 1]
        kinds = ("index",) * 24 + ("divided", "rest", "reversed", "joint", "scaled", "looked up")
        places = [self._place(k, kinds) for k in kept]
        if not places or self.chance(0.2):
            places.append(Place("zero"))
        return self._array(places[:4])

    def _operand(self) -> Array:
        kinds = ("index",) * 24 + (
            "zero", "divided", "divided", "quotient", "rest", "joint", "scaled", "offset", "reversed", "chosen",
            "looked up", "looked up", "looked up jointly",
        )  # fmt: skip
        used = [int(k) for k in self.random.permutation(len(self.grid)) if self.chance(0.7)]
        if self.chance(0.1) and used:
            used.append(used[0])
        places = [self._place(k, kinds) for k in used]
        return self._array(places[:4] or [Place("zero")])

    def _asking(self, case: Case) -> None:
        """Things that the body does with numbers of steps."""
        k = int(self.pick(range(len(self.grid))))
        divisors = [n for n in range(2, self.grid[k] + 1) if self.grid[k] % n == 0]
        if self.chance(0.1):
            case.terms.append(("number", k))
        if self.chance(0.1):
            case.terms.append((self.pick(("remainder", "every other")), k, self.pick(divisors)))
        if self.chance(0.15):
            case.terms.append(("scalar", k, self._table(self.grid[k])))
        if self.chance(0.12):
            shape = (self.grid[k], int(self.pick((2, 3))))
            array = Array([Place("zero")] * 2, list(shape), [False, False], shape, held=True, rank=len(self.grid))
            case.operands.append(array)
            case.terms.append(("row", k, len(case.operands) - 1))
            if self.chance(0.2):
                case.terms.append(("block", len(case.operands) - 1))

    def _apart_from(self, result: Array) -> tuple[int, ...]:
        """The grid indices that a result's place does not depend on."""
        used = {k for place in result.places if place.kind != "zero" for k in _indices(place)}
        return tuple(k for k in range(len(self.grid)) if k not in used)

    def _store(self, over: tuple[int, ...], case: Case) -> Store:
        mode = str(self.pick(TOGETHER_MODES if over else PLAIN_MODES))
        if mode != "scratch sum":
            return Store(mode, over)
        words = [self.pick(("", "", "", "always written", "alike", "alike", "twice in the last"))]
        words += [self.pick(("", "", "", "", "rounded", "rounded", "rounded", "doubled"))]
        mask = None
        if self.chance(0.5):
            mask = self._mask(over, len(case.operands))
            if over[-1] == len(self.grid) - 1 and self.chance(0.8):
                over = over[-1:]
            if words[0] in ("", "always written") and self.chance(0.3):
                words.append(self.pick(("copied first", "read before")))
        return Store(mode, over, tuple(filter(None, words)), mask)

    def _mask(self, over: tuple[int, ...], operands: int) -> Mask:
        kind, k = self.pick(MASKS), over[-1]
        others = [j for j in range(len(self.grid)) if j != k]
        match kind:
            case "number":
                return Mask(kind, k)
            case "table by number":
                return Mask(kind, k, self._table(self.grid[k]))
            case "block":
                return Mask(kind, int(self.pick(range(operands))))
            case "sum":
                return Mask(kind)
            case "table" if others:
                j = int(self.pick(others))
                return Mask(kind, j, self._table(self.grid[j]))
            case "another number" if others:
                return Mask(kind, int(self.pick(others)))
        return Mask("rows", int(self.pick((0, 1))))

    def _alias(self, case: Case) -> None:
        result = case.results[0]
        if case.stores[0].rounds:
            return
        case.operands.append(replace(result))
        case.terms.append(("block", len(case.operands) - 1))
        case.aliases = {len(case.operands) - 1: 0}
        if self.chance(0.5):
            case.stores[0] = Store("added to", case.stores[0].over)

    def _declare(self, case: Case) -> None:
        """What is true of the grid: over which indices nothing is kept in memory."""
        if not self.chance(0.4):
            return
        apart = [self._apart_from(result) for result in case.results]
        scratch = [over for over, store in zip(apart, case.stores, strict=True) if store.in_scratch]
        if any(store.mode == "scratch kept" for store in case.stores):
            return
        if any(k < j for over in scratch for k in over for j in range(len(self.grid)) if j not in over and k < j):
            return
        together = {k for over in apart for k in over}
        case.semantics = tuple("arbitrary" if k in together else "parallel" for k in range(len(self.grid)))


def _indices(place: Place) -> set[int]:
    return {place.k, place.j} if place.kind in ("joint", "chosen", "looked up jointly") else {place.k}
