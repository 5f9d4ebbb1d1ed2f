"""Files that were damaged: by accident, by an editor, by somebody who wants to see what happens. The same for a seed.

``damaged_bytes`` takes any file; ``damaged_json`` knows the structure of JSON. Both yield what was done and the result.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

DEEP = 100_000
_MARK = "@@raw@@"
_RAW = {
    "a number of 400 digits": "1" * 400,
    "a number of 10,000 digits": "9" * 10_000,
    "1e999": "1e999",
    "NaN": "NaN",
    "-Infinity": "-Infinity",
    "a deep list": "[" * DEEP + "]" * DEEP,
    "a deep object": '{"a":' * DEEP + "1" + "}" * DEEP,
    "a deep list that does not end": "[" * DEEP,
    "half a character": '"\\ud800"',
    "an unknown escape": '"\\q"',
    "nothing": "",
}
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 0.5, -0.0, 1e-300, 1e308, 2**31, 2**63, 10**18, 10**30),
    *("", "x", "data", "x[0]", "x[²]", "x[99]", "x[" + "9" * 900 + "]", "*", "[", "a\0b", "a\nb", "\x1b[31mred\x1b[0m"),
    *("é" * 10, "🙂", "\u202e", "x" * 100_000, "*" * 900, "tpu-v5e", "1", "NaN"),
    *([], {}, [[]], [None], {"": {}}, {"a": 1}, [0] * 30_000, ["x"] * 3, {str(k): k for k in range(5_000)}),
)


def damaged_bytes(data: bytes, count: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """Damage that does not know what is in a file."""
    random_ = random.Random(seed)
    kinds: list[Callable[[bytes, random.Random], tuple[str, bytes]]] = [
        _cut,
        _flipped,
        _flipped,
        _removed,
        _doubled,
        _inserted,
        _encoded,
        _swapped,
    ]
    for k in range(count):
        yield kinds[k % len(kinds)](data, random_)


def _cut(data: bytes, random_: random.Random) -> tuple[str, bytes]:
    length = random_.randrange(len(data))
    return f"cut after {length} bytes", data[:length]


def _flipped(data: bytes, random_: random.Random) -> tuple[str, bytes]:
    out = bytearray(data)
    places = [random_.randrange(len(out)) for _ in range(random_.choice([1, 1, 2, 20]))]
    for place in places:
        out[place] ^= 1 << random_.randrange(8)
    return f"bits flipped at {places}", bytes(out)


def _stretch(data: bytes, random_: random.Random) -> tuple[int, int]:
    start = random_.randrange(len(data))
    return start, min(len(data), start + random_.choice([1, 5, 50]))


def _removed(data: bytes, random_: random.Random) -> tuple[str, bytes]:
    start, stop = _stretch(data, random_)
    return f"bytes {start} to {stop} removed", data[:start] + data[stop:]


def _doubled(data: bytes, random_: random.Random) -> tuple[str, bytes]:
    start, stop = _stretch(data, random_)
    return f"bytes {start} to {stop} doubled", data[:stop] + data[start:]


def _inserted(data: bytes, random_: random.Random) -> tuple[str, bytes]:
    place = random_.randrange(len(data) + 1)
    what = random_.choice(
        [b"\0", b"\xff\xfe", b"\n", b'"', b"{", b"]", b",", b"\\", b"\xed\xa0\x80", random_.randbytes(20)]
    )
    return f"{what!r} inserted at {place}", data[:place] + what + data[place:]


def _encoded(data: bytes, random_: random.Random) -> tuple[str, bytes]:
    name = random_.choice(["utf-16", "utf-16-le", "utf-32", "utf-8-sig", "cp037"])
    return f"encoded as {name}", data.decode(errors="replace").encode(name, errors="replace")


def _swapped(data: bytes, random_: random.Random) -> tuple[str, bytes]:
    lines = data.splitlines(keepends=True)
    if len(lines) < 2:
        return "nothing", b""
    one, other = random_.sample(range(len(lines)), 2)
    lines[one], lines[other] = lines[other], lines[one]
    return f"lines {one} and {other} swapped", b"".join(lines)


def damaged_json(content: Any, count: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """Damage to one value of a JSON document, at any depth; every second time another type or an extreme value."""
    random_ = random.Random(seed)
    changes: list[Callable[[Any, Any, random.Random], str]] = [_dropped, _added, _renamed, _wrapped, _moved, _many]
    for k in range(count):
        copy = json.loads(json.dumps(content))
        container, key = random_.choice(list(_places(copy)))
        at = f"{key!r} of a {type(container).__name__}"
        text = ""
        if k % 8 == 7:
            name = random_.choice(list(_RAW))
            container[key] = _MARK
            done, text = f"{at} is {name}", json.dumps(copy, indent=1).replace(f'"{_MARK}"', _RAW[name])
        elif k % 8 == 3 and isinstance(container, dict):
            copy_of, done = json.dumps(container[key]), f"{at} stands twice"
            container[_MARK] = 0
            text = json.dumps(copy, indent=1).replace(f'"{_MARK}": 0', f"{json.dumps(key)}: {copy_of}")
        elif k % 2:
            done = changes[k // 2 % len(changes)](container, key, random_)
            done = f"{at} {done}"
        else:
            value = random_.choice(_VALUES)
            container[key] = value
            done = f"{at} is {repr(value)[:60]}"
        yield done, (text or json.dumps(copy, indent=1)).encode()


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a document with each of its keys."""
    entries = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in entries:
        yield content, key
        yield from _places(value)


def _dropped(container: Any, key: Any, _: random.Random) -> str:
    del container[key]
    return "is dropped"


def _added(container: Any, key: Any, random_: random.Random) -> str:
    value = random_.choice(_VALUES)
    if isinstance(container, list):
        container.insert(key, value)
    else:
        container[f"{key}s"] = value
    return f"has {repr(value)[:40]} beside it"


def _renamed(container: Any, key: Any, random_: random.Random) -> str:
    if isinstance(container, list):
        container.reverse()
        return "is in reverse"
    name = random_.choice(["", key.upper(), key + "\n", "x" * 50_000, key[:-1], "\x1b[2J"])
    container[name] = container.pop(key)
    return f"is called {name[:40]!r}"


def _wrapped(container: Any, key: Any, random_: random.Random) -> str:
    container[key] = random_.choice([lambda v: [v], lambda v: {"a": v}, str, lambda v: [v, v]])(container[key])
    return "is wrapped"


def _moved(container: Any, key: Any, random_: random.Random) -> str:
    other = random_.choice(list(container) if isinstance(container, dict) else range(len(container)))
    container[key], container[other] = container[other], container[key]
    return f"has changed places with {other!r}"


def _many(container: Any, key: Any, _: random.Random) -> str:
    value = container[key]
    container[key] = [value] * 20_000 if not isinstance(value, dict) else {f"a{k}": value for k in range(2_000)}
    return "is there many times"
