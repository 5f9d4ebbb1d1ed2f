"""A grammar of small programs: strategies that draw a function of arrays from the ops that JAX users write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from hypothesis import strategies as st
from jax import lax

SIZES = (2, 4, 8)


@dataclass(frozen=True)
class RandomProgram:
    """``steps`` make one tensor after the other from those before; the last few are returned."""

    arguments: tuple[tuple[int, ...], ...]
    steps: tuple[tuple[str, Callable[[list[Any]], Any]], ...]
    results: int = 4

    def __call__(self, *arguments: Any) -> Any:
        tensors = list(arguments)
        for _, step in self.steps:
            tensors.append(step(tensors))
        return tuple(tensors[len(arguments) :][-self.results :])

    def __repr__(self) -> str:
        return f"{list(self.arguments)} " + " ; ".join(name for name, _ in self.steps)


@st.composite
def programs(draw: st.DrawFn, sizes: tuple[int, ...] = SIZES, results: int = 4) -> RandomProgram:
    """A program of two to four arguments of rank one to three and up to seven steps, that returns the last few."""
    shape = st.lists(st.sampled_from(sizes), min_size=1, max_size=3).map(tuple)
    arguments = tuple(draw(st.lists(shape, min_size=2, max_size=4)))
    shapes = list(arguments)
    steps = []
    for _ in range(draw(st.integers(2, 7))):
        kind = draw(st.sampled_from(sorted(KINDS)))
        made = draw(KINDS[kind](shapes))
        if made is not None:
            text, step, out = made
            steps.append((f"%{len(shapes)}={kind}{text}", step))
            shapes.append(out)
    if not steps:
        steps.append(("tanh", lambda t: jnp.tanh(t[0])))
    return RandomProgram(arguments, tuple(steps), results)


def _pick(draw: st.DrawFn, shapes: list[tuple[int, ...]], rank: int = 1) -> int | None:
    found = [i for i, s in enumerate(shapes) if len(s) >= rank]
    # recent tensors more often: chains are more interesting than fans
    return draw(st.sampled_from(found + found[-3:])) if found else None


def _axis(draw: st.DrawFn, shape: tuple[int, ...]) -> int:
    return draw(st.integers(0, len(shape) - 1))


@st.composite
def _elementwise(draw, shapes):
    i = _pick(draw, shapes)
    same = [j for j, s in enumerate(shapes) if s == shapes[i]]
    j = draw(st.sampled_from(same))
    return f"({i},{j})", lambda t: jnp.tanh(t[i]) + 0.5 * t[j], shapes[i]


@st.composite
def _dot(draw, shapes):
    i, j = _pick(draw, shapes), _pick(draw, shapes)
    a, b = shapes[i], shapes[j]
    pairs = [(x, y) for x in range(len(a)) for y in range(len(b)) if a[x] == b[y]]
    if not pairs:
        return None
    contract = draw(st.sampled_from(pairs))
    rest = [(x, y) for x, y in pairs if x != contract[0] and y != contract[1]]
    batch = draw(st.sampled_from(rest)) if rest and draw(st.booleans()) else None
    batches = ((batch[0],), (batch[1],)) if batch else ((), ())
    numbers = (((contract[0],), (contract[1],)), batches)
    out = [a[batch[0]]] if batch else []
    out += [s for k, s in enumerate(a) if k != contract[0] and (not batch or k != batch[0])]
    out += [s for k, s in enumerate(b) if k != contract[1] and (not batch or k != batch[1])]
    if len(out) > 4:
        return None
    return f"({i},{j},{numbers})", lambda t: lax.dot_general(t[i], t[j], numbers) * 0.3, tuple(out)


@st.composite
def _reduce(draw, shapes):
    i = _pick(draw, shapes, rank=2)
    if i is None:
        return None
    axis = _axis(draw, shapes[i])
    how = draw(st.sampled_from([jnp.sum, jnp.max]))
    return f"({i},{axis})", lambda t: how(t[i], axis=axis), shapes[i][:axis] + shapes[i][axis + 1 :]


@st.composite
def _transpose(draw, shapes):
    i = _pick(draw, shapes, rank=2)
    if i is None:
        return None
    order = tuple(draw(st.permutations(range(len(shapes[i])))))
    return f"({i},{order})", lambda t: jnp.transpose(t[i], order), tuple(shapes[i][k] for k in order)


@st.composite
def _reshape(draw, shapes):
    i = _pick(draw, shapes)
    shape = shapes[i]
    k = _axis(draw, shape)
    if draw(st.booleans()) and shape[k] > 2 and shape[k] % 2 == 0:
        out = (*shape[:k], 2, shape[k] // 2, *shape[k + 1 :])
    elif k + 1 < len(shape):
        out = (*shape[:k], shape[k] * shape[k + 1], *shape[k + 2 :])
    else:
        return None
    if len(out) > 4:
        return None
    return f"({i},{out})", lambda t: jnp.reshape(t[i], out), out


@st.composite
def _broadcast(draw, shapes):
    i = _pick(draw, shapes)
    if len(shapes[i]) > 3:
        return None
    out = (draw(st.sampled_from(SIZES)), *shapes[i])
    return f"({i},{out})", lambda t: jnp.broadcast_to(t[i], out), out


@st.composite
def _concatenate(draw, shapes):
    i = _pick(draw, shapes)
    axis = _axis(draw, shapes[i])
    out = tuple(2 * s if k == axis else s for k, s in enumerate(shapes[i]))
    return f"({i},{axis})", lambda t: jnp.concatenate([t[i], 2 * t[i]], axis), out


@st.composite
def _slice(draw, shapes):
    i = _pick(draw, shapes)
    axis = _axis(draw, shapes[i])
    size = shapes[i][axis]
    if size < 2:
        return None
    start, stride = draw(st.integers(0, size // 2 - 1)), draw(st.sampled_from([1, 2]))
    index = tuple(slice(start, None, stride) if k == axis else slice(None) for k in range(len(shapes[i])))
    kept = len(range(start, size, stride))
    out = tuple(kept if k == axis else s for k, s in enumerate(shapes[i]))
    return f"({i},{axis},{start}::{stride})", lambda t: t[i][index], out


@st.composite
def _pad(draw, shapes):
    i = _pick(draw, shapes)
    axis = _axis(draw, shapes[i])
    low, high = draw(st.integers(0, 2)), draw(st.integers(0, 4))
    widths = [(low, high) if k == axis else (0, 0) for k in range(len(shapes[i]))]
    out = tuple(s + low + high if k == axis else s for k, s in enumerate(shapes[i]))
    return f"({i},{widths})", lambda t: jnp.pad(t[i], widths), out


@st.composite
def _gather(draw, shapes):
    i, j = _pick(draw, shapes), _pick(draw, shapes)
    if len(shapes[i]) + len(shapes[j]) > 5:
        return None
    n = shapes[i][0]
    out = (*shapes[j], *shapes[i][1:])
    return f"({i},{j})", lambda t: jnp.take(t[i], (jnp.abs(t[j]) * 7).astype(jnp.int32) % n, axis=0, mode="clip"), out


@st.composite
def _scatter(draw, shapes):
    i, j = _pick(draw, shapes), _pick(draw, shapes)
    rows = shapes[j]
    if len(rows) != 1 or len(shapes[i]) > 3:
        return None
    n = shapes[i][0]

    def step(t):
        index = (jnp.abs(t[j]) * 7).astype(jnp.int32) % n
        return t[i].at[index].add(jnp.ones((*rows, *shapes[i][1:]), t[i].dtype))

    return f"({i},{j})", step, shapes[i]


@st.composite
def _dynamic_slice(draw, shapes):
    i = _pick(draw, shapes)
    axis = _axis(draw, shapes[i])
    size = max(1, shapes[i][axis] // 2)
    out = tuple(size if k == axis else s for k, s in enumerate(shapes[i]))

    def step(t):
        # In bounds: XLA of jaxlib 0.10.2 forgets to clamp an index beyond them when it merges two dynamic slices, as it
        # does whenever the result of one is sharded (plain JAX with a sharding constraint shows it; 0.12 has it right).
        start = (jnp.abs(t[i].reshape(-1)[0]) * 5).astype(jnp.int32) % (shapes[i][axis] - size + 1)
        piece = lax.dynamic_slice_in_dim(t[i], start, size, axis)
        return lax.dynamic_slice_in_dim(lax.dynamic_update_slice_in_dim(t[i], piece * 2, 0, axis), 0, size, axis)

    return f"({i},{axis})", step, out


@st.composite
def _scan(draw, shapes):
    i, j = _pick(draw, shapes), _pick(draw, shapes, rank=2)
    if j is None or shapes[j][1:] != shapes[i]:
        return f"({i})", lambda t: lax.fori_loop(0, 3, lambda _, h: jnp.sin(h) + 0.1, t[i]), shapes[i]
    return f"({i},{j})", lambda t: lax.scan(lambda h, x: (jnp.tanh(h + x), None), t[i], t[j])[0], shapes[i]


@st.composite
def _cond(draw, shapes):
    i = _pick(draw, shapes)

    def step(t):
        return lax.cond(jnp.sum(t[i]) > 0, lambda: jnp.cos(t[i]), lambda: t[i] * 2)

    return f"({i})", step, shapes[i]


@st.composite
def _sort(draw, shapes):
    i = _pick(draw, shapes)
    axis = _axis(draw, shapes[i])
    how = draw(st.sampled_from([jnp.sort, jnp.cumsum]))
    return f"({i},{axis})", lambda t: how(t[i], axis=axis), shapes[i]


KINDS = {
    "elementwise": _elementwise,
    "dot": _dot,
    "reduce": _reduce,
    "transpose": _transpose,
    "reshape": _reshape,
    "broadcast": _broadcast,
    "concatenate": _concatenate,
    "slice": _slice,
    "pad": _pad,
    "gather": _gather,
    "scatter": _scatter,
    "dynamic_slice": _dynamic_slice,
    "scan": _scan,
    "cond": _cond,
    "sort": _sort,
}
