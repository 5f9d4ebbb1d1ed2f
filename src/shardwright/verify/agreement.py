"""Whether two programs computed the same: every result, and what was added to the arguments that a result carries.

A training step returns ``p - 0.1 * g``, and beside p a wrong g is hardly to be seen; an optimizer's ``0.9 * m + g``
hides it as well. So a result that consists mostly of arguments is compared once more without them. With r the plain
function's result and a₁ … aₖ the arguments of its shape that explain most of it (``find_carried``):

    added(r)  =  r - Σ cⱼ·aⱼ, cⱼ by least squares, for each program by itself                       (``without``)
    noise     =  4·ε·|r|, the rounding of r's type, and how far the plain function's own added(r)
                 moves where all inputs move by a rounding of the program's coarsest type           (``_movement``)
    scale     =  the largest |added(r)| that is more than 3·noise; if none is, nothing can be seen  (``View.seen``)
    allowed   =  tolerance·scale + noise, for the difference of the two programs in each entry      (``View.judge``)

The result itself is compared in the same way, with r in place of added(r).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

# Sums in another order differ by a few roundings of the type; a training step takes a few hundred ops.
TOLERANCE = {"float64": 1e-9, "float32": 3e-4, "bfloat16": 6e-2, "float16": 1e-2, "complex64": 3e-4, "complex128": 1e-9}
_COARSE_TOLERANCE = 0.5
_CANCELLED, _MOST_CANCELLED = 10, 0.03
"""A gradient is what is left of terms that cancel, so that their roundings are a larger part of it."""
_ROUNDINGS = 4
_NUDGES, _LARGE_NUDGES = 3, 10
_ABOVE = 3
_FEW_ENTRIES = 16
"""With fewer, chance and least squares explain too much: only an argument of the result's own path counts."""
_MOST_ARGUMENTS = 3
_SAMPLE = 4096

Arrays = Sequence[np.ndarray]
Row = dict[str, Any]


@dataclass(frozen=True)
class View:
    """What another program should have, and how far it may be from it; ``argument`` is what it is added to."""

    expected: np.ndarray
    noise: np.ndarray
    tolerance: float
    arguments: tuple[np.ndarray, ...] = ()
    argument: int | None = None

    @property
    def seen(self) -> np.ndarray:
        """The entries that are more than noise."""
        seen: np.ndarray = np.abs(self.expected) > _ABOVE * self.noise
        return seen

    @property
    def most(self) -> float:
        """The largest entry, or noise."""
        return float(np.max(np.maximum(np.abs(self.expected), self.noise), initial=0.0))

    def judge(self, result: np.ndarray) -> tuple[float, float] | None:
        """The difference that is furthest from what is allowed and what is, as parts of the largest entry that is seen.

        None where none is.
        """
        seen = self.seen
        if not seen.any():
            return None
        scale = float(np.max(np.abs(self.expected[seen])))
        found = without(result, self.arguments)
        if not np.isfinite(found).all():
            return float("inf"), self.tolerance
        difference, allowed = np.abs(found - self.expected), self.tolerance * scale + self.noise
        excess = difference / allowed
        k = np.argmax(np.where(seen | (excess > 1), excess, -1))
        return float(difference.flat[k] / scale), float(allowed.flat[k] / scale)


