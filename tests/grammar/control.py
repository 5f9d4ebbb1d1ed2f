"""Steps with bodies: loops, branches and calls, in one another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from grammar.sketch import Sketch

Body = Callable[[Any, list[Any]], Any]
"""From a value and the step's further operands to a value of the same shape."""
DEEPEST = 3


def body(s: Sketch, i: int, operands: list[int], depth: int) -> tuple[str, Body]:
    """What is done to a value of tensor i's shape, of one to three parts."""
    parts = [part(s, i, operands, depth) for _ in range(s.integer(1, 3 if depth < 2 else 1))]

    def fn(x: Any, more: list[Any]) -> Any:
        for _, each in parts:
            x = each(x, more)
        return x

    return " ".join(text for text, _ in parts), fn


def part(s: Sketch, i: int, operands: list[int], depth: int) -> tuple[str, Body]:
    shape = s[i].shape
    names = ["tanh", "roll", "reverse", "normalise", "add"]
    if len(shape) == 2:
        names += ["dot"] * 2
    if depth < DEEPEST:
        names += [*LOOPS, *LOOPS]
        if not s.gradient:
            names.append("while")
    name = s.choose(names)
    axis = s.integer(0, len(shape) - 1)
    if name in LOOPS or name == "while":
        return (LOOPS | {"while": while_loop})[name](s, i, operands, depth + 1)
    if name in ("add", "dot"):
        operands.append(s.argument(shape if name == "add" else (shape[1], shape[1])))
        k = len(operands) - 1
        if name == "add":
            return "add", lambda x, more: jnp.sin(x) + 0.3 * more[k]
        return "dot", lambda x, more: jnp.tanh(x @ more[k])
    fns: dict[str, Body] = {
        "tanh": lambda x, _: jnp.tanh(x),
        "roll": lambda x, _: 0.9 * jnp.roll(x, 1, axis) + 0.1,
        "reverse": lambda x, _: lax.rev(jnp.cos(x), (axis,)),
        "normalise": lambda x, _: x / jnp.sqrt(1 + jnp.mean(x * x, axis, keepdims=True)),
    }
    return name, fns[name]


def scan(s: Sketch, i: int, operands: list[int], depth: int) -> tuple[str, Body]:
    """Over a stack, and what is made of it on the way is used."""
    length = s.choose([1, 2, 3, 4])
    operands.append(s.argument((length, *s[i].shape)))
    k = len(operands) - 1
    text, inner = body(s, i, operands, depth)
    back = s.chance(0.3)

    def fn(x: Any, more: list[Any]) -> Any:
        def once(h: Any, y: Any) -> tuple[Any, Any]:
            h = inner(0.5 * h + y, more)
            return h, jnp.tanh(h)

        last, stack = lax.scan(once, x, more[k], reverse=back)
        return last + 0.2 * jnp.sum(stack, 0)

    return f"scan{length}[{text}]", fn


def fori(s: Sketch, i: int, operands: list[int], depth: int) -> tuple[str, Body]:
    text, inner = body(s, i, operands, depth)
    length = s.integer(1, 3)
    return f"for{length}[{text}]", lambda x, more: lax.fori_loop(0, length, lambda _, h: inner(h, more), x)


def while_loop(s: Sketch, i: int, operands: list[int], depth: int) -> tuple[str, Body]:
    operands.append(s.argument((2,), "i"))
    k = len(operands) - 1
    text, inner = body(s, i, operands, depth)

    def fn(x: Any, more: list[Any]) -> Any:
        return lax.while_loop(
            lambda state: state[0] > 0, lambda state: (state[0] - 1, inner(state[1], more)), (more[k][0] % 4, x)
        )[1]

    return f"while[{text}]", fn


def cond(s: Sketch, i: int, operands: list[int], depth: int) -> tuple[str, Body]:
    operands.append(s.argument((2,), "i"))
    k = len(operands) - 1
    (yes, first), (no, second) = body(s, i, operands, depth), body(s, i, operands, depth)

    def fn(x: Any, more: list[Any]) -> Any:
        return lax.cond(more[k][1] % 2 == 0, lambda h: first(h, more), lambda h: second(h, more), x)

    return f"if[{yes} else {no}]", fn


def switch(s: Sketch, i: int, operands: list[int], depth: int) -> tuple[str, Body]:
    operands.append(s.argument((1,), "i"))
    k = len(operands) - 1
    branches = [body(s, i, operands, depth) for _ in range(3)]

    def fn(x: Any, more: list[Any]) -> Any:
        return lax.switch(more[k][0] % 3, [lambda h, b=b: b(h, more) for _, b in branches], x)

    return f"switch[{' | '.join(text for text, _ in branches)}]", fn


def call(s: Sketch, i: int, operands: list[int], depth: int) -> tuple[str, Body]:
    text, inner = body(s, i, operands, depth)
    how = s.choose(["jit", "checkpoint"])
    wrap = {"jit": jax.jit, "checkpoint": jax.checkpoint}[how]
    return f"{how}[{text}]", lambda x, more: wrap(lambda h, m: inner(h, m))(x, more)


LOOPS = {"scan": scan, "fori": fori, "cond": cond, "switch": switch, "call": call}


def control(s: Sketch) -> bool:
    i = s.pick("f", ranks=(1, 2, 3))
    name = s.choose([*LOOPS] if s.gradient else [*LOOPS, "while"])
    operands: list[int] = []
    text, fn = (LOOPS | {"while": while_loop})[name](s, i, operands, 1)
    return s.step(name, f" {text}", [i, *operands], lambda x, *more: fn(x, list(more)))
