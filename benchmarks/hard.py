"""Small programs on which local improvement gets stuck, from tactics and from nothing, though a better state is known.

They were found among 242 random ones of the kinds below (widths, meshes, devices and limits drawn at random), as those
where 25 local improvements from random states, or longer searches, met a state that is faster by 0.2% or more. Three
that are not hard any more, since prices were corrected, are gone; what is best is the best that was met since then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp

import shardwright as sw
from shardwright.devices import Device, find_device
from shardwright.price import CostModel, Places
from shardwright.request import MeshShape
from shardwright.search import Space, find_actions, find_keepers
from shardwright.space.state import State

Program = tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]
"""A function, its arguments, and which of them it may overwrite."""


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def chain(rows: int, *widths: int) -> Program:
    """Products one after the other, each with another width."""

    def fn(x: Any, ws: Any) -> Any:
        for w in ws:
            x = jnp.tanh(x @ w)
        return x

    return fn, (array(rows, widths[0]), [array(*pair) for pair in pairwise(widths)]), ()


def trained(rows: int, *widths: int) -> Program:
    """A step of training such a chain."""

    def loss(ws: Any, x: Any) -> Any:
        for w in ws:
            x = jnp.tanh(x @ w)
        return jnp.sum(x.astype(jnp.float32) ** 2)

    def fn(ws: Any, x: Any) -> Any:
        return jax.tree.map(lambda w, g: w - 0.1 * g, ws, jax.grad(loss)(ws, x))

    weights = [jax.ShapeDtypeStruct(pair, jnp.float32) for pair in pairwise(widths)]
    return fn, (weights, jax.ShapeDtypeStruct((rows, widths[0]), jnp.float32)), (0,)


def towers(left: tuple[int, ...], right: tuple[int, ...], joint: int) -> Program:
    """Two chains that want different axes, and the products of all pairs of their rows."""

    def run(x: Any, ws: Any) -> Any:
        for w in ws:
            x = jnp.tanh(x @ w)
        return x

    def weights(sizes: tuple[int, ...]) -> list[jax.ShapeDtypeStruct]:
        return [array(*pair) for pair in zip(sizes[1:], (*sizes[2:], joint), strict=True)]

    def fn(x: Any, ws: Any, y: Any, vs: Any) -> Any:
        return jax.nn.softmax(run(x, ws) @ run(y, vs).T)

    return fn, (array(*left[:2]), weights(left), array(*right[:2]), weights(right)), ()


def grams(rows: int, width: int, inner: int) -> Program:
    """Symmetric products, by rows and by columns, with a perceptron between them: conflicts of two kinds."""

    def fn(x: Any, w: Any, v: Any) -> Any:
        x = jax.nn.softmax(x @ x.T) @ x
        x = jax.nn.relu(x @ w) @ v
        return x @ (x.T @ x)

    return fn, (array(rows, width), array(width, inner), array(inner, width)), ()


def experts(batch: int, tokens: int, width: int, count: int, hidden: int, capacity: int) -> Program:
    """A mixture of experts: every token is sent to some, and its results are gathered."""

    def fn(x: Any, router: Any, w: Any, v: Any) -> Any:
        gate = jax.nn.softmax(jnp.einsum("btd,dec->btec", x, router))
        sent = jnp.einsum("btec,btd->becd", gate, x)
        hidden = jax.nn.relu(jnp.einsum("becd,edf->becf", sent, w))
        return jnp.einsum("btec,becd->btd", gate, jnp.einsum("becf,efd->becd", hidden, v))

    weights = array(width, count, capacity), array(count, width, hidden), array(count, hidden, width)
    return fn, (array(batch, tokens, width), *weights), ()


def network(shape: tuple[int, ...], *steps: tuple[str, tuple[int, ...]]) -> Program:
    """A network of tensors, contracted one after the other."""

    def fn(x: Any, ws: Any) -> Any:
        for (how, _), w in zip(steps, ws, strict=True):
            x = jnp.tanh(jnp.einsum(how, x, w))
        return x

    return fn, (array(*shape), [array(*sizes) for _, sizes in steps]), ()


def branches(rows: int, width: int, inners: tuple[int, ...]) -> Program:
    """Perceptrons side by side, of different widths, added up."""

    def fn(x: Any, ps: Any) -> Any:
        return sum(jax.nn.relu(x @ a) @ b for a, b in ps)

    return fn, (array(rows, width), [(array(width, inner), array(inner, width)) for inner in inners]), ()


def attention(rows: int, others: int, width: int, heads: int, size: int, hidden: int) -> Program:
    """Attention to other rows, and a perceptron."""

    def fn(x: Any, other: Any, wq: Any, wk: Any, wv: Any, wo: Any, a: Any, b: Any) -> Any:
        q = jnp.einsum("td,dnk->tnk", x, wq)
        k, v = (jnp.einsum("sd,dnk->snk", other, w) for w in (wk, wv))
        weights = jax.nn.softmax(jnp.einsum("tnk,snk->nts", q, k))
        x = x + jnp.einsum("nts,snk,nkd->td", weights, v, wo)
        return x + jax.nn.relu(x @ a) @ b

    inward = [array(width, heads, size)] * 3
    return (
        fn,
        (
            *(array(rows, width), array(others, width), *inward),
            *(array(heads, size, width), array(width, hidden), array(hidden, width)),
        ),
        (),
    )


@dataclass(frozen=True)
class Hard:
    """A case. ``part`` is the limit of memory as a part of what the unsharded program takes; 1 is all of the device.

    ``best_us`` is the fastest step known, in microseconds.
    """

    program: Program
    mesh: dict[str, int]
    part: float
    device: str
    best_us: float

    def problem(self) -> HardProblem:
        """What there is to choose from, and what prices it, with nothing priced yet."""
        return HardProblem(self)


class HardProblem:
    """A hard case, analysed."""

    def __init__(self, case: Hard) -> None:
        fn, args, donate = case.program
        self.analysis = sw.analyse(fn, *args, donate=donate)
        self.mesh, self.device = MeshShape.of(case.mesh), find_device(case.device)
        self.places = Places(self.analysis)
        self.whole, self.keepers = find_keepers(self.analysis, ())
        costs = self.costs()
        actions = find_actions(self.analysis, self.mesh, places=self.places)
        self.space = Space(self.analysis, costs, actions, self.whole, self.keepers)
        self.root = State(self.space.root, self.whole)
        unsharded = costs.evaluate(self.root).peak_bytes
        self.limit_bytes = _limit(case.part, unsharded, self.device)

    def costs(self) -> CostModel:
        """A cost model that has priced nothing yet, so that searches can be compared by their work."""
        return CostModel(self.places, self.mesh, self.device, self.whole)


def _limit(part: float, unsharded_bytes: int, device: Device) -> int:
    return device.usable_bytes if part == 1 else int(part * unsharded_bytes)


_2X4, _4X4, _8X2, _2X2X4 = {"a": 2, "b": 4}, {"a": 4, "b": 4}, {"a": 8, "b": 2}, {"a": 2, "b": 2, "c": 4}

HARD: dict[str, Hard] = {
    "chain of 4": Hard(chain(32, 128, 2048, 2048, 4096), _8X2, 0.2, "tpu-v3", 20.708),
    "chain of 6": Hard(chain(16, 4096, 128, 8192, 512, 256, 4096), _2X2X4, 0.12, "a100-80", 33.122),
    "trained, 3 axes": Hard(trained(8192, 256, 2048, 256), _2X2X4, 1, "tpu-v3", 189.672),
    "towers": Hard(towers((512, 64, 256, 4096), (2048, 1024, 2048, 256), 2048), _2X4, 0.3, "tpu-v5e", 71.382),
    "towers, 3 axes": Hard(towers((512, 1024), (8192, 2048), 64), _2X2X4, 1, "tpu-v5e", 22.796),
    "towers, tight": Hard(towers((4096, 64, 256), (64, 2048, 1024), 256), _2X2X4, 0.5, "tpu-v5e", 13.980),
    "grams": Hard(grams(2048, 4096, 8192), _4X4, 0.5, "tpu-v5e", 764.086),
    "experts": Hard(experts(32, 1024, 2048, 16, 2048, 64), _4X4, 1, "tpu-v3", 1341.353),
    "experts, 3 axes": Hard(experts(32, 512, 1024, 4, 1024, 64), _2X2X4, 0.12, "tpu-v5e", 114.513),
    "network": Hard(
        network(
            (64, 64),
            ("ba,abf->bf", (64, 64, 256)),
            ("bf,bc->cf", (64, 512)),
            ("cf,cd->df", (512, 32)),
            ("df,fbe->bde", (256, 64, 8)),
        ),
        *(_4X4, 0.12, "tpu-v3", 14.221),
    ),
    "branches": Hard(branches(512, 2048, (128, 2048, 512)), _8X2, 0.12, "tpu-v5e", 90.745),
    "attention, 3 axes": Hard(attention(8192, 8192, 1024, 4, 256, 1024), _2X2X4, 0.3, "a100-80", 209.092),
}