@dataclass(frozen=True)
class Reference:
    """What the plain function made of its flat inputs, and of inputs that differ from them by a rounding.

    ``named`` has for results the argument of the same path; ``coarsest`` is the program's floating-point type with the
    fewest bits.
    """

    inputs: Arrays
    results: Arrays
    nudged_inputs: Arrays
    nudged_results: Arrays
    named: Mapping[int, int] = field(default_factory=dict)
    coarsest: str = "float32"

    def views(self, leaf: int) -> tuple[View, ...]:
        """The ways in which a result is looked at: whole, and without the arguments it carries; none if not finite."""
        result, nudged = self.results[leaf], self.nudged_results[leaf]
        if not is_inexact(result) or not np.isfinite(wide(result)).all():
            return ()
        tolerance = TOLERANCE[str(result.dtype)]
        whole = View(wide(result), _movement(wide(result), wide(nudged)), tolerance)
        carried = find_carried(result, self.inputs, self.named.get(leaf))
        if not carried:
            return (whole,)
        arguments = tuple(self.inputs[a] for a in carried)
        expected = without(result, arguments)
        moved = _movement(expected, without(nudged, tuple(self.nudged_inputs[a] for a in carried)))
        noise = moved + _ROUNDINGS * epsilon(str(result.dtype)) * np.abs(wide(result))
        tolerance = max(
            tolerance, min(_CANCELLED * tolerance, _MOST_CANCELLED), TOLERANCE.get(self.coarsest, _COARSE_TOLERANCE)
        )
        return whole, View(expected, noise, tolerance, arguments, carried[0])

    def hidden(self) -> dict[int, View]:
        """Results with what is added in them, where that is so little that it is lost in most entries."""
        views = {k: view for k in range(len(self.results)) for view in self.views(k) if view.argument is not None}
        return {k: view for k, view in views.items() if view.seen.mean() < 0.5}


def compare(results: Arrays, found: Arrays, reference: Reference | None = None) -> dict[str, Any]:
    """The result that is furthest from what is allowed, and arguments to which too little is added to be seen."""
    rows: list[Row] = []
    unseen: list[int] = []
    for k, (a, b) in enumerate(zip(results, found, strict=False)):
        views = reference.views(k) if reference is not None else ()
        if not views:
            rows.append(_row(k, _difference(a, b)))
        for view in views:
            judged = view.judge(b)
            if judged is not None or view.argument is None:
                rows.append(_row(k, judged or _difference(a, b), view.argument))
            elif _same(view.arguments[0], a) and not _same(view.arguments[0], b):
                rows.append(_row(k, (float("inf"), view.tolerance), view.argument))
            else:
                unseen.append(view.argument)
    return _summary(rows, unseen, len(results), len(results) == len(found))


def compare_again(first: dict[str, Any], hidden: Mapping[int, View], found: Arrays, other: Reference) -> dict[str, Any]:
    """A comparison with what was ``hidden`` in it looked at on other inputs.

    They had zeros put in, and where something is divided by them they tell nothing: there, more is added than before.
    """
    rows: list[Row] = [first["worst"]]
    unseen = list(first["unseen"])
    for k, before in hidden.items():
        for view in other.views(k):
            if view.argument == before.argument and view.most <= 10 * before.most:
                unchanged = _same(view.arguments[0], other.results[k])  # even where there is nothing to round
                judged = view.judge(found[k])
                if unchanged:
                    judged = 0.0 if _same(view.arguments[0], found[k]) else float("inf"), view.tolerance
                if judged is not None:
                    rows.append(_row(k, judged, view.argument))
                    unseen = [argument for argument in unseen if argument != view.argument]
    return _summary(rows, unseen, first["leaves"], first["ok"])


