"""StableHLO modules with damage: bytes that flipped, parts that are missing or stand twice, and texts made to hurt."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache

import jax

from shardwright import _jax
from shardwright.models import build

MODELS = ("mlp", "gpt", "unet", "moe", "gns")
ARRAY = "tensor<4xf32>"


@cache
def forms(model: str) -> dict[str, bytes]:
    """A built-in model, tiny, as text, bytecode and portable artifact."""
    fn, args, _ = build(model, preset="tiny")
    module = _jax.copy_of(jax.jit(fn, keep_unused=True).lower(*args))
    return {"text": str(module).encode(), "bytecode": _jax.bytecode(module), "portable": _jax.serialize(module)}


def damaged(count: int, first: int = 0) -> Iterator[tuple[str, bytes]]:
    """So many modules by their seeds, each with a name that says what was done to it."""
    for seed in range(first, first + count):
        chance = random.Random(seed)
        model, form = chance.choice(MODELS), ("text", "bytecode", "portable")[seed % 3]
        damage = chance.choice((flip, replace, remove, repeat, copy, cut, splice))
        data = bytearray(forms(model)[form])
        for _ in range(chance.choice((1, 1, 2, 5, 20))):
            damage(chance, data)
        yield f"{seed}: {model} as {form}, {damage.__name__}", bytes(data)


def _span(chance: random.Random, data: bytearray, longest: int = 64) -> slice:
    start = chance.randrange(len(data))
    return slice(start, start + chance.randrange(1, longest))


def flip(chance: random.Random, data: bytearray) -> None:
    """A bit."""
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def replace(chance: random.Random, data: bytearray) -> None:
    """A byte by any other."""
    data[chance.randrange(len(data))] = chance.randrange(256)


def remove(chance: random.Random, data: bytearray) -> None:
    """A few bytes."""
    if len(data) > 100:
        del data[_span(chance, data)]


def repeat(chance: random.Random, data: bytearray) -> None:
    """A few bytes, elsewhere."""
    at = chance.randrange(len(data))
    data[at:at] = data[_span(chance, data)]


def copy(chance: random.Random, data: bytearray) -> None:
    """A few bytes over others."""
    part = data[_span(chance, data)]
    at = chance.randrange(len(data))
    data[at : at + len(part)] = part


def cut(chance: random.Random, data: bytearray) -> None:
    """The end off."""
    del data[max(4, chance.randrange(len(data))) :]


def splice(chance: random.Random, data: bytearray) -> None:
    """The end of another form onto this."""
    other = forms(chance.choice(MODELS))[chance.choice(("text", "bytecode", "portable"))]
    del data[max(4, chance.randrange(len(data))) :]
    data += other[chance.randrange(len(other)) :]


def _function(name: str, body: str, kind: str = "private ") -> str:
    return f"func.func {kind}@{name}(%x: {ARRAY}) -> {ARRAY} {{\n{body}\n}}\n"


def _calling(*names: str) -> str:
    lines = [f"%{k + 1} = func.call @{name}(%{k or 'x'}) : ({ARRAY}) -> {ARRAY}" for k, name in enumerate(names)]
    return "\n".join([*lines, f"return %{len(names)} : {ARRAY}"])


def nested_regions(depth: int) -> bytes:
    """``stablehlo.if`` in ``stablehlo.if``."""
    opened = "".join(f'%r{i} = "stablehlo.if"(%a) ({{\n' for i in range(depth))
    given = f'"stablehlo.return"(%x) : ({ARRAY}) -> ()\n'
    closed = "".join(
        f"}}, {{ {given} }}) : (tensor<i1>) -> {ARRAY}\n"
        + (f'"stablehlo.return"(%r{i}) : ({ARRAY}) -> ()\n' if i else f"return %r0 : {ARRAY}\n")
        for i in reversed(range(depth))
    )
    return f"func.func @main(%a: tensor<i1>, %x: {ARRAY}) -> {ARRAY} {{\n{opened}{given}{closed}}}".encode()


def hurtful() -> dict[str, tuple[bytes, str]]:
    """Modules that would end a process or go on for ever, and what is said of each."""
    same = f"return %x : {ARRAY}"
    main = _function("main", _calling("f0"), kind="")
    twice = "".join(_function(f"f{k}", _calling(f"f{k + 1}", f"f{k + 1}")) for k in range(60))
    chain = "".join(_function(f"f{k}", _calling(f"f{k + 1}")) for k in range(5000))
    end = _function("f60", same), _function("f5000", same)
    crashed = "cannot be read: the parser of MLIR crashed"
    texts = {
        "regions": (nested_regions(5000).decode(), crashed),
        "fewer regions": (
            nested_regions(250).decode(),
            "regions and calls are nested 251 deep, where 200 are allowed.",
        ),
        "a tuple of tuples": (f"func.func @main(%x: {'tuple<' * 20000}{ARRAY}{'>' * 20000}) {{ return }}", crashed),
        "a list of lists": (f"module attributes {{mhlo.a = {'[' * 50000}{']' * 50000}}} {{}}", crashed),
        "a place of places": ("module {} loc(" + 'callsite("a" at ' * 20000 + '"b"' + ")" * 20000 + ")", crashed),
        "calls itself": (_function("main", _calling("main"), ""), "the function 'main' calls itself (main → main)."),
        "calls in a circle": (
            main + _function("f0", _calling("f1")) + _function("f1", _calling("f0")),
            "calls itself (",
        ),
        "a long chain of calls": (main + chain + end[1], "deep, where 200 are allowed."),
        "calls that double": (main + twice + end[0], "ops where calls are written out"),
        "a function without body": (
            main + f"func.func private @f0({ARRAY}) -> {ARRAY}",
            "the function 'f0' has no body.",
        ),
        "jumps": ("func.func @main() { cf.br ^a\n^a: return }", "the function 'main' jumps between 2 blocks."),
    }
    return {name: (text.encode(), told) for name, (text, told) in texts.items()}