def find_carried(result: np.ndarray, inputs: Arrays, named: int | None = None) -> tuple[int, ...]:
    """The arguments of which a result mostly consists, the greatest part first; none for a result of another kind."""
    if result.size < _FEW_ENTRIES:
        return () if named is None or not is_inexact(inputs[named]) else (named,)
    some = np.random.default_rng(result.size).choice(result.size, min(_SAMPLE, result.size), replace=False)
    rest = target = wide(result).ravel()[some]
    columns = {
        k: wide(argument.ravel()[some])
        for k, argument in enumerate(inputs)
        if argument.shape == result.shape
        and is_inexact(argument)
        and np.iscomplexobj(argument) == np.iscomplexobj(result)
    }
    chosen: list[int] = []
    while columns.keys() - chosen and len(chosen) < min(_MOST_ARGUMENTS, result.size // _FEW_ENTRIES):
        left = rest
        best = max(sorted(columns.keys() - chosen), key=lambda k: _explained(left, columns[k]))
        smaller = _beyond(target, [columns[k] for k in (*chosen, best)])
        if _energy(smaller) > 0.5 * _energy(rest):
            break
        chosen.append(best)
        rest = smaller
    return tuple(chosen)


def without(result: np.ndarray, arguments: Arrays) -> np.ndarray:
    """A result without what it has of arguments."""
    if not arguments:
        return wide(result)
    if result.size < _FEW_ENTRIES:
        return np.asarray(wide(result) - wide(arguments[0]))
    return _beyond(wide(result).ravel(), [wide(a).ravel() for a in arguments]).reshape(result.shape)


def wide(array: np.ndarray) -> np.ndarray:
    """The same numbers in a type that loses nothing of them."""
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)


def epsilon(dtype: str) -> float:
    """The step from 1 to the next number of a floating-point type."""
    information: Any = jnp.finfo
    return float(information(dtype).eps)


def is_inexact(array: np.ndarray) -> bool:
    """It has a floating-point or complex type that can be compared by a tolerance."""
    return str(array.dtype) in TOLERANCE


def _difference(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """How far two arrays are apart, as a part of the first one's largest entry, and how far they may be."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf"), 0.0
    if not is_inexact(a):
        return float(np.mean(a != b)) if a.size else 0.0, 0.0
    x, y = wide(a), wide(b)
    finite = np.isfinite(x)
    tolerance = TOLERANCE[str(a.dtype)]
    if not np.array_equal(finite, np.isfinite(y)):
        return float("inf"), tolerance
    scale = np.max(np.abs(x), initial=0.0, where=finite) or 1.0
    return float(np.max(np.abs(x - y), initial=0.0, where=finite) / scale), tolerance


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and np.array_equal(a, b)


def _movement(array: np.ndarray, nudged: np.ndarray) -> np.ndarray:
    """How much of a difference in each entry means nothing, by how far it moves with the inputs' last places."""
    if not array.size:
        return array
    moved = np.nan_to_num(np.abs(nudged - array), nan=np.inf)
    noise: np.ndarray = _NUDGES * moved + _LARGE_NUDGES * np.quantile(moved, 0.9)
    return noise


def _row(leaf: int, judged: tuple[float, float], argument: int | None = None) -> Row:
    row: Row = {"leaf": leaf, "error": judged[0], "tolerance": judged[1]}
    return row if argument is None else {**row, "argument": argument}


def _summary(rows: Sequence[Row], unseen: Sequence[int], leaves: int, ok: bool) -> dict[str, Any]:
    # Of several without any difference, the one that was free to have some, and of these what was added to an argument.
    worst = max(rows, key=lambda row: (_excess(row), row["tolerance"] > 0, "argument" in row), default=None)
    ok = ok and all(row["error"] <= row["tolerance"] for row in rows)
    return {"ok": ok, "worst": worst, "leaves": leaves, "unseen": list(dict.fromkeys(unseen))}


def _excess(row: Row) -> float:
    return float(row["error"] / (row["tolerance"] or 1e-12))


def _beyond(target: np.ndarray, columns: Arrays) -> np.ndarray:
    """What least squares leave of a vector."""
    products = np.array([[np.vdot(a, b) for b in columns] for a in columns])
    shares = np.linalg.lstsq(products, np.array([np.vdot(a, target) for a in columns]), rcond=None)[0]
    return np.asarray(target - sum(share * column for share, column in zip(shares, columns, strict=True)))


def _explained(target: np.ndarray, column: np.ndarray) -> float:
    return float(abs(np.vdot(column, target)) ** 2 / (_energy(column) or 1.0))


def _energy(vector: np.ndarray) -> float:
    return float(np.vdot(vector, vector).real)
